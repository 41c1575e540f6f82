"""What the guard costs a replay: off against a process without it, tier 1 against off, a node at tier 2; in one run.

    python benchmarks/bench_guard.py [--out FILE] [--reps N]

Writes one JSON object: environment, and one entry a figure with every repeat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from bench_core import chain, cpu_us, environment, paired, summary  # noqa: E402

import gfxgraph  # noqa: E402
from gfxgraph.process import process  # noqa: E402
from gfxgraph.types import GuardTier  # noqa: E402

# Short blocks, so that the queue of launches never fills up, and many, so that their median means something.
BLOCK = 100
N_BLOCKS = 40


def alternated(graphs: list, n_blocks: int, reps: int) -> list[list[float]]:
    """CPU time of one replay of each graph, in turns that change their order; each value a median of blocks."""
    found: list[list[float]] = [[] for _ in graphs]
    for graph, *_ in graphs:
        cpu_us(graph, 200)
    for _ in range(reps):
        blocks: list[list[float]] = [[] for _ in graphs]
        for turn in range(n_blocks):
            order = list(enumerate(graphs))
            for at, (graph, *_) in order if turn % 2 else order[::-1]:
                blocks[at].append(cpu_us(graph, BLOCK))
        for into, times in zip(found, blocks):
            into.append(statistics.median(times))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=15)
    parser.add_argument("--simulate", default="", help="a profile, to see that it runs; its times mean nothing")
    options = parser.parse_args()
    stock_class = torch.cuda.CUDAGraph
    if options.simulate:
        gfxgraph.enable(simulate=options.simulate, validate=False)
        stock_class = process.require().base
    else:
        gfxgraph.enable(allow_cuda=torch.version.hip is None, validate=False)
    n_blocks = 2 if options.simulate else N_BLOCKS
    figures = []
    never = {n_nodes: chain(n_nodes, torch.cuda.CUDAGraph) for n_nodes in (1, 50)}  # no guard in the process yet
    for n_nodes in (1, 50):
        stock = chain(n_nodes, stock_class)
        gfxgraph.guard_level(GuardTier.SAFE)
        safe = chain(n_nodes, torch.cuda.CUDAGraph)
        gfxgraph.guard_level(GuardTier.OFF)
        off = chain(n_nodes, torch.cuda.CUDAGraph)
        times = alternated([stock, never[n_nodes], off, safe], n_blocks, options.reps)
        # The drop-in itself may cost a little; the guard that is off may not.
        named = f"{n_nodes} node(s)"
        figures.append(paired(f"CPU time of replay, drop-in against torch, {named}", "us", times[0], times[1], 1.05))
        figures.append(paired(f"CPU time of replay, guard off, {named}", "us", times[1], times[2], 1.01))
        figures.append(paired(f"CPU time of replay, tier 1, {named}", "us", times[2], times[3], 1.20))
    gfxgraph.guard_level(GuardTier.LOCALIZE)
    walked, *_ = kept = chain(50, torch.cuda.CUDAGraph)
    per_node = [cpu_us(walked, 4) / 50 for _ in range(options.reps)]
    figures.append({"figure": "tier 2, time a node", "unit": "us", "gfxgraph": summary(per_node)})
    begun = time.perf_counter()
    gfxgraph.guard_level(GuardTier.SAFE)
    again = chain(800, torch.cuda.CUDAGraph)
    figures.append({"figure": "tier 1, capture of 800 nodes", "unit": "s", "value": time.perf_counter() - begun})
    del kept, again
    text = json.dumps({"environment": environment(), "figures": figures}, indent=1)
    for figure in figures:
        ratio = figure.get("ratio")
        if ratio:
            spread = f"{min(ratio['values']):.3f} to {max(ratio['values']):.3f}"
            ours = statistics.median(figure["gfxgraph"]["values"])
            print(f"{figure['figure']}: {ratio['median']:.3f}x ({spread}), {ours:.2f} us")
        else:
            print(f"{figure['figure']}: {figure.get('value') or figure['gfxgraph']['median']:.2f} {figure['unit']}")
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
