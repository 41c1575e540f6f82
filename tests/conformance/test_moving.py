"""Tensors whose shape depends on data, where other captures and autograd meet them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

import gfxgraph

pytestmark = [pytest.mark.any_platform, pytest.mark.usefixtures("nothing_compiled")]
FEW, MANY, OTHERS = [-1.0, 2.0, 3.0, -4.0], [1.0, 2.0, 3.0, -4.0], [5.0, -2.0, -3.0, 7.0]


@pytest.fixture
def positives(platform):
    """A graph that computes ``x[x > 0] * 2``, of two elements when captured, and a function that gives it an ``x``."""
    x = torch.tensor(FEW, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = x[x > 0] * 2

    def replay(values):
        x.copy_(torch.tensor(values))
        graph.replay()
        return [2 * v for v in values if v > 0]

    return kept, replay


def test_another_capture_that_reads_it_fixes_it(positives):
    """Right for its shape of then, in both; for others the graph that computes it says that it cannot."""
    kept, replay = positives
    assert replay(MANY) == kept.tolist()
    replay(FEW)
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other):
        total = kept.sum() + 1
    for values in (FEW, MANY, OTHERS, [1.0, 1.0, 1.0, 1.0], FEW):
        want = [2 * v for v in values if v > 0]
        if len(want) == 2:
            assert replay(values) == kept.tolist() == want
            other.replay()
            assert total.item() == sum(want) + 1
        else:
            with pytest.raises(gfxgraph.GuardMismatch, match=r"shape_guard_mismatch") as caught:
                replay(values)
            assert "test_moving.py:23" in str(caught.value) and f"({len(want)},)" in str(caught.value)


def test_a_view_taken_between_captures_is_known(positives):
    """So is a part of the tensor, by its memory."""
    kept, replay = positives
    part = kept[1:]
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other):
        double = part * 2
    want = replay(OTHERS)
    other.replay()
    assert double.tolist() == [2 * want[1]]
    with pytest.raises(gfxgraph.GuardMismatch):
        replay(MANY)


def test_a_part_of_a_tensor_that_stays_is_not_written(platform):
    """A view at a place that changes, which another capture reads: nothing is copied over the tensor."""
    rows = torch.arange(6.0, device="cuda").reshape(3, 2)
    which = torch.zeros((), dtype=torch.long, device="cuda")
    first, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        row = rows[which.item()]
    with torch.cuda.graph(other):
        double = row * 2
    which.fill_(2)
    with pytest.raises(gfxgraph.GuardMismatch):
        first.replay()
    assert rows.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    which.fill_(0)
    first.replay()
    other.replay()
    assert double.tolist() == [0.0, 2.0]


def test_moved_while_a_capture_replays_it(positives):
    """A graph replayed inside another capture, which reads its result: likewise."""
    first = torch.cuda.CUDAGraph()
    x = torch.tensor(FEW, device="cuda")
    with torch.cuda.graph(first):
        mine = x[x > 0] * 3
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        before = mine.sum()
        first.replay()
        after = mine.sum()
    x.copy_(torch.tensor(OTHERS))
    outer.replay()
    assert before.item() == 15.0 and after.item() == 36.0
    x.copy_(torch.tensor(MANY))
    with pytest.raises(gfxgraph.GuardMismatch):
        outer.replay()


def test_what_autograd_keeps_does_not_move(platform):
    """A tensor that a backward needs has its shape of the capture: another one is refused, whatever was computed with it."""
    rows = torch.randn(4, 8, device="cuda")
    weight = torch.ones(8, device="cuda", requires_grad=True)
    x = torch.tensor(FEW, device="cuda")

    def body():
        return (torch.nn.functional.layer_norm(rows[x > 0] * 3, (8,), weight) ** 2).sum()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = body()
    for values, is_refused in ((OTHERS, False), (MANY, True), (FEW, False)):
        x.copy_(torch.tensor(values))
        if is_refused:
            with pytest.raises(gfxgraph.GuardMismatch):
                graph.replay()
            continue
        graph.replay()
        assert torch.allclose(loss, body())
        got, want = torch.autograd.grad(loss, weight, retain_graph=True), torch.autograd.grad(body(), weight)
        assert torch.allclose(got[0], want[0])


def test_replays_know_the_autocast_of_the_capture(platform):
    """What is made again is made under the capture's autocast, not under the replay's."""
    rows = torch.randn(4, 8, device="cuda")
    x = torch.tensor(FEW, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        full = rows[x > 0] @ rows.t()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            half = rows[x > 0] @ rows.t()
    for values in (FEW, MANY):
        x.copy_(torch.tensor(values))
        with torch.autocast("cuda", dtype=torch.float16):
            graph.replay()
        picked = rows[x > 0]
        assert torch.equal(full, picked @ rows.t()) and half.dtype is torch.bfloat16
        assert torch.equal(half, picked.bfloat16() @ rows.bfloat16().t())


def test_an_error_in_a_call_leaves_no_mode(platform):
    """A call with a moving tensor that ends the capture: torch's stack of modes is as it was."""
    x = torch.arange(4.0, device="cuda")
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x[x > 1].view(1000, -1)
    assert torch._C._len_torch_function_stack() == 0


def test_a_draw_of_a_changing_size_leaves_its_generator(platform):
    """The capture computes nothing, and each replay draws on from a generator that the graph does not know."""
    mine, twin = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    x, before = torch.arange(6.0, device="cuda"), mine.get_state()

    def drawn(generator):
        return torch.empty_like(x[x > 2]).exponential_(generator=generator)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = drawn(mine)
    assert torch.equal(mine.get_state(), before)
    for shift in (0, 1, -1):
        x += shift
        graph.replay()
        assert torch.equal(y, drawn(twin))


def test_a_size_given_to_a_triton_kernel_is_plain_and_pinned(platform, monkeypatch):
    """Triton compiles for the exact types of arguments, and refuses a class that it does not know."""
    kernel = type("JITFunction", (), {"run": lambda self, n, *, grid: (type(n), type(grid[0]), n + grid[0])})
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=kernel))
    x = torch.tensor(FEW, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = x[x > 0]
        told = kernel().run(kept.numel(), grid=(kept.numel(),))
    assert told == (int, int, 4)
    graph.replay()
    x.copy_(torch.tensor(MANY))
    with pytest.raises(gfxgraph.GuardMismatch):
        graph.replay()
