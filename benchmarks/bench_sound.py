"""What it costs that a graphed call is never silently wrong: CPU a call, the first call, and 32 buckets.

    python benchmarks/bench_sound.py [--out FILE] [--reps N] [--simulate]

A chain of 60 small operations and a decode step of a Llama (16 layers, hidden 1024, fp16), each with the default
(traced, asked at each call whether what it read has changed), ``assume_pure=True`` and ``mode="hot"``, beside the
bare replay of a graph captured by hand; then 32 buckets of the chain, time and memory, by hand and by
``capture_all``. The ways take turns within each repeat. Writes one JSON object. Made to take less than 150 s;
--simulate tries it where there is no GPU, with a small Llama, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from bench_core import environment, summary

import gfxgraph

N_CALLS = 40


def cpu_us(call, given: list, n: int) -> float:
    """CPU time of this thread a call, in us; the device is idle before and waited for after."""
    torch.cuda.synchronize()
    begin = time.thread_time_ns()
    for i in range(n):
        kept = call(*given[i % len(given)])
    spent = time.thread_time_ns() - begin
    torch.cuda.synchronize()
    del kept
    return spent / n / 1e3


def by_hand(fn, given):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fn(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn(*given)
    return lambda *args: graph.replay()


def chain():
    def step(x):
        for _ in range(60):
            x = x + 1
        return x

    sets = [(torch.randn(1024, device="cuda"),) for _ in range(4)]
    return step, sets, {"hot": {"mode": "hot"}}, lambda: None


def llama(width: int):
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=16, num_attention_heads=16,
        vocab_size=32000 if width > 64 else 320,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.half if width > 64 else torch.float).cuda().eval()
    cache = StaticCache(config=config, max_cache_len=512)
    ids, at = torch.zeros(1, 1, dtype=torch.long, device="cuda"), torch.tensor([[100]], device="cuda")

    def begin() -> None:  # the cache counts its calls, and asserts when it is full
        for layer in cache.layers:
            if isinstance(getattr(layer, "cumulative_length", None), torch.Tensor):
                layer.cumulative_length.fill_(100)

    def step(ids, at):
        return model(input_ids=ids, position_ids=at, past_key_values=cache, use_cache=True).logits

    step(ids, at)
    return step, [(ids, at)], {"hot": {"mode": "hot"}}, begin


def bench(name: str, make, reps: int, n_calls: int) -> dict:
    step, sets, more, begin_again = make()
    first: dict[str, float] = {}
    ways = {"bare replay": by_hand(step, sets[0])}
    options = {"default": {}, "assume_pure": {"assume_pure": True}, **more}
    calls = {}
    for way, asked in options.items():
        calls[way] = ways[way] = gfxgraph.graphed(step, **asked)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        ways[way](*sets[0])
        torch.cuda.synchronize()
        first[way] = time.perf_counter() - begin
    begin = time.perf_counter()
    step(*sets[0])
    torch.cuda.synchronize()
    eager = time.perf_counter() - begin
    begin_again()
    expected = step(*sets[0])
    for way, call in calls.items():
        for _ in range(6):
            for given in sets:
                call(*given)
        begin_again()
        found = call(*sets[0])
        assert torch.equal(found, expected) or torch.allclose(found, expected, rtol=1e-2, atol=1e-2), way
        del found  # hot mode has two results to hand out; who holds one, and the last, gets copies
    spent: dict[str, list[float]] = {way: [] for way in ways}
    same: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(reps):
        begin_again()
        for way, call in ways.items():
            spent[way].append(cpu_us(call, sets, n_calls))
            begin_again()
            same[way].append(cpu_us(call, sets[:1], n_calls))
    return {
        "name": name,
        "cpu_us": {way: summary(times) for way, times in spent.items()},
        "cpu_us_same_tensors": {way: summary(times) for way, times in same.items()},
        "first_call_s_beyond_eager": {way: round(s - eager, 3) for way, s in first.items()},
        "explain": {way: call.explain()[:600] for way, call in calls.items()},
    }


def buckets(reps: int) -> dict:
    """32 buckets of the chain: ms to capture them, and bytes that stay reserved for them."""
    step = chain()[0]
    sizes = [64 * i for i in range(1, 33)]

    def in_one_pool():
        pool, stream, held = torch.cuda.graph_pool_handle(), torch.cuda.Stream(), []
        for n in reversed(sizes):
            x, graph = torch.zeros(n, device="cuda"), torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                step(x)
            with torch.cuda.graph(graph, pool=pool):
                held.append((graph, x, step(x)))
        return held

    def ahead(**options):
        call = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=sizes, **options)
        done = call.capture_all(torch.zeros(sizes[-1], device="cuda"))
        assert done["n_captured"] == len(sizes), done
        return call

    ways = {"by hand": in_one_pool, "default": ahead, "assume_pure": lambda: ahead(assume_pure=True)}
    took: dict[str, list[float]] = {way: [] for way in ways}
    memory: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(reps + 1):
        for way in ways if turn % 2 else reversed(ways):
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before, begin = torch.cuda.memory_reserved(), time.perf_counter()
            held = ways[way]()
            torch.cuda.synchronize()
            spent = (time.perf_counter() - begin) * 1e3
            torch.cuda.empty_cache()  # what warming up has left is not held
            if turn:
                took[way].append(spent)
                memory[way].append(torch.cuda.memory_reserved() - before)
            del held
    return {
        "name": "32 buckets",
        "ms": {way: summary(times) for way, times in took.items()},
        "bytes": {way: summary(nbytes) for way, nbytes in memory.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=9)
    parser.add_argument("--simulate", action="store_true")
    asked = parser.parse_args()
    gfxgraph.enable(allow_cuda=True, validate=False, simulate="cuda" if asked.simulate else None)
    found = {"environment": environment(), "parts": []}
    width = 64 if asked.simulate else 1024
    begin = time.perf_counter()
    with torch.no_grad():
        for name, make in (("chain of 60", chain), ("llama step", lambda: llama(width))):
            found["parts"].append(bench(name, make, asked.reps, 2 if asked.simulate else N_CALLS))
        found["parts"].append(buckets(asked.reps))
    found["took_s"] = round(time.perf_counter() - begin, 1)
    text = json.dumps(found, indent=1)
    if asked.out:
        asked.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
