"""Coverage against a profiler's count, what it costs a step, and the source lines of a Llama's nodes: on a GPU.

    python benchmarks/bench_coverage.py [--out FILE] [--seconds S] [--rounds N] [--simulate]

Counted, each launch and by torch.profiler: a decoder captured by hand with sampling outside of its graph; the same
compiled by Inductor; the same eagerly; ``model.generate`` of transformers, eagerly and through gfxgraph's graphs; a
model in pieces, its attention eager between graphs, as vLLM runs it in mode PIECEWISE; and batches of changing size,
padded to captured ones and eager above them, as SGLang's runner does it. The first three also timed with coverage
off and on, in turns. Made to take some 60 s. --simulate tries it where there is no GPU, without profiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import measuring as bench
import torch
from bench_core import environment

import gfxgraph
from gfxgraph.reporting import launch_counts

N_STEPS = 10
WITHIN, COST, LINES = 0.01, 0.03, 0.99
Step = Callable[[], object]


def captured(body: Step) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    for _ in range(3):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()
    return graph, out


def sample(x: torch.Tensor) -> torch.Tensor:
    return torch.topk(torch.softmax(x, -1), 4).indices.sum()


def decoders(n_layers: int) -> dict[str, Step]:
    fn, args = bench._layers(n=n_layers)
    graph, out = captured(lambda: fn(*args))
    compiled = torch.compile(fn)
    for _ in range(3):
        compiled(*args)

    def by_hand() -> None:
        graph.replay()
        sample(out)

    return {
        "captured": by_hand,
        "compiled": lambda: sample(compiled(*args)),
        "eager": lambda: sample(fn(*args)),
    }


def in_pieces(n_layers: int, d: int = 512) -> Step:
    """As vLLM's PIECEWISE: what lies between attentions is a graph, attention writes into a buffer of its own."""
    weights = [torch.randn(d, d, device="cuda") / d**0.5 for _ in range(n_layers)]
    x, attended = torch.randn(8, d, device="cuda"), torch.zeros(8, d, device="cuda")
    pieces = [captured(lambda w=w: torch.nn.functional.gelu((attended + x) @ w)) for w in weights]

    def step() -> None:
        for graph, out in pieces:
            graph.replay()
            heads = out.view(1, 8, 8, d // 8).transpose(1, 2)
            attended.copy_(torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).reshape(8, d))

    return step


def in_batches(d: int = 512) -> Step:
    """As SGLang's runner: sizes are padded to captured ones; above the largest it runs eagerly."""
    w, x = torch.randn(d, d, device="cuda") / d**0.5, torch.zeros(16, d, device="cuda")

    def body(n: int) -> torch.Tensor:
        h = x[:n]
        for _ in range(6):
            h = torch.nn.functional.layer_norm(h @ w, (d,)) + h
        return h

    graphs = {n: captured(lambda n=n: body(n)) for n in (8, 4, 2, 1)}
    given, turn = torch.randn(16, d, device="cuda"), iter(range(1 << 60))

    def step() -> None:
        n = (1, 3, 4, 7, 12)[next(turn) % 5]
        x[:n].copy_(given[:n])
        size = next((size for size in (1, 2, 4, 8) if size >= n), None)
        if size is None:
            sample(body(n))
        else:
            graphs[size][0].replay()
            sample(graphs[size][1][:n])

    return step


def llama(hidden: int = 256, layers: int = 4):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    config = LlamaConfig(
        **sizes, num_hidden_layers=layers, num_attention_heads=8, pad_token_id=0, bos_token_id=1, eos_token_id=None
    )
    return (
        LlamaForCausalLM(config).cuda().eval().to(torch.float16 if torch.cuda.is_bf16_supported() else torch.float32)
    )


def generating(model, **options) -> Step:
    ids = torch.randint(2, 1000, (1, 16), device="cuda")
    return lambda: model.generate(ids, max_new_tokens=16, min_new_tokens=16, do_sample=False, **options)


def lines_of(model) -> dict:
    """The share of a Llama's nodes whose source line is known: its own code captured, and through ``graphed``."""
    ids = torch.randint(0, 1000, (1, 16), device="cuda")
    with torch.no_grad():
        graph, _ = captured(lambda: model(ids, use_cache=False).logits)
        call = gfxgraph.graphed(model)
        for _ in range(3):
            call(input_ids=ids, use_cache=False)
        found = {}
        for name, obj in (("captured", graph), ("graphed", call)):
            captures = list(gfxgraph.inspect(obj, tensors=False))
            nodes = [node for capture in captures for node in capture.nodes]
            known = [node for node in nodes if node.where and not node.where.startswith("<")]
            in_model = sum("modeling_llama" in node.where for node in known)
            found[name] = {"nodes": len(nodes), "with_line": len(known), "in_modeling_llama": in_model}
            found[name]["share"] = len(known) / len(nodes) if nodes else None
    return found


def profiled(step: Step, n: int) -> float:
    """Kernels, copies and sets a step, as the profiler counts them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(n):
            step()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events()) / n


def counted(step: Step, n: int) -> dict:
    with gfxgraph.coverage() as seen:
        for _ in range(n):
            step()
        torch.cuda.synchronize()
    found = seen.seen
    return {
        "per_step": (found.graph_launches + found.eager_launches) / n,
        "share": found.share,
        "eager": [[line.op, line.n / n, line.where.rpartition("/")[2]] for line in found.lines[:12]],
    }


def compare(name: str, step: Step, is_simulated: bool) -> dict:
    for _ in range(5):
        step()
    ours = counted(step, N_STEPS)
    theirs = None if is_simulated else profiled(step, N_STEPS)
    off = None if not theirs else ours["per_step"] / theirs - 1
    is_met = None if off is None else abs(off) <= WITHIN
    return {"loop": name, "profiler_per_step": theirs, "exact": ours, "off": off, "is_within_1_percent": is_met}


def ms(step: Step, seconds: float) -> float:
    torch.cuda.synchronize()
    began, n = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        n += 10
    return 1e3 * (time.perf_counter() - began) / n


def cost(step: Step, seconds: float, rounds: int) -> dict:
    """Milliseconds a step with coverage off and on, in turns; against off of the same turn."""
    times: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(rounds):
        for kind, samples in times.items():
            if kind != "off":
                launch_counts.start()
            samples.append(ms(step, seconds))
            launch_counts.stop()
    against = sorted(t / off - 1 for t, off in zip(times["on"], times["off"]))
    return {"ms": times, "against_off": against, "median": statistics.median(against)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=1.2, help="of each of the timed stretches, 2 a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--simulate", action="store_true")
    asked = parser.parse_args()
    began = time.monotonic()
    gfxgraph.enable(allow_cuda=True, validate=False, simulate="cuda" if asked.simulate else None)
    steps = decoders(asked.layers)
    rows = []
    if not asked.simulate:
        profiled(steps["eager"], 1)  # the first one sets the profiler up

    def show(row: dict) -> None:
        theirs = row["profiler_per_step"]
        said = "no profiler" if theirs is None else f"{theirs:8.1f} by the profiler, {row['off']:+.2%}"
        ours = f"{row['exact']['per_step']:8.1f} launches a step, share {row['exact']['share']:.1%}"
        print(f"{row['loop']:<22} {ours}; {said}")
        rows.append(row)

    for name, step in {
        **steps,
        "in pieces (vLLM)": in_pieces(asked.layers),
        "in batches (SGLang)": in_batches(),
    }.items():
        show(compare(name, step, asked.simulate))
    lines = None
    try:
        model = llama()
    except ImportError as error:
        print(f"transformers is not here: {error}")
    else:
        lines = lines_of(model)
        print("lines of a Llama's nodes:", json.dumps(lines))
        show(compare("generate, eager", generating(model), asked.simulate))
        from gfxgraph.adapters import transformers as adapter

        show(compare("generate, graphs", generating(adapter.accelerate(model)), asked.simulate))
    for row in rows[:3]:
        row["cost"] = cost(steps[row["loop"]], asked.seconds, asked.rounds)
        print(f"{row['loop']:<22} costs {row['cost']['median']:+.2%}")
    table = {
        "environment": environment(),
        "provenance": bench.provenance(),
        "targets": {"within": WITHIN, "lines": LINES},
        "met": {
            "counts": None if asked.simulate else all(row["is_within_1_percent"] for row in rows),
            "lines": lines and all((found["share"] or 0) >= LINES for found in lines.values()),
        },
        "lines": lines,
        "rows": rows,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(table["met"]), f"after {table['seconds']} s")
    if asked.out is not None:
        asked.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
