"""A function that raises does so for its caller, as it would eagerly; what it does when it does not raise is graphed."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.callables.trace.dynamo import MAX_RAISED

pytestmark = pytest.mark.any_platform

WIDTH = 4
Case = tuple[Callable[..., Any], Callable[[bool], tuple[Any, ...]]]


def X(width: int = WIDTH) -> torch.Tensor:
    return torch.arange(2.0 * width, device="cuda").view(2, width)


class _Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.eye(WIDTH))

    def forward(self, x: Any) -> Any:
        if x.shape[-1] != WIDTH:
            raise ValueError(f"{x.shape[-1]} columns")
        return x @ self.w


def _by_flag() -> Case:
    def f(x: Any, bad: bool) -> Any:
        if bad:
            raise ValueError("bad input")
        return x * 2 + 1

    return f, lambda bad: (X(), bad)


def _by_state() -> Case:
    state = types.SimpleNamespace(bad=True)

    def check() -> None:
        if state.bad:
            raise KeyError("bad state")

    def f(x: Any) -> Any:
        x = x * 2
        check()
        return x + 1

    def arguments(bad: bool) -> tuple[Any, ...]:
        state.bad = bad
        return (X(),)

    return f, arguments


def _by_shape() -> Case:
    return _Checked().to("cuda").requires_grad_(False), lambda bad: (X(WIDTH + 1 if bad else WIDTH),)


def _by_torch() -> Case:
    weight = torch.eye(WIDTH, device="cuda")
    return lambda x: x @ weight + 1, lambda bad: (X(WIDTH + 1 if bad else WIDTH),)


def _by_value() -> Case:
    def f(x: Any) -> Any:
        if x.sum().item() < 0:
            raise ValueError("negative")
        return x * 2

    return f, lambda bad: (-X() if bad else X(),)


CASES = [_by_flag, _by_state, _by_shape, _by_torch, _by_value]


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("order", ["bad first", "good first", "in turn"])
def test_calls_after_an_error_are_graphed(platform, make, order):
    """Errors are the function's own, and good calls before and after them replay."""
    f, arguments = make()
    g = gfxgraph.graphed(f)
    bad = {"bad first": [1, 1, 0, 0, 0, 0], "good first": [0, 0, 0, 1, 0, 0], "in turn": [1, 0] * 4 + [0, 0]}[order]
    with torch.no_grad():
        for is_bad in bad:
            given = arguments(bool(is_bad))
            if is_bad:
                with pytest.raises(Exception) as want:  # noqa: PT011  which one is asked below
                    f(*given)
                with pytest.raises(type(want.value)) as found:
                    g(*given)
                assert str(found.value) == str(want.value)
            else:
                assert torch.equal(g(*given), f(*given))
        before = g.stats()["replays"]
        given = arguments(False)
        assert torch.equal(g(*given), f(*given))
    assert g.stats()["replays"] > before, g.explain()


def test_errors_are_counted_and_retried_a_few_times(platform):
    """So many calls that raise, and what is not known is not traced any more; what is known replays."""

    def f(x: Any, k: int) -> Any:
        if k < 0:
            raise ValueError(f"{k}")
        return x * k

    g, x = gfxgraph.graphed(f), X()
    for _ in range(3):
        assert torch.equal(g(x, 2), f(x, 2))
    for k in range(1, MAX_RAISED + 4):
        with pytest.raises(ValueError, match=f"-{k}"):
            g(x, -k)
    before = g.stats()["replays"]
    assert torch.equal(g(x, 2), f(x, 2)) and g.stats()["replays"] == before + 1
    assert torch.equal(g(x, 3), f(x, 3)) and torch.equal(g(x, 3), f(x, 3))
    found = g.stats()
    assert found["replays"] == before + 1
    assert found["calls"]["raised"] == {"ValueError": MAX_RAISED + 3}
    assert sum(n for why, n in found["eager"].items() if "raised an error while they were traced" in why) == 2
    assert f"{MAX_RAISED} of its calls raised an error while they were traced" in g.explain()
