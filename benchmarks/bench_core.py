"""Cost of the drop-in against stock torch, paired in one run on one GPU.

    python benchmarks/bench_core.py [--out FILE] [--reps N]

Writes one JSON object: environment (device, versions, commit) and one entry a figure, each with
every repeat, so that medians and spread can be computed again.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gfxgraph


def environment() -> dict:
    def commit() -> str:
        given = os.environ.get("BENCH_COMMIT")  # where the tree was copied without its history
        if given:
            return given
        try:
            return subprocess.check_output(["git", "rev-parse", "HEAD"], text=True, cwd=Path(__file__).parent).strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "python": platform.python_version(),
        "gfxgraph": gfxgraph.__version__,
        "commit": commit(),
    }


def summary(values: list[float]) -> dict:
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "repeats": len(ordered),
        "values": values,
    }


def paired(figure: str, unit: str, stock: list[float], ours: list[float], target: float) -> dict:
    ratios = [b / a for a, b in zip(stock, ours)]
    return {
        "figure": figure,
        "unit": unit,
        "stock": summary(stock),
        "gfxgraph": summary(ours),
        "ratio": summary(ratios),
        "target": target,
        "reached": statistics.median(ratios) <= target,
    }


def chain(n_nodes: int, graph_class) -> tuple:
    x = torch.ones(1024, device="cuda")
    graph = graph_class()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(n_nodes):
            y = y + 1
    return graph, x, y


def cpu_us(graph, n: int) -> float:
    torch.cuda.synchronize()
    replay = graph.replay
    begun = time.perf_counter()
    for _ in range(n):
        replay()
    took = time.perf_counter() - begun
    torch.cuda.synchronize()
    return took / n * 1e6


def single_cpu_us(graphs: tuple, n: int) -> list[float]:
    """Median CPU time of a call for each graph, taking turns, the device idle before each call.

    Large graphs back to back fill the device's queue, and what is timed then is the device.
    """
    times: list[list[float]] = [[] for _ in graphs]
    for turn in range(n):
        for index in range(len(graphs)) if turn % 2 else reversed(range(len(graphs))):
            replay = graphs[index].replay
            torch.cuda.synchronize()
            begun = time.perf_counter()
            replay()
            times[index].append(time.perf_counter() - begun)
    torch.cuda.synchronize()
    return [statistics.median(each) * 1e6 for each in times]


def bench_replay(stock_class, reps: int) -> list[dict]:
    found = []
    for n_nodes, calls in ((1, 4000), (800, 100)):
        ours, stock = chain(n_nodes, torch.cuda.CUDAGraph), chain(n_nodes, stock_class)
        for graph, *_ in (ours, stock):
            for _ in range(50):
                graph.replay()
        a, b = [], []
        for turn in range(reps):
            if n_nodes > 1:
                one, other = single_cpu_us((stock[0], ours[0]), calls)
                a.append(one)
                b.append(other)
                continue
            order = ((stock, a), (ours, b)) if turn % 2 else ((ours, b), (stock, a))
            for (graph, *_), into in order:
                into.append(cpu_us(graph, calls))
        found.append(paired(f"CPU time of replay, {n_nodes} node(s)", "us", a, b, 1.05))
    return found


class Piece(torch.nn.Module):
    """A part of a model that an engine captures by itself, with its own weights."""

    def __init__(self, n_weights: int):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.ones(16, 16, device="cuda") for _ in range(n_weights)])

    def forward(self, x):
        for weight in self.weights:
            x = x * weight
        return x


def pieces(n_weights: int, graph_class, n: int = 32) -> tuple:
    """As engines' piecewise modes: a graph a piece, one pool, each reads what the one before has left."""
    layers, x, held = torch.nn.ModuleList([Piece(n_weights) for _ in range(n)]), torch.ones(16, 16, device="cuda"), []
    pool = torch.cuda.graph_pool_handle()
    with torch.no_grad():
        for layer in layers:
            graph = graph_class()
            with torch.cuda.graph(graph, pool=pool):
                y = layer(x)
            held.append((graph, x))
            x = y
    return layers, held, x


def bench_pieces(stock_class, reps: int) -> list[dict]:
    """CPU time of a replay where 32 graphs follow each other: what they read is looked at in each."""
    found = []
    for n_weights in (1, 4, 8):
        kinds = [pieces(n_weights, each) for each in (stock_class, torch.cuda.CUDAGraph)]
        times: list[list[float]] = [[], []]
        for turn in range(8 * reps + 8):
            for at in (0, 1) if turn % 2 else (1, 0):
                replays = [graph.replay for graph, _ in kinds[at][1]]
                torch.cuda.synchronize()
                begun = time.perf_counter()
                for replay in replays:
                    replay()
                times[at].append((time.perf_counter() - begun) / len(replays) * 1e6)
        torch.cuda.synchronize()
        figure = f"CPU time of replay, 32 pieces of {n_weights} weights in turn"
        found.append(paired(figure, "us", times[0][8:], times[1][8:], 1.15))
    return found


def bench_synchronizations() -> dict:
    graph, x, y = chain(20, torch.cuda.CUDAGraph)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(1000):
            graph.replay()
        inside = torch.cuda.Event()
        inside.record()
    names = [e.key for e in seen.key_averages()]
    counts = {e.key: e.count for e in seen.key_averages() if "ynchronize" in e.key}
    # The profiler itself synchronizes once when it stops.
    counted = max(0, counts.get("cudaDeviceSynchronize", 0) + counts.get("hipDeviceSynchronize", 0) - 1)
    return {
        "figure": "device-wide synchronizations in 1,000 default replays",
        "gfxgraph": counted,
        "seen": counts,
        "runtime_calls_seen": sorted(n for n in names if n.startswith(("cuda", "hip")))[:20],
        "target": 0,
        "reached": counted == 0,
    }


def llama_step():
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=16384,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to("cuda", torch.float16).eval()
    cache = StaticCache(config=config, max_cache_len=8192)
    token = torch.randint(0, 32000, (1, 1), device="cuda")
    position = torch.tensor([32], device="cuda")

    def step():
        return model(token, past_key_values=cache, position_ids=position[None], use_cache=True).logits

    return step


class EmptyMode(TorchDispatchMode):
    """What torch takes to hand each operation to Python and back: no recorder can be below it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def bench_capture(stock_class, reps: int) -> list[dict]:
    step = llama_step()
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        times: dict[str, list[float]] = {"stock": [], "ours": [], "empty mode": []}
        reserved: dict[str, list[int]] = {"stock": [], "ours": [], "empty mode": []}
        n_nodes = 0
        for turn in range(reps + 1):
            kinds = [("stock", stock_class), ("empty mode", stock_class), ("ours", torch.cuda.CUDAGraph)]
            for name, graph_class in kinds if turn % 2 else kinds[::-1]:
                gc.collect()
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                before = torch.cuda.memory_reserved()
                graph = graph_class()
                begun = time.perf_counter()
                with torch.cuda.graph(graph), EmptyMode() if name == "empty mode" else contextlib.nullcontext():
                    out = step()
                took = time.perf_counter() - begun
                if turn:  # the first turn warms both
                    times[name].append(took * 1e3)
                    reserved[name].append(torch.cuda.memory_reserved() - before)
                if name == "ours":
                    n_nodes = graph._program.segments[0].n_nodes
                    assert gfxgraph.stats()["split_count"] == 0, gfxgraph.stats()["events"]
                del graph, out
    speed = paired("capture of the Llama step with recording", "ms", times["stock"], times["ours"], 2.0)
    speed["nodes"] = n_nodes
    speed["stock_under_an_empty_mode"] = summary([b / a for a, b in zip(times["stock"], times["empty mode"])])
    gap = max(b - a for a, b in zip(reserved["stock"], reserved["ours"]))
    memory = {
        "figure": "memory reserved by a capture, against stock",
        "unit": "bytes",
        "stock": reserved["stock"],
        "gfxgraph": reserved["ours"],
        "largest_difference": gap,
        "target": 2 << 20,
        "reached": abs(gap) <= 2 << 20,
    }
    return [speed, memory]


def bench_import(reps: int) -> dict:
    code = (
        "import sys, time; t = time.perf_counter(); import gfxgraph; "
        "d = (time.perf_counter() - t) * 1e3; print(d, 'torch' in sys.modules)"
    )
    values, torch_seen = [], False
    for _ in range(reps):
        took, seen = subprocess.check_output([sys.executable, "-c", code], text=True).split()
        values.append(float(took))
        torch_seen |= seen == "True"
    return {
        "figure": "import gfxgraph",
        "unit": "ms",
        "gfxgraph": summary(values),
        "torch_imported": torch_seen,
        "target": 50,
        "reached": statistics.median(values) < 50 and not torch_seen,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=15)
    options = parser.parse_args()
    stock_class = torch.cuda.CUDAGraph
    gfxgraph.enable(allow_cuda=True, validate=False)
    figures = [
        *bench_replay(stock_class, options.reps),
        *bench_pieces(stock_class, options.reps),
        bench_synchronizations(),
        *bench_capture(stock_class, options.reps),
        bench_import(options.reps),
    ]
    result = {"environment": environment(), "figures": figures}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    for figure in figures:
        ratio = f"ratio {figure['ratio']['median']:.3f}" if "ratio" in figure else ""
        ours = figure["gfxgraph"]["median"] if isinstance(figure["gfxgraph"], dict) else figure["gfxgraph"]
        print(f"{figure['figure']}: {ours} {figure.get('unit', '')} {ratio} target {figure['target']}"
              f" {'reached' if figure['reached'] else 'MISSED'}")  # fmt: skip


if __name__ == "__main__":
    main()
