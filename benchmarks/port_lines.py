"""What a recall run's counted lines are: how many name anything that a reader of text could see.

    python benchmarks/port_recall.py MIRRORS --set held --misses lines.tsv
    python benchmarks/port_lines.py lines.tsv > result.json

A port also rewrites lines that name nothing of CUDA's or of a warp's: a project's own wrappers and enumerations, the
code round a call that is replaced, options of its own. Here the lines are parted by their old text alone, whatever
the audit says of them.
"""

from __future__ import annotations

import collections
import json
import re
import sys
from pathlib import Path

NAMED = re.compile(
    r"(?i)cuda|nvcc|nvidia|nvml|nvgpu|nccl|nvtx|nvshmem|cu(blas|dnn|rand|fft|sparse|solver|tlass)|\bcu[A-Z]\w|warp|\blane|__shfl|ballot|"
    r"\bptx\b|\basm\b|\bsm_?\d\d|capability|\bcub::|thrust|\bcg::|cooperative_groups|float8|flash_attn|xformers"
)


def main() -> None:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name in sys.argv[1:]:
        for row in Path(name).read_text().splitlines():
            mark, repo, _, text, *_ = row.split("\t")
            kind = "named" if NAMED.search(text) else "unnamed"
            for key in (repo, "all"):
                counts[key][kind] += 1
                counts[key][f"{kind}_flagged"] += mark != "MISS"
    print(json.dumps({repo: dict(sorted(c.items())) for repo, c in counts.items()}, indent=1))


if __name__ == "__main__":
    main()
