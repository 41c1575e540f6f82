"""Fine-tuning a language model on batches of any length: tokens a second, captures and memory.

    python benchmarks/bench_fine_tuning.py [--out FILE] [--epochs N] [--ways A,B] [--layers N] [--simulate]

A Llama of Hugging Face (12 layers, width 768, 134 million parameters by default), AdamW, bfloat16 autocast, 24
batches of 8 sequences from 16 to 512 tokens, each padded to its own longest one. Ways: eager; ``graphed`` with
``dynamic`` and no buckets given; ``torch.compile(dynamic=True)``; ``torch.compile(mode="reduce-overhead")``. Each has
a model of its own from the same seed, in a process of its own, and trains the same batches; losses must be eager's
within bfloat16's rounding. The first epoch (traces, captures, compilations) is timed apart from the others.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bench_core import environment

import gfxgraph

WAYS = ("eager", "graphed", "compile, dynamic", "reduce-overhead")
N_BATCHES, ROWS, SHORTEST, LONGEST, VOCABULARY = 24, 8, 16, 512, 32000


def wrapped(way: str, model: torch.nn.Module) -> Any:
    if way == "graphed":
        return gfxgraph.graphed(model, dynamic={"input_ids": {1: "tokens"}, "attention_mask": {1: "tokens"}})
    if way == "compile, dynamic":
        return torch.compile(model, dynamic=True)
    return torch.compile(model, mode="reduce-overhead") if way == "reduce-overhead" else model


def measured(way: str, epochs: int, layers: int, is_simulated: bool) -> dict[str, Any]:
    if is_simulated:
        gfxgraph.enable(simulate="cuda")
    from transformers import LlamaConfig, LlamaForCausalLM

    width, longest = (64, 40) if is_simulated else (768, LONGEST)
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        vocab_size=VOCABULARY // (100 if is_simulated else 1),
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).cuda()
    model.config.use_cache = False
    net, optimizer = wrapped(way, model), torch.optim.AdamW(model.parameters(), 1e-4, fused=not is_simulated)
    lengths = random.Random(1).sample(range(SHORTEST, longest + 1), N_BATCHES)
    seconds, losses = [], []
    for epoch in range(epochs):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for step, n in enumerate(lengths):
            generator = torch.Generator(device="cuda").manual_seed(epoch * N_BATCHES + step)
            ids = torch.randint(0, config.vocab_size, (ROWS, n), device="cuda", generator=generator)
            with torch.autocast("cuda", torch.bfloat16):
                logits = net(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
                loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    n_tokens = ROWS * sum(lengths)
    found = {
        "tokens_a_second": [round(n_tokens / each) for each in seconds[1:]],
        "first_epoch_s": round(seconds[0], 2),
        "max_memory_mib": torch.cuda.max_memory_allocated() >> 20,
        "max_reserved_mib": torch.cuda.max_memory_reserved() >> 20,  # with what graphs share, which counts as free
        "losses": [round(float(each), 4) for each in losses],
    }
    if way == "graphed":
        of = gfxgraph.callables.graphed.Graphed.of(net).stats()
        found |= {name: of[name] for name in ("captures", "calls", "slow")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by ;")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one, options.epochs, options.layers, options.simulate)))
        return
    rows: dict[str, Any] = {}
    for way in options.ways.split(";"):
        line = [sys.executable, __file__, "--one", way, f"--epochs={options.epochs}", f"--layers={options.layers}"]
        done = subprocess.run([*line, *["--simulate"] * options.simulate], capture_output=True, text=True)
        if done.returncode:
            rows[way] = {"failed": done.stderr[-800:]}
            print(f"{way}: failed: {done.stderr.splitlines()[-1] if done.stderr else done.returncode}")
            continue
        rows[way] = json.loads(done.stdout.splitlines()[-1])
        ends = rows[way].pop("losses")
        mine = rows.get("eager", {}).get("last_losses", ends[-N_BATCHES:])
        rows[way] |= {"last_losses": ends[-N_BATCHES:]}
        rows[way]["worst_difference"] = round(max(abs(a - b) for a, b in zip(ends[-N_BATCHES:], mine)), 4)
        print(f"{way}: { ({k: v for k, v in rows[way].items() if k not in ('last_losses', 'calls')}) }", flush=True)
    if options.out:
        about = {} if options.simulate else environment()
        options.out.write_text(json.dumps({"environment": about, "ways": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
