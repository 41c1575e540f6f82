"""Cost of a graphed call, its memory and its capture, against the ways that people use today.

    python benchmarks/bench_callables.py [--out FILE] [--reps N] [--only parts,calls,buckets,instances] [--simulate]

Writes one JSON object: environment (device, versions, commit) and one entry a figure, each with every
repeat; a part that fails is an entry with its error. All ways are measured in turn within each repeat, so
that what disturbs one disturbs all. Beside this: bench_compile.py (the decode step of a Llama).

``--simulate`` runs without a GPU, and gives CPU time: for ``buckets`` and ``instances``, where Python's time counts.

Peers: a bare ``CUDAGraph.replay``; ``torch.cuda.make_graphed_callables``; ``torch.compile`` with
``reduce-overhead``; one ``copy_`` for each input, then replay; one fused copy, then replay; and
gfxgraph 1.1.0's pool, written by its published recipe (a pool and a graph for each bucket, copy,
replay, clone), because it refuses to be switched on here.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from bench_core import environment, summary

import gfxgraph

clock = time.perf_counter
"""In the simulator time.process_time: it has no device to wait for."""
N_CALLS = 60  # few enough that the device's queue never makes the CPU wait
NUMEL = 1024


def chain(x, *more):
    for _ in range(60 - len(more)):
        x = x + 1
    for other in more:
        x = x + other
    return x


def inputs(k: int, n_sets: int) -> list[tuple[torch.Tensor, ...]]:
    return [tuple(torch.randn(NUMEL, device="cuda") for _ in range(k)) for _ in range(n_sets)]


_streams: list = []


def by_hand(fn, args, pool=None, warmups=2):
    """Captured on another stream than it was warmed up on: a workspace of cuBLAS is then the graph's own, and
    Inductor's graph trees, a peer in the same process, do not take it away (decision 0098)."""
    if not _streams:
        _streams.extend((torch.cuda.Stream(), torch.cuda.Stream()))
    stream, capturing = _streams  # the same for all: the allocator keeps its blocks by stream
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmups):
            fn(*args)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=capturing):
        out = fn(*args)
    return graph, out


class RecipePool:
    """gfxgraph 1.1.0's wrapper as published: a pool for each, copy in, replay, clone."""

    def __init__(self, fn, args):
        self.statics = [a.clone() for a in args]
        self.graph, self.out = by_hand(fn, self.statics, pool=torch.cuda.graph_pool_handle())

    def __call__(self, *args):
        for static, given in zip(self.statics, args):
            static.copy_(given)
        self.graph.replay()
        return self.out.clone()


def ways(k: int) -> dict:
    """name -> callable of one tuple of inputs."""
    (args,) = inputs(k, 1)
    found: dict = {}
    bare, _ = by_hand(chain, args)
    found["bare replay"] = lambda given: bare.replay()
    statics = [a.clone() for a in args]
    graph, out = by_hand(chain, statics)

    def copies(given):
        for static, x in zip(statics, given):
            static.copy_(x)
        graph.replay()
        return out

    def fused(given):
        torch._foreach_copy_(statics, given)
        graph.replay()
        return out

    found["copies, replay"] = copies
    found["fused copy, replay"] = fused
    made = torch.cuda.make_graphed_callables(chain, args)
    found["make_graphed_callables"] = lambda given: made(*given)
    recipe = RecipePool(chain, args)
    found["1.1.0 recipe"] = lambda given: recipe(*given)
    torch._dynamo.reset()
    compiled = torch.compile(chain, mode="reduce-overhead")

    def overhead(given):
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*given)

    found["reduce-overhead"] = overhead
    hot, own = gfxgraph.graphed(chain, mode="hot"), gfxgraph.graphed(chain, mode="standard")
    found["graphed, hot"] = lambda given: hot(*given)
    found["graphed, default"] = lambda given: own(*given)
    return found


def cpu_us(call, sets: list, n: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for i in range(n):
        kept = call(sets[i % len(sets)])
    took = time.perf_counter() - begun
    torch.cuda.synchronize()
    del kept
    return took / n * 1e6


def bench_calls(reps: int) -> list[dict]:
    figures = []
    for k, targets in ((1, (8.0, 13.0)), (6, (14.0, 19.0))):
        with torch.no_grad():
            every = ways(k)
            for sort, n_sets in (("the same tensors each call", 1), ("four sets of tensors in turn", 4)):
                sets = inputs(k, n_sets)
                expected = chain(*sets[0])
                for name, call in every.items():
                    for _ in range(12):
                        result = call(sets[0])
                    if name != "bare replay":
                        assert torch.allclose(result, expected, rtol=1e-4), name
                took: dict[str, list[float]] = {name: [] for name in every}
                for turn in range(reps):
                    names = list(every) if turn % 2 else list(every)[::-1]
                    for name in names:
                        cpu_us(every[name], sets, 4)
                        took[name].append(cpu_us(every[name], sets, N_CALLS))
                figures.append(
                    {
                        "figure": f"CPU per call, {k} small input(s), 60-node chain, {sort}",
                        "unit": "us",
                        "ways": {name: summary(values) for name, values in took.items()},
                        "targets": {"graphed, hot": targets[0], "graphed, default": targets[1]},
                        "reached": all(
                            statistics.median(took[name]) <= target
                            for name, target in zip(("graphed, hot", "graphed, default"), targets)
                        ),
                    }
                )
    return figures


def bench_buckets(reps: int) -> dict:
    """32 buckets of the chain: memory taken and time to capture. Of ours, what is not traced takes the last trace."""
    sizes = [64 * i for i in range(1, 33)]

    def one_pool(warmups=2):
        pool = torch.cuda.graph_pool_handle()
        return [by_hand(chain, (torch.zeros(n, device="cuda"),), pool, warmups) for n in reversed(sizes)]

    def own_pools():
        return [RecipePool(chain, (torch.zeros(n, device="cuda"),)) for n in sizes]

    def ours(is_new=False, **options):
        g = gfxgraph.graphed(chain, dynamic={"x": {0: "n"}}, buckets=sizes, **options)
        if is_new:
            g.reset()  # takes no trace of an earlier one
        done = g.capture_all(torch.zeros(sizes[-1], device="cuda"))
        assert done["n_captured"] == 32, done
        return g

    kinds = {
        "by hand, one pool": one_pool,
        "the same again: noise": one_pool,
        "by hand, one warm-up": lambda: one_pool(1),
        "1.1.0 recipe": own_pools,
        "graphed, traced": lambda: ours(is_new=True),
        "graphed": ours,
        "graphed, assume_pure": lambda: ours(assume_pure=True),
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    memory: dict[str, list[int]] = {name: [] for name in kinds}
    with torch.no_grad():
        for turn in range(reps + 1):
            for name, make in kinds.items() if turn % 2 else list(kinds.items())[::-1]:
                gc.collect()
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                before = torch.cuda.memory_reserved()
                begun = clock()
                held = make()
                torch.cuda.synchronize()
                ms = (clock() - begun) * 1e3
                torch.cuda.empty_cache()  # what warming up has left is not held
                if turn:
                    took[name].append(ms)
                    memory[name].append(torch.cuda.memory_reserved() - before)
                del held
    hand, medians = took["by hand, one pool"], {name: statistics.median(values) for name, values in took.items()}
    target = {"graphed, traced": 1.3, "graphed": 1.3, "graphed, assume_pure": 1.1}
    least = statistics.median(hand)
    return {
        "figure": "32 buckets of the 60-node chain",
        "unit": "ms and bytes",
        "ways": {name: {"ms": summary(took[name]), "bytes": summary(memory[name])} for name in kinds},
        "targets": {**{name: n * least for name, n in target.items()}, "bytes": 4 << 20},
        "reached": all(medians[name] <= n * least for name, n in target.items())
        and statistics.median(memory["graphed"]) <= 4 << 20,
    }


def _mlp():
    layers = [part for _ in range(3) for part in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    x = torch.randn(4, 64, device="cuda")
    return (lambda: torch.nn.Sequential(*copy.deepcopy(layers)).cuda().eval()), lambda call: call(x)


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=16, num_attention_heads=4, vocab_size=128
    )
    ids = torch.zeros(1, 8, dtype=torch.long, device="cuda")
    return (lambda: LlamaForCausalLM(config).cuda().eval()), lambda call: call(input_ids=ids, use_cache=False)


def bench_instances(reps: int) -> list[dict]:
    """The first call of an instance: of the first of its class, and of later ones, above an eager call of it."""
    figures = []
    for label, parts, target in (("MLP of 6 layers", _mlp, 5.0), ("Llama of 16 layers", _llama, 100.0)):
        try:
            make, run = parts()
        except ImportError as error:
            figures.append({"figure": label, "unit": "ms", "ways": {}, "reached": False, "error": f"{error!r}"})
            continue
        torch._dynamo.reset()
        kinds = {
            "eager": lambda module: module,
            "the same again: noise": lambda module: module,
            "torch.compile, eager": lambda module: torch.compile(module, backend="eager"),
            "graphed": gfxgraph.graphed,
        }
        first, later = {}, {name: [] for name in kinds}
        with torch.no_grad():
            for turn in range(min(reps, 10) + 1):
                for name, of in kinds.items():
                    module = make()
                    run(module)
                    call = of(module)
                    gc.collect()
                    torch.cuda.synchronize()
                    begun = clock()
                    run(call)
                    torch.cuda.synchronize()
                    ms = (clock() - begun) * 1e3
                    if turn:
                        later[name].append(ms)
                    else:
                        first[f"{name}, the first instance"] = [ms]
                    del module, call
        over = statistics.median(b - a for a, b in zip(later["eager"], later["graphed"]))
        ways = {**first, **later, "graphed over eager": [b - a for a, b in zip(later["eager"], later["graphed"])]}
        figures.append(
            {
                "figure": f"first call of a later instance, {label}",
                "unit": "ms",
                "ways": {name: summary(values) for name, values in ways.items()},
                "targets": {"graphed over eager": target},
                "reached": over <= target,
            }
        )
    return figures


def bench_parts(reps: int) -> dict:
    """What the parts of a call cost, to know where its time goes."""
    from gfxgraph.callables.joined_launch import copy_kernel
    from gfxgraph.process import bridge

    guards = torch._C._dynamo.guards
    x, y = torch.randn(NUMEL, device="cuda"), torch.randn(NUMEL, device="cuda")
    xs, ys = [x] * 6, [torch.empty_like(x) for _ in range(6)]
    state = bridge.process_for_callables()
    kernel = copy_kernel(state, 0)
    check1 = guards.TensorGuards(x, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    check6 = guards.TensorGuards(*xs, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    settings = guards.GlobalStateGuard().check
    stream = torch.cuda.current_stream().cuda_stream
    a, b = x.data_ptr(), y.data_ptr()
    assert kernel is not None
    one, six = (kernel.prepare([(b, a, NUMEL * 4)] * n, stream) for n in (1, 6))
    tiny, _ = by_hand(lambda x: x + 1, (x,))
    parts = {
        "nothing": lambda: None,
        "copy_": lambda: y.copy_(x),
        "foreach_copy_ of 1": lambda: torch._foreach_copy_([y], [x]),
        "foreach_copy_ of 6": lambda: torch._foreach_copy_(ys, xs),
        "launch that copies 1": one.launch,
        "launch that copies 6": six.launch,
        "clone": lambda: x.clone(),
        "empty_like": lambda: torch.empty_like(x),
        "as compiled code allocates": lambda: guards._empty_strided_cuda((NUMEL,), (1,), torch.float32),
        "new tensor over it (.data)": lambda: x.data,
        "check of 1": lambda: check1(x),
        "check of 6": lambda: check6(*xs),
        "settings": settings,
        "raw stream": lambda: torch._C._cuda_getCurrentRawStream(0),
        "data_ptr": x.data_ptr,
        "replay of 1 node": tiny.replay,
    }
    took: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(reps):
        for name, call in parts.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(200):
                call()
            took[name].append((time.perf_counter() - begun) / 200 * 1e6)
    return {
        "figure": "parts of a call, CPU",
        "unit": "us",
        "ways": {name: summary(values) for name, values in took.items()},
        "reached": True,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=25)
    parser.add_argument("--only", default="parts,calls,buckets")
    parser.add_argument("--simulate", action="store_true", help="without a GPU")
    options = parser.parse_args()
    if options.simulate:
        global clock
        clock = time.process_time
        gfxgraph.enable(simulate="cuda", validate=False)
    figures: list[dict] = []
    for name in options.only.split(","):
        begun = time.perf_counter()
        bench = {
            "calls": bench_calls, "buckets": bench_buckets, "parts": bench_parts, "instances": bench_instances
        }  # fmt: skip
        try:
            made = bench[name](options.reps)
        except (RuntimeError, AssertionError) as error:
            made = {"figure": name, "unit": "-", "ways": {}, "reached": False, "error": f"{error!r}"[:2000]}
        figures += made if isinstance(made, list) else [made]
        print(f"-- {name}: {time.perf_counter() - begun:.0f} s", flush=True)
    result = {"environment": environment(), "figures": figures}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    for figure in figures:
        print(f"{figure['figure']} ({figure['unit']}): {'reached' if figure['reached'] else 'MISSED'}")
        if "error" in figure:
            print(f"    {figure['error']}")
        for name, found in figure["ways"].items():
            parts = found if "median" not in found else {"": found}
            shown = ", ".join(
                f"{part} {s['median']:.2f} ({s['min']:.2f} to {s['max']:.2f})".strip() for part, s in parts.items()
            )
            print(f"    {name:32s} {shown}")


if __name__ == "__main__":
    main()
