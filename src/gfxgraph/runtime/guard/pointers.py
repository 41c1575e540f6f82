"""Stale pointers: a graph whose kernels would touch memory that has been given back is refused.

At capture every pointer among kernel arguments is looked up. What the program pins, and what lies
in the graph's own pool, cannot become stale. What remains is watched, without any cost to a replay
as long as nothing dies:

    memory of a tensor that Python knows   a finalizer on its storage: exact, at once
    another graph's pool                   asked again when a graph is reset or a cache emptied
    memory that only C++ knows             the same, and now and then (cuBLAS workspaces, for one)

Words inside larger arguments of torch's own kernels may be left-overs of other calls; of those only
memory that no Python object stands for is watched. Everything else they name is on the tape.

Invariant: a finalizer only notes and marks; whatever needs torch happens at the next replay.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gfxgraph.core.faults import TensorUse
from gfxgraph.errors import ReplayError
from gfxgraph.runtime import process
from gfxgraph.runtime.guard.live_memory import DEFAULT_POOL, Block, LiveMemory, n_frees
from gfxgraph.runtime.guard.names import Names, describe, device_tensors
from gfxgraph.runtime.guard.nodes import SegmentNode

if TYPE_CHECKING:
    from gfxgraph.runtime.program import Program

# Memory that only C++ knows is looked for again at most so often.
_POLL_S = 0.5


@dataclass(slots=True, eq=False)
class Watch:
    """A pointer that may become stale."""

    position: int
    node: SegmentNode
    address: int
    pool: tuple[int, int]
    tensor: str = "memory"
    allocated: str = ""
    is_gone: bool = False
    has_finalizer: bool = False
    reference: Any = None

    def error(self) -> ReplayError:
        return ReplayError(
            "stale_pointer",
            node=self.position,
            kernel=self.node.kernel or str(self.node.kind),
            op=self.node.op,
            where=self.node.where,
            tensor=self.tensor,
            address=f"{self.address:#x}",
            allocated=self.allocated,
        )


@dataclass(slots=True, eq=False, weakref_slot=True)
class PointerGuard:
    """The watched pointers of one program.

    Attributes:
        is_dirty: the next replay must look; set by finalizers, read by every replay.
        n_pointers: pointers that were looked up.
        unchecked: nodes whose arguments are not known.
    """

    watches: list[Watch] = field(default_factory=list)
    unchecked: list[tuple[int, SegmentNode]] = field(default_factory=list)
    n_pointers: int = 0
    is_dirty: bool = False
    has_moved: bool = False
    """Memory may have been given back that no finalizer tells of."""
    _polled_at: float = 0.0
    _frees: tuple[int, int] = (0, 0)

    def add(self, nodes: list[SegmentNode], program: Program, own_pools: set[tuple[int, int]], names: Names) -> None:
        """Look up the pointers of one segment's nodes and watch those that can become stale."""
        memory = LiveMemory()
        pinned = Storages([t for t in program.externals.values() if isinstance(t, Tensor) and t.is_cuda])
        known: Storages | None = None
        for position, node in enumerate(nodes):
            if node.why_unchecked:
                self.unchecked.append((position, node))
            for pointer in node.pointers:
                block = memory.block_at(pointer.address)
                self.n_pointers += 1
                if (block is not None and block.pool in own_pools) or pinned.holding(pointer.address) is not None:
                    continue
                if known is None:
                    known = Storages(device_tensors())
                tensor = known.holding(pointer.address)
                on_tape = node.entry is not None
                if on_tape and not pointer.is_direct and tensor is not None:
                    continue
                is_free = block is not None and not block.is_live
                if tensor is None and (block is None or (is_free and (on_tape or block.pool != DEFAULT_POOL))):
                    continue  # not torch's memory, or a left-over word
                self._watch(position, node, pointer.address, block, tensor, names)
        self._frees = n_frees()

    def _watch(
        self, position: int, node: SegmentNode, address: int, block: Block | None, tensor: Tensor | None, names: Names
    ) -> None:
        pool = block.pool if block is not None else DEFAULT_POOL
        watch = Watch(position, node, address, pool, allocated=block.where if block is not None else "")
        if tensor is not None:
            name = names.of(tensor)
            watch.tensor = f"`{name}` {describe(tensor)}" if name else f"a tensor {describe(tensor)}"
            if pool == DEFAULT_POOL:
                watch.has_finalizer = True
                watch.reference = weakref.ref(tensor.untyped_storage(), _mark_when_gone(self, watch))
        elif block is not None and not block.is_live:
            watch.is_gone = self.is_dirty = True
        elif block is not None:
            watch.tensor = f"{block.requested} bytes that no Python object stands for"
        if not any(w.address == address and w.position == position for w in self.watches):
            self.watches.append(watch)

    @property
    def needs_polls(self) -> bool:
        return any(not watch.has_finalizer for watch in self.watches)

    def check(self) -> None:
        """Before a launch.

        Raises:
            ReplayError: `stale_pointer`.
        """
        if self.has_moved or (self.needs_polls and time.monotonic() - self._polled_at > _POLL_S):
            self._poll()
        gone = next((watch for watch in self.watches if watch.is_gone), None)
        if gone is None:
            self.is_dirty = self.has_moved
            return
        self.is_dirty = True
        process.require().counters.add("guard_refused")
        raise gone.error()

    def _poll(self) -> None:
        self.has_moved = False
        self._polled_at = time.monotonic()
        frees = n_frees()
        if frees == self._frees:
            return
        self._frees = frees
        memory = LiveMemory()
        for watch in self.watches:
            if watch.has_finalizer:
                continue
            block = memory.block_at(watch.address)
            # In a graph's pool blocks are reused by design: only memory that left the pool is gone.
            if block is None or block.pool != watch.pool:
                watch.is_gone = True
            else:
                watch.is_gone = watch.pool == DEFAULT_POOL and not block.is_live

    def memory_may_be_gone(self) -> None:
        """Somebody gave memory back in bulk: look at the next replay."""
        if self.needs_polls:
            self.has_moved = self.is_dirty = True


def _mark_when_gone(guard: PointerGuard, watch: Watch) -> Any:
    guard_ref = weakref.ref(guard)

    def died(_: object) -> None:
        alive = guard_ref()
        watch.is_gone = True
        if alive is not None:
            alive.is_dirty = True

    return died


class Storages:
    """Tensors by the memory of their storages."""

    def __init__(self, tensors: list[Tensor]) -> None:
        ranges: dict[tuple[int, int], Tensor] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address:
                ranges.setdefault((address, address + storage.nbytes()), tensor)
        self._ranges = sorted(ranges.items(), key=lambda item: item[0])

    def holding(self, address: int) -> Tensor | None:
        low, high = 0, len(self._ranges)
        while low < high:
            middle = (low + high) // 2
            if self._ranges[middle][0][0] <= address:
                low = middle + 1
            else:
                high = middle
        if low and address < self._ranges[low - 1][0][1]:
            return self._ranges[low - 1][1]
        return None


def describe_arguments(nodes: list[SegmentNode], names: Names) -> None:
    """Say which tensors the launches that torch did not make work on, as far as their pointers tell."""
    on_tape = {use.address: use for node in nodes for use in node.uses}
    known: Storages | None = None
    for node in nodes:
        if node.opaque is None:
            continue
        known = known or Storages(device_tensors())
        for pointer in node.pointers:
            role = f"argument {pointer.argument}"
            tensor = known.holding(pointer.address)
            if tensor is not None:
                place = TensorUse(role, names.of(tensor), describe(tensor), tensor.data_ptr(), tensor.nbytes)
                node.uses.append(place)
            elif pointer.address in on_tape:
                node.uses.append(replace(on_tape[pointer.address], role=role))
