"""Preconditions of a capture, and recovery when one fails.

    busy stream or pool  refused before torch is called: cleaning up would end the other capture
    begin or end failed  torch stopped half-way: allocation routing, generators and streams are reset
    an operation failed  if the tape is complete it is run eagerly in place of the segment, and the capture goes on
                         after it; otherwise the error names the operation

These are functions, not an object: an object that held a session would keep its tensors alive until the collector
runs.

Problem of the second: when a capture dies, torch's ``capture_end`` throws before it has taken the allocator, the
pinned-memory allocator and the random generators out of capture: the pool can never be captured
into again ("already recording to mempool_id"), every random operation fails, the pool's memory is
not freed, and with another ``MemPool`` alive the process aborts at exit.

Idea (``end_dead_capture``): end the dead capture through the driver, begin an empty one on the same stream in its
place, and let torch's own ``capture_end`` succeed on that one. All of torch's clean-up then runs, in every
version, without calling any of it by hand. On HIP 6.4 the same begin-and-end also frees a stream
that stays invalidated.

Source: torch 2.9.1 to 2.15 CUDAGraph sources; measured on an H200 (tests/gpu/test_recovery.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gfxgraph import torch_names
from gfxgraph.capture.record.random_generators import WAS_DEAD, CaptureIsDead
from gfxgraph.capture.record.user_lines import place
from gfxgraph.capture.state import CaptureState
from gfxgraph.capture.undo import ignore_graph_warnings, is_interrupt
from gfxgraph.core.tape import where_of
from gfxgraph.core.unsafe import BY_NAME, Kind, UnsafeOp
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.errors import CaptureError, DriverError, first_line
from gfxgraph.process import process
from gfxgraph.types import CaptureStatus

if TYPE_CHECKING:
    from gfxgraph.capture.session import Session

_T = TypeVar("_T")
# torch's own refusals that leave the capture alive: the graph can be split at the operation.
_REFUSALS = (
    "called a synchronizing CUDA operation",
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture",
    "not permitted when stream is capturing",
)
# A random operation whose generator was not registered with the graph. It cannot be detected beforehand,
# because a generator's current state can be exchanged (graphsafe_set_state).
_UNREGISTERED = ("not in capture mode", "not registered with the capturing graph")  # the second from torch 2.12 on

# capture_end's error if capture_begin refused its arguments before it changed anything.
_NEVER_BEGAN = "Capture must end on the same stream it began on."


def aborting(call: Callable[..., _T]) -> Callable[..., _T]:
    """Wrap a call of a session's: an error that leaves it ends the capture."""

    @functools.wraps(call)
    def guarded(session: Session, *args: object, **kwargs: object) -> _T:
        try:
            return call(session, *args, **kwargs)
        except BaseException as error:
            session.abort(error)
            raise

    return guarded


def refuse_if_busy(session: Session) -> None:
    """Raise if another capture uses the stream or the pool: cleaning up after a failed begin would end that one, or
    its allocation routing.
    """
    own, pool = session.streams.own, tuple(session.pool_id)
    if session.state.driver.capture_info(own.cuda_stream).status is not CaptureStatus.NONE:
        first = f"(unknown, or one that failed and that this runtime cannot end, on {own})"
        raise CaptureError("overlapping_captures", second=str(where_of(*session.begun_at)), first=first)
    other = session.state.recording.get(pool) if session.has_users_pool else None
    if other is not None and other is not session:
        raise CaptureError(
            "wrong_pool",
            pool=pool,
            problem=f"the capture begun at {where_of(*other.begun_at)} is recording into it",
            quote=f"beginAllocateToPool: already recording to mempool_id {pool}",
        )


def op_failed(session: Session, info: Any, func: Any, args: Any, kwargs: Any, error: RuntimeError) -> Any:
    """Handle an error raised by an operation inside the capture: an unsafe operation, a user's bug, or a dead
    capture.
    """
    try:
        if is_interrupt(error):
            raise error
        if isinstance(error, torch.OutOfMemoryError):
            session.state.counters.add("out_of_memory")
            raise error
        if session.streams.status() is not CaptureStatus.ACTIVE:
            return recover(session, info.name, error, lambda row: session.unsafe_op(row, func, args, kwargs))
        text = str(error)
        if not info.mutates:
            session.recorder.disown_new_nodes()
        if any(words in text for words in _UNREGISTERED):
            return session.unsafe_op(BY_NAME["torch.Generator"], func, args, kwargs)
        if any(refusal in text for refusal in _REFUSALS):
            row = UnsafeOp(info.name, Kind.SYNC, "torch refused it inside the capture: " + first_line(error))
            return session.unsafe_op(row, func, args, kwargs)
        raise error
    finally:
        del error  # its traceback holds this frame, a cycle that would keep everything in the frames alive


def call_failed(session: Session, name: str, error: RuntimeError, again: Callable[[], object]) -> Any:
    """Handle a failed call outside the dispatcher: raise its error, or recover a dead capture and repeat the call."""
    try:
        if is_interrupt(error) or session.streams.status() is CaptureStatus.ACTIVE:
            raise error
        recover(session, name, error, lambda row: session.split(row, name, lambda: (None, None)))
    finally:
        del error  # as above
    return again()


def end_failed(session: Session, error: RuntimeError, final: bool) -> None:
    """Clean up after torch could not end the segment, whose tape runs instead; raise if it has none."""
    try:
        if is_interrupt(error):
            raise error
        is_healed = clean_up_segment(session, end_was_refused=not isinstance(error, CaptureIsDead))
        session.segment_is_over()
        tape = session.recorder.tape
        if not is_healed or not tape.is_complete or (final and not tape.rows):
            last = tape.entries[-1] if tape.rows else None
            raise CaptureError(
                "end_failed",
                status=first_line(error),
                op=last.name if last else "nothing",
                where=last.where if last else "",
                quote=str(error),
            ) from error
        process.log.debug("capture_end failed: %s", error)
    finally:
        del error  # as above


def end_open_segment(session: Session) -> None:
    """End what torch may be capturing, wherever its begin or end failed or was interrupted."""
    if not session.lifecycle.has_open_segment:
        return
    was_ending = session.lifecycle.failed_in is CaptureState.ENDING
    with suppress(RuntimeError):
        if was_ending and session.streams.status() is not CaptureStatus.ACTIVE:
            session.state.base.raw_cuda_graph(session.segment_graph)
            session.segment_is_over()  # torch has ended it: an interrupt may come before we have noted that
            return
        with session.streams.be_on_own():
            session.streams.join()
    clean_up_segment(session, end_was_refused=was_ending and session.streams.status() is CaptureStatus.INVALIDATED)
    session.segment_is_over()


def clean_up_segment(session: Session, end_was_refused: bool = False) -> bool:
    """Clean up after the open capture has failed to begin or to end; False if torch's own end could not do it."""
    base, driver, graph = session.state.base, session.state.driver, session.segment_graph
    streams = session.streams
    sides = list(streams.side.values())
    healed = end_dead_capture(base, graph, streams.own, driver, side_streams=sides, end_was_refused=end_was_refused)
    for side in sides:
        if is_stream_lost(side, driver):
            streams.side.pop(side.cuda_stream, None)
    if not healed:
        if is_stream_lost(streams.own, driver):
            abandon_stream(streams.own)
            # What remains to be done (restoring external state) needs a working stream.
            streams.own = torch.cuda.Stream(session.device_index)
        with streams.be_on_own():
            end_by_hand(session.device_index, session.pool_id, session.generators.all())
            session.generators.take_new_states(session.rollback)
    return healed


def recover(session: Session, name: str, error: BaseException, again: Callable[[UnsafeOp], object]) -> Any:
    """Recover from a dead capture: run its tape eagerly into the same addresses, and continue after it."""
    tape = session.recorder.tape
    where = where_of(*place())
    session.recorder.note_nodes_of_the_dead(session.graph_handle, are_opaque=WAS_DEAD in str(error))
    if not tape.is_complete:
        raise session.failed(
            CaptureError(
                "capture_failed",
                op=name,
                where=where,
                status=first_line(error),
                n_opaque=len(tape.opaque),
                opaque=", ".join(str(o.where) for o in tape.opaque[:3]),
                quote=str(error),
            )
        ) from error
    process.log.debug("capture died: %s", error)
    row = UnsafeOp(name, Kind.SYNC, "it ended the capture: " + first_line(error))
    session.died_of = name, where
    try:
        return again(row)
    finally:
        session.died_of = None


# -- torch and the driver ---------------------------------------------------------------------------------


def end_dead_capture(
    base: Any,
    graph: Any,
    stream: Any,
    driver: GraphDriver,
    *,
    side_streams: Iterable[Any] = (),
    end_was_refused: bool = False,
) -> bool:
    """End a dead or half-begun capture of ``graph`` so that nothing of it is left.

    Args:
        side_streams: forked from ``stream`` inside the capture; HIP leaves them just as dead.
        end_was_refused: torch's capture_end asked the runtime to end the capture, and was refused.

    Returns:
        True if torch's own clean-up ran to its end.
    """
    handle = stream.cuda_stream
    try:
        if driver.capture_info(handle).status is not CaptureStatus.NONE:
            driver.abandon_capture(handle, end_was_refused=end_was_refused)
        for side in side_streams:
            if driver.capture_info(side.cuda_stream).status is not CaptureStatus.NONE:
                driver.abandon_capture(side.cuda_stream, end_was_refused=True)
        driver.begin_capture(handle)
        ignore_graph_warnings(True)  # the graph is empty: intended
        with torch.cuda.stream(stream):
            base.capture_end(graph)
    except (DriverError, RuntimeError, UnicodeDecodeError) as error:
        with suppress(DriverError):  # the empty capture is ours to end
            if driver.capture_info(handle).status is not CaptureStatus.NONE:
                driver.abandon_capture(handle)
        if _NEVER_BEGAN in str(error):
            return True
        # As text: a log record would keep the error's frames, and the graph with them. It is undecodable after an
        # interrupt inside capture_begin, which has not set the device that it prints (H200, torch 2.11).
        process.log.debug("torch cannot end a failed capture: %s", str(error))
        return False
    finally:
        ignore_graph_warnings(False)
    return True


def is_stream_lost(stream: Any, driver: GraphDriver) -> bool:
    """True if the runtime will not release the stream from a dead capture: work sent to it may vanish."""
    return driver.capture_info(stream.cuda_stream).status is not CaptureStatus.NONE


def abandon_stream(stream: object) -> None:
    """Have the next ``torch.cuda.graph()`` take another stream: this one may keep the failure."""
    if torch.cuda.graph.default_capture_stream == stream:
        torch.cuda.graph.default_capture_stream = None


def end_by_hand(device_index: int, pool: tuple[int, int] | None, generators: Iterable[Any]) -> None:
    """Do by hand what is left of torch's capture_end where it cannot be called, or refuses.

    Args:
        pool: the capture's pool, None if it is not known.
    """
    if pool is not None:
        # Where torch has already done this, or never came to begin it, it complains that nothing is being recorded.
        with suppress(RuntimeError):
            torch_names._cuda_endAllocateToPool(device_index, pool)
            torch_names._cuda_releasePool(device_index, pool)
    for generator in generators:
        # A new state with the same seed and offset, which no capture has touched.
        generator.graphsafe_set_state(generator.clone_state())
