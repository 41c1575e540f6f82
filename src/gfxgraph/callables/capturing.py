"""How a graphed callable captures: warm-up, memory, attempts, and what one capture tells about the next.

warm-up, eager ──> memory under the limit ──> attempt ──> captured
                                               ├─ out of memory: free everything else, try once more
                                               └─ it cannot be captured: eager for good, with the reason
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables import capture_once
from gfxgraph.callables.arena import Arena
from gfxgraph.callables.buckets import Bucketed
from gfxgraph.callables.captured_signature import Captures, Instance
from gfxgraph.callables.effects import ArgumentWrites, Draws
from gfxgraph.callables.inputs import Buffers
from gfxgraph.callables.options import Options
from gfxgraph.callables.outputs import RING
from gfxgraph.callables.relocation import NotRelocatable
from gfxgraph.callables.relocation import learn as where_read
from gfxgraph.callables.signature import Call, NotATree, RunEagerly, flatten
from gfxgraph.callables.trace.dynamo import is_compiled
from gfxgraph.capture.replay.graph_tensors import used_on
from gfxgraph.errors import CaptureError, DriverError, first_line
from gfxgraph.types import MovedInput, OnUnsafe, ReplayMode

if TYPE_CHECKING:
    from gfxgraph.callables.trace.frontend import Frontend

TRY_AGAIN_AFTER = 64
"""Eager calls before the next attempt, after a capture found no memory."""
MOST_VARIANTS = 3
"""Most captures of one signature, besides the first, for values that it branches on; more of them run eagerly."""


class Capturer:
    """The captures of one callable.

    Args:
        fn: the function.
        run: the function as it is captured, through Dynamo if Dynamo traces it.
        front: Dynamo; None if nothing is traced.
        name: its name in reports.
        eager: calls without a graph, by reason; one is added for each warm-up.
        entries: every signature; captured ones may be evicted to make room.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        run: Callable[..., Any],
        front: Frontend | None,
        name: str,
        options: Options,
        eager: Counter[str],
        entries: Mapping[Any, Captures],
    ) -> None:
        self._fn = fn
        self._run = run
        self._front = front
        self._name = name
        self._options = options
        self._eager = eager
        self._is_opaque = is_compiled(fn)
        self._entries = entries
        self._is_clean: dict[Any, bool] = {}
        """By kind of call: whether its first recorded capture was one plain segment."""
        self.n_captures = 0
        self.buffers = Buffers()
        """The memory of all signatures' static inputs."""

    def forget(self) -> None:
        """Forget everything about captures, because the bridge was switched on or off."""
        self.buffers = Buffers()
        self._is_clean.clear()

    def warm_up(self, arena: Arena, entry: Captures, call: Call) -> Any:
        """Run the call itself, eagerly, on the capture stream: libraries keep handles per stream.

        A call that may be differentiated stays on its own stream: backward runs where forward ran.
        """
        current = torch.cuda.current_stream(arena.device_index)
        stream = current if torch.is_grad_enabled() else arena.stream
        stream.wait_stream(current)
        draws = Draws(arena.device_index, is_opaque=self._is_opaque)
        writes = ArgumentWrites(call.tensors)
        try:
            args, kwargs = call.for_dynamo() if self._run is not self._fn else (call.args, call.kwargs)
            with torch.cuda.stream(stream), draws:
                result = self._run(*args, **kwargs)
                if args is not call.args:
                    result = call.given_back(result, args, kwargs)
        finally:
            current.wait_stream(stream)
        entry.is_drawless = draws.none
        entry.written |= writes.found()
        self._eager["warm-up"] += 1
        self.look_at(entry, result, None if stream is current else current)
        return result

    def look_at(self, entry: Captures, result: Any, current: Any = None) -> None:
        """What an eager result says of captures to come.

        Args:
            current: the stream that goes on to use it, where it was made on another.
        """
        made: list[Tensor] = []
        try:
            entry.warm_structure = flatten(result, made)
        except NotATree as error:
            entry.fall_back(f"its result cannot be taken apart: {error}")
            return
        entry.warm = [weakref.ref(t) for t in made]
        entry.result_nbytes = sum(t.nbytes for t in made if t.layout is torch.strided)
        for tensor in made if current is not None else ():
            if tensor.is_cuda and tensor.layout is torch.strided:
                used_on(tensor, current)
        if any(t.requires_grad and (torch.is_grad_enabled() or t.grad_fn is not None) for t in made):
            entry.why_eager = "its result needs gradients"

    def capture(self, arena: Arena, entry: Captures, call: Call, bucketed: Bucketed | None) -> None:
        """Capture the entry.

        Raises:
            RunEagerly: it stays eager, for now or for good.
        """
        captured = [e for e in self._entries.values() if e.first is not None]
        if len(captured) >= self._options.max_graphs:
            min(captured, key=lambda e: e.used_at).evict("more signatures than max_graphs")
        entry.world = call.world
        # At least its arguments and results; what similar captures have taken is a better estimate.
        needed = sum(t.nbytes for t in call.tensors) + entry.result_nbytes
        self._make_room(arena, entry, max([needed, *(e.nbytes for e in captured)]))
        current = torch.cuda.current_stream(arena.device_index)
        sizes = bucketed.sizes if bucketed else [None] * len(call.tensors)
        instance = self._attempt_twice(arena, entry, call, sizes)
        current.wait_stream(arena.stream)
        if instance is None:
            raise RunEagerly(entry.why_eager, entry.error)
        if entry.warm_structure is not None and instance.outputs.structure != entry.warm_structure:
            shown = [str(s)[:200] for s in (entry.warm_structure, instance.outputs.structure)]
            entry.fall_back(
                "the structure of its result changes from call to call",
                CaptureError("graphed_result_changes", function=self._name, first=shown[0], second=shown[1]),
            )
            raise RunEagerly(entry.why_eager, entry.error)
        if entry.mutates and call.aliases:
            entry.fall_back("it writes to arguments that share memory")
            raise RunEagerly(entry.why_eager, entry.error)
        entry.first = instance
        self.n_captures += 1
        self.learn(call, entry, instance)
        if self._options.moved is MovedInput.RELOCATE:
            self._relocate(entry, call, instance, bucketed)
        if arena.graph_nbytes() > arena.cap():  # it took more than predicted
            try:
                self._make_room(arena, entry, 0)
            except RunEagerly:
                entry.evict("it takes more memory than the limit allows")
                raise

    def _attempt_twice(self, arena: Arena, entry: Captures, call: Call, sizes: Sequence[Any]) -> Instance | None:
        """Attempt a capture; if memory runs out, free everything else and attempt once more."""
        for _ in range(2):
            try:
                return self._attempt(arena, entry, call, sizes)
            except torch.OutOfMemoryError:
                pass
            # Outside the except block nothing holds the attempt's frames, and what they had allocated, any more.
            entry.let_go_of_inputs()
            self.buffers.clear()
            arena.drop_all()
        entry.n_seen = self._options.warmup - TRY_AGAIN_AFTER
        arena.state.report("fallback", "out of memory in a capture; these calls run eagerly", self._name)
        raise RunEagerly("out of memory in a capture")

    def _relocate(self, entry: Captures, call: Call, instance: Instance, bucketed: Bucketed | None) -> None:
        """Make the graph read large arguments in place, if its kernels are understood."""
        try:
            if self._options.mode is ReplayMode.HOT:
                raise NotRelocatable("arguments are copied in hot mode")
            if call.aliases:
                raise NotRelocatable("arguments share memory")
            if bucketed is not None and bucketed.is_padded:
                raise NotRelocatable("the call is smaller than its bucket")
            instance.moving = where_read(entry, instance, call.tensors)
        except (NotRelocatable, capture_once.CaptureDied, DriverError, torch.OutOfMemoryError) as error:
            entry.why_copied = first_line(error)
            why = f"large arguments are copied, not read in place: {entry.why_copied}"
            entry.arena.state.report("not_relocated", why, self._name, entry.label, logging.INFO)
            torch.cuda.current_stream(entry.arena.device_index).wait_stream(entry.arena.stream)

    def _make_room(self, arena: Arena, entry: Captures, needed: int) -> None:
        if not arena.make_room(needed, keep=entry):
            entry.n_seen = self._options.warmup - TRY_AGAIN_AFTER
            error = CaptureError("vram_cap_exceeded", **arena.account(needed))
            raise RunEagerly("a capture would exceed the memory limit", error)

    def _attempt(self, arena: Arena, entry: Captures, call: Call, sizes: Sequence[Any]) -> Instance | None:
        """Make one capture, recorded if needed; None if the entry is eager from now on."""
        for recorded in (False, True) if self.may_go_unrecorded(arena, call) else (True,):
            entry.prepare(call.args, call.kwargs, call.tensors, sizes)
            entry.fill(call.tensors)
            if self._front is not None:
                # Nothing may be traced inside a capture: Dynamo must already have code for the entry's own buffers.
                world = self._front.find(entry.args, entry.kwargs)
                if world is None or world.why_pieces or self._front.has_moved(world, entry.args, entry.kwargs):
                    entry.fall_back("the trace is not valid for the buffers that a graph would read")
                    return None
                entry.world = world
            arena.stream.wait_stream(torch.cuda.current_stream(arena.device_index))
            try:
                return entry.capture(recorded=recorded)
            except capture_once.CaptureDied as error:
                if recorded:
                    entry.fall_back(f"it could not be captured: {error}")
                self._is_clean[call.kind] = False  # the recorder can split there
            except NotATree as error:
                entry.fall_back(f"its result cannot be taken apart: {error}")
                break
        return None

    def learn(self, call: Call, entry: Captures, instance: Instance) -> None:
        """Apply what the first recorded capture of a kind of call shows to the others, which differ only in sizes."""
        if instance.is_recorded and call.kind not in self._is_clean:
            self._is_clean[call.kind] = instance.is_plain
        entry.is_clean = self.may_go_unrecorded(entry.arena, call)

    def may_go_unrecorded(self, arena: Arena, call: Call) -> bool:
        if self._options.moved is MovedInput.RELOCATE:  # relocation needs the nodes' names
            return False
        if not self._is_clean.get(call.kind, False):
            return False
        # Only if the driver itself refuses what no graph can hold, and nothing needs a tape.
        state = arena.state
        is_cuda = state.platform == "cuda" or (state.platform == "simulator" and state.settings.simulate == "cuda")
        return is_cuda and state.validate_replays == 0 and state.settings.on_unsafe is not OnUnsafe.RAISE

    def of_ring(
        self, entry: Captures, stream: Any, tensors: list[Tensor], repeats_last: bool
    ) -> tuple[Instance, bool]:
        """In hot mode: the graph to launch, and whether its results must be copied out."""
        assert entry.first is not None
        chosen = next((i for i in entry.ring if not i.outputs.in_use()), None)
        if chosen is None and len(entry.ring) < RING and not entry.ring_failed:
            # A capture that is split runs its parts, and the inputs still hold another call's values.
            entry.fill(tensors, repeats_last)
            entry.arena.stream.wait_stream(stream)
            try:
                chosen = entry.add_to_ring(recorded=not entry.is_clean)
                self.n_captures += 1
                stream.wait_stream(entry.arena.stream)
            except (capture_once.CaptureDied, torch.OutOfMemoryError, NotATree) as error:
                entry.ring_failed = True  # results are copied out from now on
                why = "no second graph could be captured for hot mode; results are copied"
                entry.arena.state.report("fallback", why, self._name, capture_once.kind_and_line(error))
        if chosen is None:
            entry.all_held = True
            return entry.first, True
        if chosen.stream is not None and chosen.seen_on != stream.cuda_stream:
            stream.wait_stream(chosen.stream)  # its last results may still be read there
        chosen.stream, chosen.seen_on = stream, stream.cuda_stream
        return chosen, False

    def variant(self, arena: Arena, entry: Captures) -> Instance:
        """Replay another capture of the same signature, made for the present values.

        Raises:
            RunEagerly: there is none, and no room for more.
        """
        found = entry.replay_variant()
        if found is None and len(entry.variants) < MOST_VARIANTS:
            current = torch.cuda.current_stream(arena.device_index)
            arena.stream.wait_stream(current)
            try:
                entry.add_variant()
                self.n_captures += 1
            except (capture_once.CaptureDied, torch.OutOfMemoryError, NotATree) as error:
                why = "too many captures for different values; such calls run eagerly"
                arena.state.report("fallback", why, self._name, capture_once.kind_and_line(error))
                raise RunEagerly("a value that the capture read has changed") from error
            finally:
                current.wait_stream(arena.stream)
            found = entry.replay_variant()
        if found is None:
            raise RunEagerly("a value that the capture read has changed")
        return found
