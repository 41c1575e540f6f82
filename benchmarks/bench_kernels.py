"""gfxgraph.kernels on a GPU: every operation, the decode step of two Llama shapes, generate(), beside their peers.

    python benchmarks/bench_kernels.py [--out FILE] [--rounds N] [--part operations|step|generate]...
        [--without WAY]... [--widths 1024,4096] [--rows 1,8] [--batch 1,8] [--autotune] [--limit-s S]

Operations: eager, torch.compile and, where it is installed, Liger-Kernel, all captured, at 1 to 32 rows of 1024 to
8192, against what a copy moves in the same run. The step: the model captured eagerly, compiled by default and by
max-autotune, and with our kernels, in turns; position 100 of a cache of 256. generate(): transformers' own compiled
static cache, our graphs, and our graphs with the kernels. Writes one JSON object, as bench_core does.

Operations are compiled ahead by several processes (--processes), and tried in a mixed order: at --limit-s no other
is begun, and what there is covers all sizes. --autotune adds max-autotune to those with weights.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Before torch: what was compiled and measured before must not make a preparation look short.
os.environ["BENCH_KERNELS_FOLDER"] = os.environ.get("BENCH_KERNELS_FOLDER") or tempfile.mkdtemp(
    prefix="bench_kernels_"
)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["BENCH_KERNELS_FOLDER"] + "/inductor"
os.environ["TRITON_CACHE_DIR"] = os.environ["BENCH_KERNELS_FOLDER"] + "/triton"
os.environ["XDG_STATE_HOME"] = os.environ["BENCH_KERNELS_FOLDER"] + "/state"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "0")

import kernel_cases as operations
import torch
from bench_core import environment, summary

import gfxgraph
import gfxgraph_kernels as kernels

BEGUN = time.monotonic()
POSITION, CACHE_LEN = 100, 256
N_REPLAYS = 40
"""Of one timing; each moves the cache by a token, and is put back before the next."""
SHAPES = {
    "16 layers, hidden 1024": {
        "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": 32000,
    },
    "1B: 16 layers, hidden 2048": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": True,
    },
}  # fmt: skip
TARGET_MS = {"16 layers, hidden 1024": 0.36, "1B: 16 layers, hidden 2048": 1.05}
MODES = {"graph of eager": "eager", "compiled": "default", "max-autotune": "max-autotune-no-cudagraphs"}
OURS = "gfxgraph kernels"
TRANSFORMERS = "transformers, static cache"
GENERATES = (TRANSFORMERS, "gfxgraph, compile")


def model_of(sizes: dict):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_hidden_layers=16, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    return LlamaForCausalLM(config).to("cuda", torch.float16).eval()


def weight_nbytes(model) -> int:
    """Of the weights that a step reads: one row of the embedding, all else whole."""
    head = model.get_output_embeddings().weight
    others = {
        p.data_ptr(): p for p in model.parameters() if p is not model.get_input_embeddings().weight or p is head
    }
    return sum(p.numel() * p.element_size() for p in others.values())


class Step:
    """One token of a model, captured."""

    def __init__(self, model, mode: str, batch: int = 1) -> None:
        from transformers import StaticCache

        begun = time.perf_counter()
        self.cache = StaticCache(config=model.config, max_cache_len=CACHE_LEN)
        position = torch.tensor([POSITION], device="cuda")
        token = torch.ones(batch, 1, dtype=torch.long, device="cuda")

        def step():
            return model(
                input_ids=token, position_ids=position[None], past_key_values=self.cache, use_cache=True
            ).logits  # fmt: skip

        call = step if mode == "eager" else torch.compile(step, mode=None if mode == "default" else mode)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self.scores = call()
        self.reset()
        self.graph.replay()
        torch.cuda.synchronize()
        self.prepared_s = time.perf_counter() - begun

    def reset(self) -> None:
        generator = torch.Generator("cuda").manual_seed(1)
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(POSITION)
            for held in (layer.keys, layer.values):
                held.copy_(torch.randn(held.shape, generator=generator, device="cuda"))

    def ms(self) -> float:
        self.reset()
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        for _ in range(N_REPLAYS):
            self.graph.replay()
        ended.record()
        ended.synchronize()
        return begun.elapsed_time(ended) / N_REPLAYS


def bench_step(name: str, sizes: dict, rounds: int, copy_gb_s: float, without: list[str]) -> dict:
    model, ways, prepared, errors = model_of(sizes), {}, {}, {}
    for way, mode in MODES.items():
        if way in without:
            continue
        try:
            ways[way] = Step(model, mode)
            prepared[way] = ways[way].prepared_s
        except Exception as error:  # noqa: BLE001  (a compiler that does not know this GPU)
            errors[way] = f"{type(error).__name__}: {error}"
        torch._dynamo.reset()
    applied = {}
    for way in ("first process", "verdicts kept"):
        begun = time.perf_counter()
        done = kernels.apply(model)
        torch.cuda.synchronize()
        applied[way] = time.perf_counter() - begun
        report = done.report()
        if way == "verdicts kept":
            ways[OURS] = Step(model, "eager")
            prepared[OURS] = applied["first process"] + ways[OURS].prepared_s
        done.undo()
    for step in ways.values():
        step.reset()
        step.graph.replay()
    wanted = ways["graph of eager"].scores.float()
    near = {way: float((s.scores.float() - wanted).abs().max() / wanted.abs().max()) for way, s in ways.items()}
    times = {way: [] for way in ways}
    for _ in range(rounds):
        for way, step in ways.items():
            times[way].append(step.ms())
    nbytes = weight_nbytes(model)
    limit = nbytes / copy_gb_s / 1e6
    ours = statistics.median(times[OURS])
    return {
        "figure": f"decode step, {name}",
        "unit": "ms",
        "ways": {way: summary(values) for way, values in times.items()},
        "errors": errors,
        "difference_of_scores": near,
        "prepared_s": prepared,
        "applied_s": applied,
        "applied": report,
        "weights_nbytes": nbytes,
        "weights_alone_ms": limit,
        "of_bandwidth": limit / ours,
        "target_ms": TARGET_MS[name],
        "reached": ours <= TARGET_MS[name],
    }


def bench_generate(batch: int, rounds: int, without: list[str], n_tokens: int = 256) -> dict:
    from gfxgraph.adapters import transformers as gfx

    name, sizes = next(iter(SHAPES.items()))
    ids = torch.randint(3, 1000, (batch, 32), generator=torch.Generator().manual_seed(0)).cuda()
    given = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": n_tokens,
        "min_new_tokens": n_tokens, "do_sample": False,
    }  # fmt: skip
    makes = {
        TRANSFORMERS: lambda model: model,
        "gfxgraph": gfx.accelerate,
        "gfxgraph, fast": lambda model: gfx.accelerate(model, fast=True),
    }
    models = {way: make(model_of(sizes)) for way, make in makes.items() if way not in without}
    extra = {TRANSFORMERS: {"cache_implementation": "static"}}
    tokens, prepared, times = {}, {}, {way: [] for way in models}
    for way, model in models.items():
        begun = time.perf_counter()
        for _ in range(3):
            tokens[way] = model.generate(**given, **extra.get(way, {}))
        prepared[way] = time.perf_counter() - begun
    for _ in range(rounds):
        for way, model in models.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            model.generate(**given, **extra.get(way, {}))
            torch.cuda.synchronize()
            times[way].append(batch * n_tokens / (time.perf_counter() - begun))
    wanted = tokens["gfxgraph"]
    differs = {way: (made != wanted).int() for way, made in tokens.items()}
    same = {
        way: torch.where(d.any(1), d.argmax(1), d.shape[1]).sub(ids.shape[1]).tolist() for way, d in differs.items()
    }
    report = gfx.report(models["gfxgraph, fast"])
    gfx.restore()
    return {
        "figure": f"generate, {name}, batch {batch}, greedy, {n_tokens} tokens",
        "unit": "tokens/s",
        "ways": {way: summary(values) for way, values in times.items()},
        "tokens_like_gfxgraph": same,
        "prepared_s": prepared,
        "kernels": report["kernels"],
    }


def sizes_of(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


# -- operations ----------------------------------------------------------------------------------------


def mixed(asked) -> list[operations.KernelCase]:
    """All cases; those of each size together, the sizes in an order that is the same in every process."""
    sizes = [(m, n) for m in asked.rows for n in asked.widths]
    random.Random(0).shuffle(sizes)
    ends = [case for m in asked.rows for case in operations.ends(m)]
    return ends + [case for m, n in sizes for case in operations.sized(m, n)]


def brief(row: dict) -> dict:
    """A case without the time of each round."""
    for way in row["ways"]:
        us = [1e3 * ms for ms in way.pop("ms")]
        del way["median_ms"]
        if us:
            way |= {"us": statistics.median(us), "min": min(us), "max": max(us), "repeats": len(us)}
    return row


def compile_ahead(asked, arguments: list[str]) -> None:
    """Fill the caches of Inductor and Triton from several processes."""
    environ = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env={**environ, "BENCH_KERNELS_AHEAD": f"{index} {asked.processes}"},
        )
        for index in range(asked.processes)
    ]
    for process in started:
        process.wait()


def one_share(asked, index: int, n: int) -> None:
    """What one of those processes does."""
    with torch.no_grad():
        for case in mixed(asked)[index::n]:
            if time.monotonic() - BEGUN > asked.limit_s / 2:
                return
            torch._dynamo.reset()
            for way, call in case.make(torch.float16, torch.device("cuda", 0), 1).items():
                with contextlib.suppress(Exception):  # measuring it will say so
                    if way != "max-autotune":  # it times, and these processes disturb each other
                        call(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--part", action="append", choices=["operations", "step", "generate"])
    ways = [way for way in (*MODES, *GENERATES) if "eager" not in way]
    parser.add_argument("--without", action="append", default=[], choices=ways)
    parser.add_argument("--widths", type=sizes_of, default=operations.WIDTHS)
    parser.add_argument("--rows", type=sizes_of, default=operations.ROWS)
    parser.add_argument("--batch", type=sizes_of, default=(1, 8, 32))
    parser.add_argument("--shape", type=sizes_of, default=(0, 1))
    parser.add_argument("--autotune", action="store_true")
    parser.add_argument("--processes", type=int, default=max(1, min(14, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--limit-s", type=float, default=1e9)
    asked = parser.parse_args()
    ahead = os.environ.get("BENCH_KERNELS_AHEAD")
    if ahead is not None:
        one_share(asked, *(int(number) for number in ahead.split()))
        return
    parts, device = asked.part or ["step", "generate", "operations"], torch.device("cuda", 0)
    if "operations" in parts and asked.processes > 1:
        compile_ahead(asked, sys.argv[1:])
        print(f"compiled ahead: {time.monotonic() - BEGUN:.0f} s", flush=True)
    gfxgraph.enable(allow_cuda=True, validate=False)
    copy = operations.copy_gb_s(device)
    print(f"a copy moves {copy:.0f} GB/s")
    made = {"environment": environment(), "copy_gb_s": copy, "figures": [], "operations": []}

    def leave() -> None:
        if asked.out:
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            asked.out.write_text(json.dumps(made, indent=1) + "\n")

    if "step" in parts:
        for name in [list(SHAPES)[index] for index in asked.shape]:
            made["figures"].append(bench_step(name, SHAPES[name], asked.rounds, copy, asked.without))
            print(json.dumps({k: v for k, v in made["figures"][-1].items() if k != "ways"}, indent=1))
            leave()
    if "generate" in parts:
        for batch in asked.batch:
            made["figures"].append(bench_generate(batch, asked.rounds, asked.without))
            leave()
    for figure in made["figures"]:
        for way, values in figure["ways"].items():
            print(f"{figure['figure']}: {way}: {values['median']:.3f} {figure['unit']}")
    if "operations" in parts:
        cases, rows = mixed(asked), []
        for case in cases:
            if time.monotonic() - BEGUN > asked.limit_s:
                print(f"{len(rows)} of {len(cases)} cases: the time is over")
                break
            found = operations.measure(case, asked.rounds, device, torch.float16, copy, autotune=asked.autotune)
            rows.append(found.as_dict())
        print(operations.table(rows))
        made["operations"] = [brief(row) for row in rows]
        leave()
    print(f"{time.monotonic() - BEGUN:.0f} s")


if __name__ == "__main__":
    main()
