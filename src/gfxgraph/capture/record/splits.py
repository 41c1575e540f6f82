"""Splits: the open segment ends, the host does its part, and the next segment begins.

    an unsafe operation    is run in between, and again at each replay
    a wait, a host call    likewise, where a replay needs it too
    a replay of a graph    becomes a step of the program

What is recorded but not yet run is launched first, so that the host's part finds real values. An error in the host's
part ends the capture.

These are functions, not an object, for the reason that failures.py gives; a session has them as its methods.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches.torch_functions import STOCK
from gfxgraph.capture.record.host_memory import HOST_DRAW, ON_HOST, host_generator, lends_memory
from gfxgraph.capture.record.overloads import outs, written
from gfxgraph.capture.record.user_lines import cause_of, place
from gfxgraph.capture.replay.graph_tensors import flat, has_layout, is_wrapper
from gfxgraph.capture.replay.program import CallStep, HostPart, HostStep, ReplayStep, SegmentStep, Step
from gfxgraph.capture.undo import set_sync_debug_mode
from gfxgraph.core.tape import Place, where_of
from gfxgraph.core.unsafe import BY_NAME, Kind, UnsafeOp, When
from gfxgraph.errors import CaptureError
from gfxgraph.types import OnUnsafe

if TYPE_CHECKING:
    from gfxgraph.capture.session import Session

STOCK_TEXT = "CUDA error: operation not permitted when stream is capturing"


def unsafe_op(session: Session, row: UnsafeOp, func: Any, args: Any, kwargs: Any) -> Any:
    """Handle an unsafe operation seen at the dispatcher: run it on the host's side."""
    schema = getattr(func, "_schema", None)  # a higher-order operator has none
    name = schema.name if schema is not None else func.name()
    if session.policy is OnUnsafe.RAISE:
        # Nothing but the operation itself: the program must see its original error.
        return _torchs_own(session, row, name, lambda: (func(*args, **kwargs), None), where_of(*place()))
    if name == "aten::_local_scalar_dense":
        return session.values.read_plain(name, func, *args)
    if (out := _of_constants(session, row, func, args, kwargs)) is not None:
        return out
    where = place()
    writes = written(func, args, kwargs) if schema is not None else ()
    foreign: list[Any] = []
    _refuse_without_layout(session, name, writes)

    def make() -> tuple[Any, Step]:
        foreign.extend(session.generators.foreign_states(args, kwargs))
        if row is HOST_DRAW:
            foreign.append(host_generator(args, kwargs))
        session.rollback.save(writes, session.streams.own)
        session.rollback.save_states(foreign)
        out = func(*args, **kwargs)
        _refuse_without_layout(session, name, out)
        if type(out) in (bool, int, float):
            return out, session.values.guard_outcome(lambda: func(*args, **kwargs), out, name, where)
        is_from_device = row in ON_HOST or session.values.come_from_device(args, kwargs)
        for tensor in flat(out, list(writes)):
            if not tensor.is_cuda and is_from_device:
                session.values.note_refilled(tensor)
        session.recorder.adopt(out)
        step = HostStep(name, where, func, args, kwargs, out, writes, tuple(foreign))
        step.filled = outs(func, kwargs) if schema is not None else ()
        session.moving.note(row, name, step, args, kwargs)
        return out, step

    out = session.split(row, name, make, where)
    if row.kind is Kind.HOST_COPY:
        session.values.pin_lent(writes)
    return out


_MOST_CONSTANT_NBYTES = 1 << 20


def _is_constant(session: Session, tensor: Tensor) -> bool:
    """Whether a host tensor is the captured code's own and holds the same numbers at each replay."""
    if tensor.is_cuda or tensor.nbytes > _MOST_CONSTANT_NBYTES or "relaxed" in session.state.driver.missing:
        return False
    return session.host.is_own(tensor) and not (session.values.is_tainted(tensor) or lends_memory(tensor))


def _of_constants(session: Session, row: UnsafeOp, func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Record an operation whose host tensors are constants as nodes that read no host memory; None for any other."""
    record = session.recorder.__torch_dispatch__
    if row.kind is Kind.HOST_COPY:
        out, source = flat(args)[0], flat(args)[-1]
        if not (out.is_cuda or source is out) or not _is_constant(session, source):
            return None
        constant = _on_device(session, source)
        if out.is_cuda:
            return record(func, (), (out, constant))
        return record(func, (), (constant,), {**kwargs, "non_blocking": False})
    if row.when is not When.HOST_OR_MASK_INDEX or not args[0].is_cuda:
        return None
    found = [None if index is None else _index_on_device(session, index) for index in args[1]]
    is_other = any(each is not index for each, index in zip(found, args[1]))  # else the values are on the host
    if not is_other or [*map(type, found)] != [*map(type, args[1])]:
        return None
    return record(func, (), (args[0], found, *args[2:]), kwargs)


def _on_device(session: Session, constant: Tensor) -> Tensor:
    """A copy of a constant in memory that is not the graph's, made now; the program holds it."""
    mode, session.recorder.paused = torch.cuda.get_sync_debug_mode(), True
    aside = (torch.cuda.Stream(session.device_index) for _ in itertools.count())  # in turn: this capture's, too
    try:
        with capture_lock.relaxed(), torch.cuda.stream(next(each for each in aside if not _is_capturing(each))):
            set_sync_debug_mode(0)
            return constant.to(torch.device("cuda", session.device_index))
    finally:
        session.recorder.paused = False
        set_sync_debug_mode(mode)


def _is_capturing(stream: torch.cuda.Stream) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


def _index_on_device(session: Session, index: Tensor) -> Tensor | None:
    """An index for a node: on the device, and no mask; else None."""
    if index.dtype in (torch.bool, torch.uint8) or index.is_cuda:
        return index if index.is_cuda and index.dtype not in (torch.bool, torch.uint8) else None
    return _on_device(session, index) if _is_constant(session, index) else None


def _refuse_without_layout(session: Session, name: str, made: object) -> None:
    if not all(has_layout(tensor) or is_wrapper(tensor) for tensor in flat(made)):
        reason = "it makes or writes a sparse, nested or quantized tensor, which no replay can fill again"
        session.refuse(name, reason)


def split(session: Session, row: UnsafeOp, name: str, make: HostPart, where: Place | None = None) -> Any:
    """End the segment, run what is pending, do the host's part, and open the next segment.

    Raises:
        CaptureError: `unsafe_op_in_capture`, if the policy is "raise".
    """
    where = where or place()
    shown = where_of(*where)
    if session.policy is OnUnsafe.RAISE:
        return _torchs_own(session, row, name, make, shown)
    session.values.record_shared_writes()
    session.state.report("split", row.kind.value, cause_of(name), shown, logging.INFO)
    try:
        session.recorder.paused = True
        # The operation may run on a side stream; a replay has only one stream, and so has the capture's end.
        with session.streams.be_on_own():
            session.end_segment()
            _execute_pending(session)
            out, step = make()
            if step is not None:
                session.add(step)
            session.n_executed = len(session.program.steps)
            session.open_segment(session.new_graph())
        session.recorder.paused = session.is_over
    except BaseException as error:
        session.abort(error)
        raise
    return out


def _torchs_own(session: Session, row: UnsafeOp, name: str, make: HostPart, where: object) -> Any:
    """For the policy "raise": do what torch does inside the capture, and name the operation in the error."""
    said = STOCK_TEXT
    session.recorder.paused = True
    try:
        out, _ = make()
        if row.kind is Kind.GENERATOR:
            return out  # torch lets some of these pass
    except RuntimeError as error:
        said = str(error)
    finally:
        session.recorder.paused = False
    raise session.failed(CaptureError("unsafe_op_in_capture", op=name, where=where, reason=row.reason, quote=said))


def _execute_pending(session: Session) -> None:
    """Launch what was recorded but not yet run, to get real values."""
    steps = session.program.steps
    if not session.has_executed:
        session.has_executed = True
        # Other streams may still be writing inputs; a capture does not wait for them.
        try:
            capture_lock.synchronize_device(STOCK["device_synchronize"])
        except RuntimeError:
            STOCK["stream_synchronize"](session.streams.own)  # for a capture outside gfxgraph
        session.rollback.save_states(session.generators.states())
        graph: Any = session.graph_ref()
        if graph._reads_after is not None:
            _replay_undone(session, graph._reads_after)
    pending = steps[session.n_executed :]
    for step in pending:
        session.rollback.save(step.mutated, session.streams.own)
        if isinstance(step, SegmentStep):
            _report_opaque(session, step.tape)
        session.program.externals.update(session.recorder.externals)
        step.run(session.program)
    session.n_executed = len(steps)


def _report_opaque(session: Session, tape: Any) -> None:
    if tape.opaque:
        session.state.report(
            "effects_not_undone",
            "launches outside torch ran at a split; what they wrote outside the graph cannot be undone",
            str(len(tape.opaque)),
            tape.opaque[0].where,
        )


def host_call(session: Session, name: str, call: Callable[[], object], repeat: bool = True) -> Any:
    """Split for a wait or another host call that a capture refuses: make it now, and again at each replay."""
    where = place()

    def make() -> tuple[Any, Step | None]:
        return call(), CallStep(name, where, call) if repeat else None

    out = session.split(BY_NAME[name], name, make, where)
    if repeat:
        session.values.pin_lent(session.host.pop_lent())
    return out


def replay_inside(session: Session, graph: Any) -> None:
    """Make a graph that is replayed inside this capture a step of the program."""
    name = "torch.cuda.CUDAGraph.replay"
    where = place()

    def make() -> tuple[Any, Step]:
        _replay_undone(session, graph)
        return None, ReplayStep(name, where, graph)

    session.split(BY_NAME[name], name, make, where)


def _replay_undone(session: Session, graph: Any) -> None:
    """Replay another graph now; what it writes and draws is undone with the capture."""
    program = graph._program
    session.rollback.save(program.writes(), session.streams.own)
    session.rollback.save_states(program.random_states())
    for segment in program.segments:
        _report_opaque(session, segment.tape)
    graph.replay()
