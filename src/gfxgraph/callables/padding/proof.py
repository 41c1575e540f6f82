"""What a proof of padding gives, and what its runs and their differences are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.padding.invent import Content
from gfxgraph.callables.padding.witness import (
    Op,
    Watch,
)
from gfxgraph.capture.memory import storage_address


class Status(StrEnum):
    """How a proof ended."""

    PROVED = "proved"
    REFUSED = "refused"
    AGAIN = "again"
    """This call's data could not tell; the next may."""


@dataclass(slots=True)
class Proof:
    """What is known about one bucket serving one size.

    ``result`` is what the function gave for the call, eagerly; ``sizes`` cut each tensor of a replay's
    result to the call's. ``content`` is what replays must pad with, by argument.
    """

    status: Status
    result: Any = None
    content: dict[int, Content] = field(default_factory=dict)
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    reason: str = ""
    output: str = ""
    op: str = ""
    where: str = ""
    n_runs: int = 0
    may_learn_more: bool = False
    """Integers were not tried, for want of knowing that every index is checked."""

    is_of_one_row: bool = False
    """A row repeated is all the rows there are, its mean is itself: it says little of calls of more."""

    @property
    def is_proved(self) -> bool:
        return self.status is Status.PROVED


@dataclass(slots=True)
class Run:
    """One run of the step and what it left behind."""

    watch: Watch
    result: Any
    structure: Any
    outputs: list[Tensor]
    generators: list[Tensor]
    inputs: list[Tensor]
    """The arguments after the run; their own memory where they were padded."""

    def keep_outputs(self) -> None:
        """Before the run is undone: results that lie in memory which that changes are copied."""
        written = {storage_address(write.tensor) for write in self.watch.writes.values()}
        self.outputs = [
            t.detach().clone() if t.layout is torch.strided and storage_address(t) in written else t
            for t in self.outputs
        ]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why two runs do not agree."""

    reason: str
    output: str
    op: Op | None = None

    def with_(self, what: str) -> Problem:
        """The problem, said to be seen with other data than the call's."""
        return replace(self, reason=f"with {what}, {self.reason}")


class Untried:
    """The function does not take such data, or it would not be safe to try."""


UNTRIED = Untried()
Answer = Problem | Untried | None


class Failed(Exception):
    """The run on padded input raised; ``args`` are the operation it stood at and the error."""


class Unclear(Exception):
    """What a run did cannot be told apart from what it found there."""


def _generators(tensors: Sequence[Tensor]) -> list[Any]:
    devices = sorted({t.get_device() for t in tensors if t.is_cuda}) or [torch.cuda.current_device()]
    return [torch.cuda.default_generators[i] for i in devices] + [torch.default_generator]


def states_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [generator.get_state() for generator in _generators(tensors)]


def set_states(tensors: Sequence[Tensor], states: Sequence[Tensor]) -> None:
    for generator, state in zip(_generators(tensors), states):
        generator.set_state(state)
