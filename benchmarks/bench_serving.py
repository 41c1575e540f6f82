"""MIGraphX programs by graph and launch by launch, paired in one run on one GPU. The programs are a stand-in's.

    python benchmarks/bench_serving.py [--out FILE] [--reps N]

The stand-in (tests/conformance/adapters/stand_ins/migraphx) launches torch's operations from Python, which costs
more for each launch than MIGraphX's own loop in C++: the ratio of the two ways says nothing about MIGraphX. What
the figures do say is what a run by graph costs, with arguments in place, taking turns, and copied.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/conformance/adapters/stand_ins/migraphx")]

import migraphx  # noqa: E402
from bench_core import environment, summary  # noqa: E402

import gfxgraph  # noqa: E402
from gfxgraph.adapters.migraphx import GraphedProgram  # noqa: E402

N_LAUNCHES = 50
WIDTH = 1024
N_RUNS = 200


def program() -> migraphx.program:
    """As many small launches as a step of a decoder has."""
    weight = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5

    def step(x):
        for _ in range(N_LAUNCHES // 2):
            x = torch.tanh(x @ weight)
        return [x]

    shape = migraphx.shape(type="float", lens=[1, WIDTH])
    made = migraphx.program(step, {"x": shape}, [shape])
    made.compile(migraphx.get_target("gpu"), offload_copy=False)
    return made


def params() -> dict:
    shape = migraphx.shape(type="float", lens=[1, WIDTH])
    return {name: migraphx.to_gpu(migraphx.generate_argument(shape, 1)) for name in ("x", "main:#output_0")}


def us_of(run, n: int = N_RUNS) -> tuple[float, float]:
    """CPU time to enqueue a run, and wall time of a run to its end; microseconds."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for at in range(n):
        run(at)
    enqueued = time.perf_counter()
    torch.cuda.synchronize()
    ended = time.perf_counter()
    return (enqueued - begun) / n * 1e6, (ended - begun) / n * 1e6


def ways(stream: int) -> dict:
    """By name, what is timed; all warmed up, and each checked against the program itself."""
    fixed, turns, moving = params(), [params(), params()], [params() for _ in range(16)]
    plain = program()
    names = "in place", "two sets", "copied"
    by_graph = {name: GraphedProgram(plain, enabled=True, policy="graph") for name in names}
    run = {
        "launch by launch": lambda at: plain.run_async(fixed, stream, "ihipStream_t"),
        "in place": lambda at: by_graph["in place"].run_async(fixed, stream, "ihipStream_t"),
        "two sets": lambda at: by_graph["two sets"].run_async(turns[at % 2], stream, "ihipStream_t"),
        "copied": lambda at: by_graph["copied"].run_async(moving[at % 16], stream, "ihipStream_t"),
    }
    wanted = migraphx.from_gpu(run["launch by launch"](0)[-1]).tolist()
    for one in run.values():
        for at in range(32):
            got = migraphx.from_gpu(one(at)[-1]).tolist()
            assert torch.allclose(torch.tensor(got), torch.tensor(wanted), atol=1e-5)
    captures = {name: graphed.n_captures for name, graphed in by_graph.items()}
    assert captures == {"in place": 1, "two sets": 2, "copied": 5}, captures
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=15)
    options = parser.parse_args()
    gfxgraph.enable(allow_cuda=True, validate=False)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run = ways(stream.cuda_stream)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in run}
        for _ in range(options.reps):
            for name, one in run.items():
                taken[name].append(us_of(one))
        adaptive = GraphedProgram(program(), enabled=True)
        arguments = params()
        for _ in range(400):
            adaptive.run_async(arguments, stream.cuda_stream, "ihipStream_t")
            torch.cuda.synchronize()
    report = {
        "environment": environment(),
        "n_launches": N_LAUNCHES,
        "cpu_us": {name: summary([cpu for cpu, _ in values]) for name, values in taken.items()},
        "wall_us": {name: summary([wall for _, wall in values]) for name, values in taken.items()},
        "adaptive": adaptive.explain(),
        "fallbacks": gfxgraph.stats()["fallback_count"],
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
