"""Which sizes of workgroups a decode step is fastest with, tried in a captured step of a whole model.

    python benchmarks/tune_kernels.py [--out FILE] [--shape 0|1]... [--batch N] [--rounds N] [--limit-s S]

A size that is best for a layer alone need not be in a step, where kernels overlap and weights come from memory. First
how much is fetched ahead, then for each layer one size after the other, then what was best of each together. Ends
with a profile of the fastest step: microseconds of each kernel, and between them. Writes one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import bench_kernels as bench
import torch
from bench_core import environment

import gfxgraph
import gfxgraph_kernels as kernels
from gfxgraph_kernels import attention, layers, shapes
from gfxgraph_kernels.shapes import Linear

AHEAD_MB = (0, 4, 8, 16, 32, 64)
# block_n, block_k, warps: vector instructions; block_n, block_k, splits, warps, stages: tiles.
VECTORS = {
    "attention": [(64, 4, True), (128, 8, True), (128, 4, True), (64, 8, True)],
    "three": [(2, 512, 1), (4, 1024, 4), (2, 1024, 2)],
    "output": [(2, 1024, 1), (1, 1024, 1), (2, 1024, 2)],
    "gate": [(2, 512, 1), (4, 256, 1), (4, 512, 2), (16, 256, 1, 4, 3)],
    "down": [(2, 4096, 4), (1, 4096, 4), (2, 2048, 4), (4, 2048, 4), (2, 1024, 4), (1, 2048, 2), (16, 256, 1, 4, 4)],
    "head": [(4, 512, 1), (2, 1024, 1), (16, 256, 1, 4, 3), (32, 256, 1, 4, 3)],
}
TILES = {
    "attention": [(64, 4, True), (128, 4, True), (32, 4, True), (32, 2, True), (32, 8, True), (64, 8, True)],
    **{role: [(16, 256, 1, 4, 3), (16, 256, 1, 4, 4), (16, 128, 4, 4, 4), (32, 128, 4, 4, 4), (16, 512, 1, 4, 3),
              (16, 256, 2, 4, 3), (32, 256, 1, 4, 3)] for role in ("three", "gate", "down", "output", "head")},
}  # fmt: skip


class Chosen:
    """Sizes in place of those of shapes.py, for this process."""

    def __init__(self, config) -> None:
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        hidden, inner = config.hidden_size, config.intermediate_size
        heads, shared = config.num_attention_heads * width, config.num_key_value_heads * width
        self.roles = {
            (heads, hidden): "three", (shared, hidden): "three", (heads + 2 * shared, hidden): "three",
            (hidden, heads): "output", (inner, hidden): "gate", (hidden, inner): "down",
            (config.vocab_size, hidden): "head",
        }  # fmt: skip
        if heads == hidden:
            self.roles[hidden, hidden] = "output"
        self.sizes: dict[str, tuple] = {}
        layers.how_to, attention.how_to = self.linear, self.attention

    def linear(self, m: int, n: int, k: int, target, **kinds) -> shapes.Linear:
        usual, asked = shapes.linear(m, n, k, target, **kinds), self.sizes.get(self.roles.get((n, k), ""))
        if asked is None:
            return usual
        rows = shapes.power_of_two(m)
        how = Linear(True, rows, asked[0], asked[1], 1, asked[2]) if len(asked) == 3 else (
            Linear(False, max(16, rows), *asked)
        )  # fmt: skip
        return shapes.fetching_ahead(how, n, k, is_pair=kinds.get("is_pair", False))

    def attention(self, *sizes, **kinds) -> shapes.Attention:
        usual, asked = shapes.attention(*sizes, **kinds), self.sizes.get("attention")
        if asked is None:
            return usual
        group = max(shapes.power_of_two(sizes[1] // sizes[2]), 16) if asked[2] else 1
        return replace(usual, block=asked[0], num_warps=asked[1], is_dot=asked[2], group=group)


def profile(step: bench.Step, n_replays: int = 5) -> dict:
    """Of one replay, by kernel: how many, microseconds of them, and from the end of the one before to their start."""
    step.reset()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(n_replays):
            step.graph.replay()
        torch.cuda.synchronize()
    events = sorted(
        (e.time_range.start, e.time_range.end, e.name) for e in found.events()
        if e.device_type == torch.autograd.DeviceType.CUDA and e.time_range.end > e.time_range.start
    )  # fmt: skip
    n = len(events) // n_replays
    last = events[n * (n_replays - 1) :] if n else []
    rows: dict[str, dict] = {}
    for index, (start, end, name) in enumerate(last):
        row = rows.setdefault(name, {"n": 0, "us": 0.0, "gap_us": 0.0})
        row["n"] += 1
        row["us"] += end - start
        row["gap_us"] += start - last[index - 1][1] if index else 0.0
    order = [{"kernel": name, "at_us": start - last[0][0], "us": end - start} for start, end, name in last]
    return {"whole_us": last[-1][1] - last[0][0] if last else 0.0, "kernels": rows, "order": order[:20] + order[-8:]}


class Search:
    """One shape and batch."""

    def __init__(self, name: str, batch: int, rounds: int) -> None:
        self.model = bench.model_of(bench.SHAPES[name])
        self.batch, self.rounds = batch, rounds
        self.usual = shapes.AHEAD_NBYTES
        self.chosen = Chosen(self.model.config)
        self.applied = kernels.apply(self.model)
        self.rows: list[dict] = []
        self.base = self.made({})

    def made(self, sizes: dict, ahead: int | None = None) -> bench.Step:
        self.chosen.sizes = sizes
        shapes.AHEAD_NBYTES = self.usual if ahead is None else ahead
        return bench.Step(self.model, "eager", self.batch)

    def tried(self, name: str, sizes: dict, ahead: int | None = None) -> float:
        """The median, over that of the usual sizes at the same time."""
        try:
            step = self.made(sizes, ahead)
        except Exception as error:  # noqa: BLE001  (more registers or LDS than there are)
            self.rows.append({"way": name, "error": f"{type(error).__name__}: {str(error)[:300]}"})
            return 9.0
        for each in (self.base, step):
            each.reset()
            each.graph.replay()
        wanted, near = [each.scores.float() for each in (self.base, step)]
        pairs = [(self.base.ms(), step.ms()) for _ in range(self.rounds)]
        row = {
            "way": name,
            "sizes": {role: list(size) for role, size in sizes.items()},
            "ms": statistics.median(pair[1] for pair in pairs),
            "usual_ms": statistics.median(pair[0] for pair in pairs),
            "of_usual": statistics.median(b / a for a, b in pairs),
            "difference": float((near - wanted).abs().max() / wanted.abs().max()),
        }
        self.rows.append(row)
        print(f"{name}: {row['ms']:.4f} ms, {row['of_usual']:.3f} of the usual, {row['difference']:.1e}", flush=True)
        return row["of_usual"]

    def run(self, is_over) -> Iterator[dict]:
        found = {mb << 20: self.tried(f"{mb} MB ahead", {}, mb << 20) for mb in AHEAD_MB}
        self.usual = min(found, key=found.__getitem__)
        self.base = self.made({})
        best: dict[str, tuple] = {}
        tables = VECTORS if self.batch == 1 else TILES
        for role, sizes in tables.items():
            if is_over():
                break
            times = {size: self.tried(f"{role} {size}", {role: size}) for size in sizes}
            fastest = min(times, key=times.__getitem__)
            if times[fastest] < 0.998:
                best[role] = fastest
            yield {"rows": self.rows}
        self.tried("the best of each", best)
        step = self.made(best)
        found = {
            "rows": self.rows,
            "ahead_nbytes": self.usual,
            "best": {k: list(v) for k, v in best.items()},
            "step_ms": [step.ms() for _ in range(2 * self.rounds)],
        }
        yield found
        yield {**found, "profile": profile(step), "profile_usual": profile(self.base)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", type=int, action="append")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=1e9)
    asked, begun = parser.parse_args(), time.monotonic()
    gfxgraph.enable(allow_cuda=True, validate=False)
    made = {"environment": environment(), "batch": asked.batch, "shapes": {}}
    names = [list(bench.SHAPES)[index] for index in asked.shape or (0, 1)]
    for index, name in enumerate(names):
        allowed = asked.limit_s * (index + 1) / len(names)
        search = Search(name, asked.batch, asked.rounds)
        for found in search.run(lambda allowed=allowed: time.monotonic() - begun > allowed):
            made["shapes"][name] = found
            asked.out.write_text(json.dumps(made, indent=1) + "\n")
        search.applied.undo()
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
