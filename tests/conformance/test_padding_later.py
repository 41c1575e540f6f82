"""Padding where the first calls hide what later ones show: other indices, flags, masks, lengths, magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import gfxgraph
from tests.conformance.conftest import PLATFORMS

pytestmark = pytest.mark.any_platform

X = {"x": {0: "n"}}
SEQ = {"x": {1: "n"}}


ON_ONE = pytest.mark.parametrize("platform", PLATFORMS[:1], indirect=True)
"""What is judged is the graph, which is the same on each; the verdicts are tested without any."""


@dataclass
class Case:
    """A step, arguments of its first calls, and of those that come when graphs are in use."""

    step: Callable[..., torch.Tensor]
    first: Callable[[], tuple[Any, ...]]
    later: Callable[[], tuple[Any, ...]]
    dynamic: dict[str, dict[int, str]]


def rows(n: int = 5) -> torch.Tensor:
    return torch.randn(n, 4, device="cuda")


def sequences(n: int = 5) -> torch.Tensor:
    return torch.randn(2, n, 4, device="cuda")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="cuda")


def bools(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="cuda") == 1


def floats(*values: float) -> torch.Tensor:
    return torch.tensor(values, device="cuda")


def with_rows(make: Callable[..., torch.Tensor], *values: float) -> Callable[[], tuple[Any, ...]]:
    return lambda: (rows(), make(*values))


def row_by_value(x: torch.Tensor) -> torch.Tensor:
    return x[x[:, 0].abs().long() % x.shape[0]]


def attention(fill: float) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        is_real = torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None]
        return (x @ x.transpose(1, 2)).masked_fill(~is_real[:, None], fill).softmax(-1) @ x

    return step


def pooled(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    is_real = torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None]
    return (x * is_real[..., None]).sum(1) / lengths[:, None]


def last_token(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(x.shape[0], device=x.device), lengths - 1]


HARMFUL = {
    "index from the end": Case(lambda x, i: x[i], with_rows(ints, 0, 2), with_rows(ints, -1, -2), X),
    "index from the end, dynamic": Case(
        lambda x, i: x[i], with_rows(ints, 0, 2), with_rows(ints, -1, -2), X | {"i": {0: "m"}}
    ),
    "index never below zero": Case(lambda x, i: x[i.clamp(min=0)], with_rows(ints, 0, 2), with_rows(ints, -1, 4), X),
    "mask before a maximum": Case(
        lambda x, m: torch.where(m[:, None], x, x.amax(0)),
        with_rows(bools, 1, 1, 1, 1, 1),
        lambda: (-rows().abs() - 1, bools(1, 0, 1, 0, 1)),
        X | {"m": {0: "n"}},
    ),
    "flag before a maximum": Case(
        lambda x, f: torch.where(f, x.amax(0), x[0]),
        with_rows(bools, 0),
        lambda: (-rows().abs() - 1, bools(1)),
        X,
    ),
    "index written from the end": Case(
        lambda x, i: x.index_put((i,), x[:1] * 9), with_rows(ints, 0, 2), with_rows(ints, -1, -2), X
    ),
    "ring": Case(lambda x, i: x[i % x.shape[0]], with_rows(ints, 0, 2), with_rows(ints, 7, 13), X),
    "index limited by the size": Case(
        lambda x, i: x[i.clamp(max=x.shape[0] - 1)], with_rows(ints, 0, 2), with_rows(ints, -1, -2), X
    ),
    "index computed from the data": Case(row_by_value, lambda: (rows().clamp(-0.9, 0.9),), lambda: (rows() * 90,), X),
    "flag": Case(lambda x, f: torch.where(f, x.mean(0), x[0]), with_rows(bools, 0), with_rows(bools, 1), X),
    "flag that was set": Case(
        lambda x, f: torch.where(f, x[0], x.mean(0)), with_rows(bools, 1), with_rows(bools, 0), X
    ),
    "flag as a number": Case(
        lambda x, f: torch.where(f > 0, x.mean(0), x[0]), with_rows(ints, 0), with_rows(ints, 1), X
    ),
    "gate": Case(lambda x, f: x + f * x.mean(0), with_rows(floats, 0.0), with_rows(floats, 1.0), X),
    "flag beside a gate": Case(
        lambda x, f, k: k * torch.where(f, x.mean(0), x[0]),
        lambda: (rows(), bools(0), ints(1)),
        lambda: (rows(), bools(1), ints(2)),
        X,
    ),
    "temperature": Case(lambda x, f: (x * f).softmax(0), with_rows(floats, 0.0), with_rows(floats, 1.0), X),
    "mask on everywhere": Case(
        lambda x, m: torch.where(m[:, None], x, x.mean(0)),
        with_rows(bools, 1, 1, 1, 1, 1),
        with_rows(bools, 1, 0, 1, 0, 1),
        X | {"m": {0: "n"}},
    ),
    "index among rows alike": Case(
        lambda x, i: x[i], lambda: (torch.ones(5, 4, device="cuda"), ints(0, 2)), with_rows(ints, -2, -3), X
    ),
}
# The function may be right with padding, but only for lengths and indices that no graph knows of.
HARMFUL |= {
    "attention by lengths": Case(
        attention(-1e9), lambda: (sequences(), ints(3, 5)), lambda: (sequences(), ints(1, 4)), SEQ
    ),
    "attention by lengths, batch too": Case(
        attention(float("-inf")),
        lambda: (sequences(), ints(3, 5)),
        lambda: (sequences(), ints(1, 4)),
        {"x": {0: "b", 1: "n"}, "lengths": {0: "b"}},
    ),
    "attention by lengths, all alike": Case(
        attention(-1e9),
        lambda: (sequences(), ints(5, 5)),
        lambda: (sequences(), ints(1, 4)),
        {"x": {0: "b", 1: "n"}, "lengths": {0: "b"}},
    ),
    "pooled by lengths": Case(pooled, lambda: (sequences(), ints(3, 5)), lambda: (sequences(), ints(1, 4)), SEQ),
    "last token by lengths": Case(
        last_token, lambda: (sequences(), ints(3, 5)), lambda: (sequences(), ints(1, 4)), SEQ
    ),
}
HARMLESS = {
    "flag of rows": Case(lambda x, f: torch.where(f, x * 2, x - 1), with_rows(bools, 0), with_rows(bools, 1), X),
    "gate of rows": Case(lambda x, f: x + f * x.flip(1), with_rows(floats, 0.0), with_rows(floats, 1.0), X),
    "mask of rows": Case(
        lambda x, m: torch.where(m[:, None], x, -3.0),
        with_rows(bools, 1, 1, 1, 1, 1),
        with_rows(bools, 1, 0, 1, 0, 1),
        X | {"m": {0: "n"}},
    ),
}


def play(case: Case) -> Any:
    """Some first calls and some later ones, beside eager."""
    g = gfxgraph.graphed(case.step, dynamic=case.dynamic, buckets=[8])
    torch.manual_seed(0)
    for i in range(10):
        args = case.first() if i < 5 else case.later()
        assert torch.allclose(g(*args), case.step(*args), rtol=1e-4, atol=1e-5), f"call {i}: {g.explain()}"
    return g


# In the simulator every third: each is traced by Dynamo, and tests/unit/callables/padding has their verdicts.
ALL = [name for i, name in enumerate({**HARMFUL, **HARMLESS}) if PLATFORMS == ["gpu"] or i % 3 == 0]


@pytest.mark.parametrize("name", [name for name in ALL if name in HARMFUL])
@ON_ONE
def test_what_the_first_calls_hide_is_found(name: str, platform: str) -> None:
    """Eager's results from the first call to the last, and no graph that gives others."""
    assert not play(HARMFUL[name]).stats()["replays"]


@pytest.mark.parametrize("name", [name for name in ALL if name in HARMLESS])
@ON_ONE
def test_what_is_harmless_is_found_so(name: str, platform: str) -> None:
    """The same kinds of argument where no row looks at another's padding: graphs serve the later calls."""
    g = play(HARMLESS[name])
    assert g.stats()["replays"] >= 5 and not g._padding.refusals, g.explain()


@ON_ONE
def test_a_flag_that_is_read_steers_and_is_no_reason_to_refuse(platform: str) -> None:
    """Dynamo breaks the graph there: nothing is padded, and the host takes its way at each call."""

    def step(x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0) if flag.item() else x * 2

    g = gfxgraph.graphed(step, dynamic=X, buckets=[8])
    for value in (0, 0, 0, 0, 1, 1, 0, 1):
        x, flag = rows(), bools(value)
        assert torch.allclose(g(x, flag), step(x, flag), atol=1e-5), g.explain()
    assert g.stats()["pieces"]


@ON_ONE
def test_a_number_that_is_read_may_be_a_size(platform: str) -> None:
    """It is asked for again at each call, in Python between graphs."""

    def step(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return x[: int(k.item())] * 2

    g = gfxgraph.graphed(step, dynamic=X, buckets=[8])
    for k in (3, 3, 3, 3, 2, 3):
        x = rows()
        assert torch.equal(g(x, ints(k)), step(x, ints(k)))
    assert g.stats()["pieces"], g.explain()


@ON_ONE
def test_a_call_of_one_row_proves_little(platform: str) -> None:
    """One row repeated is all the rows there are: larger calls of the same bucket are proved on their own."""
    g = gfxgraph.graphed(lambda x, i: x[i], dynamic=X, buckets=[8])
    for n, at in ((1, 0), (1, 0), (1, 0), (5, 1), (5, 2), (5, 4), (5, -1), (5, -4), (1, -1)):
        x, i = rows(n), ints(at)
        assert torch.equal(g(x, i), x[i]), g.explain()


@ON_ONE
def test_a_value_that_the_host_reads_is_of_the_calls_rows(platform: str) -> None:
    """Whatever way it steers at first: with padding summed in it would steer elsewhere."""

    def step(x: torch.Tensor, of_rows: bool) -> torch.Tensor:
        y = x + 1
        score = y[0].sum() if of_rows else y.sum()
        return y * 2 if score.item() > -6 else y

    for of_rows in (True, False):
        g = gfxgraph.graphed(lambda x: step(x, of_rows), dynamic=X, buckets=[8])  # noqa: B023 - called right here
        for mean in (0.0, 0.0, 0.0, 0.0, -1.5, -1.5, -1.5, 0.0):
            x = torch.full((5, 4), mean, device="cuda")
            assert torch.equal(g(x), step(x, of_rows)), g.explain()
        assert g.stats()["pieces"], g.explain()


@ON_ONE
def test_a_modules_switch_stays_a_number_where_sizes_are_symbols(platform: str) -> None:
    """As a symbol it would be no ``bool`` for an operation, and break the graph; one that counts may become one."""

    class Switched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mode = 1
            self.n_calls = 0

        def forward(self, x: torch.Tensor, counts: bool = False) -> torch.Tensor:
            if counts:
                self.n_calls += 1
            return torch.sum(x, 1, keepdim=self.mode == 1)

    mine, eager = Switched(), Switched()
    g = gfxgraph.graphed(mine, dynamic=X, buckets=[8])
    for n in (5, 5, 5, 7, 7, 8, 5):
        x = rows(n)
        assert torch.equal(g(x), eager(x))
    assert g.stats()["replays"] >= 4 and not g.stats()["pieces"], g.explain()
    for module in (mine, eager):
        module.mode = 2
    for i in range(12):
        x = rows(5 + i % 3)
        assert torch.equal(g(x, i > 4), eager(x, i > 4))
    assert mine.n_calls == eager.n_calls == 7, g.explain()


@ON_ONE
def test_what_the_function_does_at_another_size_alone_is_not_done_to_find_out(platform: str) -> None:
    """It is traced at the bucket's size, and nothing of that runs: neither its writes nor its changes in Python."""

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total, self.said = torch.zeros(4, device="cuda"), []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 6:
                self.total.add_(1)
            if x.shape[0] > 7:
                self.said.append(x.shape[0])
                print(end="")
            return x * 2

    for bucket in (7, 8):
        step = Step()
        g = gfxgraph.graphed(step, dynamic=X, buckets=[bucket])
        for n in (5, 5, 5, 6, 6):
            x = rows(n)
            assert torch.equal(g(x), x * 2)
        assert not step.total.any() and not step.said, g.explain()
        x = rows(bucket)
        assert torch.equal(g(x), x * 2) and step.total.tolist() == [1.0] * 4, g.explain()
        assert step.said == ([8] if bucket == 8 else []), g.explain()


def test_a_function_that_reads_no_row_but_their_number(platform):
    """A result made of the size alone is cut to it, as all are."""
    g = gfxgraph.graphed(lambda x: torch.ones(x.shape[0], device="cuda"), dynamic={"x": {0: "n"}}, buckets=[4, 8])
    with torch.no_grad():
        for n in (3, 5, 2, 7, 4, 3):
            assert g(torch.ones(n, 4, device="cuda")).shape == (n,)
    assert g.stats()["replays"] == 1 and "n may be padded" in g.explain()
