"""A while loop of 100 steps: `gfxgraph.WhileLoop`, by hand, unrolled, eager.

    python benchmarks/bench_loops.py [--out FILE] [--reps N] [--simulate [PROFILE]]

Ways: eager; by hand, one graph of a step that ends with a copy of the state, its flag read after each replay;
unrolled, one graph of all steps, which must be known; ours. All take the state of the call and give one of its own.
All are measured in turn within each repeat. On a GPU the figures are times; in the simulator they are what it can
prove: launches, readings of the flag, and bytes of the state that are copied.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import torch
from bench_core import environment, summary

import gfxgraph
from gfxgraph.callables import buffers
from gfxgraph.callables.control import loops

STEPS = 100
TARGETS_MS = {"4 nodes": 1.5, "40 nodes": 8.2, "64 MB": 14.0}


def program(n_nodes: int):
    """Condition and body of ``n_nodes`` operations that make `STEPS` steps from ones."""
    limit = 0.9 ** (STEPS - 0.5)

    def body(x):
        x = x * 0.9
        for _ in range(n_nodes - 3):
            x = x + 1e-12
        return x

    return lambda x: x.max() > limit, body


def eagerly(condition, body, x):
    n = 0
    while condition(x):
        x, n = body(x), n + 1
    return x, n


def captured(fn):
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        fn()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        made = fn()
    return graph, made


def by_hand(condition, body, like):
    state = like.clone()

    def step():
        state.copy_(body(state))
        return condition(state)

    graph, flag = captured(step)

    def run(x):
        state.copy_(x)
        n, holds = 0, bool(condition(state))
        while holds:
            graph.replay()
            n, holds = n + 1, bool(flag)
        return state.clone(), n

    return run


def unrolled(body, like):
    state = like.clone()

    def steps():
        x = state
        for _ in range(STEPS):
            x = body(x)
        return x

    graph, made = captured(steps)

    def run(x):
        state.copy_(x)
        graph.replay()
        return made.clone(), STEPS

    return run


def ours(condition, body):
    loop = gfxgraph.WhileLoop(condition, body, max_steps=10 * STEPS)

    def run(x):
        return loop(x)[0], loop.n_steps

    return run, loop


def counted(call, x):
    """What a call did in the simulator: launches, readings of the flag, bytes copied by us."""
    from gfxgraph_simulator import active
    from gfxgraph_simulator.planted_faults import Faults

    found, sim = Counter(), active()
    copy_all, flag, sim.faults = buffers.copy_all, loops._flag, Faults()

    def copying(targets, sources, **how):
        found["copied bytes"] += sum(source.nbytes for source in sources)
        return copy_all(targets, sources, **how)

    def reading(step, capture):
        found["flag reads"] += 1
        return flag(step, capture)

    buffers.copy_all, loops._flag = copying, reading
    try:
        call(x)
    finally:
        buffers.copy_all, loops._flag = copy_all, flag
    return {"launches": sim.faults.calls["launch"], **found, "state bytes": x.nbytes}


def measured(name: str, n_nodes: int, numel: int, reps: int, simulates: bool) -> dict:
    condition, body = program(n_nodes)
    x = torch.ones(numel, device="cuda")
    run, loop = ours(condition, body)
    ways = {"eager": lambda x: eagerly(condition, body, x), "ours": run}
    if not simulates:
        ways |= {"by hand": by_hand(condition, body, x), "unrolled": unrolled(body, x)}
    want, _ = ways["eager"](x)
    for way, call in ways.items():
        for _ in range(3):
            made, n = call(x)
        assert n == STEPS and torch.equal(made, want), way
    (step,) = loop._step._entries.values()
    how = loop.why_eager or (f"step by step: {step._ring.why_not}" if step._ring.why_not else "one launch")
    entry = {"figure": f"100 steps, {name}", "unit": "ms", "how": how, "target": TARGETS_MS[name]}
    if simulates:
        return {**entry, "unit": "counts", "ours": counted(run, x)}
    took: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(reps):
        for way, call in ways.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            call(x)
            torch.cuda.synchronize()
            took[way].append((time.perf_counter() - begun) * 1e3)
    return {**entry, "ways": {way: summary(values) for way, values in took.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=25)
    parser.add_argument("--simulate", nargs="?", const="hip", default="", metavar="PROFILE")
    options = parser.parse_args()
    if options.simulate:
        gfxgraph.enable(simulate=options.simulate, validate=False)
    large = 1 << 16 if options.simulate else 1 << 24
    with torch.no_grad():
        figures = [
            measured(name, n_nodes, numel, options.reps, bool(options.simulate))
            for name, n_nodes, numel in (("4 nodes", 4, 1024), ("40 nodes", 40, 1024), ("64 MB", 4, large))
        ]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"environment": environment(), "figures": figures}, indent=1) + "\n")
    for figure in figures:
        print(f"{figure['figure']} ({figure['unit']}); ours: {figure['how']}")
        for way, found in figure.get("ways", {}).items():
            print(f"    {way:10s} {found['median']:8.2f} ({found['min']:.2f} to {found['max']:.2f})")
        print(f"    {'ours: ' + str(figure['ours']) if 'ours' in figure else 'to reach: ' + str(figure['target'])}")


if __name__ == "__main__":
    main()
