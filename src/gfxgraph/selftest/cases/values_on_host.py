"""Values that reach the host inside a capture: comparisons, copies, masks, waits, and what splits a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from gfxgraph.selftest.bench import Bench, case, same


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


@case()
def pinned_copies(bench: Bench) -> None:
    """Asynchronous copies from and to pinned memory are recorded, and a replay reads what is there then."""
    x = torch.zeros(256, device="cuda")
    source, target = torch.zeros(256).pin_memory(), torch.zeros(256).pin_memory()

    def body() -> Tensor:
        x.copy_(source, non_blocking=True)
        y = x * 2 + 1
        target.copy_(y, non_blocking=True)
        return y

    bench.warm_up(body)
    graph, y = bench.capture(body)
    for _ in range(3):
        bench.refill(source)
        graph.replay()
        torch.cuda.synchronize()
        same([y.cpu(), target], [source * 2 + 1, y.cpu()], "device and host results, and eager execution")


@case()
def waits(bench: Bench) -> None:
    """Waiting for device, stream and event inside a capture, or asking whether they are done, does not break it."""
    x = bench.randn(64)

    def body() -> Tensor:
        a = x + 1
        torch.cuda.synchronize()
        b = a * 2
        torch.cuda.current_stream().synchronize()
        event = torch.cuda.Event()
        event.record()
        c = b - 3 if event.query() or torch.cuda.current_stream().query() or True else b
        event.synchronize()
        return c.relu()

    bench.follows_eager(body, [x])
