"""Collectives inside plain captures that a read splits: waited for before it, after it, later, or never."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import gfxgraph

pytestmark = pytest.mark.usefixtures("nothing_compiled", "group")
INPUTS = [[1.0, 2.0, 3.0], [4.0, -1.0, 0.5]]
PROGRAMS = {}


@pytest.fixture
def group(platform):
    dist.init_process_group("nccl" if platform == "gpu" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def program(func):
    PROGRAMS[func.__name__] = func
    return func


def reduced(x):
    y = x * 2
    return y, dist.all_reduce(y, async_op=True)


@program
def waited_for_after_a_read(x):
    y, work = reduced(x)
    v = x.sum().item()
    work.wait()
    return y + v


@program
def waited_for_twice(x):
    y, work = reduced(x)
    work.wait()
    v = x.sum().item()
    work.wait()
    return y + v


@program
def never_waited_for(x):
    y, _ = reduced(x)
    v = x.sum().item()
    return y + v


@program
def waited_for_in_other_orders(x):
    y, first = reduced(x)
    u = x.max().item()
    z, second = reduced(x + 1)
    second.wait()
    first.wait()
    v = z.sum().item()
    return y * u + z * v


@program
def waited_for_on_another_stream(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y, work = reduced(x)
    v = x.sum().item()
    with torch.cuda.stream(side):
        work.wait()
        z = y + v
    torch.cuda.current_stream().wait_stream(side)
    return z * 2


@program
def several_at_once(x):
    y, z = x * 2, x * 3
    with dist._coalescing_manager(async_ops=True) as many:
        dist.all_reduce(y)
        dist.all_reduce(z)
    v = x.sum().item()
    many.wait()
    return y + z + v


@program
def functional_ones(x):
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    v = x.sum().item()
    return functional.wait_tensor(y) + v


@program
def synchronous_ones(x):
    y = x * 2
    dist.all_reduce(y)
    v = x.sum().item()
    dist.broadcast(y, 0)
    return y + v


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_each_replay_is_right(capture, platform, name):
    """As eager, from graphs alone: no part of it runs from the tape, and nothing is taken for a launch outside torch."""
    x = torch.tensor(INPUTS[0], device="cuda")
    body = PROGRAMS[name]
    graph, got = capture(lambda: body(x))
    for values in INPUTS:
        x.copy_(torch.tensor(values))
        graph.replay()
        assert torch.allclose(got, body(x))
    stats = gfxgraph.stats()
    assert (stats["fallback_count"], stats["opaque_launches"], stats["effects_not_undone"]) == (0, 0, 0)


def test_a_work_from_before_the_capture(capture, platform):
    """What waits for it is made to wait outside the capture, which cannot contain that."""
    x = torch.tensor(INPUTS[0], device="cuda")
    y, work = reduced(x)

    def body():
        work.wait()
        return x + y

    graph, got = capture(body, warm=False)
    x.fill_(1)
    graph.replay()
    assert got.tolist() == [3.0, 5.0, 7.0]


def test_works_are_torchs_again_after_the_capture(capture, platform):
    before = {name: vars(dist.Work)[name] for name in ("wait", "synchronize")}
    capture(lambda: reduced(torch.ones(3, device="cuda"))[1].wait())
    assert before == {name: vars(dist.Work)[name] for name in before}
