"""BridgedCUDAGraph: the ``torch.cuda.CUDAGraph`` that users hold while the bridge is on.

It is a subclass that always drives the base class's ``capture_begin``, ``capture_end`` and
``replay``: the allocator's routing, random generators and newer hooks depend on them. Around them it
runs a session (at capture) and a program (at replay). A plain graph with nothing to check goes
straight to torch's replay.

Invariants:
  - no reference cycle through the graph: dropping the last reference frees its memory at once;
  - the driver's graph is always kept (``keep_graph=True`` below), and both errors that torch
    raises when the user did not ask for that are raised here;
  - an empty capture warns and does not fail: torch's own code uses one to hold a pool.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock, leaving, rooms
from gfxgraph.capture import torchs_graph as torchs
from gfxgraph.capture.record.random_generators import registering
from gfxgraph.capture.record.user_lines import place, shown
from gfxgraph.capture.replay import runtime_workarounds, validation
from gfxgraph.capture.replay.held_inputs import HeldInputs, held_inputs
from gfxgraph.capture.replay.program import Program
from gfxgraph.capture.session import Session
from gfxgraph.capture.state import CaptureState, Lifecycle
from gfxgraph.capture.undo import Undo, remove_finished_modes, restoring_state
from gfxgraph.errors import CaptureError, GfxGraphError, ReplayError, member
from gfxgraph.process import calls, process
from gfxgraph.types import GuardTier, OnUnsafe

# One in this many replays is timed; the others read no clock.
SAMPLE_INTERVAL = 256
_asked: ContextVar[OnUnsafe | None] = ContextVar("on_unsafe", default=None)


@contextmanager
def graphs_made(on_unsafe: OnUnsafe) -> Iterator[None]:
    """Override the process's default policy for graphs that this thread makes inside the block."""
    token = _asked.set(on_unsafe)
    try:
        yield
    finally:
        _asked.reset(token)


if TYPE_CHECKING:
    from torch.cuda import CUDAGraph as _TorchsGraph
else:
    _TorchsGraph = object  # the base comes with ``bridged_class``: ``super()`` finds it behind BridgedGraph


class BridgedGraph(_TorchsGraph):
    """A CUDA graph that survives unsafe operations, checks itself and explains its failures.

    Its states are in state.py. While it captures there is a ``_session``, and from its end a ``_program``. A replay
    counts ``_left`` down and launches (torchs_graph.py) if the program is plain and nothing has to be checked; every
    other replay, and each 256th of those, is a `_checked_replay`.

    `bridged_class` adds what depends on the base: its launch.
    """

    _launch: Callable[[BridgedGraph], None]
    _guarded_class: type[BridgedGraph]
    _asking_classes: dict[type, type[BridgedGraph]]
    _is_asking = False
    """Whether each replay asks first for inputs that the program has replaced."""
    _left: int

    def __new__(cls, keep_graph: bool = False, *, on_unsafe: OnUnsafe | str | None = None) -> Any:
        return super().__new__(cls, True)

    def __init__(self, keep_graph: bool = False, *, on_unsafe: OnUnsafe | str | None = None) -> None:
        super().__init__(True)
        state = process.require()
        self._keeps_graph = keep_graph
        asked = (_asked.get() or state.settings.on_unsafe) if on_unsafe is None else on_unsafe
        self._policy = member(OnUnsafe, "CUDAGraph()", "on_unsafe", asked)
        self._program: Program | None = None
        self._session: Session | None = None
        # Each with a handle on its state at registration: programs swap states with graphsafe_set_state.
        self._generators: list[tuple[Any, Any]] = []
        # A replay on the fast path only counts down; see _allow_fast_replays.
        self._left = self._granted = self._counted = self._unvalidated = 0
        self._is_timed = self._is_strict = False
        self.account: calls.Account | None = None
        """Where its replays are counted; its callable's, if it has one."""
        self._lifecycle = Lifecycle()
        # The exception being handled when the capture began: an engine may retry inside its except block.
        self._begun_while = 0
        self._guard: Any = None
        self._deep: Any = None
        self._held: HeldInputs | None = None
        self._follows, self._pool_held = True, None
        self._reads_after: BridgedGraph | None = None
        """The graph whose results in memory this one reads: replayed before a host step of the capture runs."""
        self._state = state  # last: an object without it has nothing to clean up
        state.graphs.add(self)

    # -- capture ----------------------------------------------------------------------------------

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", *args: Any, **kwargs: Any) -> None:
        """Begin capturing on the current stream. Arguments are torch's; unknown ones are passed through.

        Raises:
            CaptureError: `overlapping_captures`, `capture_on_default_stream`, `wrong_pool`,
                `graph_in_forked_child`.
        """
        self._refuse_in_child("capture_begin()")
        if self._session is not None and self._lifecycle.has_failed:
            self._drop_failed_session()  # that capture is over; its error was raised when it failed
        if self._session is not None:
            raise CaptureError("overlapping_captures", first=shown(self._session.begun_at), second=shown(place()))
        if self._program is not None:
            raise CaptureError("already_captured", where=shown(place()), quote=torchs.STOCK_ALREADY)
        if torch.cuda.current_stream() == torch.cuda.default_stream():
            raise CaptureError("capture_on_default_stream", where=shown(place()), quote=torchs.STOCK_DEFAULT_STREAM)
        pool = torchs.checked_pool(pool)
        mode = self._state.capture_error_mode if capture_error_mode == "global" else None
        if capture_error_mode == "global" and mode is None and self._policy is not OnUnsafe.RAISE:
            mode = "thread_local"  # other threads' calls are blocked only where they would do harm (capture_lock.py)
        if capture_error_mode == "relaxed":
            mode = self._state.decisions.relaxed_capture_mode
        self._is_strict, extra = torchs.liveness_check(args, kwargs)
        if self._state.settings.guard is GuardTier.DEEP:
            self._deep = rooms.deep_capture()
            pool = self._deep.pool(pool)
        session = Session(self, pool, mode or capture_error_mode, self._generators, self._policy)
        self._begun_while = id(sys.exc_info()[1])  # only the id: a reference would hold frames that hold this graph
        self._session = session
        try:
            session.begin(extra)
            if self._deep is not None:
                session.recorder.holds = []
        except BaseException as error:
            session.abort(error)
            self._drop_failed_session()
            raise

    def _drop_failed_session(self) -> BaseException:
        """Let go of a capture that failed, and return the error with which it did."""
        session, error = self._session, None
        if session is not None:
            session.abort(None)
            session.restore_threads()
            self._session = None
            self._lifecycle.to(CaptureState.EMPTY)
            error, session.error = session.error, None
        return error or CaptureError("capture_not_begun", where=shown(place()), quote=torchs.STOCK_NOT_BEGUN)

    def capture_end(self) -> None:
        """End the capture; afterwards ``replay`` may be called.

        Raises:
            CaptureError: `capture_ended_elsewhere`, `end_failed`, `instantiate_failed`, or the error that
                made the capture fail, unless that one is already propagating to the caller.
        """
        remove_finished_modes()
        session = self._session
        is_unwinding = self._is_unwinding()
        # Not ours to end: a forked child's, or the collector ran our finalizer before it left a suspended block.
        if is_unwinding and (session is None or self._state.pid != os.getpid()):
            return
        self._refuse_in_child("capture_end()")
        if session is None:
            raise CaptureError("capture_not_begun", where=shown(place()), quote=torchs.STOCK_NOT_BEGUN)
        if is_unwinding and session in process.sessions():
            while (inner := process.sessions()[-1]) is not session:  # begun inside, where an interrupt left it
                inner.abort(None)
        if is_unwinding and session.graph_ref() is None:
            session.abort(sys.exc_info()[1], dying=self)
        if self._lifecycle.has_failed:
            if is_unwinding:
                self._drop_failed_session()
                return
            raise self._drop_failed_session()
        if (elsewhere := self._ended_elsewhere(session)) is not None:
            raise elsewhere
        try:
            self._finish_capture(session, session.end())
        except BaseException as error:
            session.abort(error)
            self._session = session
            self._drop_failed_session()
            if self._program is not None:
                self._drop_program()
                super().reset()
            if not (is_unwinding and isinstance(error, Exception)):
                raise
            process.log.error("while another error was on its way: %s", str(error))

    def _finish_capture(self, session: Session, program: Program) -> None:
        """Store the program of a capture that ended well."""
        self._program = program
        self._state.graph_memory[id(program)] = program.addresses
        self._session = None
        self._state.counters.add("capture")
        if self.account is None:
            account = self.account = calls.of_graph(shown(session.begun_at))
            account.graphs.add(self)
        self._mark_captured()
        self._is_timed = False
        if process.log.isEnabledFor(logging.DEBUG):
            process.log.debug("captured at %s: %s", shown(session.begun_at), "; ".join(map(str, program.steps)))
        self._unvalidated = self._state.validate_replays
        if self._state.settings.guard:
            self._attach_guard(shown(session.begun_at))
        if self._follows:
            self._find_holders(session.optimizers.settings())
        self._choose_path()

    def _find_holders(self, settings: list[Any]) -> None:
        """From now on the program's changes of what it captured are noticed; graphed callables know theirs."""
        assert self._program is not None
        find = partial(held_inputs, self._program, self._is_strict, settings)
        process.attempt(lambda: setattr(self, "_held", find()), "the search for who holds a graph's inputs")
        if self._held and type(self) in self._asking_classes:  # else each replay is checked
            self.__class__ = self._asking_classes[type(self)]

    def _mark_captured(self) -> None:
        """Captured: instantiated too, unless the user does that, or the first replay."""
        assert self._program is not None
        if not (self._keeps_graph and self._program.is_plain):
            self._lifecycle.to(CaptureState.INSTANTIATED)

    def _attach_guard(self, where: str) -> None:
        assert self._program is not None
        zones = None
        if self._deep is not None:
            zones = self._deep.zones
            self._deep.ended()
            self._deep = None
        self._guard = rooms.guard_for(self, self._program, super().pool(), where, zones)
        if self._guard is not None and self._guard.is_slow:
            self._unvalidated = 0  # after a fault in the reference every node would be blamed
        self.__class__ = self._guarded_class

    def _is_unwinding(self) -> bool:
        """True while an error raised since capture_begin propagates to the caller: it must not be masked."""
        error = sys.exc_info()[1]
        return error is not None and id(error) != self._begun_while

    def _ended_elsewhere(self, session: Session) -> BaseException | None:
        """The error of an end on another stream or thread than the begin, or out of order."""
        active = process.active_session()
        if active is session:
            if torch.cuda.current_stream().cuda_stream == session.streams.own.cuda_stream:
                return None
            ended = f"{torch.cuda.current_stream()} at {shown(place())}"
            begun = f"{session.streams.own} at {shown(session.begun_at)}"
            session.abort(
                CaptureError("capture_ended_elsewhere", begun=begun, ended=ended, quote=torchs.STOCK_NOT_BEGUN)
            )
            return self._drop_failed_session()
        if active is not None and session in process.sessions():
            return CaptureError("overlapping_captures", first=shown(session.begun_at), second=shown(active.begun_at))
        return CaptureError(
            "capture_ended_elsewhere",
            begun=f"another thread, at {shown(session.begun_at)}",
            ended=f"this thread, at {shown(place())}",
        )

    def instantiate(self) -> None:
        """Make the graph exec; for users of ``keep_graph=True``, as in torch."""
        self._refuse_in_child("instantiate()")
        if self._program is None:
            self._torchs_answer("instantiate()", super().instantiate)
            return
        self._refuse_unless_kept("instantiate()", torchs.STOCK_INSTANTIATE)
        if self._program.is_plain:
            with capture_lock.relaxed():
                self._program.segments[0].instantiate()
        if self._lifecycle.state is not CaptureState.HALF_ENDED:
            self._lifecycle.to(CaptureState.INSTANTIATED)
        self._choose_path()

    @property
    def _is_instantiated(self) -> bool:
        return self._lifecycle.state is CaptureState.INSTANTIATED

    def register_generator_state(self, generator: Any) -> None:
        # In turn: torch keeps its book of graphs without a lock, and lets go of the GIL.
        with capture_lock.owned(), registering(self._state.base, self, [generator]):
            super().register_generator_state(generator)
        self._generators.append((generator, generator.graphsafe_get_state()))

    def enable_debug_mode(self) -> None:
        super().enable_debug_mode()
        if torch_names.version() >= (2, 14):
            self._keeps_graph = True  # torch 2.14's debug mode implies keep_graph=True

    # -- replay ------------------------------------------------------------------------------------

    def _checked_replay(self) -> None:
        """A replay off the fast path: one to time if the path's count is used up, else one with checks."""
        if self._granted and self._guard is None and not (self._held and self._held.has_changed()):
            self._timed_replay()
        else:
            self._replay_with_checks()

    def _timed_replay(self) -> None:
        """The fast path's launch with a clock; checks would find nothing, and cost each of the 256 replays 0.1 us."""
        self._counted += 1
        if self._held:
            self._held.report_inputs_alone()
        begun = time.perf_counter()
        try:
            self._launch(self)
        except RuntimeError as error:
            self._replay_failed(error)
        self._state.counters.replay_took((time.perf_counter() - begun) * 1e6)
        self._choose_path()

    def _replay_with_checks(self) -> None:
        """Replay with checks, timing and validation; count how it ended."""
        before = self._counted
        try:
            self._checked()
        except BaseException as error:
            self._counted = before
            self._has_raised(error)
            raise
        if self._counted > before and self._program is not None and self.account is not None:
            self._program.note(self.account)

    def _has_raised(self, error: BaseException) -> None:
        account = self.account or calls.of_graph("")
        if account.is_of_graphs:
            where = error.fields.get("where") if isinstance(error, GfxGraphError) else ""
            account.failed(error, str(where or shown(place())))

    @restoring_state
    def _checked(self) -> None:
        program = self._program
        remove_finished_modes()
        self._refuse_in_child("replay()")
        if program is None:
            raise self._nothing_to_replay()
        session = process.active_session()
        if session is not None and not session.recorder.paused:
            session.replay_inside(self)
            return
        self._counted += 1
        if not self._is_instantiated:
            self.instantiate()
        program.check_host_memory()
        if self._held:
            self._held.before_replay()
        runtime_workarounds.before_replay()
        if self._guard is not None:
            self._guard.before_replay()
        with torchs.run_replay_hooks(self), self._held.with_copies() if self._held else nullcontext():
            if self._unvalidated > 0:
                self._unvalidated -= 1
                validation.replay_validated(program, self._retire)
            else:
                begun = time.perf_counter()
                program.run()
                self._state.counters.replay_took((time.perf_counter() - begun) * 1e6)
                self._is_timed = True
        if process.log.isEnabledFor(logging.DEBUG):
            where = program.segments[0].where if program.segments else "nothing"
            process.log.debug("replay %d of the graph of %s", self.n_replays, where)
        if self._guard is not None:
            self._guard.after_replay()
        self._choose_path()

    def _replay_failed(self, error: RuntimeError) -> None:
        try:
            if capture_lock.relaunched(error, lambda: self._launch(self)):
                return
        except RuntimeError as second:
            error = second
        session = process.active_session()
        if session is not None and not session.recorder.paused:
            self._counted -= 1
            session.replay_inside(self)
            return
        program = self._program
        assert program is not None
        try:
            program.launch_failed(program.segments[0], error)
        except BaseException as last:
            self._counted -= 1
            self._has_raised(last)
            raise
        program.n_by_tape = len(program.segments[0].tape.entries)
        if self.account is not None:
            program.note(self.account)

    def _retire(self) -> None:
        """Retire a graph that replays wrongly: from now on its tape runs eagerly, and each run is counted as a
        fallback.
        """
        self._state.counters.add("retired")
        assert self._program is not None
        for segment in self._program.segments:
            if segment.tape.is_complete and segment.is_launchable:
                segment.step_down("the graph replayed wrongly and is no longer used; its tape runs instead", "replay")
        self._allow_fast_replays(0)

    def _choose_path(self) -> None:
        program = self._program
        plain = self.is_plain and self._is_instantiated and not (program is not None and program.host_reads)
        plain = plain and (self._guard is None or not self._guard.is_slow)
        # The first replay is timed, so that there is an average; with debug logging each replay is logged here.
        checked: object = self._unvalidated or self._state.decisions.join_copies or not self._is_timed
        checked = checked or process.log.isEnabledFor(logging.DEBUG)
        checked = checked or bool(self._held and (self._held.lent or not self._is_asking))
        self._allow_fast_replays(SAMPLE_INTERVAL - 1 if plain and not checked else 0)

    def _allow_fast_replays(self, n: int) -> None:
        """Let the next ``n`` replays take the fast path; account for those already taken."""
        self._counted += self._granted - self._left
        self._granted = self._left = n

    @property
    def is_plain(self) -> bool:
        """True where a replay is one launch and nothing else."""
        return self._program is not None and self._program.is_plain

    @property
    def is_opaque(self) -> bool:
        """True if the graph has launches outside torch: what these read and write is unknown."""
        return self._program is not None and any(step.tape.opaque for step in self._program.segments)

    @property
    def n_replays(self) -> int:
        """Replays since the capture."""
        return self._counted + self._granted - self._left

    def _pop_n_replays(self) -> int:
        self._allow_fast_replays(0)
        n, self._counted = self._counted, 0
        return n

    def _nothing_to_replay(self) -> ReplayError:
        where = shown(place())
        if self._lifecycle.state is CaptureState.RESET:
            return ReplayError("use_after_reset", call="replay()", where=where, quote=torchs.STOCK_NOT_CAPTURED)
        return ReplayError("replay_before_capture", where=where, quote=torchs.STOCK_NOT_CAPTURED)

    def _refuse_in_child(self, call: str) -> None:
        if self._state.pid != os.getpid():
            raise ReplayError("graph_in_forked_child", call=call, owner_pid=self._state.pid, pid=os.getpid())

    # -- the rest of the surface ----------------------------------------------------------------------

    def reset(self) -> None:
        """Drop the captured graph and free its memory; the object can capture again."""
        self._refuse_in_child("reset()")
        if self._session is not None:
            self._drop_failed_session()
        self._report_end()
        with capture_lock.owned_relaxed():  # HIP destroys no graph beside a capture
            self._drop_program()
            super().reset()
        runtime_workarounds.after_destroy()

    def _report_end(self) -> None:
        for tell in leaving if self._program is not None else ():
            tell(self)
        n = self._pop_n_replays()
        self._state.counters.add("replay", n)
        if self.account is not None and self.account.is_of_graphs:
            self.account.n_gone += n

    def _drop_program(self) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        self._state.graph_memory.pop(id(self._program), None)
        self._program = self._held = None
        if self._lifecycle.state in (CaptureState.CAPTURED, CaptureState.INSTANTIATED, CaptureState.HALF_ENDED):
            self._lifecycle.to(CaptureState.RESET)

    def raw_cuda_graph(self) -> int:
        if self._program is not None:
            stock = torchs.STOCK_NO_RAW_GRAPH.format(api="hip" if torch.version.hip else "cuda")
            self._refuse_unless_kept("raw_cuda_graph()", stock)
        return int(self._torchs_answer("raw_cuda_graph()", super().raw_cuda_graph))

    def raw_cuda_graph_exec(self) -> int:
        return int(self._torchs_answer("raw_cuda_graph_exec()", super().raw_cuda_graph_exec))

    def pool(self) -> Any:
        return self._torchs_answer("pool()", super().pool)

    def _torchs_answer(self, call: str, answer: Callable[[], object]) -> Any:
        """Return torch's answer; if nothing was captured, raise torch's error with an explanation."""
        try:
            return answer()
        except RuntimeError as error:
            if self._program is not None or self._session is not None:
                raise
            code = "use_after_reset" if self._lifecycle.state is CaptureState.RESET else "nothing_captured"
            raise CaptureError(code, call=call, where=shown(place()), quote=str(error)) from error

    def _refuse_unless_kept(self, call: str, stock: str) -> None:
        if not (self._keeps_graph or self._lifecycle.state is CaptureState.HALF_ENDED):
            raise CaptureError("graph_not_kept", call=call, where=shown(place()), quote=stock)

    def __del__(
        self,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
        holders: Collection[object] = capture_lock.captures,
    ) -> None:
        try:
            for problem in Undo([self._drop_references, self._destroy]).undo_all():
                raise problem
        except (AttributeError, TypeError):  # at the interpreter's end modules go before what outlives them
            if not is_finalizing():
                raise
        finally:
            if holders:  # the destructor follows at once: a call in between could let another thread begin a capture
                capture_lock.keep_until_captures_end(self)

    def _drop_references(self) -> None:
        """Free what runs Python when it is freed."""
        self._program = self._session = self._guard = self._deep = self._held = None
        self._generators = []
        state = getattr(self, "_state", None)
        if state is not None:
            state.graphs.discard(self)

    def _destroy(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.abort(None, dying=self)
            self._drop_failed_session()
        remove_finished_modes()
        state = getattr(self, "_state", None)
        program = getattr(self, "_program", None)
        if state is not None:
            self._report_end()
            self._drop_program()
        if capture_lock.keep_until_captures_end((self, program)):
            return  # destroying a graph now would break the capture underway
        if program is not None and runtime_workarounds.keep_until_exit((self, program)):
            return
        is_ours = state is process.current() and state is not None and state.pid == os.getpid()
        if program is not None and is_ours and not sys.is_finalizing():
            # Reset here, not in C++'s destructor: another thread could begin a capture before that runs.
            with capture_lock.owned_to_destroy((self, program)) as is_time:
                if not is_time:
                    return
                with suppress(RuntimeError, AttributeError, TypeError):  # a CPU build, its simulator gone
                    super().reset()
        above = getattr(super(), "__del__", None)
        if above is not None:
            above()

    # -- gfxgraph's own --------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name != "capture":  # of gfxgraph 1.x: looked up by name, since compat lies above all rooms
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return partial(import_module("gfxgraph.compat.graph_classes").OlderCapture, self)

    @contextmanager
    def _counted_replay(self, call: str) -> Iterator[Program]:
        """Yield the program for one replay by another way than ``replay``; it is counted as one."""
        self._refuse_in_child(call)
        if self._program is None:
            raise self._nothing_to_replay()
        if not self._is_instantiated:
            self.instantiate()
        self._counted += 1
        if self._held:
            self._held.before_replay()
        with torchs.run_replay_hooks(self), self._held.with_copies() if self._held else nullcontext():
            yield self._program

    def validate(self) -> bool:
        """Compare the next replay with eager execution; True when they agree."""
        with self._counted_replay("validate()") as program:
            verdict = validation.replay_validated(program, self._retire)
        self._choose_path()
        return verdict

    def _replay_by_nodes(self) -> None:
        """Replay once node by node, so that a fault can be attributed; see gfxgraph.localize_fault."""
        with self._counted_replay("replay()") as program:
            rooms.replay_by_nodes(self._guard, program, super().pool())

    def explain(self) -> Any:
        """Describe what a replay of this graph does, like ``gfxgraph.inspect``; ``str()`` of the result is readable
        text.
        """
        return rooms.inspect(self)

    def profile(self) -> Any:
        """GPU time of each node, by module, line and kernel, like ``gfxgraph.profile.of``; ``str()`` gives tables."""
        return import_module("gfxgraph.reporting.profile").profile.of(self)  # by name: it lies above

    def steps_text(self) -> str:
        """Describe what a replay does, one step per line."""
        if self._program is None:
            return "nothing captured"
        return "\n".join(f"{i}. {step}" for i, step in enumerate(self._program.steps, 1))


class TwoEnds(BridgedGraph):
    """torch 2.14's API for ending a capture in two halves."""

    def capture_end_pre(self) -> None:
        """The first half of ``capture_end``; afterwards the graph can be inspected and instantiated."""
        if self._lifecycle.state is not CaptureState.RECORDING:  # called by torch's own capture_end
            super().capture_end_pre()
            return
        self.capture_end()
        if self._program is not None:
            self._lifecycle.to(CaptureState.HALF_ENDED)

    def capture_end_post(self) -> None:
        """The second half of ``capture_end``."""
        if self._lifecycle.state is not CaptureState.HALF_ENDED:
            super().capture_end_post()
        else:
            self._lifecycle.to(CaptureState.CAPTURED)
            self._mark_captured()


def bridged_class(base: type) -> type[BridgedGraph]:
    """Return the subclass of ``base`` (torch's CUDAGraph, or the simulator's) that replaces it."""
    launch = torchs.launch_of(base)
    over = TwoEnds if hasattr(base, "capture_end_pre") else BridgedGraph

    class BridgedCUDAGraph(over, base):  # type: ignore[misc, valid-type]
        __doc__ = BridgedGraph.__doc__
        # What each replay reads. Slots: in ``__dict__`` the countdown alone would take it 0.07 us longer.
        __slots__ = ("_held", "_left")
        _launch = staticmethod(launch)
        replay = torchs.fast_replay(launch)

    class GuardedCUDAGraph(BridgedCUDAGraph):
        """The class of a graph at tier 1 and above: each replay first checks for freed memory."""

        __slots__ = ()
        replay = torchs.fast_replay(launch, unless="self._guard.pointers.is_dirty")

    class HoldingCUDAGraph(BridgedCUDAGraph):
        """The class of a graph whose inputs the program may replace."""

        __slots__ = ()
        _is_asking = True
        replay = torchs.fast_replay(launch, unless="self._held.has_changed()")

    class GuardedHoldingCUDAGraph(HoldingCUDAGraph):
        __slots__ = ()
        replay = torchs.fast_replay(launch, unless="self._guard.pointers.is_dirty or self._held.has_changed()")

    BridgedCUDAGraph._guarded_class = GuardedCUDAGraph
    BridgedCUDAGraph._asking_classes = {BridgedCUDAGraph: HoldingCUDAGraph, GuardedCUDAGraph: GuardedHoldingCUDAGraph}
    for made in (BridgedCUDAGraph, GuardedCUDAGraph, HoldingCUDAGraph, GuardedHoldingCUDAGraph):
        made.__qualname__ = made.__name__ = "BridgedCUDAGraph"
        made.__module__ = "gfxgraph"
    return BridgedCUDAGraph
