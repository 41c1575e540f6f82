"""The arena: the memory of captured callables. One per device.

Problem: a pool per graph costs a graph's whole working memory each time, 70 MB for 32 small
graphs. And the allocator keeps its blocks by stream, so captures on different streams do not
reuse each other's memory even in one pool. Idea: one pool, one capture stream, one lock.

Invariants:
  - work of one arena is ordered: a call on a new stream first waits for the stream used before;
  - what a graph leaves in the pool is copied out before another graph of the arena runs, or it is
    held (``hot``), so captures may reuse each other's memory freely;
  - the pool of a failed capture is never captured into again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from gfxgraph.callables import capture_once
from gfxgraph.capture.record.streams import wait_for
from gfxgraph.capture.replay import hang_watch
from gfxgraph.core.locks import new_lock
from gfxgraph.core.memory_budget import Held, Prediction, shown, to_evict
from gfxgraph.process import process

_arenas: dict[int, Arena] = {}
"""By device."""
_lock = new_lock()


def arena_of(state: process.Process, device_index: int) -> Arena:
    """The arena of a device; a new one after the bridge was switched off and on."""
    with _lock:
        found = _arenas.get(device_index)
        if found is None or found.state is not state:
            if state.hang_watch is None:  # callables without enable() are watched, too
                hang_watch.start(state, [])
            found = _arenas[device_index] = Arena(state, device_index)
        return found


class Contexts(threading.local):
    """The context that driver calls need in each thread.

    A thread that has launched nothing through torch has none. There CUDA's driver refuses a launch, and crashes with
    a segmentation fault if a node of a graph exec is updated (CUDA 13.0, seen on an H100; docs/decisions/0101).
    """

    devices: frozenset[int] = frozenset()
    """Devices that this thread has used: the context of one of them is current in it."""

    def give(self, device_index: int) -> None:
        """Make a context current in this thread.

        Querying a stream would do this as well, but ends a capture of another thread.
        """
        if device_index not in self.devices:
            torch.zeros(1, device=f"cuda:{device_index}")
            self.devices |= {device_index}


class Tenant(Protocol):
    """Something that keeps memory in an arena and can be evicted (captured_signature.py)."""

    used_at: int

    @property
    def nbytes(self) -> int: ...
    @property
    def is_captured(self) -> bool: ...
    def evict(self, why: str) -> None: ...
    def owner(self) -> Any: ...
    def named_graphs(self) -> list[tuple[Any, str]]: ...
    def report(self) -> dict[str, Any]: ...


class Arena:
    """Pool, capture stream, order of work and memory budget of one device."""

    def __init__(self, state: process.Process, device_index: int) -> None:
        self.state = state
        self.device_index = device_index
        self.contexts = Contexts()
        self.lock = new_lock()
        self.entries: weakref.WeakSet[Tenant] = weakref.WeakSet()
        self.n_uses = 0
        self.stream: Any = None
        self._pool: weakref.ref[capture_once.SharedPool] | None = None
        self.last_stream: Any = None
        self.last_raw = -1
        """Handle of the stream that ran the arena's last work."""
        self.limit: int | None = None
        """Bytes that graphs may take; None for what the cap leaves of the device."""
        self.renew()

    def renew(self) -> None:
        """Use a new pool and stream for future captures; existing graphs keep theirs."""
        with torch.cuda.device(self.device_index):
            self._pool = None
            self.stream = torch.cuda.Stream()

    @property
    def pool(self) -> capture_once.SharedPool:
        """The pool for captures. They hold it: when the last is gone its memory is freed, and the next capture makes
        a new one.
        """
        pool = self._pool() if self._pool is not None else None
        if pool is None:
            pool = self.new_pool()
            self._pool = weakref.ref(pool)
        return pool

    def new_pool(self) -> capture_once.SharedPool:
        """A pool that nothing else uses."""
        with torch.cuda.device(self.device_index):
            return capture_once.SharedPool(self.state, self.stream)

    # -- order of work ----------------------------------------------------------------------------

    def follow(self, stream: Any) -> None:
        """Make ``stream`` wait for the arena's last work, and record it as the latest."""
        if self.last_stream is not None and self.last_stream.cuda_stream != stream.cuda_stream:
            stream.wait_stream(self.last_stream)
        self.last_stream = stream
        self.last_raw = stream.cuda_stream

    def wait_for_all(self) -> None:
        """Wait until no work of the arena is running: each use waits for the one before, so waiting for the last is
        enough.

        Does not wait for the device: that is refused while anybody captures on it, and ends that capture.
        """
        for stream in (self.stream, self.last_stream):
            if stream is None:
                continue
            with torch.cuda.stream(stream):
                is_capturing = torch.cuda.is_current_stream_capturing()
            if not is_capturing:
                wait_for(self.state, stream)

    def use(self, entry: Tenant) -> None:
        """Mark an entry as just used."""
        self.n_uses += 1
        entry.used_at = self.n_uses

    # -- budget -----------------------------------------------------------------------------------

    def reserved(self) -> int:
        """Bytes that torch's allocator has reserved on the device."""
        return int(torch._C._cuda_memoryStats(self.device_index)["reserved_bytes"]["all"]["current"])

    def graph_nbytes(self) -> int:
        """Bytes that the arena's captures take."""
        return sum(entry.nbytes for entry in list(self.entries))

    def cap(self) -> int:
        """The most bytes that graphs may take: the limit, and never more than GFXGRAPH_VRAM_CAP leaves."""
        free, total = torch.cuda.mem_get_info(self.device_index)
        stats = torch._C._cuda_memoryStats(self.device_index)
        # What torch caches without using it is freed when needed; some of it may be the graphs' own.
        cached = stats["reserved_bytes"]["all"]["current"] - stats["allocated_bytes"]["all"]["current"]
        others = max(0, total - free - max(self.graph_nbytes(), cached))
        cap = max(0, int(total * self.state.settings.vram_cap) - others)
        return cap if self.limit is None else min(cap, self.limit)

    def nominal_cap(self) -> int:
        """``cap()`` if nobody else used the device; calls no driver, so any thread may call it."""
        cap = int(torch.cuda.get_device_properties(self.device_index).total_memory * self.state.settings.vram_cap)
        return cap if self.limit is None else min(cap, self.limit)

    def report(self) -> list[dict[str, Any]]:
        """Memory of every capture, largest first."""
        return sorted((entry.report() for entry in list(self.entries)), key=lambda row: -row["pool_bytes"])

    def labels(self) -> dict[int, str]:
        """Function and signature of every graph, by the graph's identity."""
        return {id(graph): name for entry in list(self.entries) for graph, name in entry.named_graphs()}

    def padding(self) -> list[dict[str, Any]]:
        """Calls and padding by function and bucket, for callables with buckets."""
        owners = {id(each): each for entry in list(self.entries) if (each := entry.owner()) is not None}
        return [row for each in owners.values() for row in each.padding()]

    def make_room(self, needed: int, keep: Tenant | None = None) -> bool:
        """Evict the least recently used captures until ``needed`` bytes fit under the cap.

        Returns:
            False if they cannot fit; then nothing was evicted.
        """
        cap, used = self.cap(), self.graph_nbytes()
        if needed <= cap - used:
            return True
        entries = {id(entry): entry for entry in list(self.entries) if entry is not keep and entry.is_captured}
        held = [Held(key, entry.nbytes, entry.used_at) for key, entry in entries.items()]
        if needed > cap - used + sum(item.nbytes for item in held):
            self.state.report(
                "over_cap", "a capture would exceed the limit for graphs; these calls run eagerly", shown(needed)
            )
            return False
        for key in to_evict(held, needed, cap - used):
            entries[key].evict("to make room under the memory limit")
        if not any(entry.is_captured for entry in list(self.entries)):
            torch.cuda.empty_cache()  # the pool is empty: return its memory to the device
        return True

    def account(self, needed: int) -> dict[str, str]:
        """The fields of `vram_cap_exceeded`."""
        return {"needed": shown(needed), "cap": shown(self.cap()), "used": shown(self.graph_nbytes())}

    def drop_all(self) -> None:
        """Evict everything, because a capture ran out of memory."""
        for entry in list(self.entries):
            entry.evict("a capture ran out of memory")
        self.renew()
        torch.cuda.empty_cache()

    def predict(self, captures: Sequence[Callable[[Any], Any]]) -> Prediction:
        """Predict what captures will take, by making the first two in a pool that is thrown away.

        Args:
            captures: largest first; each takes a pool, captures into it and returns what holds the graph.
        """
        pool = self.new_pool()
        made, grown = [], []
        for make in captures[:2]:
            before = self.reserved()
            made.append(make(pool))
            grown.append(max(0, self.reserved() - before))
        made.clear()
        return Prediction(grown[0], grown[1] if len(grown) > 1 else 0)


def of_process(state: process.Process | None) -> list[Arena]:
    """The arenas of ``state``; others are from before the bridge was switched off or on."""
    return [arena for arena in list(_arenas.values()) if arena.state is state]


def memory_report() -> dict[str, Any]:
    """Memory that graphed callables take, by device, function and bucket, in bytes.

    Returns:
        ``{"devices": [{"device", "cap_bytes", "graph_bytes", "captures": [...]}]}``; each capture says
        ``function``, ``signature``, ``input_bytes``, ``output_bytes``, ``pool_bytes`` (what it added to
        the shared pool), ``n_graphs``, ``n_calls``.
    """
    devices = []
    for arena in of_process(process.current()):
        captures = arena.report()
        if captures:
            devices.append(
                {
                    "device": f"cuda:{arena.device_index}",
                    "cap_bytes": arena.cap(),
                    "graph_bytes": arena.graph_nbytes(),
                    "captures": captures,
                }
            )
    return {"devices": devices}
