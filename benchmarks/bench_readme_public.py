"""The three workloads of the first public page, and a decoder's layers: eager, graph and compiled in one run.

    python benchmarks/bench_readme_public.py [--rounds N] [--run-count N] [--output FILE]

Writes every sample with its provenance. It needs no installation beside a checkout. Without a GPU it runs in the
simulator, one round and without Inductor, in less than a minute: the results are right there, the times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
if importlib.util.find_spec("gfxgraph") is None:
    sys.path.insert(0, str(ROOT / "src"))

import measuring as bench  # noqa: E402
import torch  # noqa: E402

import gfxgraph  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="25; 1 in the simulator")
    parser.add_argument("--run-count", type=int, default=1, help="times that everything is built and measured anew")
    parser.add_argument("--output", "--out", type=Path)
    asked = parser.parse_args()
    is_simulated = not torch.cuda.is_available() or gfxgraph.is_enabled()
    if is_simulated:
        print("no GPU: in the simulator, whose times mean nothing", file=sys.stderr)
    gfxgraph.enable(simulate="hip" if is_simulated else None, allow_cuda=not is_simulated, validate=False)
    rounds = asked.rounds or (1 if is_simulated else 25)
    ways = [way for way in bench.WAYS if not (is_simulated and way in ("compiled", "reduce-overhead"))]
    runs = []
    for run in range(asked.run_count):
        results, found = [], []
        for number, workload in enumerate(bench.WORKLOADS, 1):
            where = f"run {run + 1} of {asked.run_count}, workload {number} of {len(bench.WORKLOADS)}"
            print(f"{where}: {workload.name}, {', '.join(ways)}", file=sys.stderr, flush=True)
            n_before = gfxgraph.stats()["fallback_count"]
            fn, args = workload.make()
            results.append(bench.measure(workload.name, fn, args, ways, rounds))
            fell_back = gfxgraph.stats()["fallback_count"] > n_before
            found.append({**results[-1].as_dict(), "fallback": fell_back})
        print(bench.table(results))
        runs.append(found)
    if asked.output is not None:
        provenance = {**bench.provenance(), "commit_sha": commit()}
        table = {"provenance": provenance, "results": runs[-1], "runs": runs}
        asked.output.parent.mkdir(parents=True, exist_ok=True)
        asked.output.write_text(json.dumps(table, indent=1) + "\n")


def commit() -> str | None:
    """The checkout's commit, None outside of one."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


if __name__ == "__main__":
    main()
