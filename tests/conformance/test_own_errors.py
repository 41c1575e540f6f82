"""An error of our own lines never reaches the program: the call runs eagerly, once, and is counted by name."""

from __future__ import annotations

import logging
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import gfxgraph
from gfxgraph.callables import captured, fast_path, graphed, worlds
from gfxgraph.callables.graphed import MOST_OWN
from gfxgraph.callables.trace import corrections, dynamo
from gfxgraph.capture import session

STAGES: list[tuple[Any, str]] = [
    (graphed, "foreign_mode"),
    (graphed, "flatten"),
    (graphed, "understand"),
    (graphed, "arena_of"),
    (worlds.Worlds, "enter"),
    (worlds, "for_dynamo"),
    (worlds, "why_in_pieces"),  # after the function ran
    (worlds, "skeleton"),  # likewise
    (dynamo.Frontend, "trace"),
    (corrections, "_stand_ins"),
    (captured.Captured, "look_at"),  # after a warm-up
    (captured.Captured, "record"),
    (session.Session, "end"),
    (captured, "make_fast"),
    (fast_path.Writer, "copy_in"),
]


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    if torch.cuda.is_available():
        gfxgraph.enable(allow_cuda=True)
    else:
        gfxgraph.enable(simulate="hip")
    yield
    gfxgraph.disable()


def _fails(*args: object, **kwargs: object) -> Any:
    raise AttributeError("planted")


def _counts(*args: object) -> Any:
    tried.append(1)  # type: ignore[name-defined]  # noqa: F821
    raise AttributeError("planted")


fails = types.FunctionType(_fails.__code__, {**vars(graphed)})  # a line of ours


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage[1])
def test_the_call_runs_eagerly_once(stage: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, and what is written in place, are eager's at each call; each call is counted once."""
    total = torch.zeros(3, device="cuda")

    def step(x: Tensor) -> Tensor:
        total.add_(x)
        return x * 2

    monkeypatch.setattr(*stage, fails)
    f = gfxgraph.graphed(step)
    for i in range(1, 6):
        x = torch.full((3,), float(i), device="cuda")
        assert f(x).tolist() == [2.0 * i] * 3
    assert total.tolist() == [15.0] * 3
    counted = f.stats()
    assert sum(counted["eager"].values()) + counted["replays"] + sum(counted["pieces"].values()) == 5


def test_it_is_named_and_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The reason names the error, in ``explain()``, too; our line is in the debug log."""
    monkeypatch.setattr(graphed, "understand", fails)
    f = gfxgraph.graphed(lambda x: x + 1)
    logging.getLogger("gfxgraph").propagate = True
    with caplog.at_level(logging.DEBUG, "gfxgraph"):
        f(torch.ones(2, device="cuda"))
    (why,) = f.stats()["eager"]
    assert why == "an error in gfxgraph itself: AttributeError: planted" and why in f.explain()
    assert any(each.exc_info and each.exc_info[0] is AttributeError for each in caplog.records)


def test_after_a_few_calls_stay_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails each time is not tried for ever; ``reset()`` tries again."""
    tried = []
    counting = types.FunctionType(_counts.__code__, {**vars(graphed), "tried": tried})
    monkeypatch.setattr(graphed, "understand", counting)
    f = gfxgraph.graphed(lambda x: x + 1)
    for _ in range(2 * MOST_OWN):
        f(torch.ones(2, device="cuda"))
    assert len(tried) == MOST_OWN
    monkeypatch.undo()
    f.reset()
    for _ in range(4):
        f(torch.ones(2, device="cuda"))
    assert f.stats()["replays"] >= 3


@pytest.mark.parametrize("n_before", (0, 1, 2))
def test_the_programs_own_errors_come_out_once(n_before: int) -> None:
    """In a trace, a warm-up or later: the same error, with one run's side effects."""
    ran: list[int] = []

    def step(x: Tensor, is_bad: bool) -> Tensor:
        ran.append(1)
        if is_bad:
            raise AttributeError("the program's own")
        return x + 1

    f, x = gfxgraph.graphed(step), torch.ones(2, device="cuda")
    for _ in range(n_before):
        f(x, False)
    ran.clear()
    with pytest.raises(AttributeError, match="the program's own"):
        f(x, True)
    assert len(ran) == 1


@pytest.mark.parametrize("n", (500, 5000))
def test_an_argument_nested_deep(n: int) -> None:
    """An argument nested deeper than Python's calls, or Dynamo's, may be runs eagerly, and others of the same function
    have graphs.
    """

    f = gfxgraph.graphed(lambda tree, y: y * 2)
    x = torch.ones(2, device="cuda")
    deep: Any = x
    for _ in range(n):
        deep = [deep]
    for _ in range(2 * MOST_OWN):
        assert f(deep, x).tolist() == [2.0, 2.0]
    assert n == 500 or any("RecursionError" in why for why in f.stats()["eager"])
    for _ in range(4):
        assert f([x], x).tolist() == [2.0, 2.0]
    assert f.stats()["replays"] >= 3
