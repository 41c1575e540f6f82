"""Tier 3: red zones, bytes around every allocation of a graph that no kernel may write.

Before each replay they are filled with a pattern; afterwards they are compared, to the byte. If one
differs the graph runs again from the same state, node by node, and the node after which it differs
is at fault.

Extents come from the allocator's own history of the capture, so that memory which torch allocates for
itself (workspaces) is covered too, by its exact requested size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.replay.graph_tensors import Layout
from gfxgraph.capture.replay.node_walk import can_walk, walk
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.core.fault_report import TensorUse
from gfxgraph.core.memory_map import Allocation
from gfxgraph.errors import GfxGraphFault
from gfxgraph.guard.live_memory import user_line
from gfxgraph.guard.nodes import SegmentNode
from gfxgraph.guard.redzone_pool import RedZonePool
from gfxgraph.guard.tensor_names import TensorNames, describe
from gfxgraph.process import process

if TYPE_CHECKING:
    from gfxgraph.capture.replay.program import Program, SegmentStep
    from gfxgraph.guard.guard import Guard

PATTERN = 0xA5


@dataclass(slots=True)
class Zone:
    """A range of bytes next to an allocation that must not be written."""

    owner: Allocation
    address: int
    nbytes: int
    first_replay: int = 0

    def tensor(self) -> Tensor:
        return Layout(self.address, (self.nbytes,), (1,), torch.uint8, _device()).tensor()


@dataclass(frozen=True, slots=True)
class Overrun:
    """What was written in a zone.

    Args:
        offset: of the changed byte nearest to the allocation, from the allocation's start.
        n_changed: how many bytes differ.
    """

    zone: Zone
    offset: int
    n_changed: int


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def fill(zones: Sequence[Zone]) -> None:
    for zone in zones:
        zone.tensor().fill_(PATTERN)


def find_overruns(zones: Sequence[Zone]) -> list[Overrun]:
    """The zones that no longer hold the pattern."""
    if not zones:
        return []
    with torch.inference_mode():
        # A single wait for all of them.
        counts = torch.stack([(zone.tensor() != PATTERN).sum() for zone in zones]).tolist()
        found = []
        for zone, n_changed in zip(zones, counts):
            if n_changed:
                changed = (zone.tensor() != PATTERN).nonzero()
                # The byte nearest to the allocation: the last one before it, or the first one after it.
                nearest = changed[-1] if zone.address < zone.owner.address else changed[0]
                found.append(Overrun(zone, zone.address + int(nearest.item()) - zone.owner.address, n_changed))
    return found


class RedZones:
    """The zones of one captured graph."""

    def __init__(self, pool: RedZonePool) -> None:
        self.pool = pool
        self.zones: list[Zone] = []
        self._before: list[tuple[SegmentStep, Rollback]] = []

    def place(self, nodes: Sequence[SegmentNode]) -> None:
        """Find the allocations of the capture, and the zones around them."""
        uses = {use.address: (use, node) for node in nodes for use in node.uses if use.role == "output"}
        extents = _requested()
        for address, nbytes in self.pool.segments():
            size, where = extents.get(address, (0, ""))
            owner = _allocation(address, size or nbytes, where, uses.get(address))
            width = self.pool.zone_nbytes
            self.zones.append(Zone(owner, address - width, width))
            end = address + (size or nbytes)
            self.zones.append(Zone(owner, end, address + nbytes + width - end))

    def arm(self, program: Program) -> None:
        """Before a replay: fill every zone, and save the state from which the replay can be repeated."""
        fill(self.zones)
        self._before = []
        for segment in program.segments:
            places = [*segment.mutated, *program.pool_inputs(segment)]
            self._before.append((segment, Rollback(places, program.generators)))

    def check(self, guard: Guard) -> None:
        """Check after a replay.

        Raises:
            GfxGraphFault: `red_zone_overwritten`, with the first replay that did it.
        """
        overruns = find_overruns(self.zones)
        if not overruns:
            return
        for overrun in overruns:
            overrun.zone.first_replay = overrun.zone.first_replay or guard.n_replays
        first = overruns[0]
        node = self._culprit(guard, [overrun.zone for overrun in overruns])
        process.require().counters.add("guard_faults")
        owner = first.zone.owner
        raise GfxGraphFault(
            "red_zone_overwritten",
            n_changed=first.n_changed,
            offset=first.offset,
            last=owner.nbytes - 1,
            allocation=owner,
            replay=first.zone.first_replay,
            node=node[0] if node is not None else None,
            kernel=(node[1].kernel or node[1].kind) if node is not None else None,
            op=node[1].op if node is not None else None,
            where=node[1].where if node is not None else None,
        )

    def _culprit(self, guard: Guard, zones: list[Zone]) -> tuple[int, SegmentNode] | None:
        """Run the graph again from the same state, node by node, until a zone changes."""
        found: list[tuple[int, SegmentNode]] = []
        for segment, before in self._before:
            if segment.graph is None or not can_walk(segment):
                continue
            after = Rollback(segment.mutated, guard.program.generators)
            fill(zones)
            before.restore()
            nodes = guard.nodes(segment)

            def changed(position: int, _: int, nodes: list[SegmentNode] = nodes) -> bool:
                if find_overruns(zones) and position < len(nodes):
                    found.append((position, nodes[position]))
                    return True
                return False

            try:
                walk(segment, guard.program, changed)
            finally:
                after.restore()
            if found:
                break
        return found[0] if found else None


def _allocation(address: int, nbytes: int, where: str, known: tuple[TensorUse, SegmentNode] | None) -> Allocation:
    if known is None:
        return Allocation(address, nbytes, "memory that no operation returned", where)
    use, node = known
    return Allocation(address, nbytes, use.name or f"output of {node.op}", node.where or where, use.layout)


def _requested() -> dict[int, tuple[int, str]]:
    """The largest requested size at each address since its segment was made, and the line that requested it."""
    found: dict[int, tuple[int, str]] = {}
    traces: Any = torch_names._cuda_memorySnapshot(None)["device_traces"]
    device = torch.cuda.current_device()
    for event in traces[device] if device < len(traces) else ():
        address, nbytes = event["addr"], event["size"]
        if event["action"] in ("segment_alloc", "segment_map"):
            found.pop(address, None)
        elif event["action"] == "alloc" and nbytes > found.get(address, (0, ""))[0]:
            found[address] = nbytes, user_line(event.get("frames") or ())
    return found


class RedZone:
    """A tensor with red zones around it, for kernels that are tested outside of graphs.

    Args:
        size: the tensor's, in elements of each dim.
        dtype: of its elements.
        device: where it lies.
        zone_nbytes: bytes on each side, rounded up to whole elements.
        name: what messages call it.

    Raises:
        TypeError: not a torch dtype.
        ValueError: a negative size, or zones of zero bytes.

    Example:
        zone = RedZone((4, 8), torch.float16)
        my_kernel(zone.tensor)
        zone.check()        # raises GfxGraphFault if a byte outside was written

    Added in 2.0.
    """

    def __init__(
        self,
        size: Sequence[int] | int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cuda",
        zone_nbytes: int = 4096,
        name: str = "",
    ) -> None:
        shape = (size,) if isinstance(size, int) else tuple(size)
        if not all(isinstance(extent, int) and extent >= 0 for extent in shape) or zone_nbytes < 1:
            raise ValueError(
                f"RedZone needs sizes of 0 or more and zones of 1 byte or more: {size!r}, {zone_nbytes!r}"
            )
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"RedZone takes a torch.dtype, not {dtype!r}")
        n = 1
        for extent in shape:
            n *= extent
        pad = -(-zone_nbytes // dtype.itemsize)
        pad += -pad % 32  # keeps the tensor aligned like a newly allocated one
        self.n_pad = pad
        self._dtype = dtype
        self._raw = torch.empty((n + 2 * pad) * dtype.itemsize, dtype=torch.uint8, device=device)
        self._edge = pad * dtype.itemsize
        self.tensor = self._raw.view(dtype)[pad : pad + n].view(shape)
        self.name = name
        self.n_checks = 0
        self.arm()

    def arm(self) -> None:
        """Fill both zones with the pattern."""
        self._raw[: self._edge].fill_(PATTERN)
        self._raw[self._raw.numel() - self._edge :].fill_(PATTERN)

    def whole(self) -> Tensor:
        """The tensor with its zones, ``n_pad`` elements on each side, as one row of its dtype."""
        return self._raw.view(self._dtype)

    def overruns(self) -> list[tuple[int, int]]:
        """(offset from the tensor's start, bytes changed) for each zone that was written."""
        found = []
        begin, end = self._edge, self._raw.numel() - self._edge
        for low, high, nearest in ((0, begin, -1), (end, self._raw.numel(), 0)):
            changed = (self._raw[low:high] != PATTERN).nonzero()
            if len(changed):
                found.append((low + int(changed[nearest].item()) - begin, len(changed)))
        return found

    def check(self) -> None:
        """Raise if a byte outside the tensor was written; the zones are filled again.

        Raises:
            GfxGraphFault: `buffer_overrun`.
        """
        self.n_checks += 1
        found = self.overruns()
        if not found:
            return
        self.arm()
        offset, n_changed = found[0]
        nbytes = self.tensor.nbytes
        name = self.name or TensorNames().of(self.tensor)
        raise GfxGraphFault(
            "buffer_overrun",
            n_changed=n_changed,
            offset=offset,
            last=nbytes - 1,
            allocation=Allocation(self.tensor.data_ptr(), nbytes, name, "", describe(self.tensor)),
            check=self.n_checks,
        )

    def __enter__(self) -> Tensor:
        return self.tensor

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.check()
