"""Python that runs between graphs: loops left early, assertions, and what Dynamo by itself leaves to Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import gfxgraph

pytestmark = pytest.mark.any_platform


def X(i: int = 0, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(i)
    return torch.randn(*(shape or (4, 8)), generator=generator).cuda()


def _until_negative(x: Any) -> Any:
    out = []
    for i in range(x.shape[0]):
        if x[i].sum() < 0:
            break
        out.append(x[i] * 2)
    return out


def _without_negative(x: Any) -> Any:
    total = torch.zeros(8, device=x.device)
    for i in range(x.shape[0]):
        if x[i, 0] < 0:
            continue
        total = total + x[i]
    return total


def _first_large(x: Any) -> Any:
    for i in range(4):
        if x[i].sum() > 1:
            break
    else:
        return x * 0
    return x * (i + 1)


@pytest.mark.parametrize("f", [_until_negative, _without_negative, _first_large])
def test_a_loop_that_the_data_ends_is_graphed_in_pieces(platform, f):
    g = gfxgraph.graphed(f)
    with torch.no_grad():
        for i in range(8):
            torch.testing.assert_close(g(X(i)), f(X(i)))
    assert g.stats()["replays"] > 4, g.explain()


def test_an_assertion_about_data_is_the_functions_own(platform):
    def f(x: Any) -> Any:
        assert x.sum() > 0, "negative"
        return x * 2

    g = gfxgraph.graphed(f)
    for sign in (1, -1, 1, -1, 1):
        x = X().abs() * sign
        if sign < 0:
            with pytest.raises(AssertionError, match="negative"):
                g(x)
        else:
            assert torch.equal(g(x), x * 2)
    assert g.stats()["replays"], g.explain()


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_are_one_graph(platform, kind):
    torch.manual_seed(0)
    layer = kind(8, 4, batch_first=True).cuda()
    g = gfxgraph.graphed(lambda x: layer(x)[0])
    with torch.no_grad():
        for i in range(4):
            torch.testing.assert_close(g(X(i, 2, 3, 8)), layer(X(i, 2, 3, 8))[0])
    assert g.stats()["replays"] == 3, g.explain()


def test_a_function_with_a_context_manager_of_its_own_keeps_its_graphs(platform):
    """Globals in which Dynamo puts names of its own are no table whose missing keys the function catches."""
    state = {"k": 1.0}

    @contextlib.contextmanager
    def using(k: float) -> Iterator[None]:
        before, state["k"] = state["k"], k
        try:
            yield
        finally:
            state["k"] = before

    def f(x: Any) -> Any:
        with using(5.0):
            y = x * state["k"]
        return y + state["k"]

    g = gfxgraph.graphed(f)
    with torch.no_grad():
        for i in range(6):
            gfxgraph.graphed(lambda x: x + 1)(X(i))  # another name
            with using(float(i // 4)):
                assert torch.equal(g(X(i)), f(X(i)))
    assert g.stats()["replays"] >= 2, g.explain()


def test_a_loop_over_functions_is_left_to_python_where_it_breaks(platform):
    """What follows a break there is guarded on the iterator's next elements, which a shorter one does not have."""
    state = {"n": 1.0, "keys": []}

    def counting(x):
        state["keys"].append(len(state["keys"]))
        return x + len(state["keys"])

    def scaling(x):
        print(end="")
        return x * state["n"]

    reads = (scaling, counting, scaling)

    def function(x):
        for read in reads:
            x = read(x)
        return x

    f, x = gfxgraph.graphed(function), torch.ones(2, 3, device="cuda")
    for n in range(8):
        state["n"] = 1.0 + n // 3
        state["keys"].clear()
        made = f(x)
        state["keys"].clear()
        assert torch.equal(made, function(x))
