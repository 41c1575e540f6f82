"""Coverage against a profiler's count, and what it costs a step: on a GPU.

    python benchmarks/bench_coverage.py [--out FILE] [--seconds S] [--layers N]

Three loops: a decoder captured by hand with sampling outside the graph, the same compiled by Inductor, and eager.
For each: launches a step as torch.profiler sees them, ours exact and sampled, and the step's time with coverage
off, sampled and exact, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import gfxgraph
from gfxgraph.reporting import bench, watch

SKIPPED = ("Memcpy", "Memset")


def loops(n: int) -> dict:
    fn, args = bench._layers(n=n)
    graph = torch.cuda.CUDAGraph()
    for _ in range(3):
        fn(*args)
    with torch.cuda.graph(graph):
        out = fn(*args)
    compiled = torch.compile(fn)
    for _ in range(3):
        compiled(*args)

    def sample(x):
        return torch.topk(torch.softmax(x, -1), 4).indices.sum()

    def captured():
        graph.replay()
        sample(out)

    return {
        "captured": captured,
        "compiled": lambda: sample(compiled(*args)),
        "eager": lambda: sample(fn(*args)),
    }


def profiled(step, n: int = 10) -> float:
    """Kernels, copies and sets a step, as the profiler counts them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(n):
            step()
        torch.cuda.synchronize()
    events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(1 for e in events if not e.name.startswith("ProfilerStep")) / n


def counted(step, n: int = 10) -> dict:
    with gfxgraph.coverage() as seen:
        for _ in range(n):
            step()
    found = seen.seen
    return {"per_step": (found.graph_launches + found.eager_launches) / n, "share": found.share}


def ms(step, seconds: float) -> float:
    torch.cuda.synchronize()
    began, n = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        n += 10
    return 1e3 * (time.perf_counter() - began) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=8)
    asked = parser.parse_args()
    gfxgraph.enable(allow_cuda=True, validate=False)
    rows = []
    for name, step in loops(asked.layers).items():
        for _ in range(5):
            step()
        row = {"loop": name, "profiler_per_step": profiled(step), "exact": counted(step)}
        times: dict[str, list[float]] = {"off": [], "sampled": [], "exact": []}
        for _ in range(asked.rounds):
            for kind, samples in times.items():
                if kind != "off":
                    watch.start(is_exact=kind == "exact")
                samples.append(ms(step, asked.seconds))
                if kind == "sampled":
                    found = gfxgraph.coverage()
                    row["sampled"] = {"share": found.share, "windows": found.n_windows, "own_s": found.own_seconds}
                watch.stop()
        row["ms"] = times
        row["cost"] = {k: statistics.median(v) / statistics.median(times["off"]) - 1 for k, v in times.items()}
        print(json.dumps(row))
        rows.append(row)
    if asked.out is not None:
        asked.out.write_text(json.dumps({"provenance": bench.provenance(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
