"""Workarounds for defects of the runtime and of torch's libraries while graphs exist.

Defects of the runtime, as the defect table asks for them: each function acts on one of the table's answers
(``hardware.defects.Decisions``). Handled elsewhere: ``capture_error_mode`` and ``validate_replays`` in graph.py,
``node_walk`` in node_walk.py, ``max_nodes`` in recorder.py.

Workspaces of cuBLAS: torch keeps one for each stream and handle, and a captured matrix product holds its address.
Inductor's graph trees free all workspaces around each of their captures, and ``torch.cuda.graph`` unmaps what
is freed: a graph captured earlier then reads and writes memory that is gone, or that belongs to others. So
whenever workspaces are freed, the memory of those that graphs may point at is allocated again at once, and held
as long as there are graphs captured on its stream. Memory in a private pool that is not ours is left alone: it is
mapped as long as the pool's graphs live, and graph trees rely on getting it back.

Source: clear_cublas_manager in torch/_inductor/cudagraph_trees.py, torch.cuda.graph in torch/cuda/graphs.py;
docs/decisions/0098.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gfxgraph.capture import capture_lock
from gfxgraph.capture.replay.graph_tensors import all_segments
from gfxgraph.core.locks import new_lock
from gfxgraph.process import bridge, process

_kept: list[Any] = []


def leave_stream(stream: Any) -> None:
    """``fresh_stream_after_failure``: make the next ``torch.cuda.graph()`` use a new stream."""
    default = torch.cuda.graph.default_capture_stream
    if process.require().decisions.fresh_stream_after_failure and default is not None and default == stream:
        torch.cuda.graph.default_capture_stream = None


def before_replay() -> None:
    """``join_copies``: make the graph wait for earlier work on the stream."""
    if process.require().decisions.join_copies:
        done = torch.cuda.Event()
        done.record()
        done.wait()


def keeps(graph: Any) -> bool:
    """``keep_graphs``: hold a graph that is being dropped until the process ends; True if it is held."""
    if process.current() is None or not process.require().decisions.keep_graphs:
        return False
    _kept.append(graph)
    return True


def after_destroy() -> None:
    """``synchronize_after_destroy``: wait until a destroyed graph is gone before anything else starts."""
    state = process.current()
    if state is not None and state.decisions.synchronize_after_destroy and process.active_session() is None:
        with suppress(RuntimeError):
            capture_lock.synchronize_device(torch.cuda.synchronize)


def arrange_exit(state: process.Process) -> None:
    """``destroy_before_exit``: destroy graphs in order before the runtime unloads."""
    if not state.decisions.destroy_before_exit:
        return

    def destroy() -> None:
        for graph in list(state.graphs):
            with suppress(RuntimeError):
                graph.reset()

    bridge.undo.append(lambda: atexit.unregister(destroy))
    atexit.register(destroy)


# -- workspaces ----------------------------------------------------------------------------------------------


MOST_TRIES = 64
"""Allocations to try for one block before giving up."""
_NO_POOL = (0, 0)

own_pools: set[tuple[int, int]] = set()
"""Ids of the pools that callables capture into; only our captures allocate there."""


@dataclass(slots=True)
class _CaptureStream:
    """A stream on which captures took place, and the memory held for them."""

    stream: Any
    graphs: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    held: list[Tensor] = field(default_factory=list)


class _Allocated(NamedTuple):
    """Memory that the allocator has handed out."""

    address: int
    nbytes: int
    stream: int
    device: int
    pool: tuple[int, int]


_streams: dict[int, _CaptureStream] = {}
"""By the stream's handle."""
_lock = new_lock()
_hooked: list[tuple[Callable[[], Any], Callable[[], Any]]] = []
"""torch's function that frees workspaces, and what stands in its place."""


def note_capture(stream: Any, graph: Any) -> None:
    """Remember that ``graph`` is being captured on ``stream``."""
    keep_workspaces()  # for callables that capture without the bridge
    with _lock:
        _streams.setdefault(stream.cuda_stream, _CaptureStream(stream)).graphs.add(graph)
        _forget_the_dead()


def n_workspaces_held(stream: Any = None) -> int:
    """Number of blocks held now, of one stream or of all."""
    return sum(len(c.held) for handle, c in _streams.items() if stream is None or handle == stream.cuda_stream)


def keep_workspaces(undo: list[Callable[[], None]] | None = None) -> None:
    """Hook torch's function that frees workspaces; ``undo`` gets the call that restores it."""
    if undo is not None:
        undo.append(let_workspaces_go)
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None and not _hooked:
        kept = functools.wraps(clear)(lambda: _clear(clear))
        _hooked.append((clear, kept))
        torch._C._cuda_clearCublasWorkspaces = kept


def let_workspaces_go() -> None:
    """Restore torch's function. Held memory stays until its graphs are gone, or the simulated device is."""
    state = process.current()
    if state is not None and state.platform == "simulator":
        _streams.clear()
    for clear, kept in _hooked:
        if torch._C._cuda_clearCublasWorkspaces is kept:
            torch._C._cuda_clearCublasWorkspaces = clear
    _hooked.clear()


def _forget_the_dead() -> None:
    for handle in [handle for handle, captured in _streams.items() if not captured.graphs]:
        del _streams[handle]


def _clear(clear: Callable[[], Any]) -> None:
    """Free the workspaces, except memory that graphs may point at."""
    with _lock:
        _forget_the_dead()
        wanted = dict(_streams)
    if not wanted or torch.cuda.is_current_stream_capturing():
        clear()
        return
    before = _blocks(wanted)
    clear()
    for block in before - _blocks(wanted):
        captured = wanted[block.stream]
        held = _take_again(block, captured.stream)
        captured.held.extend(held)
        if not held:
            process.require().report(
                "workspace_lost",
                "the cuBLAS workspace of a graph was freed, and its memory is now used by something else; "
                "capture the graph again",
                where=captured.stream,
            )


def _blocks(streams: dict[int, _CaptureStream]) -> set[_Allocated]:
    """Blocks handed out on these streams whose memory could be unmapped or reused."""
    found = set()
    for segment in all_segments():
        pool = tuple(segment.get("segment_pool_id", _NO_POOL))
        if segment["stream"] not in streams or (pool != _NO_POOL and pool not in own_pools):
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found.add(_Allocated(address, block["size"], segment["stream"], segment["device"], pool))
            address += block["size"]
    return found


def _take_again(block: _Allocated, stream: Any) -> list[Tensor]:
    """Allocate until we own a block's memory again; empty if we cannot get it."""
    taken: list[Tensor] = []  # keeps failed tries allocated, so that each try gets other memory
    held: list[Tensor] = []
    n_missing = block.nbytes
    with _disable_current_modes(), torch.cuda.stream(stream), _routed(block), suppress(torch.OutOfMemoryError):
        for _ in range(MOST_TRIES):
            taken.append(torch.empty(block.nbytes, dtype=torch.uint8, device=f"cuda:{block.device}"))
            start = max(block.address, taken[-1].data_ptr())
            stop = min(block.address + block.nbytes, taken[-1].data_ptr() + block.nbytes)
            if start < stop:
                held.append(taken[-1])
                n_missing -= stop - start
            if n_missing <= 0:
                return held
    return []


@contextlib.contextmanager
def _routed(block: _Allocated) -> Iterator[None]:
    """Allocate from the block's pool inside this context."""
    if block.pool == _NO_POOL:
        yield
        return
    torch._C._cuda_beginAllocateCurrentThreadToPool(block.device, block.pool)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(block.device, block.pool)
        torch._C._cuda_releasePool(block.device, block.pool)
