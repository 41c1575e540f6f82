"""Draw findings at random for a hand count of noise.

    python benchmarks/port_recall.py MIRRORS --set held --keep FOLDER
    python benchmarks/port_noise.py FOLDER [--seed 20261121] [--count 200] > sample.md

Takes the findings that ``port_recall.py`` kept of the state before each port, draws the same number from each
repository (all of them where there are fewer, and then more from the others), and prints each with its lines
around, for a person to judge: is this a place that a ROCm port must look at (kept, changed or guarded), or noise?
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from gfxgraph.port.model import fill
from gfxgraph.port.registry import find


def draw(pools: dict[str, list[Any]], count: int, seed: int) -> list[tuple[str, Any]]:
    """The same number from each pool; what a small pool lacks is drawn from the others, in turns."""
    chooser = random.Random(seed)
    shuffled = {name: chooser.sample(pool, len(pool)) for name, pool in sorted(pools.items())}
    drawn: dict[str, list[Any]] = {name: [] for name in shuffled}
    left = count
    while left and any(shuffled.values()):
        for name, pool in shuffled.items():
            if pool and left:
                drawn[name].append(pool.pop())
                left -= 1
    return [(name, item) for name, items in drawn.items() for item in items]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kept", type=Path)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    pools = {p.stem.replace("+", "/", 1): json.loads(p.read_text()) for p in sorted(options.kept.glob("*.json"))}
    for number, (name, f) in enumerate(draw(pools, options.count, options.seed), 1):
        rule = find(f["rule"])
        assert rule is not None
        what = fill(rule.rule.en.what, f["values"])
        print(f"{number}. {name[:-31]} {f['path']}:{f['line']} {f['rule']} {f['severity']}: {what}")
        for n, text in f["near"]:
            print(f"    {'>' if n == f['line'] else ' '} {text.rstrip()}")


if __name__ == "__main__":
    main()
