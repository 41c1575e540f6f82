"""One captured signature: its static inputs, its graphs, its replay; and the routes of calls to it.

    new ──warm-up calls, eager──> ready ──capture──> captured <──evicted, captured again── evicted
                                    └──> eager (it cannot be captured; the reason is kept)

A captured entry has one graph, whose results are copied out. In ``hot`` mode it also has a small ring of graphs
over the same inputs, whose results are handed out: while the caller still holds those of one, the next
call uses another; if all are held, the first graph's results are copied out.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables import capture_once
from gfxgraph.callables.effects import ArgumentWrites
from gfxgraph.callables.graph_facts import written_inputs
from gfxgraph.callables.inputs import Buffers, StaticInput, copy_all, pad, repeat_last
from gfxgraph.callables.outputs import GraphOutput, Outputs
from gfxgraph.callables.signature import Args, Fast, GuardMiss, Kwargs, RunEagerly, flatten, replace, twins_of
from gfxgraph.capture.replay.graph_tensors import Layout, size_of
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.errors import CaptureError, GuardMismatch, ReplayError
from gfxgraph.types import OnUnsafe

if TYPE_CHECKING:
    from gfxgraph.callables.arena import Arena
    from gfxgraph.callables.buckets import Bucketed
    from gfxgraph.callables.fast_path.joining import JoinedCall
    from gfxgraph.callables.relocation import RelocatedInputs
    from gfxgraph.capture.graph import BridgedGraph


class Instance:
    """One graph over the entry's inputs, with the results that it writes."""

    def __init__(self, made: capture_once.CaptureResult, outputs: Outputs) -> None:
        self.graph = made.graph
        self.pool = made.pool
        self.outputs = outputs
        self.is_recorded = made.is_recorded
        program = made.graph._program
        self.is_plain = made.is_plain
        self.is_opaque = made.is_opaque
        self.mutated = [place for step in program.steps for place in step.mutated]
        self.generators = program.generators
        self.moving: RelocatedInputs | None = None
        """Arguments read in place instead of from buffers; None if all are copied."""
        self.draws: bool | None = None
        """Whether a replay advances a random generator, which only torch's own replay does; None before the first."""
        self.joined: JoinedCall | None = None
        """The graph with a call's copies before and after it, launched as one."""
        self.twin: JoinedCall | None = None
        """A second one, for results that are copied out: a caller that keeps each result until the next alternates
        between two.
        """
        self.n_trials = 0
        """Replays whose result went to no caller."""
        self.seen_on = -1
        self.stream: Any = None
        """The stream on which the results were last handed out."""


def replay(graph: BridgedGraph, writes: Iterable[Tensor | Layout] | None = None) -> None:
    """Launch a graph; if that fails half-way, undo it and leave the call to the function.

    Args:
        writes: what to restore; by default everything visible outside, the graph's results included.

    Raises:
        GuardMiss: a value that the capture read has changed; with the old value the graph can be replayed again.
        RunEagerly: the launch failed.
    """
    program = getattr(graph, "_program", None)
    before = None
    if program is not None and not graph.is_plain:  # it may stop half-way, at a guard
        before = Rollback(program.writes() if writes is None else writes, program.random_states())
    try:
        graph.replay()
    except (GuardMismatch, ReplayError) as error:
        if before is not None:
            before.put_back()
        if isinstance(error, GuardMismatch):
            question = error.fields.get("question", "")
            raise GuardMiss(f"a value that the capture read has changed: {question}") from error
        raise RunEagerly(f"the replay failed: {error.code}") from error


def label_of(tensors: Sequence[Tensor]) -> str:
    """A readable signature: dtypes and shapes."""
    shown = [f"{str(t.dtype).removeprefix('torch.')}{list(size_of(t))}" for t in tensors]
    return ", ".join(shown) or "no tensors"


class Captures:
    """The captures of one function for one signature.

    Args:
        label: readable signature: the shapes.
        function: its name.
        buffers: the memory of static inputs.
        in_place: read and write the caller's tensors in place.
    """

    def __init__(
        self, arena: Arena, fn: Callable[..., Any], label: str, function: str, buffers: Buffers, in_place: bool
    ) -> None:
        self.arena = arena
        self.buffers = buffers
        self.in_place = in_place
        self.is_clean = False
        """Whether further captures need not be recorded."""
        self.error: CaptureError | None = None
        self.warm_structure: Any = None
        self.on_evict: Callable[[], Callable[[], None] | None] = lambda: None
        self.fn = fn
        self.label = label
        self.function = function
        self.statics: list[StaticInput] = []
        self.args: Args = ()
        self.kwargs: Kwargs = {}
        self.on_unsafe: OnUnsafe | None = None
        """What its captures do with unsafe operations; None for the default of graphed callables."""
        self.is_drawless = False
        """Whether the warm-up drew nothing from the device's default generator."""
        self.twins: list[int] = []
        """For each argument the position of the first one that is the same tensor."""
        self.first: Instance | None = None
        self.ring: list[Instance] = []
        self.ring_failed = False
        self.all_held = False
        """Whether a caller held the results of the whole ring: from then on results are copied out."""
        self.variants: list[Instance] = []
        """Captures made for other values; the one that fitted last is ``first``."""
        self.result_nbytes = 0
        self.why_eager = ""
        self.why_copied = ""
        """Why large arguments are copied, though they should be read in place."""
        self.world: Any = None
        """What the captured function reads besides its arguments."""
        self.n_seen = 0
        self.used_at = 0
        self.pool_nbytes = 0
        self.input_nbytes = 0
        self.n_gone = 0
        self.warm: list[weakref.ref[Tensor]] = []
        self.can_join = True
        """False after an update of a joined graph was refused."""
        self.runs_alone = True
        """False if a run of its graph waits for other ranks: then no rank may run it more often than the others."""
        self.why_not_joined = ""
        """Why a call's copies are launched separately."""
        self.written: set[int] = set()
        """Positions of arguments whose content changed in a warm-up."""
        self.was_looked_at = False  # around a replay: a warm-up may miss writes of unknown kernels
        self.mutates: tuple[int, ...] = ()
        """Positions of arguments that the function writes to."""
        self.bucket: Mapping[str, int] = {}
        """Size of each dynamic dim; empty where there are none."""
        arena.entries.add(self)

    @property
    def is_captured(self) -> bool:
        return self.first is not None

    @property
    def nbytes(self) -> int:
        """Memory allocated by this entry; shared memory counts for the entry that allocated it first."""
        return self.input_nbytes + self.pool_nbytes if self.is_captured else 0

    def report(self) -> dict[str, Any]:
        instances = self.instances()
        return {
            "function": self.function,
            "signature": self.label,
            "input_bytes": sum(s.nbytes for s in self.statics) if self.is_captured else 0,
            "output_bytes": sum(i.outputs.nbytes for i in instances),
            "pool_bytes": self.pool_nbytes,
            "n_graphs": len(instances),
            "n_calls": self.n_replays(),
            "why_eager": self.why_eager,
        }

    def n_replays(self) -> int:
        """Replays that produced a caller's result."""
        return self.n_gone + sum(i.graph.n_replays - i.n_trials for i in self.instances())

    def instances(self) -> list[Instance]:
        return [self.first, *self.ring, *self.variants] if self.first is not None else []

    def named_graphs(self) -> list[tuple[Any, str]]:
        return [(instance.graph, f"{self.function} {self.label}".strip()) for instance in self.instances()]

    # -- capture ----------------------------------------------------------------------------------

    def prepare(self, args: Args, kwargs: Kwargs, tensors: Sequence[Tensor], sizes: Sequence[Any]) -> None:
        """Make static inputs like the call's tensors; ``sizes`` gives a bucket's size, None for the tensor's own."""
        self.statics = [
            StaticInput(t.detach().requires_grad_(t.requires_grad))
            if self.in_place and (size is None or tuple(size) == tuple(t.size()))
            else StaticInput.like(t, size, self.buffers, i)
            for i, (t, size) in enumerate(zip(tensors, sizes))
        ]
        # One tensor passed twice is one tensor inside, too: the trace relied on it.
        self.twins = twins_of(tensors)
        self.statics = [self.statics[first] for first in self.twins]
        self.input_nbytes += sum(s.new_nbytes for i, s in enumerate(self.statics) if self.twins[i] == i)
        statics = iter(self.statics)
        self.args = replace(tuple(args), lambda _: next(statics).tensor)
        self.kwargs = replace(dict(kwargs), lambda _: next(statics).tensor)

    def run_once(self, times: int) -> None:
        """Run the function eagerly on the static inputs, on the stream that will capture."""
        for _ in range(times):
            with torch.cuda.stream(self.arena.stream):
                result = self.fn(*self.args, **self.kwargs)
            self.warmed(result)

    def warmed(self, result: Any) -> None:
        """Keep what an eager run on the static inputs gave: a capture's result must be like it."""
        made: list[Tensor] = []
        self.warm_structure = flatten(result, made)
        self.warm = [weakref.ref(t) for t in made]

    def add_to_ring(self, *, recorded: bool) -> Instance:
        """Capture one more graph whose results can be handed out; raises as ``capture``."""
        assert self.first is not None
        kind = self.first.outputs
        buffers = kind.buffers()
        instance = self.capture(recorded=recorded, copy_results=kind.into(buffers))
        instance.outputs.hand_out(buffers)
        self.ring.append(instance)
        return instance

    def capture(
        self,
        *,
        recorded: bool,
        pool: capture_once.SharedPool | None = None,
        copy_results: Callable[[Any], Any] | None = None,
    ) -> Instance:
        """Capture the function once more on the static inputs.

        Args:
            pool: to use instead of the arena's.
            copy_results: called with the function's result inside the capture; returns the result to use.

        Raises:
            CaptureDied: it could not be captured.
            NotATree: its result has an unknown structure.
            torch.OutOfMemoryError: there was no memory.
        """
        arena = self.arena
        before = arena.reserved()
        versions = [s.tensor._version for s in self.statics if not s.tensor.is_inference()]

        run = functools.partial(self.fn, *self.args, **self.kwargs)
        try:
            made = capture_once.capture(
                run if copy_results is None else lambda: copy_results(run()),
                arena.stream,
                pool or arena.pool,
                recorded=recorded,
                is_drawless=self.is_drawless,
                on_unsafe=self.on_unsafe,
            )
        except capture_once.CaptureDied:
            arena.renew()
            raise
        homes = self.world.homes if self.world is not None else frozenset()
        instance = Instance(made, Outputs(made.result, self.statics, self.warm, homes))
        after = [s.tensor._version for s in self.statics if not s.tensor.is_inference()]
        if len(versions) == len(self.statics):
            counted = {i for i, (a, b) in enumerate(zip(versions, after)) if a != b}
        else:
            counted = set(range(len(self.statics)))
        self.mutates = tuple(sorted(counted | self.written | self._recorded_writes(instance)))
        if pool is None:
            self.pool_nbytes += max(0, arena.reserved() - before)
        return instance

    def _recorded_writes(self, instance: Instance) -> set[int]:
        """Positions of static inputs that a recorded capture wrote to, collectives included, which torch does not
        count.
        """
        if not instance.is_recorded:
            return set(self.mutates)
        if not instance.mutated:
            return set()
        return set(written_inputs(instance.graph, [static.tensor for static in self.statics]))

    def args_over(self, others: Mapping[int, Tensor]) -> tuple[Args, Kwargs]:
        """The static arguments, with the tensors at some positions replaced."""
        given = iter([others.get(i, static.tensor) for i, static in enumerate(self.statics)])
        return replace(self.args, lambda _: next(given)), replace(self.kwargs, lambda _: next(given))

    def capture_over(self, others: Mapping[int, Tensor]) -> Instance:
        """Make one more recorded capture over other buffers; raises as ``capture``."""
        args, kwargs, mutates = self.args, self.kwargs, self.mutates
        self.args, self.kwargs = self.args_over(others)
        try:
            return self.capture(recorded=True)
        finally:
            # What the function writes was seen on the entry's own buffers, which this capture does not touch.
            self.args, self.kwargs, self.mutates = args, kwargs, mutates

    def fall_back(self, why: str, error: CaptureError | None = None) -> None:
        """Run eagerly for good, and report why; ``error`` is what ``strict`` raises then."""
        self.why_eager = why
        self.error = error or CaptureError(
            "graphed_not_captured", function=self.function, signature=self.label, reason=why
        )
        self.arena.state.report("fallback", why, self.function, self.label)

    def evict(self, why: str) -> None:
        """Drop the graphs; the next call captures again."""
        self.arena.wait_for_all()  # a graph being dropped may still be running
        self.arena.state.report("eviction", why, self.function, self.label, logging.INFO)
        self.n_gone = self.n_replays()
        self.first = None
        self.ring.clear()
        self.variants.clear()
        self.pool_nbytes = 0
        self.input_nbytes = 0
        self.let_go_of_inputs()
        forget_fast = self.on_evict()
        if forget_fast is not None:
            forget_fast()

    def owner(self) -> Any:
        """The callable that owns these captures; None if evictions are not reported."""
        return getattr(self.on_evict(), "__self__", None)

    def let_go_of_inputs(self) -> None:
        """Drop the static inputs."""
        self.statics = []
        self.input_nbytes = 0
        self.args, self.kwargs = (), {}

    # -- replay -----------------------------------------------------------------------------------

    @property
    def results(self) -> list[GraphOutput]:
        return self.first.outputs.results if self.first is not None else []

    def fill(self, tensors: Sequence[Tensor], repeats_last: bool = False, filled_for: Any = None) -> None:
        """Copy a call's tensors into the static inputs.

        Args:
            repeats_last: padding repeats the last row; else it is zero.
            filled_for: the call's route; padding already filled for the same route is left.
        """
        moving = self.first.moving if self.first is not None else None
        pads_again = filled_for is None or self.buffers.filled_for is not filled_for
        self.buffers.filled_for = filled_for
        targets, sources, padded = [], [], []
        for i, (static, given) in enumerate(zip(self.statics, tensors)):
            size = given.size()
            if moving is not None and i in moving.places:
                if moving.move(i, given.data_ptr()):
                    continue
                if not moving.move(i, static.tensor.data_ptr()):
                    raise RunEagerly("the address of an argument could not be changed")
            if size != static.tensor.size():
                padded.append((static.tensor, size))
            elif given.data_ptr() == static.tensor.data_ptr():
                continue
            target, source = static.target(given)
            targets.append(target)
            sources.append(source)
        for tensor, size in padded if pads_again else ():
            pad(tensor, size)
        copy_all(targets, sources)
        for tensor, size in padded if repeats_last else ():
            repeat_last(tensor, size)

    def replay(self, instance: Instance) -> None:
        """Launch; if a guard or a launch fails, undo it and leave the call to the function.

        Raises:
            RunEagerly: the replay was undone completely.
        """
        generators, drawn = [], []
        if instance.draws is None and instance.is_plain:
            # An unrecorded capture names no generators; it can only use torch's default one.
            generators = [*instance.generators, torch.cuda.default_generators[self.arena.device_index]]
            drawn = [g.get_offset() for g in generators]
        writes = None
        if instance.is_opaque and not self.was_looked_at and not self.in_place:
            writes = ArgumentWrites([static.tensor for static in self.statics])
        try:
            replay(instance.graph, instance.mutated)
        except GuardMiss:
            instance.n_trials += 1
            raise
        if writes is not None:
            self.was_looked_at = True
            self.mutates = tuple(sorted({*self.mutates, *writes.found()}))
        if generators:
            instance.draws = drawn != [g.get_offset() for g in generators]

    def replay_variant(self) -> Instance | None:
        """Try the captures made for other values until one fits, which becomes ``first``."""
        for k, variant in enumerate(self.variants):
            try:
                self.replay(variant)
            except GuardMiss:
                continue
            assert self.first is not None
            self.first, self.variants[k] = variant, self.first
            return variant
        return None

    def add_variant(self) -> None:
        """Capture the function once more, for the values now in the inputs; raises as ``capture``."""
        known = self.mutates
        variant = self.capture(recorded=True)
        self.mutates = tuple(sorted({*known, *self.mutates}))
        self.variants.insert(0, variant)

    def give_back_mutated(self, tensors: Sequence[Tensor]) -> None:
        """Copy what the function wrote to its arguments back to the caller's tensors."""
        moving = self.first.moving if self.first is not None else None
        with torch.no_grad():
            for i in self.mutates:
                if moving is not None and moving.is_at(i, tensors[i].data_ptr()):
                    continue
                target, source = self.statics[i].target(tensors[i])
                if target.data_ptr() != source.data_ptr():
                    source.copy_(target)


@dataclass(frozen=True)
class Padded:
    """How calls of one exact size are served by their bucket."""

    repeats_last: bool
    """Padding repeats the last row; else it is zero."""
    sizes: Sequence[Sequence[int]]
    """Sizes of the tensors of the result."""
    structure: Any
    """Structure of the result."""


class Route:
    """How calls of one exact signature run."""

    __slots__ = (
        "bucketed", "entry", "fast", "fast_of", "has_views", "mark", "padded", "repeats_last", "result_sizes",
        "too_large", "why_eager",
    )  # fmt: skip

    def __init__(self, entry: Captures | None, bucketed: Bucketed | None = None, why_eager: str = "") -> None:
        self.entry = entry
        self.bucketed = bucketed
        self.why_eager = why_eager
        self.fast: Fast | None = None
        self.fast_of: tuple[object, ...] = ()
        self.mark = object()
        """A token for the route, where a reference to the route itself would be a cycle."""
        self.padded: Padded | None = None
        """How the bucket serves this size; None until known, and if nothing is padded."""
        self.repeats_last = False
        """Whether padding must repeat the last row; it is zero elsewhere."""
        self.result_sizes: Sequence[Sequence[int] | None] | None = None
        self.too_large: Mapping[str, int] | None = None
        """The sizes, if one is above every bucket."""
        self.has_views = True
        """Whether a result may be a view of an argument with another layout than the bucket's buffer."""

    def cut_to(self, entry: Captures) -> None:
        """Determine how a replay's results are cut to the call's size.

        Raises:
            RunEagerly: they cannot be cut.
        """
        assert self.padded is not None and entry.first is not None
        results = entry.results
        sizes: list[Sequence[int] | None] = []
        if self.padded.structure != entry.first.outputs.structure:
            self.entry, self.why_eager = None, "the captured function returned a different structure than before"
            raise RunEagerly(self.why_eager)
        for size, result in zip(self.padded.sizes, results):
            if result.of_input >= 0 and not result.layout[0]:
                self.entry, self.why_eager = None, "a result is a view of a padded argument"
                raise RunEagerly(self.why_eager)
            made = result.made
            sizes.append(size if made is not None and tuple(made.size()) != tuple(size) else None)
        self.result_sizes = sizes

    def look_for_views(self, entry: Captures, tensors: Sequence[Tensor]) -> None:
        """Refuse results that are views of arguments if the call's strides differ from the buffer's.

        Raises:
            RunEagerly: one does.
        """
        for result in entry.results:
            if result.of_input >= 0 and not result.layout[0]:
                if tensors[result.of_input].stride() != entry.statics[result.of_input].tensor.stride():
                    self.entry, self.why_eager = None, "a result is a view of an argument with a different layout"
                    raise RunEagerly(self.why_eager)
        self.has_views = False
