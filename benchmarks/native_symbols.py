"""How much of CUDA's graph API libcudagraph_compat answers, and what of it each HIP has.

    python benchmarks/native_symbols.py BUILD [OUT]

BUILD is where the native package was built. Genuine libcudarts are looked for in CUDA toolkits, in every
Python environment named in GFXGRAPH_ENVIRONMENTS (colon-separated) and in this one; what a HIP lacks is taken
from the emulator's runs (benchmarks/results/emulator_c_api.json).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
KINDS = {
    **dict.fromkeys(("SAME", "CONVERTED", "PTSZ", "PTSZ_CHANGED"), "mapped"),
    **dict.fromkeys(("BRIDGED", "CHANGED", "12"), "bridged"),
    "REFUSED": "refused",
}


def exported(library: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].replace("@@", "@") for line in done.stdout.splitlines()}


def is_graph(symbol: str) -> bool:
    name = symbol.split("@")[0]
    if name.startswith("cudaGraphics"):
        return False
    return name.startswith("cudaGraph") or any(word in name for word in ("Captur", "UserObject", "GraphMem"))


def genuine() -> list[Path]:
    folders = [*Path("/usr/local").glob("cuda*/lib*"), *Path("/opt").glob("cuda*/lib*")]
    for place in [sys.prefix, *filter(None, os.environ.get("GFXGRAPH_ENVIRONMENTS", "").split(":"))]:
        folders += Path(place).glob("lib/python3*/site-packages/nvidia/*/lib")
    return sorted({file.resolve() for folder in folders for file in folder.glob("libcudart.so.1?")})


def coverage(build: Path) -> dict[str, Any]:
    listed = (ROOT / "native/compat/cuda.inc").read_text(encoding="utf-8")
    rows = re.findall(r"^CUDA_(\w+)\((\w+),", listed, re.MULTILINE)
    kinds = [KINDS[kind] for kind, _ in rows if kind != "CALL"]
    ours = exported(build / "libcudagraph_compat.so")
    libraries: dict[str, dict[str, Any]] = {}
    for library in genuine():
        theirs = {symbol for symbol in exported(library) if is_graph(symbol)}
        key = f"{library.name}, {library.stat().st_size} bytes"
        libraries[key] = {
            "graph_symbols": len(theirs),
            "answered": len(theirs & ours),
            "missing": sorted(theirs - ours),
        }
    emulated = RESULTS / "emulator_c_api.json"
    runs = json.loads(emulated.read_text(encoding="utf-8"))["runs"] if emulated.exists() else {}
    return {
        "what": "graph, capture and user-object functions of libcudart 12 and 13 in libcudagraph_compat",
        "functions": len(kinds),
        **{kind: kinds.count(kind) for kind in ("mapped", "bridged", "refused")},
        "genuine": libraries,
        "absent_in_hip": {version: run["outcomes"]["compat"]["facts"]["absent"] for version, run in runs.items()},
    }


def main() -> None:
    build = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else RESULTS / "native_symbols.json"
    out.write_text(json.dumps(coverage(build), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
