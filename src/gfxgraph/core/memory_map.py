"""Where an address lies among known allocations, in words that help a person."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation of device memory.

    Args:
        nbytes: as requested, not as rounded by an allocator.
        name: what the program calls it, or what it is (``output of aten::mm``).
        where: the source line that made it; empty if it was not recorded.
        shape: of the tensor in it, as ``[4, 8] float32``; empty for plain memory.
        is_live: False after it was freed.
    """

    address: int
    nbytes: int
    name: str = ""
    where: str = ""
    shape: str = ""
    is_live: bool = True

    @property
    def end(self) -> int:
        return self.address + self.nbytes

    def __str__(self) -> str:
        # A description is not a name, so it gets no quotes.
        known = [self.name if " " in self.name else f"`{self.name}`" if self.name else "an unnamed tensor"]
        if self.shape:
            known.append(self.shape)
        known.append(size_text(self.nbytes))
        if self.where:
            known.append(f"allocated at {self.where}")
        if not self.is_live:
            known.append("since freed")
        return ", ".join(known)


class MemoryMap:
    """Allocations by address. They may nest (a tensor in its storage): the smallest match is returned."""

    def __init__(self, allocations: Iterable[Allocation] = ()) -> None:
        self.allocations = sorted(allocations, key=lambda a: (a.address, -a.nbytes))

    def holding(self, address: int) -> Allocation | None:
        """The smallest allocation with ``address`` in it; a live one before one that was freed."""
        found = (a for a in self.allocations if a.address <= address < a.end)
        return min(found, key=lambda a: (not a.is_live, a.nbytes), default=None)

    def nearest(self, address: int) -> Allocation | None:
        """The allocation whose edge is nearest to an ``address`` outside all allocations."""
        return min(self.allocations, key=lambda a: (_distance(a, address), not a.is_live), default=None)

    def place(self, address: int) -> str:
        """``512 bytes past the end of `kv_cache`, 2 MiB, allocated at model.py:31``; empty if nothing is known."""
        inside = self.holding(address)
        if inside is not None:
            return f"{bytes_text(address - inside.address)} into {inside}"
        near = self.nearest(address)
        if near is None:
            return ""
        if address >= near.end:
            return f"{bytes_text(address - near.end + 1)} past the end of {near}"
        return f"{bytes_text(near.address - address)} before {near}"


def _distance(allocation: Allocation, address: int) -> int:
    return allocation.address - address if address < allocation.address else address - allocation.end + 1


def size_text(nbytes: int) -> str:
    """``2 MiB``, ``1.5 KiB``, ``12 bytes``."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return bytes_text(nbytes)


def bytes_text(nbytes: int) -> str:
    return "1 byte" if nbytes == 1 else f"{nbytes} bytes"
