"""Capture of one function on one set of static inputs, with the bridge's own machinery.

A graphed callable needs no ``enable()``: it makes graph objects of the bridged class and patches
nothing beyond the capture. The first capture of a function is recorded, tape and all.
If that gave one plain segment, later captures of the same function (its other shapes) are made
without the recorder on CUDA, which refuses an unsafe operation by itself; HIP may not, so there
every capture is recorded (docs/decisions/0006).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from gfxgraph.capture import capture_lock
from gfxgraph.capture.failures import clean_by_hand, heal_capture
from gfxgraph.capture.graph import BridgedGraph, bridged_class
from gfxgraph.capture.patches import intercept
from gfxgraph.capture.record.random_generators import begin, drawless, is_drawless, kept_out
from gfxgraph.capture.replay import workspaces
from gfxgraph.capture.replay.captured_program import Program
from gfxgraph.capture.replay.graph_tensors import taken_from_device
from gfxgraph.capture.replay.replay_hooks import bare_launch
from gfxgraph.capture.replay.replay_steps import SegmentStep
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.core.tape import Opaque, Tape
from gfxgraph.errors import GfxGraphError
from gfxgraph.guard import for_capture
from gfxgraph.process import process
from gfxgraph.types import OnUnsafe

_classes: dict[type, type] = {}


def graph_class(state: process.Process) -> Any:
    """The bridged class over the torch, or the simulator, now in use."""
    if issubclass(torch.cuda.CUDAGraph, BridgedGraph):  # the bridge is on
        return torch.cuda.CUDAGraph
    found = _classes.get(state.base)
    if found is None:
        for_capture.fill()
        found = _classes[state.base] = bridged_class(state.base)
    return found


class SharedPool:
    """A memory pool for several captures. Everyone who captures into it, or is going to, holds this object.

    torch refuses an id whose graphs are all gone (``use_count > 0``), and frees a pool's memory only
    when they are. So an empty graph keeps the pool alive, and is freed with the last holder.

    Args:
        pool_id: an existing pool; None for a new one.

    Raises:
        CaptureDied: not even the empty graph could be captured.
    """

    def __init__(self, state: process.Process, stream: Any, pool_id: Any = None) -> None:
        self.state = state
        self.id = torch.cuda.graph_pool_handle() if pool_id is None else pool_id
        self._graph = intercept.own_class(state.base)(keep_graph=True)  # never launched, so never instantiated
        workspaces.own_pools.add(tuple(self.id))
        try:
            with _bare_capture(state, self._graph, self.id, stream):
                pass
        except RuntimeError as error:
            if is_interrupt(error):
                raise
            raise CaptureDied(kind_and_line(error)) from error


class CaptureDied(RuntimeError):
    """The function could not be captured; what it raised is the cause."""


@dataclass(slots=True)
class CaptureResult:
    """One captured graph, what the function returned during capture, and what is known about it."""

    graph: Any
    result: Any
    is_recorded: bool
    pool: SharedPool
    is_plain: bool = True
    """A replay is one launch and nothing else."""
    is_opaque: bool = True
    """It launches what torch did not make: what that reads and writes is not known."""


def capture(
    call: Callable[[], Any],
    stream: Any,
    pool: SharedPool,
    *,
    recorded: bool,
    is_drawless: bool = False,
    on_unsafe: OnUnsafe | None = None,
) -> CaptureResult:
    """Capture ``call`` on ``stream`` into ``pool``; nothing is executed.

    Args:
        is_drawless: it draws no random numbers, so other threads may go on drawing.
        on_unsafe: overrides the settings'.

    Raises:
        CaptureDied: the capture failed, whatever the reason; the process is as before.
        torch.OutOfMemoryError: as torch raised it.
    """
    state = pool.state
    policy = on_unsafe or state.settings.on_unsafe
    if policy is OnUnsafe.SPLIT:
        policy = OnUnsafe.PIN
    capturing = _recorded if recorded else _unrecorded
    # Weights cached by autocast must neither enter the graph nor leave it: outside, they are freed with
    # the context; inside, only replays compute them.
    torch.clear_autocast_cache()
    try:
        with torch.cuda.stream(stream), drawless(is_drawless):
            return capturing(pool, policy, stream, call)
    finally:
        torch.clear_autocast_cache()


def _recorded(pool: SharedPool, policy: OnUnsafe, stream: Any, call: Callable[[], Any]) -> CaptureResult:
    graph = graph_class(pool.state)(on_unsafe=policy)
    try:
        graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")
        result = call()
        graph.capture_end()
    except torch.OutOfMemoryError:
        _abandon(graph)
        raise
    except BaseException as error:
        _abandon(graph)
        if is_interrupt(error):
            raise
        raise CaptureDied(kind_and_line(error)) from error
    return CaptureResult(graph, result, True, pool, graph.is_plain, graph.is_opaque)


def _abandon(graph: Any) -> None:
    with suppress(GfxGraphError, RuntimeError):
        graph.reset()


def _unrecorded(pool: SharedPool, policy: OnUnsafe, stream: Any, call: Callable[[], Any]) -> CaptureResult:
    """Like ``_recorded``, without a tape: the graph's program is one segment that only a launch can run."""
    state = pool.state
    base, graph = state.base, graph_class(state)(on_unsafe=policy)
    workspaces.note(stream, graph)
    with intercept.entered(graph, "a graphed callable", draws=not is_drawless()):
        try:
            with capture_lock.unnoticed(), kept_out(stream.device_index):
                begin(base, graph, (), pool.id, "thread_local")
            with _refusing_waits():
                result = call()
            with capture_lock.unnoticed(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an empty graph: the function does nothing on the device
                base.capture_end(graph)
                driver_nbytes = taken_from_device(lambda: base.instantiate(graph))
        except BaseException as error:
            _end_dead(state, graph, stream)
            if isinstance(error, torch.OutOfMemoryError) or is_interrupt(error):
                raise
            raise CaptureDied(kind_and_line(error)) from error
    tape = Tape(0)
    tape.opaque.append(Opaque(0))
    step = SegmentStep(graph, True, tape, [], ())
    step.is_launchable = True
    step.driver_nbytes = driver_nbytes
    graph._hold(Program(bare_launch(base), steps=[step]))
    state.counters.add("capture")
    return CaptureResult(graph, result, False, pool)


@contextmanager
def _bare_capture(state: process.Process, graph: Any, pool_id: Any, stream: Any) -> Iterator[None]:
    """A capture of torch's alone, without random numbers; one that fails is ended."""
    with intercept.entered(graph, "a pool of graphed callables", draws=False):
        try:
            with capture_lock.unnoticed(), torch.cuda.stream(stream), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the graph is empty
                with drawless(True), kept_out(stream.device_index):
                    begin(state.base, graph, (), pool_id, "thread_local")
                yield
                state.base.capture_end(graph)
        except BaseException:
            _end_dead(state, graph, stream)
            raise


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """Make torch refuse waits for the device before the driver sees them, so that the capture can still be ended."""
    if threading.active_count() > 1:  # process-wide: other threads may wait for their own work
        yield
        return
    saved = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch._C._cuda_set_sync_debug_mode(2)
    try:
        yield
    finally:
        torch._C._cuda_set_sync_debug_mode(saved)


def _end_dead(state: process.Process, graph: Any, stream: Any) -> None:
    refused = False
    try:
        with capture_lock.unnoticed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state.base.capture_end(graph)
    except RuntimeError:
        refused = True
    if refused and not heal_capture(state.base, graph, stream, state.driver, end_was_refused=True):
        clean_by_hand(stream.device_index, None, [torch.cuda.default_generators[stream.device_index]])
    with suppress(RuntimeError):
        state.base.reset(graph)


def kind_and_line(error: BaseException) -> str:
    """An error's type and the first line of its text."""
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
