"""``model.generate`` of transformers: eager, with its own static cache and compile, and through our graphs.

    python benchmarks/bench_generate.py [--out FILE] [--reps N] [--batches 1,8,32]

A Llama of 16 layers, hidden size 1024, random weights from a fixed seed, fp16, a prompt of 32 tokens.
The three ways take turns; eager, which takes seconds a call, is measured twice. Tokens are compared with eager's
over a static cache of the same length, and eager's with its own of another call. Where eager does not repeat itself,
which is so with some of cuDNN's attention kernels, tokens are compared once more without those.
Writes one JSON object, as bench_core does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

# Before torch: a warm cache of compiled kernels would make the first token of a later run look early.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="bench_generate_")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "0")

import torch
from bench_core import environment, summary

import gfxgraph

N_PROMPT = 32
SAMPLING = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}


def make_model(layers: int, hidden: int):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        vocab_size=32000,
        max_position_embeddings=16384,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to("cuda", torch.float16).eval()


class Clock:
    """A streamer that notes when each token came."""

    def __init__(self):
        self.begun, self.times = time.perf_counter(), []

    def put(self, value):
        self.times.append(time.perf_counter() - self.begun)

    def end(self):
        pass


class Way:
    """One way of generating: a model of its own over the same weights, and what its calls add."""

    def __init__(self, name, model, **asked):
        self.name, self.model, self.asked = name, model, asked

    def __call__(self, inputs, n_tokens, sampling, seed=7, **more):
        torch.manual_seed(seed)
        how = {"do_sample": True, **SAMPLING} if sampling else {"do_sample": False}
        return self.model.generate(
            **inputs, max_new_tokens=n_tokens, min_new_tokens=None, **how, **self.asked, **more
        )

    def timed(self, inputs, n_tokens, sampling):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        tokens = self(inputs, n_tokens, sampling)
        torch.cuda.synchronize()
        return n_tokens / (time.perf_counter() - begun), tokens


def start(way, inputs, n_tokens):
    """Seconds from a cold start to the first token, to the first decoded one, and to the end of the first call."""
    torch.cuda.synchronize()
    clock = Clock()
    way(inputs, n_tokens, False, streamer=clock)
    torch.cuda.synchronize()
    whole = time.perf_counter() - clock.begun
    return {"first_token_s": clock.times[1], "second_token_s": clock.times[2], "first_call_s": whole}


def agreement(ours, theirs):
    """Share of rows that are equal, and the shortest common prefix."""
    same = ours == theirs
    rows = same.all(dim=1)
    first = torch.where(rows, ours.shape[1], same.int().argmin(dim=1))
    return {
        "tokens_equal": bool(rows.all()),
        "rows_equal": f"{int(rows.sum())}/{len(rows)}",
        "first_difference": None if bool(rows.all()) else int(first.min()) - N_PROMPT,
    }


def bench(options, models) -> tuple[list[dict], dict]:
    """The figures, and by batch size what the accelerated models report."""
    from gfxgraph.adapters import transformers as gfx

    figures, reports = [], {}
    for batch in options.batches:
        torch._dynamo.reset()
        models["stock"].__dict__.pop("_compiled_call", None)
        torch.manual_seed(batch)
        ids = torch.randint(3, 32000, (batch, N_PROMPT), device="cuda")
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        cache_len = -(-(N_PROMPT + options.tokens - 1) // 64) * 64
        static = {"cache_implementation": "static", "max_cache_len": cache_len}
        eager = Way("eager, static cache", models["eager"], disable_compile=True, **static)
        growing = Way("eager", models["eager"])
        stock = Way("transformers' static cache and compile", models["stock"], cache_implementation="static")
        ours = Way("gfxgraph", models["ours"])
        ways = [ours]
        growing(inputs, 3, False)  # libraries set themselves up
        starts = {way.name: start(way, inputs, options.tokens) for way in (ours, stock)}
        print(f"batch {batch} starts: {json.dumps(starts)}", flush=True)
        figures.append({"figure": f"start, batch {batch}", "unit": "s", "ways": starts})
        rows = [row(options, batch, sampling, inputs, eager, growing, stock, ways) for sampling in (False, True)]
        reports[batch] = {way.name: gfx.report(way.model) for way in ways}
        if not all(each["against_eager"]["eager, a second time"]["tokens_equal"] for each in rows):
            again = without_cudnn(options, inputs, eager, ways)
            for each, found in zip(rows, again):
                each["against_eager, without cuDNN's attention"] = found
        figures += rows
    return figures, reports


def without_cudnn(options, inputs, eager, ways) -> list[dict]:
    """Tokens against eager's once more, for a batch at which eager does not repeat itself."""
    from gfxgraph.adapters import transformers as gfx

    was = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        for way in ways:
            gfx.restore(way.model)
            gfx.accelerate(way.model)
            way(inputs, options.tokens, False)
        found = []
        for sampling in (False, True):
            reference = eager(inputs, options.tokens, sampling)
            given = {"eager, a second time": eager(inputs, options.tokens, sampling)}
            for way in ways:
                given[way.name] = [way(inputs, options.tokens, sampling) for _ in range(4)][-1]
            found.append({name: agreement(tokens, reference) for name, tokens in given.items()})
            print(f"without cuDNN's attention: {json.dumps(found[-1])}", flush=True)
        return found
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)
        for way in ways:
            gfx.restore(way.model)
            gfx.accelerate(way.model)


def row(options, batch, sampling, inputs, eager, growing, stock, ways) -> dict:
    rates: dict[str, list[float]] = {}
    last = {}
    references = []
    for way, n in ((eager, 2), (growing, options.eager_reps if batch == 1 else 0)):
        for _ in range(n):
            rate, tokens = way.timed(inputs, options.tokens, sampling)
            rates.setdefault(way.name, []).append(rate)
            if way is eager:
                references.append(tokens)
    reference, last["eager, a second time"] = references
    others = [stock, *ways]
    for way in others:
        try:
            for _ in range(3):  # graphs are captured, by transformers' compile too, in the first calls
                way.timed(inputs, options.tokens, sampling)
        except Exception as error:
            error.add_note(f"this was: {way.name}")
            raise
    for turn in range(options.reps):
        for way in others if turn % 2 else others[::-1]:
            rate, last[way.name] = way.timed(inputs, options.tokens, sampling)
            rates.setdefault(way.name, []).append(rate)
    figure = {
        "figure": f"generate, batch {batch}, {'sampling' if sampling else 'greedy'}, {options.tokens} tokens",
        "unit": "tokens/s for each row",
        "ways": {name: summary(values) for name, values in rates.items()},
        "against_eager": {name: agreement(tokens, reference) for name, tokens in last.items()},
        "ratio_to_static": {
            way.name: summary([b / a for a, b in zip(rates[stock.name], rates[way.name])]) for way in ways
        },
    }
    best = max(statistics.median(rates[way.name]) for way in ways)
    figure["target"] = 560 if batch == 1 and not sampling else 1.8
    figure["reached"] = (
        best >= 560
        if batch == 1 and not sampling
        else max(each["median"] for each in figure["ratio_to_static"].values()) >= 1.8
    )
    medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    print(f"{figure['figure']}: {medians} {json.dumps(figure['against_eager'])}", flush=True)
    return figure


def sizes(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--eager-reps", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--batches", type=sizes, default=[1, 8, 32])
    parser.add_argument("--profile", action="store_true", help="also say how long a graph of each part takes")
    options = parser.parse_args()

    from gfxgraph.adapters import transformers as gfx

    # Without gfxgraph.enable(), so that the other ways are torch's and transformers' own; ours needs none.
    torch.set_grad_enabled(False)
    models = {name: make_model(options.layers, options.hidden) for name in ("eager", "stock", "ours")}
    gfx.accelerate(models["ours"])
    figures, reports = bench(options, models)
    result = {
        "environment": environment(),
        "figures": figures,
        "reports": reports,
        "fallbacks": gfxgraph.stats()["fallbacks"],
    }
    if options.profile:
        result["parts"] = parts(models)
    print(json.dumps({"reports": result["reports"], "fallbacks": result["fallbacks"], "parts": result.get("parts")}))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    gc.collect()


def parts(models) -> dict:
    """Milliseconds that a launch of each captured part takes, back to back."""
    from gfxgraph.adapters import transformers as gfx

    found = {}
    for name in ("ours",):
        for key, decoder in gfx._accelerated[models[name]].decoders.items():
            for kind, held in (("forward", decoder.forwards), ("choice", decoder.choices)):
                for index, part in enumerate(held.values()):
                    if part.piece.graph is None:
                        continue
                    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    decoder.position.fill_(N_PROMPT)
                    begun.record()
                    for _ in range(30):
                        part.piece.run()
                    ended.record()
                    ended.synchronize()
                    program = part.piece.graph._program
                    nodes = sum(segment.n_nodes or 0 for segment in program.segments)
                    found[f"{name} {key} {kind} {index}"] = {"ms": begun.elapsed_time(ended) / 30, "nodes": nodes}
    return found


if __name__ == "__main__":
    main()
