"""Keeps cuBLAS workspaces in place while graphs point at them.

Problem: torch keeps a workspace for each stream and handle, and a captured matrix product holds its address.
Inductor's graph trees free all workspaces around each of their captures, and ``torch.cuda.graph`` unmaps what
is freed: a graph captured earlier then reads and writes memory that is gone, or that belongs to others. Idea:
whenever workspaces are freed, immediately allocate the memory of those that graphs may point at again, and hold it
as long as there are graphs captured on its stream.

Memory in a private pool that is not ours is left alone: it is mapped as long as the pool's graphs live, and graph
trees rely on getting it back.

Source: clear_cublas_manager in torch/_inductor/cudagraph_trees.py, torch.cuda.graph in torch/cuda/graphs.py;
docs/decisions/0098.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gfxgraph.capture.replay.graph_tensors import all_segments
from gfxgraph.core.locks import new_lock
from gfxgraph.process import process

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


@dataclass(frozen=True, slots=True)
class _HandedOut:
    """Memory that the allocator has handed out."""

    address: int
    nbytes: int
    stream: int
    device: int
    pool: tuple[int, int]


_streams: dict[int, _CaptureStream] = {}
"""By the stream's handle."""
_lock = new_lock()
_replaced: Callable[[], Any] | None = None
_in_place: Callable[[], Any] | None = None


def note(stream: Any, graph: Any) -> None:
    """Remember that ``graph`` is being captured on ``stream``."""
    start()  # for callables that capture without the bridge
    with _lock:
        found = _streams.get(stream.cuda_stream)
        if found is None:
            found = _streams[stream.cuda_stream] = _CaptureStream(stream)
        found.graphs.add(graph)
        _forget_the_dead()


def n_held(stream: Any = None) -> int:
    """Number of blocks held now, of one stream or of all."""
    chosen = [c for handle, c in _streams.items() if stream is None or handle == stream.cuda_stream]
    return sum(len(captured.held) for captured in chosen)


def start() -> None:
    """Hook torch's function that frees workspaces."""
    global _replaced, _in_place
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is None or _in_place is not None:
        return

    @functools.wraps(clear)
    def kept() -> None:
        _clear(clear)

    _replaced, _in_place = clear, kept
    torch._C._cuda_clearCublasWorkspaces = kept


def stop(*, is_device_gone: bool = False) -> None:
    """Restore torch's function. Held memory stays until its graphs are gone, or the simulated device is."""
    global _replaced, _in_place
    if is_device_gone:
        _streams.clear()
    if _in_place is not None and torch._C._cuda_clearCublasWorkspaces is _in_place:
        torch._C._cuda_clearCublasWorkspaces = _replaced
    _replaced = _in_place = None


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
    now = _blocks(wanted)
    for address in before.keys() - now.keys():
        block = before[address]
        captured = wanted[block.stream]
        held = _take_again(block, captured.stream)
        if held is None:
            process.require().report(
                "workspace_lost",
                "the cuBLAS workspace of a graph was freed, and its memory is now used by something else; "
                "capture the graph again",
                where=captured.stream,
            )
        else:
            captured.held.extend(held)


def _blocks(streams: dict[int, _CaptureStream]) -> dict[int, _HandedOut]:
    """By address: blocks handed out on these streams whose memory could be unmapped or reused."""
    found = {}
    for segment in all_segments():
        pool = tuple(segment.get("segment_pool_id", _NO_POOL))
        if segment["stream"] not in streams or (pool != _NO_POOL and pool not in own_pools):
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found[address] = _HandedOut(address, block["size"], segment["stream"], segment["device"], pool)
            address += block["size"]
    return found


def _take_again(block: _HandedOut, stream: Any) -> list[Tensor] | None:
    """Allocate until we own a block's memory again; None if we cannot get it."""
    taken: list[Tensor] = []  # keeps failed tries allocated, so that each try gets other memory
    held: list[Tensor] = []
    n_missing = block.nbytes
    with _disable_current_modes(), torch.cuda.stream(stream), _routed(block):
        with contextlib.suppress(torch.OutOfMemoryError):
            for _ in range(MOST_TRIES):
                taken.append(torch.empty(block.nbytes, dtype=torch.uint8, device=f"cuda:{block.device}"))
                start = max(block.address, taken[-1].data_ptr())
                stop = min(block.address + block.nbytes, taken[-1].data_ptr() + block.nbytes)
                if start < stop:
                    held.append(taken[-1])
                    n_missing -= stop - start
                if n_missing <= 0:
                    return held
    return None


@contextlib.contextmanager
def _routed(block: _HandedOut) -> Iterator[None]:
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
