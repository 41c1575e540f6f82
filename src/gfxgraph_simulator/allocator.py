"""Ownership of device memory: a caching allocator with private pools that behaves like torch's CUDA allocator.

Enters: byte counts, stream ids, pool ids.
Stays out: tensors, graphs.

Behaviour of CUDACachingAllocator that programs and tests can see: requests round to 512 bytes; up to
1 MiB come from 2 MiB segments, up to 10 MiB from 20 MiB segments, larger ones get their own; best fit;
blocks split and merge; a free block belongs to the stream it was made for; a private pool shares nothing.
Freed bytes keep their contents.
"""

from __future__ import annotations

import itertools
import sys
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from gfxgraph_simulator.device_memory import DeviceMemory

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)

_ROUND = 512
_SMALL = 1 << 20
_SMALL_SEGMENT = 2 << 20
_LARGE = 10 << 20
_LARGE_SEGMENT = 20 << 20
_GRANULE = 2 << 20
_STATS = (
    "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes "
    "requested_bytes"
)
_NO_USERS = (
    'it->second->use_count > 0 INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":2799, please '
    "report a bug to PyTorch. "
)


class OutOfDeviceMemory(Exception):
    """Out of memory; installation.py turns it into torch's error."""

    def __init__(self, requested: int) -> None:
        super().__init__(requested)
        self.requested = requested


@dataclass(eq=False, slots=True)
class Block:
    address: int
    nbytes: int
    segment: Segment
    stream: int
    requested: int = 0
    allocated: bool = False
    before: Block | None = None
    after: Block | None = None
    frames: list[dict[str, object]] = field(default_factory=list)

    def key(self) -> tuple[int, int]:
        return (self.nbytes, self.address)


@dataclass(eq=False, slots=True)
class Segment:
    address: int
    nbytes: int
    pool: Pool
    stream: int
    small: bool
    first: Block | None = None
    allocated_nbytes: int = 0

    def blocks(self) -> list[Block]:
        found = []
        block = self.first
        while block is not None:
            found.append(block)
            block = block.after
        return found


@dataclass(eq=False, slots=True)
class Pool:
    id: PoolId
    use_count: int = 0
    segments: list[Segment] = field(default_factory=list)
    no_split: bool = False
    has_run: bool = False  # a graph in this pool was launched: free memory holds what kernels left
    fence_nbytes: int = 0  # kept free on both sides of each segment
    # (stream, small) -> free blocks as (nbytes, address, block), ascending
    free: dict[tuple[int, bool], list[tuple[int, int, Block]]] = field(default_factory=dict)


@dataclass(slots=True)
class Stat:
    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def add(self, amount: int) -> None:
        self.current += amount
        if amount > 0:
            self.allocated += amount
            # Not by max, which a capture replaces: an interrupt in the program's Python would strike here.
            self.peak = self.current if self.current > self.peak else self.peak
        else:
            self.freed -= amount

    def as_dict(self) -> dict[str, int]:
        return {"current": self.current, "peak": self.peak, "allocated": self.allocated, "freed": self.freed}


class Allocator:
    """Blocks, segments and pools of one arena. Thread-safe."""

    def __init__(self, arena: DeviceMemory, total_nbytes: int) -> None:
        self.arena = arena
        self.total_nbytes = total_nbytes
        self.fraction = 1.0
        self.pools: dict[PoolId, Pool] = {DEFAULT_POOL: Pool(DEFAULT_POOL, use_count=1)}
        self.routes: list[tuple[PoolId, Callable[[int], bool]]] = []
        self.live: dict[int, Block] = {}
        self.stats: dict[str, dict[str, Stat]] = {
            name: {kind: Stat() for kind in ("all", "small_pool", "large_pool")} for name in _STATS.split()
        }
        self.num_ooms = 0
        self.num_retries = 0
        self.on_new_segment: Callable[[], None] = lambda: None
        # The mode set by torch.cuda.memory._record_memory_history: None, "state" or "all".
        self.history: str | None = None
        self.trace: deque[dict[str, object]] = deque(maxlen=100_000)
        self._lock = threading.Lock()
        # A separate, reentrant lock: a graph may die, and release its pool, inside any call here.
        self._use_lock = threading.RLock()
        self._pending: deque[Block] = deque()
        self._gaps: list[tuple[int, int]] = [(arena.base, arena.nbytes)]
        self._pool_numbers = itertools.count(1)
        self._graph_pool_numbers = itertools.count(1)

    # ---- blocks -------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: int) -> Block:
        """Return a block of at least ``nbytes``.

        Raises:
            OutOfDeviceMemory: nothing fits, cached segments included.
        """
        size = max(_ROUND, -(-nbytes // _ROUND) * _ROUND)
        with self._lock:
            pool = self._pool_for(stream)
            block = self._best_fit(pool, size, stream) or self._from_new_segment(pool, size, stream)
            self._split(block, size)
            block.allocated = True
            block.requested = nbytes
            block.segment.allocated_nbytes += block.nbytes
            self.live[block.address] = block
            self._count(block, 1)
        if self.history is not None:
            block.frames = _frames()
            if self.history == "all":
                self.trace.append(_event("alloc", block.address, nbytes, block.frames))
        if self._pending:
            self._drain()
        return block

    def free(self, block: Block) -> None:
        """Return ``block``; safe from a finalizer that runs in the middle of another call."""
        self._pending.append(block)
        self._drain()

    def _drain(self) -> None:
        # A finalizer may run while this thread holds the lock; then the holder drains on its way out.
        while self._pending and self._lock.acquire(blocking=False):
            try:
                while self._pending:
                    self._release(self._pending.popleft())
            finally:
                self._lock.release()

    def _release(self, block: Block) -> None:
        if self.history == "all":
            self.trace.append(_event("free_completed", block.address, block.requested, []))
        block.allocated = False
        block.frames = []
        self.live.pop(block.address, None)
        segment = block.segment
        segment.allocated_nbytes -= block.nbytes
        self._count(block, -1)
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.allocated:
                self._unlist(neighbour)
                block = self._merge(block, neighbour)
        self._list(block)

    def _count(self, block: Block, sign: int) -> None:
        kinds = ("all", "small_pool" if block.segment.small else "large_pool")
        for name, amount in (
            ("allocation", 1),
            ("active", 1),
            ("allocated_bytes", block.nbytes),
            ("active_bytes", block.nbytes),
            ("requested_bytes", block.requested),
        ):
            for kind in kinds:
                self.stats[name][kind].add(sign * amount)

    def _best_fit(self, pool: Pool, size: int, stream: int) -> Block | None:
        small = size <= _SMALL
        free = pool.free.get((stream, small))
        if not free:
            return None
        at = bisect_left(free, (size,))
        if at == len(free):
            return None
        return free.pop(at)[2]

    def _split(self, block: Block, size: int) -> None:
        if block.segment.pool.no_split:
            return
        rest = block.nbytes - size
        if rest < (_ROUND if block.segment.small else _SMALL + 1):
            return
        tail = Block(block.address + size, rest, block.segment, block.stream, before=block, after=block.after)
        if block.after is not None:
            block.after.before = tail
        block.after = tail
        block.nbytes = size
        self._list(tail)

    def _merge(self, block: Block, other: Block) -> Block:
        low, high = (block, other) if block.address < other.address else (other, block)
        low.nbytes += high.nbytes
        low.after = high.after
        if high.after is not None:
            high.after.before = low
        return low

    def _list(self, block: Block) -> None:
        key = (block.stream, block.segment.small)
        insort(block.segment.pool.free.setdefault(key, []), (*block.key(), block), key=lambda entry: entry[:2])

    def _unlist(self, block: Block) -> None:
        free = block.segment.pool.free[(block.stream, block.segment.small)]
        del free[bisect_left(free, block.key(), key=lambda entry: entry[:2])]

    # ---- segments -----------------------------------------------------------------------------------

    def _from_new_segment(self, pool: Pool, size: int, stream: int) -> Block:
        small = size <= _SMALL
        if pool.fence_nbytes:
            nbytes = size  # real segments take 2 MiB and more, but filling and comparing that takes a CPU seconds
        elif small:
            nbytes = _SMALL_SEGMENT
        elif size < _LARGE:
            nbytes = _LARGE_SEGMENT
        else:
            nbytes = -(-size // _GRANULE) * _GRANULE
        self.on_new_segment()
        fence = pool.fence_nbytes
        address = self._reserve(nbytes + 2 * fence)
        if address is None:
            self.num_retries += 1
            self._release_cached(None)
            address = self._reserve(nbytes + 2 * fence)
        if address is None:
            self.num_ooms += 1
            raise OutOfDeviceMemory(size)
        address += fence
        segment = Segment(address, nbytes, pool, stream, small)
        segment.first = block = Block(address, nbytes, segment, stream)
        pool.segments.append(segment)
        if self.history == "all":
            self.trace.append(_event("segment_alloc", address, nbytes, []))
        self._count_segment(segment, 1)
        return block

    def _reserve(self, nbytes: int) -> int | None:
        limit = int(self.total_nbytes * self.fraction)
        if self.stats["reserved_bytes"]["all"].current + nbytes > limit:
            return None
        for at, (address, room) in enumerate(self._gaps):
            if room >= nbytes:
                if room == nbytes:
                    del self._gaps[at]
                else:
                    self._gaps[at] = (address + nbytes, room - nbytes)
                return address
        return None

    def _count_segment(self, segment: Segment, sign: int) -> None:
        for kind in ("all", "small_pool" if segment.small else "large_pool"):
            self.stats["segment"][kind].add(sign)
            self.stats["reserved_bytes"][kind].add(sign * segment.nbytes)

    def empty_cache(self, pool_id: PoolId | None = None) -> None:
        """Unmap every segment without a live block; a private pool's only once the pool is unused."""
        # A MemPool may die, and call this, while this thread holds the lock: then the next call does the work.
        if not self._lock.acquire(blocking=pool_id is None):
            return
        try:
            self._release_cached(pool_id)
        finally:
            self._lock.release()
        self._drain()

    def _release_cached(self, pool_id: PoolId | None) -> None:
        for pool in list(self.pools.values()):
            if pool_id is not None and pool.id != pool_id:
                continue
            if pool.id != DEFAULT_POOL and pool.use_count > 0:
                continue
            for segment in [segment for segment in pool.segments if not segment.allocated_nbytes]:
                first = segment.first
                assert first is not None and first.after is None  # neighbours have been merged
                self._unlist(first)
                pool.segments.remove(segment)
                self._count_segment(segment, -1)
                fence = pool.fence_nbytes
                self._give_back(segment.address - fence, segment.nbytes + 2 * fence)
            if pool.id != DEFAULT_POOL and not pool.segments:
                del self.pools[pool.id]

    def _give_back(self, address: int, nbytes: int) -> None:
        self.arena.drop_pages(address, nbytes)
        insort(self._gaps, (address, nbytes))
        merged: list[tuple[int, int]] = []
        for start, room in self._gaps:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self._gaps = merged

    # ---- pools --------------------------------------------------------------------------------------

    def new_user_pool_id(self) -> PoolId:
        return (0, next(self._pool_numbers))

    def new_graph_pool_id(self) -> PoolId:
        return (next(self._graph_pool_numbers), 0)

    def retain_pool(self, pool_id: PoolId) -> None:
        """Add a user to a pool; create the pool for a new id.

        Raises:
            RuntimeError: the pool exists and its users are all gone, as torch asserts.
        """
        with self._use_lock:
            pool = self.pools.get(pool_id)
            if pool is None:
                pool = self.pools[pool_id] = Pool(pool_id)
            elif pool.use_count == 0:
                raise RuntimeError(_NO_USERS)
            pool.use_count += 1

    def release_pool(self, pool_id: PoolId) -> None:
        with self._use_lock:
            pool = self.pools.get(pool_id)
            if pool is None or pool.use_count == 0:
                raise RuntimeError("uc >= 0 INTERNAL ASSERT FAILED: pool released more often than used")
            pool.use_count -= 1

    def use_count(self, pool_id: PoolId) -> int:
        pool = self.pools.get(pool_id)
        return pool.use_count if pool is not None else 0

    def begin_route(self, pool_id: PoolId, takes: Callable[[int], bool]) -> None:
        """Route allocations for which ``takes(stream)`` is true to ``pool_id``, and count a user of it."""
        if any(routed == pool_id for routed, _ in self.routes):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.retain_pool(pool_id)
        self.routes.append((pool_id, takes))

    def end_route(self, pool_id: PoolId) -> None:
        for at, (routed, _) in enumerate(self.routes):
            if routed == pool_id:
                del self.routes[at]
                return
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    def _pool_for(self, stream: int) -> Pool:
        for pool_id, takes in self.routes:
            if takes(stream):
                return self.pools[pool_id]
        return self.pools[DEFAULT_POOL]

    # -- queries -----------------------------------------------------------------------------------------

    @property
    def reserved_nbytes(self) -> int:
        return self.stats["reserved_bytes"]["all"].current

    def block_at(self, address: int) -> Block | None:
        """The live block that contains ``address``, if any."""
        block = self.live.get(address)
        if block is not None:
            return block
        segments = (each for pool in self.pools.values() for each in pool.segments)
        around = [each for each in segments if each.address <= address < each.address + each.nbytes]
        inside = (each for segment in around for each in segment.blocks() if address < each.address + each.nbytes)
        block = next(inside, None)
        return block if block is not None and block.allocated else None

    def all_segments(self, pool_id: PoolId | None = None) -> list[Segment]:
        pools = [pool for pool in list(self.pools.values()) if pool_id is None or pool.id == pool_id]
        return sorted((each for pool in pools for each in pool.segments), key=lambda segment: segment.address)

    def reset_peaks(self) -> None:
        for kinds in self.stats.values():
            for stat in kinds.values():
                stat.peak = stat.current

    def reset_accumulated(self) -> None:
        for kinds in self.stats.values():
            for stat in kinds.values():
                stat.allocated = stat.freed = 0
        self.num_ooms = self.num_retries = 0


def _frames() -> list[dict[str, object]]:
    """The Python stack in the form of torch's memory history, innermost first."""
    found: list[dict[str, object]] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return found


def _event(action: str, address: int, nbytes: int, frames: list[dict[str, object]]) -> dict[str, object]:
    return {"action": action, "addr": address, "size": nbytes, "stream": 0, "frames": frames}
