"""torch.compile with graphs of ours, against Inductor's own and graphs captured by hand: one Llama decode step.

    python benchmarks/bench_compile.py [--out FILE] [--reps N]

HF Llama, 16 layers, hidden 1024, fp16, batch 1. Every way runs in turn within each repeat, so that what disturbs
one disturbs all. Writes one JSON object: environment (device, versions, commit) and the figures, each with every
repeat, median and spread, wall and CPU time of a step, and by what it is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import types
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from bench_callables import by_hand
from bench_core import environment, llama_step, summary

import gfxgraph
from gfxgraph.compile import backend, regions

N_SLOW, N_FAST = 5, 20  # steps timed at once; few enough that the device's queue never makes the CPU wait
SLOW = ("eager", "compiled")
STOCK, HAND = "reduce-overhead", "compiled, captured by hand"
GRAPHED, BACKEND = "graphed(torch.compile(step))", 'torch.compile(backend="gfxgraph")'
OURS = "reduce-overhead under our policy, regions"


def another(step, name: str):
    """The same function with a code object of its own: Dynamo keeps what it compiled by code object."""
    return types.FunctionType(step.__code__.replace(co_name=name), step.__globals__, name, None, step.__closure__)


def stock_ways(step) -> dict:
    """The ways there are without us, captured before the bridge is on."""
    compiled = torch.compile(another(step, "compiled"))
    overhead = torch.compile(another(step, "overhead"), mode="reduce-overhead")
    for _ in range(3):
        compiled()
    plain, plain_out = by_hand(step, ())
    best, best_out = by_hand(compiled, ())
    return {
        "eager": step,
        "graph of eager": lambda: (plain.replay(), plain_out)[1],
        "compiled": compiled,
        STOCK: lambda: (torch.compiler.cudagraph_mark_step_begin(), overhead())[1],
        HAND: lambda: (best.replay(), best_out)[1],
    }


def our_ways(step) -> dict:
    graphed = gfxgraph.graphed(torch.compile(another(step, "graphed")))
    by_backend = torch.compile(another(step, "by_backend"), backend="gfxgraph")
    overhead = torch.compile(another(step, "our_overhead"), mode="reduce-overhead")
    return {GRAPHED: graphed, BACKEND: by_backend, OURS: overhead}


def warm(ways: dict, expected: torch.Tensor) -> None:
    for name, call in ways.items():
        try:
            for _ in range(8):
                out = call()
            assert torch.allclose(out, expected, rtol=0.05, atol=0.05)
        except Exception as error:
            error.add_note(f"this was: {name}")
            raise


def timed(ways: dict, reps: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Wall time in ms and CPU time in us of a step, for each way, ``reps`` times."""
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(reps):
        for name in list(ways) if turn % 2 else list(ways)[::-1]:
            n, call = N_SLOW if name in SLOW else N_FAST, ways[name]
            call()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(n):
                call()
            issued = time.perf_counter() - begun
            torch.cuda.synchronize()
            wall[name].append((time.perf_counter() - begun) / n * 1e3)
            cpu[name].append(issued / n * 1e6)
    return wall, cpu


def row(title: str, wall: dict, cpu: dict, ours: str, peer: str, ratio: float, cpu_us: float) -> dict:
    ratios = [a / b for a, b in zip(wall[ours], wall[peer])]
    return {
        "figure": title,
        "ours": ours,
        "peer": peer,
        "wall_ms": summary(wall[ours]),
        "peer_wall_ms": summary(wall[peer]),
        "wall_ratio": summary(ratios),
        "cpu_us": summary(cpu[ours]),
        "peer_cpu_us": summary(cpu[peer]),
        "targets": {"wall_ratio": ratio, "cpu_us": cpu_us},
        "reached": statistics.median(ratios) <= ratio and statistics.median(cpu[ours]) <= cpu_us,
    }


def bench(reps: int) -> dict:
    torch._dynamo.reset()
    backend.register()
    step = llama_step()
    gfxgraph.graphed(step)  # modules are watched from here on: Dynamo guards that, and would compile stock's again
    with torch.no_grad():
        expected = step().clone()
        ways = stock_ways(step)
        warm(ways, expected)
        os.environ["GFXGRAPH_COMPILE"] = "regions"
        gfxgraph.enable(allow_cuda=True, validate=False)
        try:
            warm(ways, expected)
            assert not regions(), "stock's reduce-overhead was compiled again, by us"
            ours = our_ways(step)
            warm(ours, expected)
            ways |= ours
            wall, cpu = timed(ways, reps)
        finally:
            gfxgraph.disable()
    how = [region.stats() for region in regions()]
    assert sum(found["replays"] for found in how) > reps, [region.explain() for region in regions()]
    rows = [
        row("Llama step: graphed(torch.compile(step)), by capture by hand", wall, cpu, GRAPHED, HAND, 1.01, 10),
        row("Llama step: reduce-overhead under our policy (regions), by stock's", wall, cpu, OURS, STOCK, 1.0, 20),
        row("Llama step: backend gfxgraph (regions), by stock reduce-overhead", wall, cpu, BACKEND, STOCK, 1.0, 20),
    ]
    return {
        "figure": "HF Llama step, 16 layers, hidden 1024, fp16, batch 1",
        "unit": "ms wall, us CPU",
        "ways": {name: {"wall_ms": summary(wall[name]), "cpu_us": summary(cpu[name])} for name in ways},
        "regions": how,
        "rows": rows,
        "reached": all(found["reached"] for found in rows[:2]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=25)
    options = parser.parse_args()
    found = bench(options.reps)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"environment": environment(), "figures": [found]}, indent=1) + "\n")
    print(f"{found['figure']} ({found['unit']})")
    for name, parts in found["ways"].items():
        shown = ", ".join(f"{k} {s['median']:.3f} ({s['min']:.3f} to {s['max']:.3f})" for k, s in parts.items())
        print(f"    {name:44s} {shown}")
    for r in found["rows"]:
        ratio, cpu = r["wall_ratio"], r["cpu_us"]
        print(
            f"{r['figure']}: wall {ratio['median']:.4f}x ({ratio['min']:.4f} to {ratio['max']:.4f}), CPU"
            f" {cpu['median']:.1f} us; targets {r['targets']}: {'reached' if r['reached'] else 'MISSED'}"
        )


if __name__ == "__main__":
    main()
