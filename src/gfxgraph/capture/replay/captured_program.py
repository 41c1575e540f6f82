"""A captured program: its steps in order, what it reads from outside, and how it falls back.

Fallback order at replay: the graph exec; the tape, eagerly, into the same outputs; node by node
through the driver; the user's callable if one is known; else an error. Each fallback is
counted with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import profiler

from gfxgraph.capture.record.host_memory import HostRead
from gfxgraph.capture.replay.graph_tensors import Layout
from gfxgraph.capture.replay.node_walk import can_walk, walk
from gfxgraph.capture.replay.replay_steps import HostStep, SegmentStep, Step, no_fallback, note_fallback
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.core.expressions import Expressions
from gfxgraph.core.tape import TapeValue, leaves
from gfxgraph.core.unsafe import UnsafeOp
from gfxgraph.types import OnUnsafe


@dataclass(slots=True, eq=False)
class Program:
    """The steps of one capture. Held by its graph object; holds what a replay reads."""

    launch: Callable[[Any], None]
    """Launches one torch graph object, and does nothing else."""
    begun_at: object = ""
    """Where the capture began; formatted on demand."""
    steps: list[Step] = field(default_factory=list)
    externals: dict[TapeValue, Tensor | Layout] = field(default_factory=dict)
    """Inputs: the tensor itself (pinned), or only its layout if it lies in a graph pool."""
    layouts: dict[TapeValue, Layout] = field(default_factory=dict)
    numbers: Expressions = field(default_factory=Expressions)
    """Values that the host reads, and expressions computed from them."""
    generators: list[Any] = field(default_factory=list)
    """Handles on the random states that a replay advances: torch's default one and the registered ones."""
    host_reads: list[HostRead] = field(default_factory=list)
    """Host memory that must hold at a replay what it held at capture."""
    addresses: set[int] = field(default_factory=set)
    """Addresses of this program's results in its graph's pool."""
    by_nodes: Callable[[SegmentStep, Program], None] | None = None
    """Replays one segment node by node, if faults are to be localized."""

    @property
    def segments(self) -> list[SegmentStep]:
        return [step for step in self.steps if isinstance(step, SegmentStep)]

    @property
    def is_plain(self) -> bool:
        """True when a replay is one launch and nothing else."""
        only = self.steps[0] if len(self.steps) == 1 else None
        # A later segment alone, after an empty first one, is not in the user's graph object.
        return isinstance(only, SegmentStep) and only.is_users and only.graph is not None

    def lookup(self, value: TapeValue) -> Tensor:
        """The tensor of a value that the running tape did not make."""
        held = self.externals.get(value)
        if held is not None:
            return held.tensor() if isinstance(held, Layout) else held
        return self.layouts[value].tensor()

    def check_host_memory(self) -> None:
        """Raises: GuardMismatch, where host memory that the capture read has another content."""
        for read in self.host_reads:
            read.check()

    def run(self) -> None:
        if profiler._is_profiler_enabled:  # so that a timeline shows the segments and the host steps
            for step in self.due_steps():
                with profiler.record_function(f"gfxgraph: {step}"):
                    step.run(self)
            return
        with torch._C.DisableTorchFunction():  # modes round the replay saw the captured calls, or nothing
            for step in self.due_steps():
                step.run(self)

    def due_steps(self) -> Iterator[Step]:
        """The steps of one replay in order; each is yielded after the previous one has run."""
        numbers = self.numbers
        numbers.forget()
        for step in self.steps:
            if step.gate is None or step.gate.is_open(numbers):
                yield step

    def writes(self) -> Iterator[Tensor | Layout]:
        """What a replay writes and others may read: results, and external tensors."""
        for step in self.steps:
            yield from step.writes()

    def pool_inputs(self, segment: SegmentStep) -> list[Layout]:
        """Graph memory that the segment reads but did not write: it may itself reuse that memory."""
        found: dict[TapeValue, Layout] = {}
        for entry in segment.tape.entries:
            for value in (*leaves(entry.args), *leaves(entry.kwargs)):
                place = self.externals[value] if value in self.externals else self.layouts.get(value)
                if isinstance(place, Layout) and (value.is_external or value.segment != segment.tape.segment):
                    found[value] = place
        return list(found.values())

    def random_states(self) -> Iterator[Any]:
        """Handles on every random state that a replay advances."""
        yield from self.generators
        for step in self.steps:
            yield from step.random_states()

    def launch_failed(self, segment: SegmentStep, error: RuntimeError) -> None:
        """Produce the segment's result in another way, or raise.

        Raises:
            ReplayError: `no_fallback_left`; what the attempts changed has been restored.
        """
        if is_interrupt(error) or isinstance(error, RecursionError):  # other ways are deeper
            raise error
        ways: list[tuple[str, str, Callable[[], None]]] = []
        if segment.tape.is_complete:
            ways.append(("tape", "graph launch failed; ran the tape", lambda: self._by_tape(segment)))
        if can_walk(segment):
            ways.append(("node walk", "graph launch failed; ran node by node", lambda: self._by_walk(segment)))
        tried, last = ["graph launch"], error
        for name, reason, run in ways:
            tried.append(name)
            before: Rollback | None = None
            try:
                before = Rollback(segment.mutated, self.generators)
                run()
            except RuntimeError as second:
                last = second
                if before is not None:
                    with suppress(RuntimeError):  # the device may be gone; the first error is the one to report
                        before.put_back()
                continue
            note_fallback(reason, "graph launch", segment.where, error)
            return
        note_fallback("graph launch failed, and there is no fallback left", "graph launch", segment.where, error)
        raise no_fallback(tried, segment.where, error) from last

    def _by_tape(self, segment: SegmentStep) -> None:
        """Run the tape with the generators in the state in which the failed launch found them.

        torch advances them before it launches, by an amount that it does not expose. The first time, a run whose
        results
        are discarded measures it.
        """
        now = [generator.get_offset() for generator in self.generators]
        if segment.rng_increments is None:
            before = Rollback(segment.mutated, self.generators)
            segment.compute(self)
            segment.rng_increments = [g.get_offset() - then for g, then in zip(self.generators, now)]
            before.put_back()
        self._rewind(now, segment.rng_increments)
        segment.run_tape(self)

    def _by_walk(self, segment: SegmentStep) -> None:
        now = [generator.get_offset() for generator in self.generators]

        def rewind() -> None:
            after = [generator.get_offset() for generator in self.generators]
            self._rewind(now, [b - a for a, b in zip(now, after)])

        walk(segment, self, first_advance=rewind)

    def _rewind(self, offsets: list[int], increments: list[int]) -> None:
        for generator, offset, increment in zip(self.generators, offsets, increments):
            if increment and offset >= increment:
                generator.set_offset(offset - increment)


class Splitting(Protocol):
    """A capture that can end its segment for the host's part and go on in the next one (splits.py)."""

    policy: OnUnsafe
    program: Program

    def split(
        self,
        row: UnsafeOp,
        name: str,
        make: Callable[[], tuple[Any, Step | None]],
        where: Any = None,
        again: Callable[[], HostStep] | None = None,
    ) -> Any: ...
