"""Plain captures, splits, guards and recovery: the same on the GPU and in both simulated platforms."""

from __future__ import annotations

import gc
import logging
import math
import weakref

import pytest
import torch

import gfxgraph
from gfxgraph.process import process


def randn(*size, **kw):
    return torch.randn(*size, device="cuda", **kw)


def test_plain_graph_replays_new_input(capture):
    """A replay computes from what its static input holds now."""
    x = randn(8)
    graph, y = capture(lambda: (x * 2 + 1).relu())
    x.copy_(torch.arange(8.0))
    graph.replay()
    assert torch.equal(y, (x * 2 + 1).relu())
    assert gfxgraph.stats()["capture_count"] == 1
    assert gfxgraph.stats()["split_count"] == 0


def test_is_a_subclass(platform):
    """Users' isinstance checks against torch's own class hold."""
    graph = torch.cuda.CUDAGraph()
    assert isinstance(graph, torch.cuda.graphs.CUDAGraph)
    assert isinstance(graph, process.require().base) and torch.cuda.CUDAGraph is not process.require().base
    assert gfxgraph.BridgedCUDAGraph is torch.cuda.CUDAGraph


def test_in_place_state_is_untouched_by_capture(capture):
    """A plain capture computes nothing: a counter keeps its value until the first replay."""
    count = torch.zeros((), device="cuda")
    graph, _ = capture(lambda: count.add_(1), warm=False)
    assert count.item() == 0
    for _ in range(3):
        graph.replay()
    assert count.item() == 3


def test_comparison_splits_and_guards(capture):
    """`if loss.item() > limit` goes on while the value changes and the outcome does not."""
    x = randn(16)

    def body():
        loss = (x * x).sum()
        if loss.item() > 1e9:
            return x * 0
        return x / loss

    graph, y = capture(body)
    for scale in (1.0, 2.0, 5.0):
        x.copy_(torch.randn(16) * scale)
        graph.replay()
        assert torch.allclose(y, x / (x * x).sum())
    assert gfxgraph.stats()["split_count"] == 1
    x.fill_(1e6)
    with pytest.raises(gfxgraph.GuardMismatch) as caught:
        graph.replay()
    assert "test_basic.py" in str(caught.value) and "> 1000000000.0" in str(caught.value)


def test_split_leaves_external_state_alone(capture):
    """What a split had to execute is undone: cache, counter and generator are as before."""
    cache = torch.zeros(4, 4, device="cuda")
    step = torch.zeros((), dtype=torch.long, device="cuda")
    x = randn(4)
    rng = torch.cuda.get_rng_state()

    def body():
        noise = torch.rand(4, device="cuda")
        cache.index_copy_(0, step.view(1), (x + noise).view(1, 4))
        step.add_(1)
        if cache.isnan().any():
            raise AssertionError
        return cache.sum(0)

    graph, y = capture(body, warm=False)
    assert step.item() == 0 and not cache.any()
    assert torch.equal(torch.cuda.get_rng_state(), rng)
    graph.replay()
    torch.cuda.synchronize()
    got = (cache.clone(), step.item(), y.clone())
    cache.zero_()
    step.zero_()
    torch.cuda.set_rng_state(rng)
    want = body()
    assert got[1] == step.item() == 1
    assert torch.equal(got[0], cache) and torch.equal(got[2], want)


@pytest.mark.parametrize("read", ["print", "log", "isnan", "nan"])
def test_printing_and_nan_checks_do_not_stop(capture, read):
    """They let the capture go on. What is no text, a check or a log that nobody sees, lets replays go on, too."""
    x = randn(4)

    def body():
        value = x.sum().item()
        if read == "print":
            print(f"{value:.3f}", "loss {:.3f}".format(value), str(value))
        elif read == "log":
            logging.getLogger("a program").info("loss %.3f", value)
        else:
            assert not math.isnan(value) if read == "isnan" else value == value
        return x + 1

    graph, y = capture(body)
    graph.replay()
    assert torch.equal(y, x + 1)
    x.mul_(3)
    if read in ("print", "isnan"):
        with pytest.raises(gfxgraph.GuardMismatch, match="test_basic.py"):
            graph.replay()
        return
    graph.replay()
    assert torch.equal(y, x + 1)
    assert gfxgraph.stats()["fallback_count"] == 0


def test_strict_stops_at_arithmetic_with_both_lines(capture):
    """strict: a value that goes into a computation is an error at capture, naming both lines; the process is clean."""
    x = randn(4)

    def body():
        scale = x.abs().max().item()
        return x * scale

    with pytest.raises(gfxgraph.CaptureError) as caught:
        capture(body, torch.cuda.CUDAGraph(on_unsafe="strict"))
    assert caught.value.code == "host_value_escaped"
    assert caught.value.fields["read_at"].line + 1 == caught.value.fields["used_at"].line
    torch.rand(3, device="cuda")
    graph, y = capture(lambda: x + 1)
    graph.replay()
    assert torch.equal(y, x + 1)


def test_pin_checks_the_value(platform):
    """pin: the value is a constant, checked at each replay."""
    x = torch.full((4,), 2.0, device="cuda")
    graph = torch.cuda.CUDAGraph(on_unsafe="pin")
    with torch.cuda.graph(graph):
        y = x * x.max().item()
    graph.replay()
    assert torch.equal(y, torch.full((4,), 4.0, device="cuda"))
    x.fill_(3.0)
    with pytest.raises(gfxgraph.GuardMismatch) as caught:
        graph.replay()
    assert "2.0" in str(caught.value) and "3.0" in str(caught.value)


def test_raise_names_the_op(platform):
    """raise: torch's own behaviour, with the operation named; the process stays clean."""
    x = randn(4)
    graph = torch.cuda.CUDAGraph(on_unsafe="raise")
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        with torch.cuda.graph(graph):
            x.sum().item()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.rand(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    assert torch.equal(y, x + 1)


def test_a_graph_whose_capture_failed_holds_nothing_of_the_program(platform):
    """Its error, and with that the frames through which it went, are the caller's alone."""
    graph, seen, x = torch.cuda.CUDAGraph(on_unsafe="raise"), [], randn(4)

    def body():
        local = set()
        seen.append(weakref.ref(local))
        return x.sum().item()

    with pytest.raises(RuntimeError), torch.cuda.graph(graph):
        body()
    gc.collect()
    assert seen[0]() is None


def test_replay_inside_capture(capture):
    """A graph replayed while another is captured becomes part of it."""
    x = randn(4)
    inner, y = capture(lambda: x * 2)

    def body():
        a = x + 1
        inner.replay()
        return y + a

    outer, z = capture(body)
    x.copy_(torch.arange(4.0))
    outer.replay()
    assert torch.equal(z, x * 2 + x + 1)


def test_nested_capture(capture):
    """A capture inside a capture: both graphs are right."""
    x = randn(4)
    graphs = []

    def body():
        a = x + 1
        inner = torch.cuda.CUDAGraph()
        with torch.cuda.graph(inner):
            b = x * 3
        graphs.append((inner, b))
        return a * 2

    outer, y = capture(body, warm=lambda: x + 1)
    x.fill_(5)
    outer.replay()
    inner, b = graphs[-1]
    inner.replay()
    assert torch.equal(y, (x + 1) * 2) and torch.equal(b, x * 3)


def test_side_stream_across_a_split(capture):
    """Forked work joins again although the capture was split between."""
    x = randn(8)
    side = torch.cuda.Stream()

    def body():
        a = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a * 2
        if x.sum().item() > 1e9:
            return b
        c = a - 1
        torch.cuda.current_stream().wait_stream(side)
        return b + c

    graph, y = capture(body)
    x.copy_(torch.arange(8.0))
    graph.replay()
    assert torch.equal(y, (x + 1) * 2 + (x + 1) - 1)


def test_user_error_is_the_one_shown(platform):
    """An error of the user's own leaves the capture as itself, the stream restored."""
    x = randn(4)
    before = torch.cuda.current_stream()
    with pytest.raises(ValueError, match="mine"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x + 1
            raise ValueError("mine")
    assert torch.cuda.current_stream() == before
    torch.rand(2, device="cuda")


def test_shape_error_is_the_one_shown(platform):
    """A shape mismatch inside a capture is torch's own error."""
    with pytest.raises(RuntimeError, match="cannot be multiplied|same reduction dim"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            randn(3, 4) @ randn(5, 6)
    torch.rand(2, device="cuda")


def test_reset_and_recapture(capture):
    """reset() frees the graph; the object captures again."""
    x = randn(4)
    graph, y = capture(lambda: x + 1)
    graph.reset()
    with pytest.raises(gfxgraph.ReplayError) as caught:
        graph.replay()
    assert caught.value.code == "use_after_reset"
    graph, y = capture(lambda: x * 5, graph=graph)
    graph.replay()
    assert torch.equal(y, x * 5)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_backward_inside_capture(capture):
    """Autograd's backward runs inside the capture, and gradients follow the inputs."""
    w = randn(4, 4).requires_grad_()
    x = randn(2, 4)

    def body():
        loss = (x @ w).square().sum()
        if loss.item() > 1e30:
            raise AssertionError
        (grad,) = torch.autograd.grad(loss, w)
        return grad

    graph, grad = capture(body)
    x.copy_(torch.randn(2, 4))
    graph.replay()
    assert torch.allclose(grad, body())


def test_validation_passes(capture):
    """A right replay validates, and validating changes no state."""
    x, count = randn(8), torch.zeros((), device="cuda")

    def body():
        count.add_(1)
        return (torch.dropout(x, 0.5, True) * 2).sum()

    graph, y = capture(body, warm=False)
    assert graph.validate()
    assert count.item() == 1
    assert gfxgraph.stats()["validations"] == 1 and gfxgraph.stats()["validation_failures"] == 0


def test_a_segment_is_named_by_its_first_work(capture):
    """A view at its start has no line of its own: the debug log names that of the work after it."""
    x = randn(4)
    graph, _ = capture(lambda: x.view(2, 2).sum())
    assert "test_basic.py" in str(graph._program.segments[0].where)
