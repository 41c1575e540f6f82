"""Compile the kernels for AMD GPUs that are not here, and write what the code objects say.

    python tools/make_kernel_table.py [--out FILE] [--target gfx1030]... [--dtype fp16]...

Needs Triton, of a version that knows the targets (3.8 knows all of them), and no GPU. Writes one JSON object:
Triton's version, a digest of the sources, and a row for each launch of each case.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
OUT = ROOT / "benchmarks" / "results" / "kernels_code_objects.json"


def main() -> int:
    import compiled_kernels

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--target", action="append", choices=list(compiled_kernels.TARGETS))
    parser.add_argument("--dtype", action="append", choices=list(compiled_kernels.DTYPES))
    asked = parser.parse_args()
    targets = {name: compiled_kernels.TARGETS[name] for name in asked.target or compiled_kernels.TARGETS}
    dtypes = {name: compiled_kernels.DTYPES[name] for name in asked.dtype or compiled_kernels.DTYPES}
    rows = []
    for row in compiled_kernels.rows(targets, dtypes):
        rows.append(row)
        is_bad = (
            row["vgpr_spills"]
            or row["sgpr_spills"]
            or row["scratch_nbytes"]
            or row["lds_nbytes"] > compiled_kernels.lds_limit(row["target"])
        )
        if is_bad:
            print(f"spills or too much LDS: {row}", file=sys.stderr)
    table = {
        "made_by": "tools/make_kernel_table.py",
        "ran_on_hardware": False,
        "triton": version("triton"),
        "sources": compiled_kernels.source_digest(),
        "compute_units": targets,
        "rows": rows,
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps({key: value for key, value in table.items() if key != "rows"}, indent=1)
    asked.out.write_text(f'{head[:-2]},\n "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(rows)} rows in {asked.out}\n{compiled_kernels.table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
