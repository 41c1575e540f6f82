"""Captures and their replays: state, pools, streams, random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

import gfxgraph
from gfxgraph.selftest.bench import Bench, case, expect, same

# -- plain captures ----------------------------------------------------------------------------------------------


@case()
def plain(bench: Bench) -> None:
    """A replay computes from what its static input holds now."""
    x = bench.randn(1024)
    bench.follows_eager(lambda: (x * 2 + 1).relu(), [x])
    expect(gfxgraph.stats()["split_count"] == 0, "a plain graph was split")


@case()
def in_place_state(bench: Bench) -> None:
    """A capture leaves counters, buffers and random numbers alone; each replay moves them as eager does."""
    x, total = bench.randn(256), torch.zeros(256, device="cuda")
    count = torch.zeros((), dtype=torch.long, device="cuda")

    def body() -> Tensor:
        count.add_(1)
        total.add_(x).mul_(0.5)
        return total + count

    bench.follows_eager(body, [x], [count, total])


@case()
def shared_pool(bench: Bench) -> None:
    """Graphs that share a pool replay in order like eager, the second one reading what the first has written."""
    x, pool = bench.randn(4096), torch.cuda.graph_pool_handle()
    first, a = bench.capture(lambda: x.sin() + 1, pool=pool)
    second, b = bench.capture(lambda: (a * 2).cos(), pool=pool)
    for _ in range(3):
        bench.refill(x)
        first.replay()
        second.replay()
        same([b], [((x.sin() + 1) * 2).cos()], "the second graph's result and eager execution")


@case()
def side_streams(bench: Bench) -> None:
    """Work forked to two side streams and joined again is recorded with its order."""
    x, sides = bench.randn(4096), [torch.cuda.Stream(), torch.cuda.Stream()]

    def body() -> Tensor:
        a = x + 1
        parts = []
        for n, side in enumerate(sides, 2):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                parts.append((a * n).sin())
        for side in sides:
            torch.cuda.current_stream().wait_stream(side)
        return parts[0] + parts[1] - a

    bench.follows_eager(body, [x])


# -- sizes that the values decide -----------------------------------------------------------------------------------


@case()
def nonzero(bench: Bench) -> None:
    """nonzero() and a boolean mask replay like eager, whatever the size of the result."""
    x = torch.arange(16.0, device="cuda") - 4

    def body() -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        y[x < 0] = 7.0
        return (x > 0).nonzero() * 2, x[x > 0] + 1, y

    graph, y = bench.follows_eager(body, [x], refill=lambda: x.copy_(x.roll(3)))
    x.fill_(1)
    graph.replay()
    same(y, body(), "the replay and eager execution")


# -- random numbers ----------------------------------------------------------------------------------------------


@case()
def dropout(bench: Bench) -> None:
    """Dropout, sampling from a softmax and random tensors draw at each replay what eager would draw then."""
    x = bench.randn(4, 97)

    def body() -> tuple[Tensor, Tensor]:
        return torch.dropout(x, 0.5, True) + torch.rand(4, 97, device="cuda"), torch.multinomial(x.softmax(-1), 1)

    bench.follows_eager(body, [x])
