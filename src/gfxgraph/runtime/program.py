"""A captured program: its steps in order, what it reads from outside, and how it steps down.

Fallback order at replay: the graph exec; the tape, eagerly, into the same outputs; node by node
through the driver; the user's callable where one is known; else an error. Each step down is
counted with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gfxgraph.core.tape import Value
from gfxgraph.runtime import process
from gfxgraph.runtime.memory import Layout
from gfxgraph.runtime.steps import ReadStep, SegmentStep, Step, no_fallback, note_fallback
from gfxgraph.runtime.walk import can_walk, walk


@dataclass(slots=True, eq=False)
class Program:
    """The steps of one capture. Held by its graph object, and holds what a replay reads."""

    launch: Callable[[Any], None]
    """Replays one torch graph object, and does nothing else."""
    steps: list[Step] = field(default_factory=list)
    externals: dict[Value, Tensor | Layout] = field(default_factory=dict)
    """Inputs: the tensor itself (pinned), or only its place where it lies in a graph pool."""
    layouts: dict[Value, Layout] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    generators: list[Any] = field(default_factory=list)
    """Handles on the random states that a replay advances: torch's default one and the registered ones."""
    addresses: set[int] = field(default_factory=set)
    """Where this program's results lie, in the pool of its graph."""

    @property
    def segments(self) -> list[SegmentStep]:
        return [step for step in self.steps if isinstance(step, SegmentStep)]

    @property
    def is_plain(self) -> bool:
        """True when a replay is one launch and nothing else."""
        return len(self.steps) == 1 and isinstance(self.steps[0], SegmentStep) and self.steps[0].graph is not None

    @property
    def n_guards(self) -> int:
        return sum(len(step.questions) for step in self.steps if isinstance(step, ReadStep))

    def lookup(self, value: Value) -> Tensor:
        """The tensor of a value that the running tape did not make."""
        held = self.externals.get(value)
        if held is not None:
            return held.tensor() if isinstance(held, Layout) else held
        return self.layouts[value].tensor()

    def run(self) -> None:
        for step in self.steps:
            step.run(self)

    def writes(self) -> Iterator[Tensor | Layout]:
        """What a replay writes and others may look at: results, and tensors from outside."""
        for step in self.steps:
            yield from step.writes()

    def launch_failed(self, segment: SegmentStep, error: RuntimeError) -> None:
        """Give the segment's result another way, or raise."""
        where = segment.tape.entries[0].where if segment.tape.entries else ""
        tried = ["graph launch"]
        if segment.tape.is_complete:
            tried.append("tape")
            try:
                segment.run_tape(self)
            except RuntimeError as second:
                raise no_fallback(tried, where, error) from second
            note_fallback("graph launch failed; ran the tape", "graph launch", where, error)
            return
        if can_walk(segment):
            tried.append("node walk")
            try:
                walk(segment, self)
            except RuntimeError as second:
                raise no_fallback(tried, where, error) from second
            note_fallback("graph launch failed; ran node by node", "graph launch", where, error)
            return
        process.require().report("fallback", "graph launch failed and nothing was left to try", "graph launch", where)
        raise no_fallback(tried, where, error) from error
