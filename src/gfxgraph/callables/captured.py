"""One captured callable: what is captured, how its calls run, and why they run eagerly.

Problem: a function of shapes, a branch, a loop's step, a training step, a function of several ranks and a compiled
region are all traced, warmed up, recorded, replayed, and given back to Python if something fails. Idea: these stages
and their account are one class; what differs is the body, the function that is recorded.

    new ──1 trace──> ──2 warm-up──> ──3 record──> captured ──4 replay──> ...
                          └─────────────┴────────────────────┴──> 5 eager: `fall_back` says why

1. Trace: Dynamo shows what the function reads (worlds.py).
2. Warm-up: it runs eagerly on the capture stream, where libraries make their handles.
3. Record: it is captured over static inputs, whose addresses stay.
4. Replay: copy in, launch, results. A replay that fails half-way is undone first, so that nothing happens twice.
5. Eager: the function itself, with the caller's own arguments. For one call, or for good.

`CapturedCallable` is the account that all of them keep. `Captured` is one signature of a graphed callable: `serve`
takes a call through the stages. What a capture made is a `Capture`: static inputs, and the graphs over them. In
``hot`` mode it has a small ring of graphs besides, whose results are handed out: while the caller still holds those
of one, the next call uses another; if all are held, the first graph's results are copied out.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.adaptive import Timed
from gfxgraph.callables.arena import (
    Arena,
    on_stream,
    replay,
    span,
    written_inputs,
)
from gfxgraph.callables.buckets import Bucketed
from gfxgraph.callables.buffers import (
    RING,
    Buffers,
    Inputs,
    Outputs,
)
from gfxgraph.callables.fast_path import make_fast
from gfxgraph.callables.signature import (
    MISS,
    Args,
    Call,
    Fast,
    Kwargs,
    NotATree,
    RunEagerly,
    flatten,
    never,
)
from gfxgraph.callables.trace.dynamo import WARM_UP, Calls, Frontend, returned
from gfxgraph.callables.trace.in_dynamo import is_compiled
from gfxgraph.callables.worlds import for_dynamo
from gfxgraph.capture.function_capture import CaptureDied, kind_and_line
from gfxgraph.capture.record.user_lines import line_of
from gfxgraph.capture.replay.graph_tensors import used_on
from gfxgraph.core.eager_or_graph import Way
from gfxgraph.errors import CaptureError, DriverError, first_line
from gfxgraph.process import bridge, process
from gfxgraph.process.calls import Account
from gfxgraph.types import MovedInput, OnUnsafe, ReplayMode

if TYPE_CHECKING:
    from gfxgraph.callables.joined_launch import JoinedCall


TRY_AGAIN_AFTER = 64
"""Eager calls before the next attempt, after a capture found no memory."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``graphed``."""

    dynamic: Any = None
    buckets: Any = None
    mode: ReplayMode = ReplayMode.STANDARD
    moved: MovedInput = MovedInput.COPY
    warmup: int = 1
    max_graphs: int = 64
    strict: bool = False
    assume_pure: bool = False


class CapturedCallable:
    """How the calls of one captured callable ran, and why they run eagerly.

    Args:
        name: its name in reports.
    """

    says = ""
    """What a report of a fallback begins with."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.why_eager = ""
        """Why it runs eagerly for good; "" if it may be captured."""
        self.n_captures = self.n_replays = 0
        self.eager = Calls()
        """Calls without a graph, by reason."""

    def fall_back(
        self, why: str, error: BaseException | None = None, *, label: str = "", for_good: bool = True
    ) -> str:
        """Report that calls run eagerly, and why; return the reason.

        Args:
            label: which of its signatures.
            for_good: from now on; False for this call alone.
        """
        why = f"{why}: {first_line(error)}" if error is not None else why
        if for_good:
            self.why_eager = why
            self.drop()
        state = bridge.process_for_callables()
        if state is not None:
            state.report("fallback", f"{self.says}{why}", self.name, label)
        return why

    def drop(self) -> None:
        """Let go of the graphs."""

    def stats(self) -> dict[str, Any]:
        """``captures``, ``replays``, ``eager`` (calls by reason)."""
        return {"captures": self.n_captures, "replays": self.n_replays, "eager": dict(self.eager)}


class Instance:
    """One graph over the entry's inputs, with the results that it writes."""

    nbytes = 0
    """Memory that the pool took for it."""

    def __init__(self, graph: Any, is_plain: bool, is_opaque: bool, outputs: Outputs) -> None:
        self.graph = graph
        self.is_plain = is_plain
        """A replay is one launch and nothing else."""
        self.is_opaque = is_opaque
        """It launches what torch did not make: what that reads and writes is not known."""
        self.outputs = outputs
        self.mutated = [place for step in graph._program.steps for place in step.mutated]
        self.draws: bool | None = None
        """Whether a replay advances a random generator, which only torch's own replay does; None before the first."""
        self.joined: JoinedCall | None = None
        """The graph with a call's copies before and after it, launched as one."""
        self.twin: JoinedCall | None = None
        """A second one, for results that are copied out: a caller that keeps each result until the next alternates
        between two.
        """
        self.seen_on = -1
        self.stream: Any = None
        """The stream on which the results were last handed out."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What one capture of a signature made: an eviction drops it whole."""

    inputs: Inputs
    first: Instance
    """The graph whose results are copied out."""
    ring: tuple[Instance, ...] = ()
    """The graphs whose results are handed out (``hot``)."""

    @property
    def instances(self) -> list[Instance]:
        return [self.first, *self.ring]

    @property
    def pool_nbytes(self) -> int:
        return sum(instance.nbytes for instance in self.instances)


def label_of(tensors: Sequence[Tensor]) -> str:
    """A readable signature: dtypes and shapes."""
    shown = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors]
    return ", ".join(shown) or "no tensors"


class Shared(CapturedCallable):
    """What the signatures of one callable share.

    Args:
        fn: the function.
        front: Dynamo; None if nothing is traced.
        name: its name in reports.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        front: Frontend | None,
        name: str,
        options: Options,
        buffers: Buffers | None = None,
        is_part: bool = False,
    ) -> None:
        super().__init__(name)
        self.fn = fn
        self.front = front
        self.is_through_dynamo = front is not None and not is_compiled(fn)
        self.run = front.run if front is not None and self.is_through_dynamo else fn
        """The function as it is warmed up and captured, and likewise for a call whose world is known to hold."""
        self.run_in: Callable[[Any, Args, Kwargs], Any] = lambda world, args, kwargs: fn(*args, **kwargs)
        if front is not None and self.is_through_dynamo:
            self.run_in = front.run_in
        self.options = options
        self.account = Account(name, line_of(fn), eager=self.eager, is_part=is_part)
        self.account.pieces = self.pieces = Calls()
        """Calls in pieces, by reason."""
        self.in_place = options.moved is MovedInput.RECAPTURE
        """Whether the caller's tensors are read and written in place: their addresses are part of a signature."""
        self.buffers = Buffers() if buffers is None else buffers
        """The memory of all signatures' static inputs."""
        self.is_ahead = False
        """Whether buckets are being captured before they are needed."""


class Captured(CapturedCallable):
    """One signature of a callable: static inputs, graphs over them, and their replay.

    Args:
        shared: what it has in common with the callable's other signatures.
        label: readable signature: the shapes.
    """

    is_ready: Callable[[], bool] | None = None  # asked before each replay of the fast path

    def __init__(self, arena: Arena, shared: Shared, label: str) -> None:
        super().__init__(shared.name)
        self.arena = arena
        self.shared = shared
        self.label = label
        self.error: CaptureError | None = None
        self.warm_structure: Any = None
        self.on_evict: Callable[[], Callable[[], None] | None] = lambda: None
        self.capture: Capture | None = None
        """None before it is captured, and after an eviction."""
        self.pool: Any = None
        """The memory of its captures; None for the arena's."""
        self.on_unsafe: OnUnsafe | None = None
        """What its captures do with unsafe operations; None for the default of graphed callables."""
        self.ring_failed = False
        self.all_held = False
        """Whether a caller held the results of the whole ring: from then on results are copied out."""
        self.result_nbytes = 0
        self.world: Any = None
        """What the captured function reads besides its arguments."""
        self.timed: Timed | None = None
        """Eager calls and replays, compared where the faster one is to run."""
        self.n_seen = 0
        self.why_waits = WARM_UP
        """Why calls run eagerly before the next attempt."""
        self.used_at = 0
        self.n_gone = 0
        self.warm: list[weakref.ref[Tensor]] = []
        self.can_join = True
        """False after an update of a joined graph was refused."""
        self.why_not_joined = ""
        """Why a call's copies are launched separately."""
        self.was_looked_at = False
        """Whether a replay of kernels that torch did not launch was looked at, for what it writes."""
        self.mutates: tuple[int, ...] = ()
        """Positions of arguments that the function writes to."""
        self.bucket: Mapping[str, int] = {}
        """Size of each dynamic dim; empty where there are none."""
        arena.entries.add(self)

    @property
    def is_captured(self) -> bool:
        return self.capture is not None

    @property
    def nbytes(self) -> int:
        """Memory allocated by its graphs; shared memory counts for the entry that allocated it first."""
        return self.capture.inputs.new_nbytes + self.capture.pool_nbytes if self.capture is not None else 0

    def report(self) -> dict[str, Any]:
        instances = self.instances()
        return {
            "function": self.name,
            "signature": self.label,
            "input_bytes": sum(s.nbytes for s in self.capture.inputs.statics) if self.capture is not None else 0,
            "output_bytes": sum(i.outputs.nbytes for i in instances),
            "pool_bytes": sum(i.nbytes for i in instances),
            "n_graphs": len(instances),
            "n_calls": self.replays(),
            "why_eager": self.why_eager,
        }

    def replays(self) -> int:
        """Replays that produced a caller's result."""
        return self.n_gone + sum(i.graph.n_replays for i in self.instances())

    def instances(self) -> list[Instance]:
        return self.capture.instances if self.capture is not None else []

    def named_graphs(self) -> list[tuple[Any, str]]:
        return [(instance.graph, f"{self.name} {self.label}".strip()) for instance in self.instances()]

    # -- one call --------------------------------------------------------------------------------------

    def serve(self, call: Call, route: Route) -> tuple[Any, Fast | None]:
        """Serve a call: warm up, record, replay.

        Returns:
            Its result, and the function for the next ones like it; None if that was no replay.

        Raises:
            RunEagerly: the function itself must run.
        """
        options = self.shared.options
        if self.why_eager:
            raise RunEagerly(self.why_eager, self.error, for_good=True)
        if self.capture is None:
            if self.n_seen < options.warmup:
                self.n_seen += 1
                return self.warm_up(call), None
            self.record(call, route.bucketed)
        if self.mutates and self.world.homes & {t.untyped_storage().data_ptr() for t in call.tensors}:
            raise RunEagerly("it writes to an argument that it also reads under another name")
        route.fit(self, call.tensors)
        is_settled = True
        if options.mode is ReplayMode.ADAPTIVE:
            result, is_settled = self._the_faster(call, route)
        else:
            result = self._replayed(call.tensors, route)
        returned(call.kwargs, result, True)
        return result, self._fast_for(call, route) if is_settled and self._is_trusted() else never

    def _replayed(self, tensors: list[Tensor], route: Route) -> Any:
        """Copy in, launch, results."""
        assert self.capture is not None
        arena, instance, own = self.arena, self.capture.first, True
        stream = torch.cuda.current_stream(arena.device_index)
        arena.follow(stream)
        if self.shared.options.mode is ReplayMode.HOT and not instance.outputs.is_shared:
            instance, own = self._of_ring(stream, tensors, route.repeats_last)
        inputs = self.capture.inputs
        # What the function writes to its arguments it also writes to their padding.
        inputs.fill(tensors, route.repeats_last, None if self.mutates else route.mark)
        self.replay(instance)
        if self.mutates:
            inputs.give_back(tensors, self.mutates)
        arena.n_uses += 1
        self.used_at = arena.n_uses
        return instance.outputs.give(tensors, route.result_sizes, own)

    def _fast_for(self, call: Call, route: Route) -> Fast:
        """The fast path of calls like this one; remade after a capture, or once its world is watched again."""
        graphs = (*self.instances(), self.can_join, self.all_held, self.world.is_same)
        if torch_names.why_off("fast path"):
            return never
        if route.fast is None or route.fast_of != graphs:
            try:
                made = make_fast(self, route, call)
            except DriverError as error:  # this call is done; later ones take the slow path
                made = "a driver call failed"
                self.arena.state.report("fallback", f"no fast path: {made}", self.name, kind_and_line(error))
            route.why_slow = made if isinstance(made, str) else ""
            route.fast, route.fast_of = never if isinstance(made, str) else made, graphs
        return route.fast

    def _is_trusted(self) -> bool:
        """Whether enough replays took the slow path for the fast one to be used."""
        least = self.arena.state.settings.trusted_replay_threshold
        if self.shared.is_ahead or process.log.isEnabledFor(logging.DEBUG):
            return False  # a fast path for each bucket would cost an exec of its own; each replay is logged
        return least is None or self.shared.options.mode is ReplayMode.HOT or self.replays() >= least

    def _the_faster(self, call: Call, route: Route) -> tuple[Any, bool]:
        """Run the call in the way measured to be faster, or to be timed next; also return whether that is settled.

        Raises:
            RunEagerly: eager was measured to be faster.
        """
        timed = self.timed = self.timed or Timed(f"{self.name} {self.label}")

        def graph() -> Any:
            result = self._fast_for(call, route)(call.args, call.kwargs)
            return self._replayed(call.tensors, route) if result is MISS else result

        way = timed.decided()
        if way is Way.EAGER:
            raise RunEagerly("measured to be faster than its graph", for_good=True)
        if way is Way.GRAPH:
            return graph(), True
        way = timed.next_way()
        if way is Way.EAGER:
            result = timed.timed(way, lambda: self.shared.fn(*call.args, **call.kwargs))
            self.shared.eager.count("timed against its graph")
            return result, False
        return timed.timed(way, graph), False

    # -- the stages -------------------------------------------------------------------------------------

    def warm_up(self, call: Call) -> Any:
        """Run the call itself, eagerly, on the capture stream: libraries keep handles per stream.

        A call that may be differentiated stays on its own stream: backward runs where forward ran.
        """
        current = torch.cuda.current_stream(self.arena.device_index)
        stream = current if torch.is_grad_enabled() else self.arena.stream
        args, kwargs = call.args, call.kwargs
        if self.shared.is_through_dynamo:
            args, kwargs = for_dynamo(call, self.shared.front)
        with on_stream(stream):
            result = self.shared.run_in(call.world, args, kwargs)
            if args is not call.args:
                result = call.given_back(result, args, kwargs)
        returned(call.kwargs, result)
        self.look_at(result, None if stream is current else current)
        self.shared.eager.count(self.why_eager or self.why_waits)  # a warm-up only if a graph can follow
        return returned(call.kwargs, result, True)

    def look_at(self, result: Any, current: Any = None) -> None:
        """What an eager result says of captures to come.

        Args:
            current: the stream that goes on to use it, where it was made on another.
        """
        try:
            made = self.warmed(result)
        except NotATree as error:
            self.fall_back(f"its result cannot be taken apart: {error}")
            return
        for tensor in made if current is not None else ():
            if tensor.is_cuda and tensor.layout is torch.strided:
                used_on(tensor, current)
        if any(t.requires_grad and (torch.is_grad_enabled() or t.grad_fn is not None) for t in made):
            self.why_eager = "its result needs gradients"

    def record(self, call: Call, bucketed: Bucketed | None) -> None:
        """Capture it.

        Raises:
            RunEagerly: it stays eager, for now or for good.
        """
        captured = [
            e for e in self.arena.entries if isinstance(e, Captured) and e.shared is self.shared and e.capture
        ]
        if len(captured) >= self.shared.options.max_graphs:
            min(captured, key=lambda e: e.used_at).evict("more signatures than max_graphs")
        self.world = call.world
        # At least its arguments and results; what similar captures have taken is a better estimate.
        needed = sum(t.nbytes for t in call.tensors) + self.result_nbytes
        self._make_room(max([needed, *(e.nbytes for e in captured)]))
        current = torch.cuda.current_stream(self.arena.device_index)
        sizes = bucketed.sizes if bucketed else [None] * len(call.tensors)
        try:
            capture = self._attempt_twice(call, sizes)
        finally:
            current.wait_stream(self.arena.stream)
        structure = capture.first.outputs.structure
        if self.warm_structure is not None and structure != self.warm_structure:
            shown = [str(s)[:200] for s in (self.warm_structure, structure)]
            error = CaptureError("graphed_result_changes", function=self.name, first=shown[0], second=shown[1])
            raise self._stays_eager("the structure of its result changes from call to call", error)
        places = sorted(span(t) for t in call.tensors if t.is_cuda and t.numel()) if call.aliases else ()
        if self.mutates and any(one[1] > other[0] for one, other in pairwise(places)):
            raise self._stays_eager("it writes to arguments that share memory")
        self.capture, self.why_waits = capture, WARM_UP
        self.shared.n_captures += 1
        if self.arena.graph_nbytes() > self.arena.cap():  # it took more than predicted
            try:
                self._make_room(0)
            except RunEagerly:
                self.evict("it takes more memory than the limit allows")
                raise

    def _attempt_twice(self, call: Call, sizes: Sequence[Any]) -> Capture:
        """Attempt a capture; if memory runs out, free everything else and attempt once more."""
        for _ in range(2):
            try:
                return self._attempt(call, sizes)
            except torch.OutOfMemoryError:
                pass
            # Outside the except block nothing holds the attempt's frames, and what they had allocated, any more.
            self.shared.buffers.clear()
            self.arena.drop_all()
        self._wait("out of memory in a capture")
        raise RunEagerly(self.why_waits)

    def _make_room(self, needed: int) -> None:
        if not self.arena.make_room(needed, keep=self):
            self._wait("a capture would exceed the memory limit")
            raise RunEagerly(self.why_waits, CaptureError("vram_cap_exceeded", **self.arena.account(needed)))

    def _wait(self, why: str) -> None:
        """Run calls eagerly before the next attempt."""
        self.n_seen, self.why_waits = self.shared.options.warmup - TRY_AGAIN_AFTER, why
        self.arena.state.report("fallback", f"{why}; these calls run eagerly", self.name)

    def _attempt(self, call: Call, sizes: Sequence[Any]) -> Capture:
        """Make one capture; raise `RunEagerly` if the entry is eager from now on."""
        shared = self.shared
        inputs = Inputs(shared.buffers, call.args, call.kwargs, call.tensors, sizes, shared.in_place)
        inputs.fill(call.tensors)
        if shared.front is not None:
            # Nothing may be traced inside a capture: Dynamo must already have code for the entry's own buffers.
            world = shared.front.find(inputs.args, inputs.kwargs)
            if world is None or world.why_pieces or shared.front.has_moved(world, inputs.args, inputs.kwargs):
                raise self._stays_eager("the trace is not valid for the buffers that a graph would read")
            self.world = world
        try:
            return Capture(inputs, self.record_over(inputs))
        except CaptureDied as error:
            raise self._stays_eager(f"it could not be captured: {error}") from None
        except NotATree as error:
            raise self._stays_eager(f"its result cannot be taken apart: {error}") from None

    def _stays_eager(self, why: str, error: CaptureError | None = None) -> RunEagerly:
        """Report why its calls run eagerly from now on; return what this one raises."""
        self.fall_back(why, error)
        return RunEagerly(self.why_eager, self.error)

    def _of_ring(self, stream: Any, tensors: list[Tensor], repeats_last: bool) -> tuple[Instance, bool]:
        """In hot mode: the graph to launch, and whether its results must be copied out."""
        capture = self.capture
        assert capture is not None
        chosen = next((i for i in capture.ring if not i.outputs.in_use()), None)
        if chosen is None and len(capture.ring) < RING and not self.ring_failed:
            # A capture that is split runs its parts, and the inputs still hold another call's values.
            capture.inputs.fill(tensors, repeats_last)
            try:
                kind = capture.first.outputs
                buffers = kind.buffers()
                chosen = self.record_over(capture.inputs, kind.into(buffers))
                chosen.outputs.hand_out(buffers)
                self.capture = dataclasses.replace(capture, ring=(*capture.ring, chosen))
                self.shared.n_captures += 1
                stream.wait_stream(self.arena.stream)
            except (CaptureDied, torch.OutOfMemoryError, NotATree) as error:
                self.ring_failed = True  # results are copied out from now on
                why = "no second graph could be captured for hot mode; results are copied"
                self.arena.state.report("fallback", why, self.name, kind_and_line(error))
        if chosen is None:
            self.all_held = True
            return capture.first, True
        if chosen.stream is not None and chosen.seen_on != stream.cuda_stream:
            stream.wait_stream(chosen.stream)  # its last results may still be read there
        chosen.stream, chosen.seen_on = stream, stream.cuda_stream
        return chosen, False

    # -- capture ----------------------------------------------------------------------------------

    def warmed(self, result: Any) -> list[Tensor]:
        """Keep what an eager run gave, for a capture's result must be like it; return its tensors."""
        made: list[Tensor] = []
        self.warm_structure = flatten(result, made)
        self.warm = [weakref.ref(t) for t in made]
        self.result_nbytes = sum(t.nbytes for t in made if t.layout is torch.strided)
        return made

    def record_over(self, inputs: Inputs, copy_results: Callable[[Any], Any] | None = None) -> Instance:
        """Capture the function once more, over static inputs.

        Args:
            copy_results: called with the function's result inside the capture; returns the result to use.

        Raises:
            CaptureDied: it could not be captured.
            NotATree: its result has an unknown structure.
            torch.OutOfMemoryError: there was no memory.
        """
        arena, before = self.arena, self.arena.reserved()
        run = functools.partial(self.shared.run_in, self.world, inputs.args, inputs.kwargs)
        call = run if copy_results is None else lambda: copy_results(run())
        graph, result = arena.capture(call, self.pool, on_unsafe=self.on_unsafe, account=self.shared.account)
        homes = self.world.homes if self.world is not None else frozenset()
        is_plain, is_opaque = graph.is_plain, graph.is_opaque
        instance = Instance(graph, is_plain, is_opaque, Outputs(result, inputs.statics, self.warm, homes))
        inside = [static.tensor for static in inputs.statics]
        written = written_inputs(graph, inside) if instance.mutated else []
        self.mutates = tuple(sorted({*written, *self.mutates}))
        instance.nbytes = max(0, arena.reserved() - before)
        return instance

    def fall_back(
        self, why: str, error: BaseException | None = None, *, label: str = "", for_good: bool = True
    ) -> str:
        """As of all; ``error`` is what ``strict`` raises then."""
        self.error = (
            error
            if isinstance(error, CaptureError)
            else CaptureError("graphed_not_captured", function=self.name, signature=self.label, reason=why)
        )
        return super().fall_back(why, label=self.label, for_good=for_good)

    def evict(self, why: str) -> None:
        """Drop the graphs; the next call captures again."""
        self.arena.wait_for_all()  # a graph being dropped may still be running
        self.arena.state.report("eviction", why, self.name, self.label, logging.INFO)
        self.n_gone = self.replays()
        self.capture = None
        forget_fast = self.on_evict()
        if forget_fast is not None:
            forget_fast()

    # -- replay -----------------------------------------------------------------------------------

    def replay(self, instance: Instance) -> None:
        """Launch; if a guard or a launch fails, undo it and leave the call to the function.

        Raises:
            RunEagerly: the replay was undone completely.
        """
        assert self.capture is not None
        statics = self.capture.inputs.statics
        before, looks = [], instance.is_opaque and not self.was_looked_at and not self.shared.in_place
        with suppress(torch.OutOfMemoryError):  # then its next replay is looked at
            before = [static.bits().clone() for static in statics] if looks else []
        run = functools.partial(replay, instance.graph, instance.mutated)
        if instance.draws is None and instance.is_plain:
            instance.draws = self.arena.advances(instance.graph, run)
        else:
            run()
        if before:
            self.was_looked_at = True
            written = {i for i, bits in enumerate(before) if not torch.equal(bits, statics[i].bits())}
            self.mutates = tuple(sorted(written.union(self.mutates)))


@dataclass(frozen=True)
class Padded:
    """How calls of one exact size are served by their bucket."""

    repeats_last: bool
    """Padding repeats the last row; else it is zero."""
    sizes: Sequence[Sequence[int]]
    """Sizes of the tensors of the result."""
    structure: Any
    """Structure of the result."""


@dataclass(slots=True, eq=False)
class Route:
    """How calls of one exact signature run."""

    entry: Captured | None
    bucketed: Bucketed | None = None
    why_eager: str = ""
    why_slow: str = ""
    """Why its replays take the slow path; "" if they do not."""
    fast: Fast | None = None
    fast_of: tuple[object, ...] = ()
    mark: object = field(default_factory=object)
    """A token for the route, where a reference to the route itself would be a cycle."""
    padded: Padded | None = None
    """How the bucket serves this size; None until known, and if nothing is padded."""
    repeats_last: bool = False
    """Whether padding must repeat the last row; it is zero elsewhere."""
    result_sizes: Sequence[Sequence[int] | None] | None = None
    has_views: bool = True
    """Whether a result may be a view of an argument with another layout than the bucket's buffer."""

    def fit(self, entry: Captured, tensors: Sequence[Tensor]) -> None:
        """Determine how a replay's results are made the call's, once its bucket is captured.

        Raises:
            RunEagerly: they cannot be.
        """
        if self.padded is not None and self.result_sizes is None:
            self._cut_to(entry)
        elif self.bucketed is not None and self.has_views:
            self._look_for_views(entry, tensors)

    def _cut_to(self, entry: Captured) -> None:
        """Determine how a replay's results are cut to the call's size.

        Raises:
            RunEagerly: they cannot be cut.
        """
        assert self.padded is not None and entry.capture is not None
        outputs = entry.capture.first.outputs
        sizes: list[Sequence[int] | None] = []
        if self.padded.structure != outputs.structure:
            self.entry, self.why_eager = None, "the captured function returned a different structure than before"
            raise RunEagerly(self.why_eager)
        for size, result in zip(self.padded.sizes, outputs.results):
            if result.of_input >= 0 and not result.layout[0]:
                self.entry, self.why_eager = None, "a result is a view of a padded argument"
                raise RunEagerly(self.why_eager)
            made = result.made
            sizes.append(size if made is not None and tuple(made.size()) != tuple(size) else None)
        self.result_sizes = sizes

    def _look_for_views(self, entry: Captured, tensors: Sequence[Tensor]) -> None:
        """Refuse results that are views of arguments if the call's strides differ from the buffer's.

        Raises:
            RunEagerly: one does.
        """
        assert entry.capture is not None
        for result in entry.capture.first.outputs.results:
            if result.of_input >= 0 and not result.layout[0]:
                if tensors[result.of_input].stride() != entry.capture.inputs.statics[result.of_input].tensor.stride():
                    self.entry, self.why_eager = None, "a result is a view of an argument with a different layout"
                    raise RunEagerly(self.why_eager)
        self.has_views = False
