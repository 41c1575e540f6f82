"""A captured program: its steps in order, what a replay does with each, and how it falls back.

Most graphs are one ``SegmentStep`` and are launched without any of this. A capture that met unsafe operations is a
list: launch, do the host's part, launch again. Each step knows what its failure means and what it changes outside the
graph.

Fallback order at replay: the graph exec; the tape, eagerly, into the same outputs; the user's callable if one is
known (callables/); else an error. Each fallback is counted with its reason.
"""

from __future__ import annotations

import logging
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import profiler

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock
from gfxgraph.capture.record.host_memory import HostRead
from gfxgraph.capture.replay.eager_tape import Env, below_autograd, run_tape, wait_for_collective
from gfxgraph.capture.replay.graph_tensors import (
    Layout,
    flat,
    overwrite,
    parts_of,
    storage_address,
    taken_from_device,
    tensor_of,
)
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.core.expressions import REFS, Expressions, ValueGuard, same_value, where_they_differ
from gfxgraph.core.tape import Place, Tape, TapeValue, leaves, substitute, where_of
from gfxgraph.errors import CaptureError, GfxGraphError, GfxGraphFault, ReplayError, first_line
from gfxgraph.process import calls, process

HostPart = Callable[[], "tuple[Any, Step | None]"]
"""What the host does at a split: the program's result, and the step that does it at each replay."""


class Step(ABC):
    """One part of a replay."""

    mutated: tuple[Tensor | Layout, ...] = ()
    """External tensors that the step writes; saved and restored around a capture that runs it."""

    @abstractmethod
    def run(self, program: Program) -> None:
        """Do this part's work."""

    def writes(self) -> Iterator[Tensor | Layout]:
        """Everything visible outside the step that running it writes."""
        yield from self.mutated

    def random_states(self) -> Iterator[Any]:
        """Handles on the random states that the step draws from, besides the graph's own."""
        return iter(())

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(slots=True, eq=False)
class PlacedStep(Step):
    """A step that is not a graph's: a call of the program's."""

    name: str
    at: Place
    """Its line, as ``place`` gives it."""

    @property
    def where(self) -> object:
        return where_of(*self.at)

    def __str__(self) -> str:
        return f"{self.name} at {self.where}"


class SegmentStep(Step):
    """A stretch of recorded work: launched as a graph, or run from its tape if that failed.

    Args:
        owner: the torch graph object. The user's own is held weakly, because it holds this step.
        is_users: whether ``owner`` is the user's.
        live: values that outlive the segment, as layouts at fixed addresses; tensors in host memory are held
            themselves, since nothing else may hold them.
    """

    def __init__(
        self,
        owner: object,
        is_users: bool,
        tape: Tape,
        live: list[tuple[TapeValue, Layout | Tensor]],
        mutated: tuple[Tensor | Layout, ...],
    ) -> None:
        self._owner: Callable[[], object] = weakref.ref(owner) if is_users else lambda: owner
        self.is_users = is_users
        self.is_launchable = False
        self.why_not: tuple[str, str, object] | None = None
        self.tape = tape
        self.live = live
        self.mutated = mutated
        self.n_nodes = 0
        self.driver_nbytes: int | None = None
        """Device memory that its graph exec took in addition to torch's; None if not measured."""
        self.rng_increments: list[int] | None = None
        """How far one run advances each generator of the program; None until measured."""

    @property
    def where(self) -> object:
        """Where the segment begins in the user's source."""
        # A view at the start has none: it is no work of the graph's.
        return next((entry.where for entry in self.tape.entries if entry.code is not None), "")

    def step_down(self, reason: str, op: str, where: object = "") -> None:
        """Run the tape from now on; counted as a fallback now and at each replay."""
        self.is_launchable = False
        self.why_not = reason, op, where or self.where
        note_fallback(*self.why_not)

    def instantiate(self) -> None:
        """Make the graph exec; if that fails, run the tape from now on.

        Raises:
            CaptureError: `instantiate_failed`, if the tape is incomplete.
        """
        try:
            self.driver_nbytes = taken_from_device(lambda: process.require().base.instantiate(self.graph))
        except RuntimeError as error:
            if is_interrupt(error):
                raise
            if not self.tape.is_complete:
                raise CaptureError(
                    "instantiate_failed", status=str(error).splitlines()[0], n_nodes=self.n_nodes, quote=str(error)
                ) from error
            process.log.debug("instantiate failed: %s", error)
            self.step_down("the graph could not be instantiated; its tape runs instead", "instantiate")

    @property
    def graph(self) -> Any:
        """The torch graph object; None if it could not be made or has been retired."""
        return self._owner() if self.is_launchable else None

    def run(self, program: Program) -> None:
        if not self.launch(program):
            program.n_by_tape += len(self.tape.entries)

    def launch(self, program: Program) -> bool:
        """Do the segment's work; False if it was not done by the graph."""
        if self.graph is None:
            self.run_tape(program)
            if self.why_not is not None:
                note_fallback(*self.why_not)
            return False
        try:
            try:
                self._launch(program)
            except RuntimeError as error:
                if not capture_lock.relaunched(error, lambda: self._launch(program)):
                    raise
        except GfxGraphFault:
            raise  # the device is gone: no fallback would run
        except RuntimeError as error:
            program.launch_failed(self, error)
            return False
        return True

    def _launch(self, program: Program) -> None:
        if program.by_nodes is not None:
            program.by_nodes(self, program)
        else:
            program.launch(self.graph)

    def compute(self, program: Program) -> Env:
        """Run the tape into fresh memory."""
        return run_tape(self.tape, program.lookup, {value for value, _ in self.live})

    def writes(self) -> Iterator[Tensor | Layout]:
        yield from self.mutated
        for _, place in self.live:
            yield place

    def run_tape(self, program: Program) -> None:
        """Do the segment's work operation by operation, writing to the same addresses."""
        env = self.compute(program)
        self.wait_for_host_results()
        with torch_names._InferenceMode(True):
            for value, place in self.live:
                made, target = env.get(value), tensor_of(place)
                if made is not None and made.data_ptr() != target.data_ptr():
                    overwrite(target, made)

    def wait_for_host_results(self) -> None:
        """Wait for copies to page-locked memory, which return before they are done."""
        if any(isinstance(place, Tensor) for _, place in self.live):
            torch.cuda.current_stream().synchronize()

    def __str__(self) -> str:
        how = "graph" if self.graph is not None else "tape"
        return f"{how} of {self.n_nodes} nodes, {len(self.tape.entries)} operations"


@dataclass(slots=True, eq=False)
class HostStep(PlacedStep):
    """An operation that no graph can hold, run eagerly at each replay into the same tensors."""

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    out: Any
    mutated: tuple[Tensor | Layout, ...] = ()
    states: tuple[Any, ...] = ()
    """Handles on the states of generators among ``args`` that the graph does not know."""
    is_symbolic: bool = False
    """Whether the arguments contain tracked numbers, as references."""
    moving: set[int] = field(default_factory=set)
    """``id`` of the results whose shape or memory depends on data (dynamic_shapes.py)."""
    views: set[int] = field(default_factory=set)
    """``id`` of the results that share memory with an argument that stays: they must not be copied into."""
    filled: tuple[str, ...] = ()
    """Names of the arguments that are ``out=``: the call could give them other memory than graphs know."""

    def run(self, program: Program) -> None:
        args, kwargs = self.args, self.kwargs
        if self.is_symbolic:
            what = f"a value given to {self.name}"
            args, kwargs = computed(lambda: substitute((args, kwargs), program.numbers.value, REFS), what, self)
        if self.filled:
            kwargs = kwargs | {name: kwargs[name].new_empty(0) for name in self.filled}
        with below_autograd(*flat(args, kwargs)):
            # An error is, for example, an index past the end of a tensor that is shorter now.
            result = computed(lambda: self.func(*args, **kwargs), self.name, self, "a result")
            wait_for_collective(result)
            self._store(self.out, result)

    def writes(self) -> Iterator[Tensor | Layout]:
        yield from self.mutated
        yield from (out for out in flat(self.out) if id(out) not in self.moving)

    def random_states(self) -> Iterator[Any]:
        return iter(self.states)

    def _store(self, out: Any, result: Any) -> None:
        if isinstance(out, Tensor):
            if out is not result:
                self._store_tensor(out, result)
        elif isinstance(out, (tuple, list)):
            if len(out) != len(result):
                self._differs(len(out), len(result))
            for mine, new in zip(out, result):
                self._store(mine, new)

    def _store_tensor(self, out: Tensor, result: Tensor) -> None:
        if id(out) in self.moving and out.dtype is result.dtype:
            point_at(out, result)
            return
        if out.dtype is not result.dtype or out.size() != result.size():
            self._differs(shape_of(out, result), shape_of(result, out))
        if _lies_alike(out, result):
            return
        if id(out) not in self.views and not share_memory(out, result):
            with torch_names._InferenceMode(True):
                overwrite(out, result)
        else:
            self._differs("one part of a tensor", "another part")

    def _differs(self, expected: object, actual: object) -> NoReturn:
        fields = {"op": self.name, "where": self.where, "expected": expected, "actual": actual}
        raise process.mismatch("shape_guard_mismatch", **fields)


def point_at(out: Tensor, result: Tensor) -> None:
    """Give the program's own tensor the memory of a result, as a view that autograd accepts."""
    with torch.inference_mode(out.is_inference()):
        made = result
        if result.is_inference():
            made = torch.empty(0, dtype=result.dtype, device=result.device)
            made.set_(result.untyped_storage(), result.storage_offset(), result.size(), result.stride())  # type: ignore[call-overload]
        out.data = made


def _lies_alike(out: Tensor, result: Tensor) -> bool:
    """Whether two tensors of the same shape share all elements."""
    pairs = [*zip(parts_of(out), parts_of(result))]
    return any(mine.numel() for mine, _ in pairs) and all(
        mine.size() == new.size() and mine.stride() == new.stride() and mine.data_ptr() == new.data_ptr()
        for mine, new in pairs
    )


def share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share a storage: copying to one could change the other."""
    if one.device != other.device or not one.numel():
        return False
    return any(
        part.numel() and storage_address(part) == storage_address(each)
        for part in parts_of(one)
        for each in parts_of(other)
    )


@dataclass(slots=True, eq=False)
class ReadStep(PlacedStep):
    """A value read by the host: each replay reads it again and checks its guards."""

    read: Callable[[], Any]
    index: int
    guards: list[ValueGuard] = field(default_factory=list)

    def run(self, program: Program) -> None:
        numbers = program.numbers
        numbers.values[self.index] = self.read()
        for guard in self.guards:
            text = numbers.text(guard.subject)
            now = computed(lambda: numbers.value(guard.subject), text, self)  # noqa: B023
            if not same_value(now, guard.expected):
                text, was, now = where_they_differ(text, guard.expected, now)
                raise process.mismatch("guard_mismatch", where=guard.where, question=text, expected=was, actual=now)

    def __str__(self) -> str:
        return f"{len(self.guards)} guards on {self.name} at {self.where}"


@dataclass(slots=True, eq=False)
class CallStep(PlacedStep):
    """A host call that each replay repeats: a wait, a generator's state."""

    call: Callable[[], Any]

    def run(self, program: Program) -> None:
        self.call()


@dataclass(slots=True, eq=False)
class ReplayStep(PlacedStep):
    """A graph replayed inside the capture; replayed again with its whole program."""

    graph: Any

    def run(self, program: Program) -> None:
        self.graph.replay()

    def writes(self) -> Iterator[Tensor | Layout]:
        inner = self.graph._program
        return inner.writes() if inner is not None else iter(())

    def random_states(self) -> Iterator[Any]:
        inner = self.graph._program
        return inner.random_states() if inner is not None else iter(())


_FAILED_LIBRARY = re.compile("(CUDA|HIP|NCCL|RCCL|MIOpen|driver) error|_STATUS_")
_NOT_THE_VALUES = (getattr(torch, "AcceleratorError", GfxGraphError), torch.OutOfMemoryError, GfxGraphError)
"""Errors of the device and its memory."""


def computed(compute: Callable[[], object], what: str, step: HostStep | ReadStep, expected: str = "a number") -> Any:
    """Run a computation of the host on values that it read.

    Raises:
        GuardMismatch: it raised, though it did not in the capture; the program might have caught that error.
    """
    try:
        return compute()
    except (LookupError, ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        if is_interrupt(error) or isinstance(error, _NOT_THE_VALUES) or _FAILED_LIBRARY.search(str(error)):
            raise
        where, actual = step.where, f"{type(error).__name__}: {error}"
        raise process.mismatch(
            "guard_mismatch", where=where, question=what, expected=expected, actual=actual
        ) from error


def shape_of(tensor: Tensor, other: Tensor) -> object:
    """The shape, or the dtype if both shapes are the same."""
    return tuple(tensor.size()) if tensor.size() != other.size() else tensor.dtype


def note_fallback(reason: str, op: str, where: object, error: BaseException | None = None) -> None:
    """Count a fallback and log it once; log the error itself at debug level."""
    state = process.require()
    state.report("fallback", reason, op, where)
    if error is not None:
        process.log.log(logging.DEBUG, "fallback because of: %s", error)


def no_fallback(tried: str, where: object, error: BaseException) -> ReplayError:
    return ReplayError("no_fallback_left", tried=tried, where=where, said=first_line(error), quote=str(error))


@dataclass(slots=True, eq=False, weakref_slot=True)
class Program:
    """The steps of one capture. Held by its graph object; holds what a replay reads."""

    launch: Callable[[Any], None]
    """Launches one torch graph object, and does nothing else."""
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
    source: Callable[[Tensor], tuple[Tensor, str]] = lambda held: (held, "")
    """For an input the program's own tensor in that memory, and the place that holds it."""
    by_nodes: Callable[[SegmentStep, Program], None] | None = None
    """Replays one segment node by node, if faults are to be localized."""
    n_by_tape: int = 0
    """Operations that the last replay ran from a tape."""
    is_outdated: bool = False
    """Whether a capture of the same code would now be another: an operation was found to be a step of the host's."""

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
        if torch_names._is_profiler_enabled:  # so that a timeline shows the segments and the host steps
            for step in self.due_steps():
                with profiler.record_function(f"gfxgraph: {step}"):
                    step.run(self)
            return
        with torch.DisableTorchFunction():  # modes round the replay saw the captured calls, or nothing
            for step in self.due_steps():
                step.run(self)

    def due_steps(self) -> Iterator[Step]:
        """The steps of one replay in order; each is yielded after the previous one has run."""
        self.numbers.values.clear()
        self.n_by_tape = 0
        yield from self.steps

    def note(self, account: calls.Account) -> None:
        """Count the replay that has ended in ``account``, unless one launch did all of it."""
        n = sum(len(each.tape.entries) for each in self.segments)
        host = [each for each in self.steps if isinstance(each, PlacedStep)]
        if self.n_by_tape:
            account.replayed(n - self.n_by_tape, n + len(host), *process.last_fallback())
        elif host or not self.is_plain:
            first = host[0] if host else None
            why = f"the host runs {first.name}" if first is not None else "it is several graphs"
            account.replayed(n, n + len(host), why, str(first.where) if first is not None else "")

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
        if not segment.tape.is_complete:
            note_fallback("graph launch failed, and there is no fallback left", "graph launch", segment.where, error)
            raise no_fallback("graph launch", segment.where, error) from error
        before: Rollback | None = None
        try:
            before = Rollback(segment.mutated, self.generators)
            self._by_tape(segment)
        except RuntimeError as second:
            if before is not None:
                with suppress(RuntimeError):  # the device may be gone; the first error is the one to report
                    before.restore()
            note_fallback("graph launch failed, and there is no fallback left", "graph launch", segment.where, error)
            raise no_fallback("graph launch, tape", segment.where, error) from second
        note_fallback("graph launch failed; ran the tape", "graph launch", segment.where, error)

    def _by_tape(self, segment: SegmentStep) -> None:
        """Run the tape with the generators in the state in which the failed launch found them.

        torch advances them before it launches, by an amount that it does not expose. The first time, a run whose
        results are
        discarded measures it.
        """
        now = [generator.get_offset() for generator in self.generators]
        if segment.rng_increments is None:
            before = Rollback(segment.mutated, self.generators)
            segment.compute(self)
            segment.rng_increments = [g.get_offset() - then for g, then in zip(self.generators, now)]
            before.restore()
        for generator, offset, increment in zip(self.generators, now, segment.rng_increments):
            if increment and offset >= increment:
                generator.set_offset(offset - increment)
        segment.run_tape(self)
