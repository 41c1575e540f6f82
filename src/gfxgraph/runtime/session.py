"""One capture: its segments, its splits, what it must undo, and how it ends when it dies.

    open ──unsafe op──> outside ──> open (next segment)
     │ │
     │ └─ nested capture begins ──> suspended ──> open
     ├── dead (an op nobody foresaw): recovered from the tape ──> open
     ├── aborted: an error goes to the user, the process is as before the capture
     └── ended: a Program

A plain capture computes nothing, and programs count on it. A split must launch what was recorded
so that real values exist; what such launches change outside the graph is saved before and put
back at the end, random generators too.

Invariant: whatever happens between ``begin`` and ``end``, ``_close`` runs once: modes popped,
autograd threads and the sync debug mode as before, interception off.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from gfxgraph.core.questions import Question, Reference
from gfxgraph.core.unsafe import BY_NAME, Kind, UnsafeOp
from gfxgraph.errors import CaptureError, DriverError
from gfxgraph.runtime import intercept, process
from gfxgraph.runtime.hooks import bare_launch
from gfxgraph.runtime.memory import Layout, is_within, overwrite, pool_id, pool_ranges, tensor_of
from gfxgraph.runtime.modes import enter_mode, leave_modes
from gfxgraph.runtime.numbers import TrackedNumber
from gfxgraph.runtime.program import Program
from gfxgraph.runtime.recorder import Recorder, place, storage_address
from gfxgraph.runtime.recovery import clean_by_hand, heal_capture, is_lost
from gfxgraph.runtime.steps import CallStep, HostStep, ReadStep, ReplayStep, SegmentStep, Step
from gfxgraph.types import CaptureStatus, OnUnsafe

# torch's own refusals that leave the capture alive: the operation can be split out.
_REFUSALS = (
    "called a synchronizing CUDA operation",
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture",
    "not permitted when stream is capturing",
)
# A random operation with a generator that was not registered with the graph; asking beforehand is
# not possible, since a generator's current state can be exchanged (graphsafe_set_state).
_UNREGISTERED = "not in capture mode"


class Session:
    """The capture of one graph object, from capture_begin to capture_end."""

    def __init__(
        self,
        graph: Any,
        pool: Any,
        mode: str,
        extra: tuple[tuple[Any, ...], dict[str, Any]],
        generators: list[Any],
        policy: OnUnsafe,
    ) -> None:
        self.state = process.require()
        self.graph_ref = weakref.ref(graph)
        self.mode = mode
        self.extra = extra
        self.policy = policy
        self.device_index = torch.cuda.current_device()
        self.stream = torch.cuda.current_stream()
        self.begun_at = place()
        self.pool = pool
        self.pool_id: Any = pool_id(pool)
        self.has_users_pool = self.pool_id is not None
        self.user_generators = generators
        self.default_generator = torch.cuda.default_generators[self.device_index]
        self.default_state = self.default_generator.graphsafe_get_state()
        self.program = Program(bare_launch(self.state.base))
        self._own_graph: Any = None
        self._dying: Any = None
        self.n_segments = 0
        self.n_executed = 0
        self.has_executed = False
        self.snapshots: list[tuple[Tensor, Tensor]] = []
        self.saved_rng: list[tuple[Any, Tensor]] = []
        self.side_streams: dict[int, Any] = {}
        # Held, not weakly: torch's event type does not clear weak references when it dies.
        self.events: dict[int, tuple[Any, int]] = {}
        self.tainted: dict[int, weakref.ref[Tensor]] = {}
        self.n_reads = 0
        self.reads: dict[int, ReadStep] = {}
        self.error: BaseException | None = None
        self.died_of: tuple[str, object] | None = None
        self.is_open = False
        self.checks_for_escapes = self.state.driver is not None and self.state.driver.name != "cuda"
        self.recorder = Recorder(self)
        self._has_entered = False

    # -- begin and end ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the first segment on the user's graph object."""
        leave_modes()
        outer = process.active_session()
        if outer is not None:
            outer.suspend()
        # Before the first segment: a collection after its begin could destroy a graph inside it.
        intercept.enter()
        try:
            self._open(self.graph_ref(), self.extra)
        except BaseException:
            self._forget_graphs()
            intercept.leave()
            if outer is not None:
                outer.resume()
            raise
        self.outer = outer
        process.sessions().append(self)
        self._saved_multithreading = torch.autograd.is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
        enter_mode(self.recorder)
        self._has_entered = True

    def end(self) -> Program:
        """End the last segment; undo what splits executed; give the program."""
        try:
            self._end_segment(final=True)
            self._close()
            self._finish_program()
        except BaseException as error:
            self.abort(error)
            raise
        program, self.program = self.program, Program(self.program.launch)
        return program

    @property
    def segment_graph(self) -> Any:
        """torch's graph object of the open segment. The user's is not held: dropping it ends the capture."""
        return self._own_graph or self.graph_ref() or self._dying

    @segment_graph.setter
    def segment_graph(self, graph: Any) -> None:
        self._own_graph = graph if graph is not self.graph_ref() else None

    def abort(self, error: BaseException | None, dying: Any = None) -> None:
        """Leave the process as it was before the capture. The error is raised by the caller.

        Args:
            dying: the user's graph object, where its finalizer asks.
        """
        if self.error is not None:
            return
        self._dying = dying
        self.error = error if error is not None else RuntimeError("abandoned")
        try:
            if self.is_open:
                self._discard_segment()
            self._close()
        except RuntimeError as second:
            # The first error is the one to see.
            process.log.error("while leaving a failed capture: %s", str(second))
        finally:
            self._forget_graphs()
            self._dying = None
            self.state.counters.add("capture_failed")

    def _close(self) -> None:
        if not self._has_entered:
            return
        self._has_entered = False
        self.recorder.paused = True
        process.leftover_modes().append(self.recorder)
        leave_modes()
        torch._C._set_multithreading_enabled(self._saved_multithreading)
        intercept.leave()
        stack = process.sessions()
        if self in stack:
            stack.remove(self)
        try:
            self._undo()
        finally:
            self.recorder.let_go()
            self.events.clear()
            self.side_streams.clear()
            if self.outer is not None:
                self.outer.resume()

    def _forget_graphs(self) -> None:
        """Give back the memory of what was captured; the user's object can capture again."""
        self.program = Program(self.program.launch)
        for graph in (self.segment_graph, self.graph_ref()):
            if graph is not None:
                with suppress(RuntimeError):
                    self.state.base.reset(graph)
        self.segment_graph = None

    # -- segments -----------------------------------------------------------------------------------

    def _open(self, graph: Any, extra: tuple[tuple[Any, ...], dict[str, Any]] | None = None) -> None:
        base = self.state.base
        self._refuse_busy_stream()
        self._refuse_busy_pool()
        self.segment_graph = graph
        try:
            with self._on_own_stream():
                if extra is not None:
                    base.capture_begin(graph, self.pool, self.mode, *extra[0], **extra[1])
                else:
                    for state in self._generator_states():
                        base.register_generator_state(graph, state)
                    base.capture_begin(graph, self.pool_id, self.mode)
        except BaseException:
            self._heal()
            raise
        if self.has_users_pool:
            self.state.recording[tuple(self.pool_id)] = self
        self.recorder.start_segment(self.n_segments)
        self.n_segments += 1
        self.is_open = True
        self._sync_debug(True)
        if self.side_streams:
            fork = torch.cuda.Event()
            intercept.stock("record")(fork, self.stream)
            for stream in self.side_streams.values():
                intercept.stock("wait")(fork, stream)

    def _refuse_busy_stream(self) -> None:
        """Raise where the stream is in another capture: a failed begin is cleaned up by ending what is there."""
        handle = self.stream.cuda_stream
        if self.state.driver is None or self.state.driver.capture_info(handle).status is CaptureStatus.NONE:
            return
        if handle in self.state.lost_streams:
            raise CaptureError("capture_not_abandoned", stream=self.stream, status=self.state.lost_streams[handle])
        raise CaptureError("overlapping_captures", second=shown(self.begun_at), first=f"(unknown, on {self.stream})")

    def _refuse_busy_pool(self) -> None:
        """Raise where another capture fills the pool: cleaning up after a refusal would end that one's routing."""
        other = self.state.recording.get(tuple(self.pool_id)) if self.has_users_pool else None
        if other is not None and other is not self:
            raise CaptureError(
                "wrong_pool",
                pool=tuple(self.pool_id),
                problem=f"the capture begun at {shown(other.begun_at)} is recording into it",
                quote=f"beginAllocateToPool: already recording to mempool_id {tuple(self.pool_id)}",
            )

    def _join_side_streams(self) -> None:
        for stream in self.side_streams.values():
            if self._status(stream) is CaptureStatus.ACTIVE:
                join = torch.cuda.Event()
                try:
                    intercept.stock("record")(join, stream)
                    intercept.stock("wait")(join, self.stream)
                except RuntimeError as error:  # the capture is dead; its end says so
                    process.log.debug("could not join %s: %s", stream, error)

    def _end_segment(self, final: bool = False) -> None:
        """End the capture that is open and make it a step; a dead one becomes a step of its tape."""
        recorder = self.recorder
        base, graph = self.state.base, self.segment_graph
        # At the end too: a fork that was never joined is a stream that some ROCm releases lose (904).
        self._join_side_streams()
        recorder.note_opaque()  # after joining: the last launch of a side stream may be one
        live = [(value, Layout.of(tensor)) for value, tensor in recorder.live_values()]
        self._is_over()
        is_users = graph is self.graph_ref()
        try:
            with warnings.catch_warnings():
                if not (final and self.n_segments == 1):
                    warnings.simplefilter("ignore")
                with self._on_own_stream():
                    self.state.base.capture_end(graph)
        except RuntimeError as error:
            is_healed = self._heal(end_was_refused=True)
            if not is_healed or not recorder.tape.is_complete or (final and not recorder.tape.rows):
                raise self._end_error(error) from error
            process.log.debug("capture_end failed: %s", error)
            graph = None
        if self.pool_id is None:
            self.pool_id = base.pool(self.segment_graph)
        tape = recorder.tape
        self.program.layouts.update(live)
        for opaque in tape.opaque:
            self.state.counters.add("opaque")
            process.log.debug("opaque launch before %s", opaque.where)
        step = SegmentStep(self.segment_graph, is_users, tape, live, tuple(recorder.mutated.values()))
        if graph is not None:
            self._instantiate(step, is_users)
        elif self.died_of is not None:
            step.step_down("an unforeseen operation ended the capture; its part runs from the tape", *self.died_of)
        else:
            step.step_down("the capture could not be ended; its tape runs instead", "capture_end")
        if tape.rows or tape.opaque or (final and self.n_segments == 1):
            self.program.steps.append(step)
        # An empty segment's graph dies with this call: once the next capture is open, an outer one
        # included, its end would end that.
        self.segment_graph = None

    def _is_over(self) -> None:
        """The segment that was open is not any more, whatever its end gives."""
        self.is_open = False
        if self.has_users_pool:
            self.state.recording.pop(tuple(self.pool_id), None)
        self._sync_debug(False)

    def _instantiate(self, step: SegmentStep, is_users: bool) -> None:
        graph = self.segment_graph
        if self.state.driver is not None:
            step.n_nodes = self.state.driver.node_counter(int(self.state.base.raw_cuda_graph(graph)))()
        step.is_launchable = True
        if not (is_users and graph._keeps_graph and self.n_segments == 1):  # the user does it, or the first replay
            step.instantiate()

    def _end_error(self, error: RuntimeError) -> CaptureError:
        entries = self.recorder.tape.entries
        last = entries[-1] if entries else None
        return CaptureError(
            "end_failed",
            status=first_line(error),
            op=last.name if last else "nothing",
            where=last.where if last else "",
            quote=str(error),
        )

    def _discard_segment(self) -> None:
        self._is_over()
        graph = self.segment_graph
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with self._on_own_stream():
                    self._join_side_streams()
                    self.state.base.capture_end(graph)
            except (RuntimeError, DriverError):
                self._heal(end_was_refused=True)

    def _heal(self, end_was_refused: bool = False) -> bool:
        """Clean up after the open capture has failed to begin or to end; False where its stream is lost."""
        base, driver, graph = self.state.base, self.state.driver, self.segment_graph
        sides = list(self.side_streams.values())
        healed = heal_capture(base, graph, self.stream, driver, side_streams=sides, end_was_refused=end_was_refused)
        if not healed and is_lost(self.stream, driver):
            self.state.lost_streams[self.stream.cuda_stream] = "hipErrorStreamCaptureUnjoined (904)"
            # What is still to do (putting back external state) needs a stream that works.
            self.stream = torch.cuda.Stream(self.device_index)
            with torch.cuda.stream(self.stream):
                clean_by_hand(self.device_index, self._pool_in_use(), self._known_generators())
                self._take_new_states()
        for side in sides:
            if is_lost(side, driver):
                self.state.lost_streams[side.cuda_stream] = "hipErrorStreamCaptureUnjoined (904)"
                del self.side_streams[side.cuda_stream]
        return healed

    def _pool_in_use(self) -> tuple[int, int] | None:
        """The pool of the open capture; torch tells it only of captures that ended well."""
        if self.pool_id is not None:
            return tuple(self.pool_id)
        for segment in torch.cuda.memory_snapshot():
            pool = tuple(segment.get("segment_pool_id", (0, 0)))
            inside = [(segment["address"], segment["address"] + segment["total_size"])]
            if pool != (0, 0) and any(is_within(address, inside) for address in self.recorder.storages):
                return pool
        return None

    def suspend(self) -> None:
        """Make room for a capture inside this one."""
        self.recorder.paused = True
        try:
            with self._on_own_stream():
                self._end_segment()
        except BaseException as error:
            self.abort(error)
            raise

    def resume(self) -> None:
        if self.error is None:
            try:
                with self._on_own_stream():
                    self._open(self.new_graph())
            except BaseException as error:
                self.abort(error)
                raise
            self.recorder.paused = False

    def new_graph(self) -> Any:
        return self.state.base(keep_graph=True)

    # -- splits -------------------------------------------------------------------------------------

    def unsafe_op(self, row: UnsafeOp, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation of the table, seen at the dispatcher: do it on the host's side."""
        name = func._schema.name
        if self.policy is OnUnsafe.RAISE:
            from gfxgraph.core.tape import where_of

            # Nothing but the operation itself: its own error is what the program is to see.
            return self._torchs_own(row, name, lambda: (func(*args, **kwargs), None), where_of(*place()))
        if name == "aten::_local_scalar_dense":
            return self.read_below_python(row, func, args)
        outcome = func._schema.returns and str(func._schema.returns[0].type) == "bool"
        where = place()

        def make() -> tuple[Any, Step]:
            self._save([t for t in flat(args, kwargs) if _writes(func, args, kwargs, t)])
            foreign = self._foreign_states(args, kwargs)
            self._save_generators(foreign)
            out = func(*args, **kwargs)
            if outcome:
                index = self._next_read()
                step: Step = ReadStep(lambda: func(*args, **kwargs), index, name, *where)
                self.reads[index] = step  # type: ignore[assignment]
                self._question(Reference(index), "is true", None, bool(out), where)
                return out, step
            for tensor in flat_out(out):
                if tensor.is_cuda:
                    self.recorder.adopt(tensor)
                elif any(t.is_cuda or self.is_tainted(t) for t in flat(args, kwargs)):
                    self.taint(tensor)
            writes = tuple(t for t in flat(args, kwargs) if _writes(func, args, kwargs, t))
            return out, HostStep(func, args, kwargs, out, name, *where, writes, tuple(foreign))

        return self.split(row, name, make, where)

    def split(self, row: UnsafeOp, name: str, make: Callable[[], tuple[Any, Step | None]], where: Any = None) -> Any:
        """End the segment, run what is pending, do the host's part, open the next segment.

        Raises:
            CaptureError: `unsafe_op_in_capture` where the policy is "raise".
        """
        from gfxgraph.core.tape import where_of

        where = where or place()
        shown = where_of(*where)
        if self.policy is OnUnsafe.RAISE:
            return self._torchs_own(row, name, make, shown)
        self.state.report("split", row.kind.value, name, shown, logging.INFO)
        self.recorder.paused = True
        try:
            # The operation may stand on a side stream; a replay has only one, and so has the capture's end.
            with self._on_own_stream():
                self._end_segment()
                self.execute_pending()
                out, step = make()
                if step is not None:
                    self.program.steps.append(step)
                self.n_executed = len(self.program.steps)
                self._open(self.new_graph())
        except BaseException as error:
            self.abort(error)
            raise
        finally:
            self.recorder.paused = not self._has_entered
        return out

    def _on_own_stream(self) -> Any:
        """Make the stream current that the capture began on."""
        is_current = torch.cuda.current_stream().cuda_stream == self.stream.cuda_stream
        return nullcontext() if is_current else torch.cuda.stream(self.stream)

    def _torchs_own(self, row: UnsafeOp, name: str, make: Callable[[], tuple[Any, Step | None]], where: Any) -> Any:
        """The policy "raise": do what torch does inside the capture, and name the operation in its error."""
        said = STOCK_TEXT
        self.recorder.paused = True
        try:
            out, _ = make()
            if row.kind is Kind.GENERATOR:
                return out  # torch lets some of these pass
        except RuntimeError as error:
            said = str(error)
        finally:
            self.recorder.paused = False
        failure = CaptureError("unsafe_op_in_capture", op=name, where=where, reason=row.reason, quote=said)
        self.abort(failure)
        raise failure

    def execute_pending(self) -> None:
        """Launch what was recorded and not yet run, so that real values exist."""
        steps = self.program.steps
        if not self.has_executed:
            self.has_executed = True
            # Inputs may still be written by other streams; a capture never waited for them.
            try:
                intercept.stock("device_synchronize")()
            except RuntimeError:
                intercept.stock("stream_synchronize")(self.stream)  # another thread captures in global mode
            self._save_generators(self._generator_states())
        pending = steps[self.n_executed :]
        for step in pending:
            self._save(step.mutated)
            if isinstance(step, SegmentStep):
                self._report_opaque(step.tape)
            self._pin_externals()
            step.run(self.program)
        self.n_executed = len(steps)

    def _report_opaque(self, tape: Any) -> None:
        if tape.opaque:
            self.state.report(
                "effects_not_undone",
                "a split ran launches that torch did not make; what they wrote outside the graph stays written",
                str(len(tape.opaque)),
                tape.opaque[0].where,
            )

    def _save_generators(self, states: list[Any]) -> None:
        self.saved_rng += [(state, state.get_state()) for state in states]

    def _foreign_states(self, args: Any, kwargs: Any) -> list[Any]:
        """Handles on the states of generators among arguments that the graph does not know."""
        given = [g for g in (*args, *kwargs.values()) if isinstance(g, torch._C.Generator)]
        found = [self.state.base.generator_of(g) if hasattr(self.state.base, "generator_of") else g for g in given]
        return [g.graphsafe_get_state() for g in found if g.device.type == "cuda"]

    def _generator_states(self) -> list[Any]:
        """Handles on the states that this capture draws from, which programs may swap between generators."""
        return [self.default_state, *(state for _, state in self.user_generators)]

    def _save(self, items: Any) -> None:
        have = {(t.data_ptr(), t.size(), t.stride()) for t, _ in self.snapshots}
        for item in items:
            tensor = tensor_of(item)
            key = (tensor.data_ptr(), tensor.size(), tensor.stride())
            if key not in have:
                have.add(key)
                if not tensor.is_cuda:
                    intercept.stock("stream_synchronize")(self.stream)  # a copy to it may be on its way
                with torch.inference_mode():
                    self.snapshots.append((tensor, tensor.clone()))

    def _undo(self) -> None:
        if not self.snapshots and not self.saved_rng:
            return
        snapshots, self.snapshots = self.snapshots, []
        saved_rng, self.saved_rng = self.saved_rng, []
        first_error: RuntimeError | None = None
        intercept.stock("stream_synchronize")(self.stream)
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            # Newest first: where two saved views overlap, the older content is the right one.
            for tensor, saved in reversed(snapshots):
                try:
                    overwrite(tensor, saved)
                except RuntimeError as error:  # the others can still be put back
                    first_error = first_error or error
            for state, saved_state in reversed(saved_rng):
                state.set_state(saved_state)
        intercept.stock("stream_synchronize")(self.stream)
        if first_error is not None:
            self.state.report(
                "effects_not_undone", "a tensor that a split changed could not be put back", first_line(first_error)
            )
            raise first_error

    # -- what an operation did -------------------------------------------------------------------------

    def op_failed(self, info: Any, func: Any, args: Any, kwargs: Any, error: RuntimeError) -> Any:
        """An operation raised inside the capture: unsafe, a bug of the user's, or the end of it."""
        if isinstance(error, torch.OutOfMemoryError):
            self.state.counters.add("out_of_memory")
            raise error
        status = self._status(self.stream)
        if status is CaptureStatus.ACTIVE:
            text = str(error)
            if not info.mutates:
                self.recorder.disown_new_nodes()
            if _UNREGISTERED in text:
                return self.unsafe_op(BY_NAME["torch.Generator"], func, args, kwargs)
            if any(refusal in text for refusal in _REFUSALS):
                row = UnsafeOp(info.name, Kind.SYNC, "torch refused it inside the capture: " + first_line(error))
                return self.unsafe_op(row, func, args, kwargs)
            self._explain_devices(info.name, args, kwargs, error)
            raise error
        return self._recover(info.name, error, lambda row: self.unsafe_op(row, func, args, kwargs))

    def _explain_devices(self, name: str, args: Any, kwargs: Any, error: RuntimeError) -> None:
        """Raise `wrong_device` where torch refused tensors of two devices; the capture lives on."""
        here = torch.device("cuda", self.device_index)
        strangers = [t for t in flat(args, kwargs) if t.device != here]
        if strangers and "device" in str(error):
            raise CaptureError(
                "wrong_device",
                tensor_device=strangers[0].device,
                graph_device=here,
                op=name,
                where=shown(place()),
                quote=str(error),
            ) from error

    def call_failed(self, name: str, error: RuntimeError, again: Callable[[], Any]) -> Any:
        """A call beside the dispatcher was refused: its own error, or the first to notice a dead capture."""
        if self._status(self.stream) is CaptureStatus.ACTIVE:
            raise error
        self._recover(name, error, lambda row: self.split(row, name, lambda: (None, None)))
        return again()

    def _recover(self, name: str, error: BaseException, again: Callable[[UnsafeOp], Any]) -> Any:
        """The capture is dead: run its tape eagerly into the same addresses, and go on after it."""
        from gfxgraph.core.tape import where_of

        tape = self.recorder.tape
        where = where_of(*place())
        if not tape.is_complete:
            failure = CaptureError(
                "capture_failed",
                op=name,
                where=where,
                status=first_line(error),
                n_opaque=len(tape.opaque),
                opaque=", ".join(str(o.where) for o in tape.opaque[:3]),
                quote=str(error),
            )
            self.abort(failure)
            raise failure from error
        process.log.debug("capture died: %s", error)
        row = UnsafeOp(name, Kind.SYNC, "it ended the capture: " + first_line(error))
        self.died_of = name, where
        try:
            return again(row)
        finally:
            self.died_of = None

    def escaped_recording(self, out: Any, info: Any) -> bool:
        """HIP only: device work that returned success and left no node behind."""
        tensors = flat_out(out)
        if not tensors or not all(t.is_cuda and t.numel() for t in tensors):
            return False
        return info.name not in _NO_NODE and not info.name.startswith(("aten::empty", "aten::new_empty"))

    def note_draw(self, slot: tuple[int, str] | None, args: Any, kwargs: Any) -> None:
        """The operation noted last draws: note from which generator, and a handle on the state it has now."""
        generator = self.default_generator
        if slot is not None:
            position, name = slot
            given = args[position] if position < len(args) else kwargs.get(name)
            if given is not None:
                generator = self._known_generator(given)
        if generator is not None:
            tape = self.recorder.tape
            tape.generators[len(tape.rows) - 1] = (generator, generator.graphsafe_get_state())

    def _take_new_states(self) -> None:
        """The generators have states that no capture has touched: what was saved belongs to those now."""
        old = self._generator_states()
        self.default_state = self.default_generator.graphsafe_get_state()
        self.user_generators[:] = [(g, g.graphsafe_get_state()) for g, _ in self.user_generators]
        new = dict(zip(map(id, old), self._generator_states()))
        self.saved_rng = [(new.get(id(state), state), saved) for state, saved in self.saved_rng]

    def _known_generators(self) -> list[Any]:
        return [self.default_generator, *(generator for generator, _ in self.user_generators)]

    def _known_generator(self, generator: Any) -> Any:
        # The dispatcher wraps a generator anew each time: only what is inside can be compared.
        for known in (self.default_generator, *(known for known, _ in self.user_generators)):
            if generator._cdata == known._cdata:
                return known
        return None

    # -- host values ---------------------------------------------------------------------------------

    def taint(self, tensor: Tensor) -> None:
        self.tainted[id(tensor)] = weakref.ref(tensor)

    def is_tainted(self, tensor: Tensor) -> bool:
        ref = self.tainted.get(id(tensor))
        return ref is not None and ref() is tensor

    def reads_tainted(self, args: Any, kwargs: Any) -> bool:
        return any(self.is_tainted(t) for t in flat(args, kwargs))

    def comes_from_device(self, tensor: Tensor) -> bool:
        return tensor.is_cuda or self.is_tainted(tensor)

    def _next_read(self) -> int:
        self.n_reads += 1
        return self.n_reads - 1

    def read_scalar(self, tensor: Tensor, name: str) -> TrackedNumber:
        """``tensor.item()`` inside the capture."""
        where = place()
        index = self._next_read()
        item = intercept.stock("item")

        def make() -> tuple[Any, Step]:
            value = item(tensor)
            step = ReadStep(lambda: item(tensor), index, name, *where)
            self.reads[index] = step
            return value, step

        value = self.split(BY_NAME["aten::_local_scalar_dense"], name, make, where)
        return TrackedNumber(self, value, Reference(index))

    def read_below_python(self, row: UnsafeOp, func: Any, args: Any) -> Any:
        """A value that C++ reads for itself: an index, a size. Its use cannot be seen."""
        tensor = args[0]
        where = place()
        index = self._next_read()

        def make() -> tuple[Any, Step]:
            value = func(tensor)
            step = ReadStep(lambda: func(tensor), index, "aten::_local_scalar_dense", *where)
            self.reads[index] = step
            return value, step

        value = self.split(row, "aten::_local_scalar_dense", make, where)
        reference = Reference(index)
        if tensor.dtype is torch.bool:
            self._question(reference, "is true", None, bool(value), where)
        else:
            self.escaped(reference, value, "an index, a size or an operation's argument", where)
        return value

    def asked(self, reference: Reference, test: str, operand: Any, answer: bool) -> None:
        self._question(reference, test, operand, answer, place())

    def _question(self, reference: Reference, test: str, operand: Any, answer: bool, where: Any) -> None:
        from gfxgraph.core.tape import where_of

        latest = max(reference.read, operand.read) if isinstance(operand, Reference) else reference.read
        step = self.reads.get(latest)
        if step is not None:
            question = Question(reference, test, operand, answer, where_of(*where))
            if question not in step.questions:
                step.questions.append(question)

    def escaped(self, reference: Reference, value: Any, use: str, where: Any = None) -> None:
        """The value itself goes into a computation.

        Raises:
            CaptureError: `host_value_escaped`, unless the policy is "pin".
        """
        from gfxgraph.core.tape import where_of

        used = where or place()
        if self.policy is OnUnsafe.PIN:
            self._question(reference, "is exactly", value, True, used)
            return
        if self.error is not None or not self._has_entered:
            return  # after the capture it is a plain number, as it would be in eager code
        step = self.reads[reference.read]
        error = CaptureError(
            "host_value_escaped",
            op=use,
            value=value,
            read_at=where_of(step.code, step.lasti),
            used_at=where_of(*used),
        )
        self.abort(error)
        raise error

    # -- waits, events, other graphs --------------------------------------------------------------------

    def host_call(self, name: str, call: Callable[[], Any], repeat: bool = True) -> Any:
        """A wait or another host call that a capture refuses: split, make it, make it again at replay."""
        where = place()

        def make() -> tuple[Any, Step | None]:
            return call(), CallStep(call, name, *where) if repeat else None

        return self.split(BY_NAME[name], name, make, where)

    def replay_inside(self, graph: Any) -> None:
        """A graph replayed inside this capture becomes a step of the program."""
        name = "torch.cuda.CUDAGraph.replay"
        where = place()

        def make() -> tuple[Any, Step]:
            program = graph._program
            self._save(program.writes())
            self._save_generators(list(program.random_states()))
            for segment in program.segments:
                self._report_opaque(segment.tape)
            graph.replay()
            return None, ReplayStep(graph, name, *where)

        self.split(BY_NAME[name], name, make, where)

    def captures(self, stream: Any) -> bool:
        """True if ``stream`` is part of this capture."""
        handle = stream.cuda_stream
        return handle == self.stream.cuda_stream or handle in self.side_streams

    def generator_state(self, read: Callable[[], Tensor]) -> Tensor:
        """The generator's state, read again at each replay into the same host tensor."""
        where = place()

        def make() -> tuple[Any, Step]:
            out = read()
            self.taint(out)

            def again() -> None:
                with torch.inference_mode():
                    out.copy_(read())

            return out, CallStep(again, "torch.cuda.get_rng_state", *where)

        return self.split(BY_NAME["torch.cuda.get_rng_state"], "torch.cuda.get_rng_state", make, where)  # type: ignore[no-any-return]

    def note_event(self, event: Any) -> None:
        self.events[id(event)] = (event, self.n_segments)

    def recorded_in(self, event: Any) -> int | None:
        """The segment in which the event was last recorded, None where it was not recorded here."""
        found = self.events.get(id(event))
        return found[1] if found is not None else None

    def note_side_stream(self, stream: Any) -> None:
        if stream.cuda_stream != self.stream.cuda_stream:
            self.side_streams[stream.cuda_stream] = stream

    # -- small things ------------------------------------------------------------------------------------

    def frontier_reader(self, stream: int) -> Callable[[], int | tuple[int, ...]]:
        driver = self.state.driver
        if stream != self.stream.cuda_stream:
            self.note_side_stream(torch.cuda.current_stream())
        if driver is None:
            return lambda: 0
        return driver.frontier_reader(stream)

    def _status(self, stream: Any) -> CaptureStatus:
        driver = self.state.driver
        if driver is None:
            return CaptureStatus.ACTIVE if torch.cuda.is_current_stream_capturing() else CaptureStatus.INVALIDATED
        return driver.capture_info(stream.cuda_stream).status

    def _sync_debug(self, on: bool) -> None:
        # Raises at hidden waits before they reach the driver. It is process-wide: where other
        # threads run, they would be refused their own waits, so there the table must do.
        if on:
            import threading

            if threading.active_count() == 1 and self.policy is not OnUnsafe.RAISE:
                self._saved_debug = torch.cuda.get_sync_debug_mode()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that the mode is a prototype
                    torch._C._cuda_set_sync_debug_mode(2)
        elif getattr(self, "_saved_debug", None) is not None:
            torch._C._cuda_set_sync_debug_mode(self._saved_debug)
            self._saved_debug = None

    def make_room_for_threads(self) -> None:
        """A thread is about to be started inside the capture: it must be free to wait for its own work."""
        self._sync_debug(False)

    def _pin_externals(self) -> None:
        self.program.externals.update(self.recorder.externals)

    def _finish_program(self) -> None:
        """Keep what replays need: inputs pinned unless they lie in a graph pool, reads that were asked."""
        program = self.program
        program.generators = self._generator_states()
        graph_memory = self.state.graph_memory
        ranges = pool_ranges(tuple(self.pool_id)) if self.has_users_pool else []
        for value, tensor in self.recorder.externals.items():
            in_pool = tensor.is_cuda and (
                storage_address(tensor) in graph_memory or is_within(tensor.data_ptr(), ranges)
            )
            program.externals[value] = Layout.of(tensor) if in_pool else tensor
        for step in program.segments:
            # By address: the memory is pinned through ``externals``, or is a pool's and must not be.
            step.mutated = tuple(Layout.of(t) if isinstance(t, Tensor) and t.is_cuda else t for t in step.mutated)
        program.addresses = {value.address for step in program.segments for value, _ in step.live if value.address}
        graph_memory.update(program.addresses)
        program.steps = [s for s in program.steps if not isinstance(s, ReadStep) or s.questions]
        self.recorder.externals = {}
        self.recorder.known.clear()
        self.recorder.mutated = {}
        self.recorder.tape = type(self.recorder.tape)(-1)


STOCK_TEXT = "CUDA error: operation not permitted when stream is capturing"
_NO_NODE = frozenset(
    "aten::lift_fresh aten::detach aten::alias aten::_reshape_alias aten::as_strided aten::resize_ aten::set_ "
    "aten::_unsafe_view aten::_conj aten::_neg_view aten::lift_fresh_copy".split()
)


def flat(*items: Any) -> list[Tensor]:
    """Every tensor among arguments, nested lists included."""
    found: list[Tensor] = []
    for item in items:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            found.extend(flat(*item))
        elif isinstance(item, dict):
            found.extend(flat(*item.values()))
    return found


flat_out = flat


def _writes(func: Any, args: Any, kwargs: Any, tensor: Tensor) -> bool:
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            if given is tensor or (isinstance(given, (list, tuple)) and any(g is tensor for g in given)):
                return True
    return False


def shown(where: Any) -> str:
    """A place as ``place`` gives it, for people."""
    from gfxgraph.core.tape import where_of

    return str(where_of(*where))


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
