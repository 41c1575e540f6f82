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
decision 0098.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import weakref
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock
from gfxgraph.capture.replay.graph_tensors import all_segments
from gfxgraph.core.locks import new_lock
from gfxgraph.process import bridge, process

_kept: list[Any] = []


def before_replay() -> None:
    """``join_copies``: make the graph wait for earlier work on the stream."""
    if process.require().decisions.join_copies:
        done = torch.cuda.Event()
        done.record()
        done.wait()


def keep_until_exit(graph: object) -> bool:
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


class _Capture(NamedTuple):
    stream: Any
    held: list[Tensor]
    """Memory that the graph may point at, held as long as it lives."""


class _Allocated(NamedTuple):
    """Memory that the allocator has handed out."""

    address: int
    nbytes: int
    stream: int
    device: int
    pool: tuple[int, int]


_captures: weakref.WeakKeyDictionary[Any, _Capture] = weakref.WeakKeyDictionary()
"""By graph."""
_lock = new_lock()


def note_capture(stream: object, graph: object) -> None:
    """Remember that ``graph`` is being captured on ``stream``."""
    keep_workspaces()  # for callables that capture without the bridge
    with _lock:
        if graph not in _captures or _captures[graph].stream != stream:
            _captures[graph] = _Capture(stream, [])


def n_workspaces_held(stream: object = None) -> int:
    """Number of blocks held now, of one stream or of all."""
    with _lock:
        known = [each for each in _captures.values() if stream is None or each.stream == stream]
    return len({id(tensor) for each in known for tensor in each.held})


def keep_workspaces(undo: list[Callable[[], None]] | None = None) -> None:
    """Hook torch's function that frees workspaces; ``undo`` gets the call that restores it."""
    if undo is not None:
        undo.append(release_workspaces)
    clear = torch_names._cuda_clearCublasWorkspaces
    if clear is not None and not hasattr(clear, "__wrapped__"):
        setattr(*torch_names.place("_cuda_clearCublasWorkspaces"), functools.wraps(clear)(lambda: _clear(clear)))


def release_workspaces() -> None:
    """Restore torch's function. Held memory stays until its graphs are gone, or the simulated device is."""
    state = process.current()
    if state is not None and state.platform == "simulator":
        _captures.clear()
    clear = torch_names._cuda_clearCublasWorkspaces
    if hasattr(clear, "__wrapped__"):
        setattr(*torch_names.place("_cuda_clearCublasWorkspaces"), clear.__wrapped__)


def _clear(clear: Callable[[], Any]) -> None:
    """Free the workspaces, except memory that graphs may point at."""
    by_stream: dict[int, list[_Capture]] = {}
    with _lock:
        for capture in _captures.values():
            by_stream.setdefault(capture.stream.cuda_stream, []).append(capture)
    if not by_stream or torch.cuda.is_current_stream_capturing():
        clear()
        return
    before = _blocks(by_stream)
    clear()
    for block in before - _blocks(by_stream):
        captures = by_stream[block.stream]
        held = _reallocate(block, captures[0].stream)
        for capture in captures:
            capture.held.extend(held)
        if not held:
            process.require().report(
                "workspace_lost",
                "the cuBLAS workspace of a graph was freed, and its memory is now used by something else; "
                "capture the graph again",
                where=captures[0].stream,
            )


def _blocks(streams: Container[int]) -> set[_Allocated]:
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


def _reallocate(block: _Allocated, stream: object) -> list[Tensor]:
    """Allocate until we own a block's memory again; empty if we cannot get it."""
    taken: list[Tensor] = []  # keeps failed tries allocated, so that each try gets other memory
    held: list[Tensor] = []
    n_missing = block.nbytes
    with (
        torch_names._disable_current_modes(),
        torch.cuda.stream(stream),
        _routed(block),
        suppress(torch.OutOfMemoryError),
    ):
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
    torch_names._cuda_beginAllocateCurrentThreadToPool(block.device, block.pool)
    try:
        yield
    finally:
        torch_names._cuda_endAllocateToPool(block.device, block.pool)
        torch_names._cuda_releasePool(block.device, block.pool)
