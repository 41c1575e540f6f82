"""Count the scenarios of tests/conformance/plain_scenarios.py that are right, each in a process of its own.

    PYTHONPATH=src:. python tests/gpu/scenarios.py [--stock] [--out FILE] [NAMES...]

Without a GPU it takes the simulator. ``--stock`` asks torch alone, which knows nothing of gfxgraph's policies.
Exit status: 0 if every scenario is right, 1 otherwise.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIMIT_S = 90
ONE = """
import sys, torch, gfxgraph
name, is_stock = sys.argv[1], sys.argv[2] == "stock"
has_gpu = torch.cuda.is_available()
if is_stock and not has_gpu:
    import gfxgraph_simulator as simulator
    simulator.install("hip")
elif not is_stock:
    gfxgraph.enable(allow_cuda=has_gpu, simulate=None if has_gpu else "hip", validate=False)
from tests.conformance.plain_scenarios import SCENARIOS
SCENARIOS[name][1]()
torch.cuda.synchronize()
print("right", flush=True)
"""


def run(name: str, kind: str) -> dict[str, str | float]:
    """One scenario: its outcome, and the end of what it said where it is not right."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", ONE, name, kind],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "hangs", "seconds": LIMIT_S, "said": ""}
    said = done.stderr.strip().splitlines()
    if done.returncode == 0 and "right" in done.stdout:
        outcome = "right"
    elif done.returncode > 0 and "right" not in done.stdout:
        outcome = "wrong" if said and said[-1].startswith("AssertionError") else "raises"
    else:
        outcome = "dies at exit" if "right" in done.stdout else "dies"
    return {
        "outcome": outcome,
        "seconds": round(time.monotonic() - began, 1),
        "said": "" if outcome == "right" else "\n".join(said[-6:]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    args = parser.parse_args()
    import torch
    from tests.conformance.plain_scenarios import SCENARIOS

    kind, began = "stock" if args.stock else "gfxgraph", time.monotonic()
    names = args.names or [*SCENARIOS]
    with ThreadPoolExecutor(args.processes) as pool:
        found = dict(zip(names, pool.map(lambda name: run(name, kind), names)))
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, result in found.items():
        family = SCENARIOS[name][0]
        counts[family]["right"] += result["outcome"] == "right"
        counts[family]["of"] += 1
        if result["outcome"] != "right":
            print(f"{name}: {result['outcome']}\n{result['said']}", file=sys.stderr)
    report = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none (simulator, hip)",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "configuration": kind,
        "right": sum(each["right"] for each in counts.values()),
        "of": len(found),
        "families": {family: dict(count) for family, count in counts.items()},
        "wall_s": round(time.monotonic() - began, 1),
        "scenarios": found,
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: value for name, value in report.items() if name != "scenarios"}, indent=1))
    return 0 if report["right"] == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
