"""A replay that fails is undone, and says what it was that failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import gfxgraph_simulator as simulator
from gfxgraph.callables.arena import replay
from gfxgraph.callables.signature import RunEagerly
from gfxgraph.errors import GuardMismatch, ReplayError


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """A device whose stream can be waited for."""
    with simulator.install():
        yield


class Split:
    """A graph of several parts: it writes to one tensor, draws, and then fails or not."""

    is_plain = False

    def __init__(self, error: Exception | None) -> None:
        self._program = self
        self.error = error
        self.written = torch.zeros(2)

    def writes(self) -> list[Tensor]:
        return [self.written]

    def random_states(self) -> list[torch.Generator]:
        return [torch.default_generator]

    def replay(self) -> None:
        self.written += 1
        torch.rand(1)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "raised"),
    (
        (GuardMismatch("guard_mismatch", question="x > 0"), RunEagerly),
        (ReplayError("no_fallback_left"), RunEagerly),
    ),
    ids=("a value", "a launch"),
)
def test_what_a_failed_replay_did_is_undone(error: Exception, raised: type[RunEagerly]) -> None:
    """Tensors and random states are as before it, and the error tells a changed value from a failed launch."""
    graph, before = Split(error), torch.default_generator.get_state()
    with pytest.raises(RunEagerly) as caught:
        replay(graph)  # type: ignore[arg-type]
    assert type(caught.value) is raised and caught.value.__cause__ is error
    assert graph.written.tolist() == [0, 0] and torch.equal(torch.default_generator.get_state(), before)


def test_a_replay_that_went_well_stands() -> None:
    """Nothing is put back after it."""
    graph = Split(None)
    replay(graph)  # type: ignore[arg-type]
    assert graph.written.tolist() == [1, 1]


def test_only_what_is_named_is_put_back() -> None:
    """Who knows that nobody looks at its results need not save them."""
    graph = Split(ReplayError("no_fallback_left"))
    with pytest.raises(RunEagerly, match="no_fallback_left"):
        replay(graph, ())  # type: ignore[arg-type]
    assert graph.written.tolist() == [1, 1]
