"""Stale pointers: refuse to replay a graph whose kernels would touch freed memory.

At capture every pointer among kernel arguments is looked up. Memory that the program pins, and memory
in the graph's own pool, cannot become stale. The rest is watched, at no cost to a replay
as long as nothing is freed:

    memory of a tensor that Python knows   a finalizer on its storage: exact and immediate
    another graph's pool                   checked again when a graph is reset or a cache emptied
    memory that only C++ knows             the same, and periodically (cuBLAS workspaces, for one)

Words inside larger arguments of torch's own kernels may be left over from other calls; of those only
memory without a Python object is watched. Everything else that they refer to is on the tape.

Invariant: a finalizer only sets flags; whatever needs torch happens at the next replay.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gfxgraph.core.fault_report import TensorUse
from gfxgraph.errors import ReplayError
from gfxgraph.guard.live_memory import DEFAULT_POOL, LiveBlock, LiveMemory, n_frees
from gfxgraph.guard.nodes import SegmentNode
from gfxgraph.guard.tensor_names import TensorNames, describe, device_tensors
from gfxgraph.process import process

if TYPE_CHECKING:
    from gfxgraph.capture.replay.program import Program

# Minimum interval between searches for memory that only C++ knows.
_POLL_S = 0.5
# For this many pointers, every object of the process is searched for the tensor's name.
_SEARCHES = 16


@dataclass(slots=True, eq=False)
class Pointer:
    """A pointer that may become stale."""

    position: int
    node: SegmentNode
    address: int
    pool: tuple[int, int]
    tensor: str = "memory"
    allocated: str = ""
    is_gone: bool = False
    has_block: bool = True
    references: list[Any] = field(default_factory=list)
    """To the storages at that address that Python knows; it is stale when the last of them is gone."""

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
        is_dirty: the next replay must check; set by finalizers, read by every replay.
        unchecked: nodes whose arguments are unknown.
    """

    watches: list[Pointer] = field(default_factory=list)
    unchecked: list[tuple[int, SegmentNode]] = field(default_factory=list)
    is_dirty: bool = False
    has_moved: bool = False
    """Whether memory may have been freed without a finalizer."""
    _polled_at: float = 0.0
    _frees: tuple[int, int] = (0, 0)

    def add(
        self, nodes: list[SegmentNode], program: Program, own_pools: set[tuple[int, int]], names: TensorNames
    ) -> None:
        """Look up the pointers of one segment's nodes and watch those that can become stale."""
        memory = LiveMemory()
        pinned = Storages((t for t in program.externals.values() if isinstance(t, Tensor) and t.is_cuda), memory)
        known: Storages | None = None
        for position, node in enumerate(nodes):
            if node.why_unchecked:
                self.unchecked.append((position, node))
            for pointer in node.pointers:
                block = memory.block_at(pointer.address)
                if (block is not None and block.pool in own_pools) or pinned.holding(pointer.address, block):
                    continue
                if known is None:
                    known = Storages(device_tensors(), memory)
                tensors = known.holding(pointer.address, block)
                on_tape = node.entry is not None
                if on_tape and not pointer.is_direct and tensors:
                    continue
                is_free = block is not None and not block.is_live
                if not tensors and (block is None or (is_free and (on_tape or block.pool != DEFAULT_POOL))):
                    continue  # not torch's memory, or a left-over word
                self._watch(position, node, pointer.address, block, tensors, names)
        self._frees = n_frees()

    def _watch(
        self,
        position: int,
        node: SegmentNode,
        address: int,
        block: LiveBlock | None,
        tensors: list[Tensor],
        names: TensorNames,
    ) -> None:
        pool = block.pool if block is not None else DEFAULT_POOL
        watch = Pointer(position, node, address, pool, allocated=block.where if block is not None else "")
        if tensors:
            called = {names.of(tensor, search=len(self.watches) < _SEARCHES): tensor for tensor in reversed(tensors)}
            name = next(filter(None, called), "")
            tensor = called.get(name, tensors[0])
            watch.tensor = f"`{name}` {describe(tensor)}" if name else f"a tensor {describe(tensor)}"
            watch.has_block = block is not None
            if pool == DEFAULT_POOL:
                storages = {id(s): s for s in (tensor.untyped_storage() for tensor in tensors)}
                died = _mark_when_gone(self, watch)
                watch.references = [weakref.ref(storage, died) for storage in storages.values()]
        elif block is not None and not block.is_live:
            watch.is_gone = self.is_dirty = True
        elif block is not None:
            watch.tensor = f"{block.requested} bytes that no Python object refers to"
        if not any(w.address == address and w.position == position for w in self.watches):
            self.watches.append(watch)

    @property
    def needs_polls(self) -> bool:
        return any(not watch.references for watch in self.watches)

    def check(self) -> None:
        """Check before a launch.

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
            if watch.is_gone or not watch.has_block:
                continue
            block = memory.block_at(watch.address)
            # Blocks in a graph's pool are reused by design: only memory that left the pool is gone.
            if block is None or block.pool != watch.pool:
                watch.is_gone = True
            else:
                watch.is_gone = watch.pool == DEFAULT_POOL and not block.is_live

    def memory_may_be_gone(self) -> None:
        """Memory was freed in bulk: check at the next replay."""
        if self.watches:
            self.has_moved = self.is_dirty = True


def _mark_when_gone(guard: PointerGuard, watch: Pointer) -> Any:
    guard_ref = weakref.ref(guard)

    def died(dead: object) -> None:
        alive = guard_ref()
        # Other references remain: a tensor that only aliases another's memory may go before its owner.
        if any(reference() is not None for reference in watch.references if reference is not dead):
            return
        watch.is_gone = True
        if alive is not None:
            alive.is_dirty = True

    return died


class Storages:
    """Tensors by the memory of their storages, which several may share."""

    def __init__(self, tensors: Iterable[Tensor], memory: LiveMemory) -> None:
        self._by_block: dict[int, list[tuple[int, int, Tensor]]] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address:
                block = memory.block_at(address)
                # 0: memory outside the caching allocator.
                key = block.address if block is not None else 0
                self._by_block.setdefault(key, []).append((address, address + storage.nbytes(), tensor))

    def holding(self, address: int, block: LiveBlock | None) -> list[Tensor]:
        """Tensors whose storage contains ``address``; ``block`` is the block that contains it."""
        near = self._by_block.get(block.address if block is not None else 0, ())
        return [tensor for begin, end, tensor in near if begin <= address < end]


def describe_arguments(nodes: list[SegmentNode], names: TensorNames) -> None:
    """Describe the tensors used by launches outside torch, as far as their pointers show."""
    if all(node.opaque is None for node in nodes):
        return
    on_tape = {use.address: use for node in nodes for use in node.uses}
    memory = LiveMemory()
    known = Storages(device_tensors(), memory)
    for node in nodes:
        if node.opaque is None:
            continue
        for pointer in node.pointers:
            role = f"argument {pointer.argument}"
            tensors = known.holding(pointer.address, memory.block_at(pointer.address))
            named = next((tensor for tensor in tensors if names.of(tensor)), tensors[0] if tensors else None)
            if named is not None:
                nbytes = named.numel() * named.element_size()
                node.uses.append(TensorUse(role, names.of(named), describe(named), named.data_ptr(), nbytes))
            elif pointer.address in on_tape:
                node.uses.append(replace(on_tape[pointer.address], role=role))
