"""One capture: its segments, its splits, what it must undo, and how it ends (states: state.py).

A plain capture computes nothing, and programs rely on that. A split must launch what was recorded
to get real values; what such launches change outside the graph is saved first and restored
at the end, random generators too.

Invariant: what the capture changes is noted before it is changed (undo.py). Whatever is raised from ``begin`` on,
``abort`` ends the capture and undoes the rest. It may be called any number of times, and continues where an
interrupt stopped it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock, failures
from gfxgraph.capture.patches import patch_table
from gfxgraph.capture.patches.optimizers import OptimizersBefore
from gfxgraph.capture.record import dynamic_shapes, splits
from gfxgraph.capture.record.dynamic_shapes import MovingTensors
from gfxgraph.capture.record.host_memory import HostReads
from gfxgraph.capture.record.host_values import HostValues
from gfxgraph.capture.record.random_generators import Generators, begin_capture, end_capture
from gfxgraph.capture.record.recorder import Recorder
from gfxgraph.capture.record.streams import Streams, wait_for
from gfxgraph.capture.record.user_lines import place, shown
from gfxgraph.capture.replay import runtime_workarounds
from gfxgraph.capture.replay.graph_tensors import Layout, flat, is_within, pool_id, pool_ranges, storage_address
from gfxgraph.capture.replay.program import HostStep, Program, ReadStep, SegmentStep, Step
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.state import CAPTURING, CaptureState
from gfxgraph.capture.torchs_graph import bare_launch
from gfxgraph.capture.undo import Undo, ignore_graph_warnings, remove_finished_modes, repair, set_sync_debug_mode
from gfxgraph.core.tape import Place
from gfxgraph.errors import CaptureError
from gfxgraph.process import process
from gfxgraph.types import CaptureStatus, OnUnsafe

_WANTS_PLAIN = (
    "gfxgraph: .item() in a capture gives a number that each replay reads anew; C code that takes only Python's own "
    "float or int refuses it. There, write float(value) or int(value), which pins it (docs/run.md)"
)


def _stop_recording(recorder: Recorder, entered: list[bool]) -> None:
    recorder.paused = True
    over = process.leftover_modes()
    if recorder not in over:
        over.append(recorder)
    remove_finished_modes()
    if not entered and recorder in over:
        over.remove(recorder)  # it may not have reached torch's stack


class Session:
    """The capture of one graph object, from capture_begin to capture_end."""

    unsafe_op = splits.unsafe_op
    split = splits.split
    host_call = splits.host_call
    replay_inside = splits.replay_inside
    op_failed = failures.op_failed
    call_failed = failures.call_failed

    def __init__(self, graph: Any, pool: Any, mode: str, generators: list[Any], policy: OnUnsafe) -> None:
        self.state = process.require()
        self.graph_ref = weakref.ref(graph)
        self.mode = mode
        self.policy = policy
        self.device_index = torch.cuda.current_device()
        self.streams = Streams()
        self.begun_at = place()
        self.has_users_pool = pool_id(pool) is not None
        # Torch tells the id of a pool that it makes only after a capture that ended well.
        self.pool_id: Any = pool_id(pool) or torch.cuda.graph_pool_handle()
        self.pool = pool if self.has_users_pool else self.pool_id
        self.rollback = Rollback()
        self.generators = Generators(self.device_index, self.state.base, generators)
        self.values = HostValues(self)
        self.moving = MovingTensors(self)
        self.host = HostReads()
        self.optimizers = OptimizersBefore(graph._follows and policy is not OnUnsafe.RAISE)
        self.program = Program(bare_launch(self.state.base), numbers=self.values.numbers)
        self._own_graph: Any = None
        self._dying: Any = None
        self.n_segments = self.n_executed = 0
        self.has_executed = False
        self.lifecycle = graph._lifecycle
        self.error: BaseException | None = None
        """What made it fail, until its graph lets go of it: frames of the traceback hold this session."""
        self.died_of: tuple[str, object] | None = None
        self.graph_handle = 0
        """The driver's handle of the graph being captured."""
        self.outer: Any = None
        self.recorder = Recorder(self)
        self.recorder.paused = True
        self.undo = Undo()
        self._debug_mode: int | None = None
        self._had_threads = torch.autograd.is_multithreading_enabled()
        self.block: Any = None
        """A weak reference to the ``with torch.cuda.graph`` block that this is the capture of."""

    # -- begin and end ------------------------------------------------------------------------------

    @failures.aborting
    def begin(self, extra: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Begin the first segment on the user's graph object.

        Args:
            extra: torch's further arguments for it.
        """
        repair(everything=False)
        self.outer = process.active_session()
        process.sessions().append(self)
        undo = self.undo
        undo.note(partial(ignore_graph_warnings, False))
        if self.outer is not None:
            undo.note(self._resume_outer)
            self.outer.suspend()
        undo.note(self._release, self.optimizers.restore_rates, self._restore, partial(patch_table.end_capture, self))
        # Before the first segment opens: garbage collected inside it could destroy a graph.
        patch_table.begin_capture(self)
        undo.note(self._settle_random_states, self.moving.stop, partial(failures.end_open_segment, self))
        undo.note(self.make_room_for_threads)
        self.open_segment(self.graph_ref(), extra)
        self._record_thread()
        self.values.take_over()
        self.recorder.paused = False

    def _record_thread(self) -> None:
        """Start recording this thread."""
        undo = self.undo
        # Autograd's own threads have no modes.
        undo.note(partial(torch.autograd.set_multithreading_enabled, self._had_threads))
        torch.autograd.set_multithreading_enabled(False)
        entered: list[bool] = []
        undo.note(partial(_stop_recording, self.recorder, entered))
        torch_names._push_mode(self.recorder)
        entered.append(True)

    def restore_threads(self) -> None:
        """Once more, after a capture that failed inside a backward pass: torch's end of that brings back the setting
        from its beginning.
        """
        if self._had_threads and not process.sessions():
            torch.autograd.set_multithreading_enabled(True)

    @failures.aborting
    def end(self) -> Program:
        """End the last segment, undo what splits executed, and return the program."""
        with capture_lock.relaxed():
            self.end_segment(final=True)
            self.values.record_shared_writes()
            for problem in self.undo.undo_all():
                raise problem
            self._finish_program()
        self.lifecycle.to(CaptureState.CAPTURED)
        self._leave_sessions()
        program, self.program = self.program, Program(self.program.launch)
        return program

    def _settle_random_states(self) -> None:
        """Wait until torch has cleared the graphs' seed and offset, which a begin does on the capture's stream.

        All graphs read them from the same memory, and a replay sets them on its own stream, without any ordering
        between the two: on a busy GPU the next graph replayed could draw other numbers
        (torch's CUDAGeneratorState::capture_prologue).
        """
        if not self._has_opened:  # a refused stream may be in another capture
            return
        wait_for(self.state, self.streams.own)

    @property
    def _has_opened(self) -> bool:
        """Whether torch was asked to begin a segment."""
        return self.n_segments > 0 or self.lifecycle.failed_in in (CaptureState.OPENING, CaptureState.OUTSIDE)

    @property
    def is_over(self) -> bool:
        """True before the capture has begun and after it has ended, successfully or not."""
        return self.lifecycle.state not in CAPTURING

    @property
    def is_abandoned(self) -> bool:
        """Whether an interrupt has left it open: it has failed, or its block is gone."""
        return self.lifecycle.has_failed or (self.block is not None and self.block() is None)

    @property
    def segment_graph(self) -> Any:
        """torch's graph object of the open segment. The user's own is not held: dropping it ends the capture."""
        return self._own_graph or self.graph_ref() or self._dying

    @segment_graph.setter
    def segment_graph(self, graph: object) -> None:
        self._own_graph = graph if graph is not self.graph_ref() else None

    def abort(self, error: BaseException | None, dying: object = None) -> None:
        """Restore the process to its state before the capture. The caller raises the error.

        Args:
            dying: the user's graph object, if its finalizer calls.
        """
        if not self.lifecycle.has_failed:
            self.error = error
            self.lifecycle.to(CaptureState.FAILING)
            self.undo.note_last(self._forget_graphs)
            if isinstance(error, (TypeError, KeyError)) and self.values.has_given_numbers:
                error.add_note(_WANTS_PLAIN)
            if self.n_segments:
                self.state.counters.add("capture_failed")
        if self.undo.is_running:
            return
        if self.lifecycle.state is CaptureState.FAILING:
            self._dying = dying
            self.recorder.paused = True
            with capture_lock.relaxed():
                problems = self.undo.undo_all()
            for second in problems:  # the first error is the one to report
                process.log.error("while leaving a failed capture: %s", str(second))
            self.lifecycle.to(CaptureState.FAILED)
        self._leave_sessions()

    def failed(self, error: CaptureError) -> CaptureError:
        """Abort with an error that the caller raises, and holds in no variable: a frame of its own traceback."""
        self.abort(error)
        return error

    def refuse(self, name: str, reason: str, where: Place | None = None) -> NoReturn:
        """End the capture because of a call of the program's that no replay would repeat as a call does."""
        raise self.failed(CaptureError("refused_in_capture", op=name, where=shown(where or place()), reason=reason))

    def _restore(self) -> None:
        """Undo what the capture executed."""
        if not self.rollback:
            return
        try:
            self.rollback.restore(self.streams.own)
        except RuntimeError as error:
            what = "a tensor that a split changed could not be restored"
            process.require().report("effects_not_undone", what, str(error).partition("\n")[0])
            raise
        self.rollback = Rollback()

    def _release(self) -> None:
        self.recorder.release()
        self.streams.release()
        self.values.release()

    def _resume_outer(self) -> None:
        if self.outer is not None:
            self.outer.resume()
            self.outer = None

    def _leave_sessions(self) -> None:
        stack = process.sessions()
        while self in stack:
            stack.remove(self)

    def _forget_graphs(self) -> None:
        """Give back the memory of what was captured; the user's object can capture again."""
        self.program = Program(self.program.launch)
        for graph in (self.segment_graph, self.graph_ref()):
            if graph is not None:
                with suppress(RuntimeError):
                    self.state.base.reset(graph)
        self.segment_graph = None
        if self._has_opened:
            failures.abandon_stream(self.streams.own)

    # -- segments -----------------------------------------------------------------------------------

    def open_segment(self, graph: Any, extra: tuple[tuple[Any, ...], dict[str, Any]] | None = None) -> None:
        base = self.state.base
        failures.refuse_if_busy(self)
        self.segment_graph = graph
        runtime_workarounds.note_capture(self.streams.own, self.graph_ref())
        self.lifecycle.to(CaptureState.OPENING)
        with self.streams.be_on_own():
            if extra is not None:
                begin_capture(base, graph, (), self.pool, self.mode, *extra[0], **extra[1])
            else:
                begin_capture(base, graph, self.generators.states(), self.pool_id, self.mode)
        self.lifecycle.to(CaptureState.RECORDING)
        if self.has_users_pool:
            self.state.recording[tuple(self.pool_id)] = self
        self.graph_handle = self.state.driver.capture_info(self.streams.own.cuda_stream).graph
        self.recorder.start_segment(self.n_segments)
        self.n_segments += 1
        self._refuse_waits()
        self.streams.fork()

    def end_segment(self, final: bool = False) -> None:
        """End the open capture and make it a step; a dead one becomes a step that runs its tape."""
        recorder = self.recorder
        graph = self.segment_graph
        # At the end too: some ROCm releases lose a forked stream that is never joined (904).
        self.streams.join()
        self.streams.join_collectives(recorder)
        recorder.note_opaque()  # after joining: the last launch on a side stream may be opaque
        if self.streams.status() is CaptureStatus.INVALIDATED:
            recorder.note_nodes_of_the_dead(self.graph_handle, are_opaque=True)
        live = [(value, Layout.of(tensor) if tensor.is_cuda else tensor) for value, tensor in recorder.live_values()]
        self.make_room_for_threads()
        is_users = graph is self.graph_ref()
        try:
            ignore_graph_warnings(not (final and self.n_segments == 1))
            with self.streams.be_on_own():
                self.lifecycle.to(CaptureState.ENDING)
                end_capture(self.state.base, graph, self.state.driver, self.streams.own)
        except RuntimeError as error:
            failures.end_failed(self, error, final)
            graph = None
        self.segment_is_over()
        tape = recorder.tape
        self.program.layouts.update((value, place) for value, place in live if isinstance(place, Layout))
        for opaque in tape.opaque:
            self.state.counters.add("opaque")
            process.log.debug("opaque launch before %s", opaque.where)
        step = SegmentStep(self.segment_graph, is_users, tape, live, tuple(recorder.mutated.values()))
        if graph is not None:
            self._instantiate(step, is_users)
        elif self.died_of is not None:
            step.step_down("an unexpected operation ended the capture; this part runs from the tape", *self.died_of)
        else:
            step.step_down("the capture could not be ended; this part runs from the tape", "capture_end")
        if tape.rows or tape.opaque or (final and self.n_segments == 1):
            self.add(step)
        # An empty segment's graph is destroyed here: once the next capture is open, an outer one included, destroying
        # it would end that capture.
        self.segment_graph = None

    def is_held_by_host(self, tensor: Tensor) -> bool:
        """Whether a step on the host has the tensor itself."""
        reads = [step.read for step in self.program.steps if isinstance(step, ReadStep)]
        parts = [(step.args, step.kwargs, step.out) for step in self.program.steps if isinstance(step, HostStep)]
        parts += [(read.args, read.keywords, ()) for read in reads if isinstance(read, partial)]
        return any(each is tensor for part in parts for each in flat(*part))

    def add(self, step: Step) -> None:
        """Append a step to the program."""
        self.program.steps.append(step)

    def segment_is_over(self) -> None:
        """Note that the open segment is open no more, however it ended."""
        self.lifecycle.segment_is_over()
        if self.has_users_pool:
            self.state.recording.pop(tuple(self.pool_id), None)

    def _instantiate(self, step: SegmentStep, is_users: bool) -> None:
        graph = self.segment_graph
        step.n_nodes = len(self.state.driver.nodes(int(self.state.base.raw_cuda_graph(graph))))
        step.is_launchable = True
        if not (is_users and graph._keeps_graph and self.n_segments == 1):  # the user does it, or the first replay
            step.instantiate()

    def continue_in_new_graph(self) -> None:
        """The graph has as many nodes as the defect table allows: continue in a new one."""
        limit = self.recorder.max_nodes
        reason = f"over {limit} nodes in one graph are not safe here; the rest is in another (gfxgraph doctor --why)"
        self.state.report("graph_cut", reason, where=shown(place()), level=logging.INFO)
        self.suspend()
        self.resume()

    @failures.aborting
    def suspend(self) -> None:
        """Close the segment to make room for a capture inside this one."""
        self.recorder.paused = True
        with self.streams.be_on_own():
            self.end_segment()

    @failures.aborting
    def resume(self) -> None:
        if self.lifecycle.state is CaptureState.OUTSIDE:
            with self.streams.be_on_own():
                self.open_segment(self.new_graph())
            self.recorder.paused = False

    def new_graph(self) -> Any:
        return patch_table.own_graph_class(self.state.base)(keep_graph=True)

    # -- what an operation did -------------------------------------------------------------------------

    def note_draw(self, slot: tuple[int, str] | None, args: Any, kwargs: Any) -> None:
        """Note which generator the last operation draws from, with a handle on its current state."""
        generator = self.generators.default
        if slot is not None:
            position, name = slot
            given = args[position] if position < len(args) else kwargs.get(name)
            if given is not None:
                generator = self.generators.find(given)
        if generator is not None:
            tape = self.recorder.tape
            tape.generators[len(tape.rows) - 1] = (generator, generator.graphsafe_get_state())

    # -- small things ------------------------------------------------------------------------------------

    def frontier_reader(self, stream: int) -> Callable[[], int | tuple[int, ...]]:
        if stream != self.streams.own.cuda_stream:
            self.streams.note_side(torch.cuda.current_stream())
        return self.state.driver.frontier_reader(stream)

    def _refuse_waits(self) -> None:
        # The mode is process-wide and would refuse other threads their own waits: with other threads running, the
        # table of unsafe operations must be enough.
        if threading.active_count() == 1 and self.policy is not OnUnsafe.RAISE:
            if self._debug_mode is None:
                self._debug_mode = torch.cuda.get_sync_debug_mode()
            set_sync_debug_mode(2)

    def make_room_for_threads(self) -> None:
        """Let torch wait as before the capture: a thread is about to start that must wait, or a segment ends."""
        if self._debug_mode is not None:
            set_sync_debug_mode(self._debug_mode)
            self._debug_mode = None

    def _finish_program(self) -> None:
        """Keep what replays need: inputs (pinned unless they lie in a graph pool) and the reads with guards."""
        program = self.program
        program.generators = self.generators.states()
        graph_memory = set[int]().union(*list(self.state.graph_memory.values()))
        is_others = self.has_users_pool and tuple(self.pool_id) not in runtime_workarounds.own_pools
        ranges = pool_ranges(tuple(self.pool_id)) if is_others else []
        for value, tensor in self.recorder.externals.items():
            in_pool, address = False, value.address
            if address or tensor.is_cuda:
                start = storage_address(tensor) if tensor.storage_offset() or not address else address
                in_pool = start in graph_memory or (bool(ranges) and is_within(address, ranges))
            program.externals[value] = Layout.of(tensor) if in_pool else tensor
        for step in program.segments:
            # By address: the memory is pinned through ``externals``, or belongs to a pool and must not be pinned.
            step.mutated = tuple(Layout.of(t) if isinstance(t, Tensor) and t.is_cuda else t for t in step.mutated)
        program.addresses = {value.address for step in program.segments for value, _ in step.live if value.address}
        dynamic_shapes.fix_for(program.steps, self.recorder.externals)
        needed = self.values.needed_reads(program.steps)
        program.steps = [s for s in program.steps if not isinstance(s, ReadStep) or s.index in needed]
        if self.policy is not OnUnsafe.RAISE:
            self.optimizers.refuse_changes(self)
            program.host_reads = [*self.host.to_check(), *(self.optimizers.settings() if self.has_executed else ())]


def _end_in_child() -> None:
    """In a forked child: end what its thread's captures, which are the parent's, have changed."""
    for session in reversed(process.sessions()):
        _stop_recording(session.recorder, [True])  # type: ignore[arg-type]
        torch.autograd.set_multithreading_enabled(True)
    patch_table.end_captures_in_child()


process.in_child.append(_end_in_child)
