"""The three workloads of the first public page, and a decoder's layers: eager, graph and compiled in one run.

    python benchmarks/bench_readme_public.py [--rounds N] [--out FILE]

Writes every sample with its provenance; ``gfxgraph bench`` prints the same as a table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gfxgraph
from gfxgraph.reporting import bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    gfxgraph.enable(allow_cuda=True, validate=False)
    results = []
    for workload in bench.WORKLOADS:
        fn, args = workload.make()
        results.append(bench.measure(workload.name, fn, args, tuple(bench.WAYS), asked.rounds))
    print(bench.table(results))
    table = {"provenance": bench.provenance(), "results": [result.as_dict() for result in results]}
    if asked.out is not None:
        asked.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
