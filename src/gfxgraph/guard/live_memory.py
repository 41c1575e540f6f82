"""A snapshot of the caching allocator: segments, blocks, and the code that allocated them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.record.user_lines import is_library_file
from gfxgraph.capture.replay.graph_tensors import all_segments
from gfxgraph.core.memory_map import Allocation
from gfxgraph.guard.tensor_names import TensorNames, describe

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block of the allocator, in use or free."""

    address: int
    nbytes: int
    requested: int
    is_live: bool
    pool: PoolId
    where: str

    @property
    def end(self) -> int:
        return self.address + self.nbytes


class LiveMemory:
    """A snapshot of the caching allocator."""

    def __init__(self) -> None:
        self.blocks: list[LiveBlock] = []
        self.segments: list[tuple[int, int, PoolId]] = []
        for segment in all_segments():
            pool = tuple(segment.get("segment_pool_id", DEFAULT_POOL))
            self.segments.append((segment["address"], segment["address"] + segment["total_size"], pool))
            at = segment["address"]
            for block in segment["blocks"]:
                # Some versions omit the address: blocks are in order.
                at = block.get("address", at)
                self.blocks.append(
                    LiveBlock(
                        at,
                        block["size"],
                        block.get("requested_size") or block["size"],
                        block["state"] == "active_allocated",
                        pool,
                        user_line(block.get("frames") or ()),
                    )
                )
                at += block["size"]
        self.blocks.sort(key=lambda block: block.address)
        self._starts = [block.address for block in self.blocks]

    def block_at(self, address: int) -> LiveBlock | None:
        """The block that contains ``address``, live or not; None if the memory is not the allocator's."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or self.blocks[at].end <= address:
            return None
        return self.blocks[at]


def user_line(frames: Iterable[Any]) -> str:
    """The innermost of an allocation's frames that is neither torch's nor ours."""
    for frame in frames:
        name = frame.get("filename", "")
        if name and name != "??" and not name.endswith((".cpp", ".h", ".so")) and not is_library_file(name):
            return f"{name}:{frame['line']}"
    return ""


class Lines:
    """Makes the allocator record the Python line of each allocation, once there is a device.

    torch must not be asked earlier: ``_cuda_isHistoryEnabled`` reads through a null pointer while CUDA is not
    initialized (torch 2.11, H100), and ``_record_memory_history`` would initialize it.

    Args:
        every_event: also record sizes and lines of memory freed since.
    """

    def __init__(self, *, every_event: bool = False) -> None:
        self._every_event = every_event
        self._is_wanted = True
        self._is_ours = False
        when_there_is_a_device(self._begin)

    def _begin(self) -> None:
        if not self._is_wanted:
            return
        asked = torch_names._cuda_isHistoryEnabled
        if asked is not None and asked() and not self._every_event:
            return  # already recorded on another's request
        self._is_ours = True
        record = torch_names._record_memory_history
        if self._every_event:
            record("all", context="alloc", stacks="python", max_entries=20_000)
        else:
            record("state", context="state", stacks="python")

    def forget(self) -> None:
        """Stop recording."""
        self._is_wanted = False
        if self._is_ours:
            self._is_ours = False
            torch_names._record_memory_history(None)


def when_there_is_a_device(call: Callable[[], None]) -> None:
    """Call now if torch has initialized the device, else when it does."""
    torch_names._lazy_call(call)  # type: ignore[no-untyped-call]


def n_frees() -> tuple[int, int]:
    """Number of blocks and segments freed so far; takes some 20 us on a real device."""
    stats = torch_names._cuda_memoryStats(torch.cuda.current_device())
    return stats["allocation"]["all"]["freed"], stats["segment"]["all"]["freed"]


def allocations(memory: LiveMemory, tensors: Iterable[Tensor], names: TensorNames) -> list[Allocation]:
    """Every live block, and every tensor in it, with names."""
    found = [Allocation(block.address, block.requested, "", block.where) for block in memory.blocks if block.is_live]
    named: dict[tuple[int, int], Allocation] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        address, nbytes = storage.data_ptr(), storage.nbytes()
        if not address:
            continue
        name = names.of(tensor)
        block = memory.block_at(address)
        key = address, nbytes
        # Of several tensors on one storage, take one with a name, and among those the largest.
        if key not in named or (name and not named[key].name):
            where = block.where if block is not None else ""
            named[key] = Allocation(address, nbytes, name, where, describe(tensor))
    taken = {address for address, _ in named}
    return [*(a for a in found if a.address not in taken), *named.values()]
