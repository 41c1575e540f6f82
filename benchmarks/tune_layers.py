"""Which sizes of workgroups each layer of 1 to 32 rows is fastest with, alone and cold.

    python benchmarks/tune_layers.py --out FILE [--rows 1,4] [--widths 1024,4096] [--limit-s S] [--processes N]

Every size of every kernel at every layer, as graphs over copies that no cache holds; compiled ahead by several
processes. What is best in a whole step, where kernels overlap, tune_kernels.py says. Writes one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench_core import environment
from kernel_cases import copy_gb_s

import gfxgraph_kernels as kernels
from gfxgraph_kernels import attention, layers, shapes
from gfxgraph_kernels.shapes import Attention, Linear

BEGUN = time.monotonic()
FOOTPRINT, MOST_COPIES = 160 << 20, 48
# block_n, block_k, warps.
ONE_ROW = [(1, 1024, 1), (2, 512, 1), (2, 1024, 1), (2, 1024, 2), (4, 512, 2), (4, 512, 1), (4, 1024, 4),
           (2, 2048, 4), (4, 256, 1), (1, 2048, 2), (2, 4096, 4), (8, 512, 4)]  # fmt: skip
FEW_ROWS = [(1, 512, 1), (2, 256, 1), (2, 512, 2), (2, 1024, 4), (1, 1024, 2), (4, 256, 2)]
# block_n, block_k, splits, warps, stages.
TILES = [(16, 128, 1, 4, 4), (16, 128, 1, 2, 5), (16, 256, 1, 4, 3), (16, 256, 1, 4, 4), (16, 512, 1, 4, 3),
         (32, 128, 1, 4, 4), (32, 128, 1, 2, 5), (32, 256, 1, 4, 3), (32, 256, 1, 4, 4), (64, 128, 1, 4, 4),
         (64, 128, 1, 8, 4), (64, 256, 1, 8, 3), (128, 64, 1, 4, 5), (128, 128, 1, 8, 3), (16, 256, 2, 4, 3),
         (16, 256, 4, 4, 3), (32, 128, 2, 4, 4), (32, 128, 4, 4, 4), (64, 128, 2, 4, 4),
         (64, 128, 4, 4, 4)]  # fmt: skip
# block, warps, splits, is_dot
KEYS = [(block, warps, splits, True) for block, warps in ((32, 4), (64, 4), (64, 8), (128, 8), (128, 4))
        for splits in (1, 2, 4, 8, 16)]  # fmt: skip
Call = Callable[[int], Any]


def linears(m: int, kind: str) -> list[Linear]:
    """Sizes to try."""
    rows = shapes.power_of_two(m)
    vectors = [Linear(True, rows, n, k, 1, warps) for n, k, warps in (ONE_ROW if m == 1 else FEW_ROWS)]
    tiles = [Linear(False, max(16, rows), *size) for size in TILES if size[2] == 1 or kind != "three"]
    return (vectors if m <= shapes.MOST_VECTOR_ROWS else []) + tiles


def attentions(group: int, width: int) -> list[Attention]:
    return [Attention(max(group, 16), width, block, splits, warps, dot) for block, warps, splits, dot in KEYS]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float16) / 8


def sets(shapes_: list[tuple[int, ...]]) -> list[list[torch.Tensor]]:
    nbytes = 2 * sum(torch.Size(shape).numel() for shape in shapes_)
    return [[drawn(*shape) for shape in shapes_] for _ in range(max(1, min(MOST_COPIES, FOOTPRINT // nbytes)))]


def case(kind: str, m: int, w: int) -> tuple[int, int, Call]:
    """Bytes of a call, copies, and the call of a copy."""
    if kind == "attention":
        heads, shared = w // 64, w // 256
        token, cache = [(m, 1, heads, 64), *[(m, 1, shared, 64)] * 2, *[(1, 1, 64)] * 2], (m, shared, 1024, 64)
        data, at = sets([*token, cache, cache]), torch.tensor([1023], device="cuda")
        nbytes = m * (2 * shared * 1025 + 2 * heads) * 64 * 2
        return nbytes, len(data), lambda i: kernels.rotary_attention(*data[i], at)
    if kind == "gate":
        data = sets([(m, w), (4 * w, w), (4 * w, w), (w,)])

        def gate(i: int) -> Any:
            x, a, b, g = data[i]
            return kernels.linear(x, a, activation="silu", up=b, norm_weight=g, norm_eps=1e-6)

        return (8 * w * w + 5 * m * w) * 2, len(data), gate
    if kind == "three":
        data = sets([(m, w), (w, w), (w // 4, w), (w // 4, w), (w,)])
        nbytes = (w + m) * (w + w // 2) * 2
        return (
            nbytes,
            len(data),
            lambda i: kernels.linear_three(data[i][0], tuple(data[i][1:4]), norm_weight=data[i][4], norm_eps=1e-6),
        )
    k = 4 * w if kind == "down" else w
    data = sets([(m, k), (w, k), (m, w)])
    return (
        (k * w + m * k + 2 * m * w) * 2,
        len(data),
        lambda i: kernels.linear(data[i][0], data[i][1], residual=data[i][2]),
    )


class Chosen:
    """Sizes in place of what the package would choose."""

    def __init__(self) -> None:
        self.how: Any = None
        self.ahead = 0
        layers.how_to = self.linear
        attention.how_to = lambda *sizes, **kinds: self.how

    def linear(self, m: int, n: int, k: int, *rest: Any, is_pair: bool = False, **kinds: Any) -> Linear:
        nbytes = self.how.block_n * k * 2 * (1 + is_pair)
        return replace(self.how, ahead=min(-(-n // self.how.block_n), self.ahead // nbytes))


def timed(call: Call, n: int) -> float:
    """Microseconds of a call: the least of a few replays."""
    for index in range(min(n, 2)):
        call(index)
    n_calls, graph = max(n, 8), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for index in range(n_calls):
            call(index % n)
    times = []
    graph.replay()
    for _ in range(4):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended) * 1e3 / n_calls)
    return min(times)


KINDS = ("linear", "gate", "three", "down", "attention")


def tasks(rows: tuple[int, ...]) -> Iterator[tuple[str, int, Any]]:
    """One of each kernel that has to be compiled."""
    for m in rows:
        for kind in KINDS:
            yield from ((kind, m, how) for how in (attentions(4, 64) if kind == "attention" else linears(m, kind)))


def compile_share(rows: tuple[int, ...], index: int, n: int) -> None:
    chosen, held = Chosen(), {}
    for kind, m, how in list(tasks(rows))[index::n]:
        if (kind, m) not in held:
            held[kind, m] = case(kind, m, 512)[2]
        chosen.how = how
        try:
            held[kind, m](0)
        except Exception:  # noqa: BLE001  (more shared memory than there is: trying it will say so)
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="1,2,4,8,32")
    parser.add_argument("--widths", default="1024,2048,4096,8192")
    parser.add_argument("--limit-s", type=float, default=1e9)
    parser.add_argument("--processes", type=int, default=max(1, min(14, (os.cpu_count() or 2) - 2)))
    asked = parser.parse_args()
    rows, widths = (tuple(int(each) for each in text.split(",")) for text in (asked.rows, asked.widths))
    share = os.environ.get("TUNE_LAYERS_SHARE")
    with torch.no_grad():
        if share is not None:
            compile_share(rows, *(int(number) for number in share.split()))
            return
        started = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:]],
                             env={**os.environ, "TUNE_LAYERS_SHARE": f"{index} {asked.processes}"})
            for index in range(asked.processes)
        ]  # fmt: skip
        for process in started:
            process.wait()
        print(f"compiled: {time.monotonic() - BEGUN:.0f} s", flush=True)
        copy = copy_gb_s(torch.device("cuda", 0))
        made: dict[str, Any] = {"environment": environment(), "copy_gb_s": copy, "cases": []}
        order = [(kind, m, w) for m in rows for w in widths for kind in KINDS]
        random.Random(0).shuffle(order)
        for kind, m, w in order:
            if time.monotonic() - BEGUN > asked.limit_s:
                print("the time is over")
                break
            made["cases"].append(tried(kind, m, w, copy))
            asked.out.write_text(json.dumps(made) + "\n")
        for row in sorted(made["cases"], key=lambda row: (row["kind"], row["m"], row["w"])):
            best = row["tried"][:3]
            shown = "  ".join(f"{each['us']:.2f} {each['how']} {each['ahead_mb']}" for each in best)
            print(f"{row['kind']} {row['m']} x {row['w']}: {100 * row['of_copy']:.0f}%  {shown}")
    print(f"{time.monotonic() - BEGUN:.0f} s")


def tried(kind: str, m: int, w: int, copy: float) -> dict[str, Any]:
    """Every size at one layer, the fastest first; what is best also with weights fetched ahead, more and less."""
    nbytes, n, call = case(kind, m, w)
    chosen, found = Chosen(), []

    def time_it(how: Any, ahead_mb: int) -> None:
        chosen.how, chosen.ahead = how, ahead_mb << 20
        try:
            us = timed(call, n)
        except Exception as error:  # noqa: BLE001  (more shared memory or registers than there are)
            found.append({"us": 1e9, "how": numbers(how), "ahead_mb": ahead_mb, "error": str(error)[:80]})
        else:
            found.append({"us": us, "how": numbers(how), "ahead_mb": ahead_mb, "index": hows.index(how)})

    hows = attentions(4, 64) if kind == "attention" else linears(m, kind)
    for how in hows:
        time_it(how, 0)
    found.sort(key=lambda row: row["us"])
    if kind != "attention":
        for row in found[:3]:
            if "index" in row:
                for ahead_mb in (4, 16, 64):
                    time_it(hows[row["index"]], ahead_mb)
    found.sort(key=lambda row: row["us"])
    of_copy = nbytes / found[0]["us"] / 1e3 / copy
    return {"kind": kind, "m": m, "w": w, "nbytes": nbytes, "copies": n, "of_copy": of_copy, "tried": found}


def numbers(how: Any) -> list[Any]:
    if isinstance(how, Attention):
        return [how.block, how.num_warps, how.splits, how.is_dot]
    return [
        "vector" if how.is_vector else "tile",
        how.block_n,
        how.block_k,
        how.splits,
        how.num_warps,
        how.num_stages,
    ]


if __name__ == "__main__":
    main()
