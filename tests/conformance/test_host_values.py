"""Values that Python reads inside a plain capture: each replay gives eager's answer, or GuardMismatch."""

from __future__ import annotations

import builtins
import math

import pytest
import torch

import gfxgraph
from tests.conformance.host_value_programs import GUARDED, RIGHT, STATEFUL

INPUTS = [
    [0.0, 1.0, 2.0, 3.0, 0.5, -1.0],
    [0.0, 1.0, 2.0, 3.0, 0.5, -1.0],
    [0.25, 1.0, 2.5, 3.0, 0.5, -1.0],
    [3.0, 3.0, 3.0, 3.0, 3.0, 3.0],
    [-1.0, -2.0, -0.5, -4.0, -1.0, -0.25],
    [10.0, -20.0, 0.0, 7.5, 1.5, 0.125],
]


def outcomes(body, others, states=((), ()), inputs=INPUTS, warm=True):
    """What each replay of ``body`` gives, compared with ``others``, its eager twin: "right" or "guarded"."""
    x = torch.tensor(inputs[0], device="cuda")
    graph = torch.cuda.CUDAGraph()
    if warm:
        body(x)
        others(x)
    with torch.cuda.graph(graph):
        got = body(x)
    found = []
    for values in inputs:
        x.copy_(torch.tensor(values))
        before = [t.detach().clone() for t in states[0]]
        try:
            graph.replay()
            found.append("right")
        except gfxgraph.GuardMismatch as error:
            assert "host_value_programs.py" in str(error) or "test_host_values.py" in str(error), error
            found.append("guarded")
            with torch.no_grad():
                for mine, saved in zip(states[0], before):
                    mine.copy_(saved)
            continue
        want = others(x)
        got_all = [*leaves(got), *states[0]]
        want_all = [*leaves(want), *states[1]]
        assert len(got_all) == len(want_all)
        for a, b in zip(got_all, want_all):
            assert a.shape == b.shape and a.dtype == b.dtype, (a, b)
            assert torch.allclose(a, b, equal_nan=True, rtol=1e-5, atol=1e-6), (values, a, b)
    return found


def leaves(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_program_is_right(platform, name):
    """The value flows: every replay agrees with eager."""
    assert outcomes(RIGHT[name], RIGHT[name]) == ["right"] * len(INPUTS)


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_program_is_right_or_guarded(platform, name):
    """The same value replays; another is right or GuardMismatch with its line."""
    found = outcomes(GUARDED[name], GUARDED[name])
    assert found[:2] == ["right", "right"]


@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_program_with_state_is_right(platform, name):
    """A training step's state follows eager through every replay."""
    (body, mine), (twin, others) = STATEFUL[name](), STATEFUL[name]()
    assert outcomes(body, twin, (mine, others)) == ["right"] * len(INPUTS)


def test_captures_share_a_value(platform):
    """A number read in one capture and used in another, inside it or after it, is what its latest replay read."""
    x = torch.tensor(INPUTS[0], device="cuda")
    first, second, inner = (torch.cuda.CUDAGraph() for _ in range(3))
    with torch.cuda.graph(first):
        total = x.sum().item()
        with torch.cuda.graph(inner, stream=torch.cuda.Stream()):
            b = x * total
    with torch.cuda.graph(second):
        y = x * total + math.sqrt(total * total)
    for values in INPUTS[1:]:
        x.copy_(torch.tensor(values))
        for graph in (first, second, inner):
            graph.replay()
        want = x.sum().item()
        assert torch.allclose(y, x * want + abs(want)) and torch.allclose(b, x * want)
        assert total == pytest.approx(want)  # what the program still holds follows the replays
    assert isinstance(total, float) and total + 1 == pytest.approx(want + 1)


def test_strict_refuses_what_flows(platform):
    """strict: comparing and printing are allowed, computing is refused at capture."""
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph(on_unsafe="strict")
    with torch.cuda.graph(graph):
        if x.sum().item() > 3:
            y = x * 2
    graph.replay()
    assert y.tolist() == [2.0] * 4
    for body in (lambda: x * x.sum().item(), lambda: x.sum().item() + 1, lambda: float(x.sum())):
        with (
            pytest.raises(gfxgraph.CaptureError) as caught,
            torch.cuda.graph(torch.cuda.CUDAGraph(on_unsafe="strict")),
        ):
            body()
        assert caught.value.code == "host_value_escaped"


def test_guard_names_line_and_both_values(platform):
    """A pinned value that changed: the line that used it, what it was, what it is."""
    x = torch.full((4,), 2.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _ = x * float(x.max())
    x.fill_(3.0)
    with pytest.raises(gfxgraph.GuardMismatch) as caught:
        graph.replay()
    text = str(caught.value)
    assert "2.0" in text and "3.0" in text and "test_host_values.py:" in text
    assert gfxgraph.stats()["guard_mismatches"] == 1


def test_a_capture_leaves_python_as_it_was(platform):
    """What stands in for Python's and torch's functions while a capture has numbers is gone afterwards."""
    names = [(builtins, "min"), (math, "sqrt"), (torch.Tensor, "view"), (torch, "zeros"), (torch.Tensor, "item")]
    before = [getattr(owner, name) for owner, name in names]
    x = torch.arange(4.0, device="cuda")
    with torch.device("cpu"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        with torch.device("cpu"):
            kept = x[x > 1]
            _ = kept.sum() * math.sqrt(min(x.max().item(), 2.0))
        assert torch.zeros(1).device.type == "cpu"
    assert [getattr(owner, name) for owner, name in names] == before
    assert torch._C._len_torch_function_stack() == 0


def test_capture_computes_nothing(platform):
    """What the host's steps ran at capture is undone, writes to tensors from outside among them."""
    x, seen = torch.arange(4.0, device="cuda"), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = x[x > 1]
        seen[: kept.numel()] += kept
        seen.mul_(x.max().item())
    assert not seen.any()
    x.copy_(torch.tensor([5.0, 0.0, 0.0, 6.0]))
    graph.replay()
    assert seen.tolist() == [30.0, 36.0, 0.0, 0.0]
    x.copy_(torch.tensor([5.0, 2.0, 2.0, 6.0]))
    graph.replay()
    assert seen.tolist() == [210.0, 228.0, 12.0, 36.0]
    assert kept.tolist() == [5.0, 2.0, 2.0, 6.0]
