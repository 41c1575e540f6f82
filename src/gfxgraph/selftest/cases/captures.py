"""Captures and their replays: state, pools, streams, threads, captures inside captures, random numbers."""

from __future__ import annotations

import threading
from typing import Any

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


@case()
def another_thread(bench: Bench) -> None:
    """Eager work of another thread goes on during a capture, and neither disturbs the other."""
    x, other = bench.randn(64), bench.randn(64)
    go, done = threading.Event(), threading.Event()
    seen: list[Tensor] = []

    def work() -> None:
        go.wait(30)
        seen.append((other * 2).sum())
        done.set()

    thread = threading.Thread(target=work)
    thread.start()

    def body() -> Tensor:
        y = x * 3
        go.set()
        expect(done.wait(30), "the other thread was blocked")
        return y + 1

    # Default mode "global" forbids other threads even to allocate; engines with workers use this one.
    graph, y = bench.capture(body, capture_error_mode="thread_local")
    thread.join(30)
    graph.replay()
    same([y, *seen], [x * 3 + 1, (other * 2).sum()], "both threads' results and eager execution")


# -- captures and replays inside captures ------------------------------------------------------------------------


@case()
def nested_capture(bench: Bench) -> None:
    """A capture inside a capture: both graphs replay like eager."""
    x = bench.randn(64)
    inner: list[Any] = []

    def body() -> Tensor:
        a = x + 1
        inner[:] = bench.capture(lambda: x * 3)
        return a * 2

    outer, y = bench.capture(body)
    bench.refill(x)
    outer.replay()
    inner[0].replay()
    same([y, inner[1]], [(x + 1) * 2, x * 3], "outer and inner graph, and eager execution")


@case()
def replay_inside_capture(bench: Bench) -> None:
    """A graph replayed while another is captured becomes part of it."""
    x = bench.randn(64)
    inner, y = bench.capture(lambda: x * 2)

    def body() -> Tensor:
        a = x + 1
        inner.replay()
        return y + a

    outer, z = bench.capture(body)
    for _ in range(2):
        bench.refill(x)
        outer.replay()
        same([z], [x * 2 + (x + 1)], "the outer graph and eager execution")


@case()
def side_stream_across_split(bench: Bench) -> None:
    """Work forked to a side stream joins again although the capture was split between."""
    x, side = bench.randn(4096), torch.cuda.Stream()

    def body() -> Tensor:
        a = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a * 2
        if x.sum().item() > 1e9:
            return b
        c = a - 1
        torch.cuda.current_stream().wait_stream(side)
        return b + c

    bench.follows_eager(body, [x])


# -- random numbers ----------------------------------------------------------------------------------------------


@case()
def dropout(bench: Bench) -> None:
    """Dropout, sampling from a softmax and random tensors draw at each replay what eager would draw then."""
    x = bench.randn(4, 97)

    def body() -> tuple[Tensor, Tensor]:
        return torch.dropout(x, 0.5, True) + torch.rand(4, 97, device="cuda"), torch.multinomial(x.softmax(-1), 1)

    bench.follows_eager(body, [x])


@case()
def unregistered_generator(bench: Bench) -> None:
    """A generator that is not registered draws anew at each replay, as in eager, and the capture draws nothing."""
    x, generator = bench.randn(64), torch.Generator(device="cuda")
    generator.manual_seed(3)

    def body() -> Tensor:
        return x + torch.rand(64, device="cuda", generator=generator)

    body()
    before = generator.get_state()
    graph, y = bench.capture(body)
    same([generator.get_state()], [before], "the generator's state, which the capture must not touch")
    for n in range(3):
        before = generator.get_state()
        wanted = body()
        generator.set_state(before)
        graph.replay()
        same([y], [wanted], f"replay {n + 1} and eager execution")
