"""Draw findings at random for a hand count of noise.

    python benchmarks/port_recall.py MIRRORS --set held --keep FOLDER
    python benchmarks/port_noise.py FOLDER [--seed 20261121] [--count 200] > SAMPLE.md

Takes the findings that ``port_recall.py`` kept of the state before each port, draws the same number from each
repository (all of them where there are fewer, and then more from the others), and prints each with its lines
around, for a person to judge: is this a place that a ROCm port must look at (kept, changed or guarded), or noise?

    python benchmarks/port_noise.py FOLDER --judged verdicts.txt > result.json

A line of ``verdicts.txt`` is the number of a finding that is noise, and why; the others are none.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from gfxgraph_port.model import fill
from gfxgraph_port.registry import find


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


def tally(drawn: list[tuple[str, Any]], verdicts: str, seed: int) -> dict[str, Any]:
    """The share of noise and every finding of the sample with its verdict."""
    noise = {int(number): why for line in verdicts.splitlines() if line for number, _, why in [line.partition(" ")]}
    rows = [
        {"n": n, "port": name, "place": f"{f['path']}:{f['line']}", "rule": f["rule"], "noise": noise.get(n, "")}
        for n, (name, f) in enumerate(drawn, 1)
    ]
    share = f"{100 * len(noise) / len(rows):.0f}%"
    return {"seed": seed, "sampled": len(rows), "noise": len(noise), "share": share, "findings": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kept", type=Path)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument(
        "--judged", type=Path, help="numbers of what is noise, with reasons: print the result as JSON"
    )
    options = parser.parse_args()
    pools = {p.stem.replace("+", "/", 1): json.loads(p.read_text()) for p in sorted(options.kept.glob("*.json"))}
    drawn = draw(pools, options.count, options.seed)
    if options.judged:
        print(json.dumps(tally(drawn, options.judged.read_text(), options.seed), indent=1))
        return
    for number, (name, f) in enumerate(drawn, 1):
        rule = find(f["rule"])
        assert rule is not None
        what = fill(rule.rule.en.what, f["values"])
        print(f"{number}. {name[:-31]} {f['path']}:{f['line']} {f['rule']} {f['severity']}: {what}")
        for n, text in f["near"]:
            print(f"    {'>' if n == f['line'] else ' '} {text.rstrip()}")


if __name__ == "__main__":
    main()
