"""Values that reach the host inside a capture: comparisons, copies, masks, waits, and what splits a graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import gfxgraph
from gfxgraph.selftest.bench import Bench, case, expect, raises, same


@case()
def split_at_comparison(bench: Bench) -> None:
    """`if x.item() > limit` splits; values may change, a changed outcome is GuardMismatch with its line."""
    x = bench.randn(64)

    def body() -> Tensor:
        size = (x * x).sum()
        if size.item() > 1e9:
            return x * 0
        return x / (size + 1)

    graph, _ = bench.follows_eager(body, [x], rtol=1e-5)
    expect(gfxgraph.stats()["split_count"] >= 1, "nothing was split")
    x.fill_(1e6)
    text = str(raises(gfxgraph.GuardMismatch, graph.replay))
    expect("cases/values_on_host.py" in text and "1000000000" in text, f"the error does not name the line: {text}")


@case()
def split_undone(bench: Bench) -> None:
    """What a split had to run during the capture is undone: cache, counter and random numbers are as before."""
    x, cache = bench.randn(16), torch.zeros(4, 16, device="cuda")
    step = torch.zeros((), dtype=torch.long, device="cuda")

    def body() -> Tensor:
        row = x + torch.rand(16, device="cuda")
        cache.index_copy_(0, step.clamp(max=3).view(1), row.view(1, 16))
        step.add_(1)
        if cache.isnan().any():
            raise AssertionError("NaN")
        return cache.sum(0)

    bench.follows_eager(body, [x], [cache, step])


@case()
def log_line(bench: Bench) -> None:
    """A value that is only printed or checked for NaN stops neither capture nor replay."""
    x, shown = bench.randn(16), []

    def body() -> Tensor:
        value = x.sum().item()
        shown.append(f"{value:.3f}")
        expect(not math.isnan(value), "NaN")
        return x + 1

    bench.follows_eager(body, [x])
    expect(all("Tracked" not in text for text in shown), f"printed as {shown}")


@case()
def flowing_value(bench: Bench) -> None:
    """A value that goes through arithmetic into an operation is computed anew at each replay."""
    x = bench.randn(16)

    def body() -> tuple[Tensor, Tensor]:
        norm = x.norm().item()
        return x * min(1.0, 2.0 / (norm + 1e-6)), x / math.sqrt(x.abs().max().item())

    bench.follows_eager(body, [x])


@case()
def escaping_value(bench: Bench) -> None:
    """on_unsafe="strict" stops the capture where a value goes into arithmetic, and leaves the process clean."""
    x = bench.randn(16)
    graph = torch.cuda.CUDAGraph(on_unsafe="strict")
    error = raises(gfxgraph.CaptureError, lambda: bench.capture(lambda: x * x.abs().max().item(), graph))
    expect(error.code == "host_value_escaped", f"another error: {error}")
    bench.still_usable()


@case()
def pinned_value(bench: Bench) -> None:
    """on_unsafe="pin" takes such a value as a constant and refuses a replay once it has changed."""
    x = torch.full((4,), 2.0, device="cuda")
    graph, y = bench.capture(lambda: x * x.max().item(), torch.cuda.CUDAGraph(on_unsafe="pin"))
    graph.replay()
    same([y], [torch.full((4,), 4.0)], "the replay and eager execution")
    x.fill_(3.0)
    text = str(raises(gfxgraph.GuardMismatch, graph.replay))
    expect("2.0" in text and "3.0" in text, f"the error does not name both values: {text}")


@case()
def raised(bench: Bench) -> None:
    """on_unsafe="raise" gives torch's own error at the unsafe operation, and leaves the process clean."""
    x = bench.randn(16)
    graph = torch.cuda.CUDAGraph(on_unsafe="raise")
    text = str(raises(RuntimeError, lambda: bench.capture(lambda: x.sum().item(), graph)))
    expect("not permitted when stream is capturing" in text, f"another error: {text}")
    bench.still_usable()


@case()
def nonzero(bench: Bench) -> None:
    """nonzero() and what follows from it replay like eager, whatever the size of the result."""
    x = torch.arange(16.0, device="cuda") - 4
    graph, y = bench.follows_eager(lambda: (x > 0).nonzero() * 2, [x], refill=lambda: x.copy_(x.roll(3)))
    x.fill_(1)
    graph.replay()
    same([y], [(x > 0).nonzero() * 2], "the replay and eager execution")


@case()
def boolean_mask(bench: Bench) -> None:
    """Reading and writing through a boolean mask replay like eager."""
    x = torch.arange(16.0, device="cuda") - 4

    def body() -> tuple[Tensor, Tensor]:
        y = x * 2
        y[x < 0] = 7.0
        return x[x > 0] + 1, y

    bench.follows_eager(body, [x], refill=lambda: x.copy_(x.roll(3)))


@case()
def host_copies(bench: Bench) -> None:
    """Copies to the host and back inside a capture are made again at each replay."""
    x = bench.randn(64)

    def body() -> tuple[Tensor, Tensor]:
        return x.cpu().to("cuda") * 2, x + torch.zeros(64).copy_(x + 1).to("cuda")

    bench.follows_eager(body, [x])


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
def tensor_constant(bench: Bench) -> None:
    """torch.tensor(..., device="cuda") inside a capture is the same constant at each replay."""
    x = bench.randn(3)
    bench.follows_eager(lambda: x * torch.tensor([1.0, 2.0, 3.0], device="cuda"), [x])


@case()
def waits(bench: Bench) -> None:
    """synchronize() of device, stream and event inside a capture does not break it."""
    x = bench.randn(64)

    def body() -> Tensor:
        a = x + 1
        torch.cuda.synchronize()
        b = a * 2
        torch.cuda.current_stream().synchronize()
        event = torch.cuda.Event()
        event.record()
        c = b - 3
        event.synchronize()
        return c.relu()

    bench.follows_eager(body, [x])


@case()
def queries(bench: Bench) -> None:
    """Asking a stream and an event whether they are done does not break a capture."""
    x = bench.randn(64)

    def body() -> Tensor:
        event = torch.cuda.Event()
        event.record()
        a = x + 1 if event.query() or True else x
        return a * 2 if torch.cuda.current_stream().query() or True else a

    bench.follows_eager(body, [x])
