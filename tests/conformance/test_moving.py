"""Results whose shape depends on data, and calls that replays repeat with a number, where others meet them."""

from __future__ import annotations

import pytest
import torch

import gfxgraph

pytestmark = [pytest.mark.any_platform, pytest.mark.usefixtures("nothing_compiled")]
FEW, MANY, OTHERS = [-1.0, 2.0, 3.0, -4.0], [1.0, 2.0, 3.0, -4.0], [5.0, -2.0, -3.0, 7.0]


def test_a_result_of_another_size_is_refused(platform):
    """It keeps its shape of the capture, which the replay's error names with the line, as other graphs rely on it."""
    x = torch.tensor(FEW, device="cuda")
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = x[x > 0] * 2  # the line
    with torch.cuda.graph(other):
        total = kept.sum() + 1
    line = next(n for n, text in enumerate(open(__file__), 1) if text.rstrip().endswith("# the line"))
    for values in (FEW, MANY, OTHERS, [1.0, 1.0, 1.0, 1.0], FEW):
        want = [2 * v for v in values if v > 0]
        x.copy_(torch.tensor(values))
        if len(want) == 2:
            graph.replay()
            other.replay()
            assert kept.tolist() == want and total.item() == sum(want) + 1
        else:
            with pytest.raises(gfxgraph.GuardMismatch, match=r"shape_guard_mismatch") as caught:
                graph.replay()
            assert f"test_moving.py:{line}" in str(caught.value) and f"({len(want)},)" in str(caught.value)


def test_a_part_of_a_tensor_that_stays_is_not_written(platform):
    """A row at a place that Python read, which another capture reads: nothing is copied over the tensor."""
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
        v = x.sum().item()
        full = torch.addmm(rows[:, :4], rows, rows.t(), beta=v)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            half = torch.addmm(rows[:, :4], rows, rows.t(), beta=v)
    for values in (FEW, MANY):
        x.copy_(torch.tensor(values))
        with torch.autocast("cuda", dtype=torch.float16):
            graph.replay()
        assert torch.equal(full, torch.addmm(rows[:, :4], rows, rows.t(), beta=sum(values)))
        low = rows.bfloat16()
        assert half.dtype is torch.bfloat16
        assert torch.equal(half, torch.addmm(low[:, :4], low, low.t(), beta=sum(values)))


def test_an_error_in_a_call_leaves_no_mode(platform):
    """A call that ends the capture: torch's stack of modes is as it was."""
    x = torch.arange(4.0, device="cuda")
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x[x > 1].view(1000, -1)
    assert torch._C._len_torch_function_stack() == 0


def test_out_of_a_call_that_failed_in_the_capture_stays_in_its_memory(platform):
    """A replay in which the call succeeds is refused; the ones after it go on with the tensor that the program has."""
    x, counts = torch.full((4,), float("nan"), device="cuda"), torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        try:
            torch.histc(x, 4, out=counts)
        except RuntimeError:
            counts.add_(1)
    x.fill_(1)
    with pytest.raises(gfxgraph.GuardMismatch, match="histc"):
        graph.replay()
    x.fill_(float("nan"))
    before = counts.clone()
    graph.replay()
    assert torch.equal(counts, before + 1)


def test_an_error_after_one_that_the_program_caught_is_its_own(platform):
    """It leaves the block, and the graph holds what was captured, as torch's does: the other error is no longer there."""
    x, counts = torch.full((4,), float("nan"), device="cuda"), torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="enough"), torch.cuda.graph(graph):
        try:
            torch.histc(x, 4)
        except RuntimeError:
            counts.add_(1)
        raise RuntimeError("enough")  # often at the address of the first one
    graph.replay()
    assert counts.tolist() == [1.0, 1.0]


def test_a_draw_with_a_number_leaves_its_generator(platform):
    """The capture computes nothing, and each replay draws on from a generator that the graph does not know."""
    mine, twin = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    x, before = torch.arange(6.0, device="cuda"), mine.get_state()

    def drawn(generator):
        return torch.empty_like(x).exponential_(x.max().item(), generator=generator)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = drawn(mine)
    assert torch.equal(mine.get_state(), before)
    for shift in (0, 1, -1):
        x += shift
        graph.replay()
        assert torch.equal(y, drawn(twin))
