"""Budgets of graph memory: what must go to make room.

Plain numbers only: other rooms measure and free the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """One capture and its memory: ``used_at`` counts uses, larger is later."""

    key: int
    nbytes: int
    used_at: int


def to_evict(held: Iterable[Held], needed: int, room: int) -> Sequence[int]:
    """Keys of the least recently used captures to drop so that ``needed`` more bytes fit into ``room``.

    ``room`` is the memory left now. The result is empty if it suffices; it has all keys if dropping them is not
    enough.
    """
    gone: list[int] = []
    for item in sorted(held, key=lambda item: item.used_at):
        if needed <= room:
            break
        gone.append(item.key)
        room += item.nbytes
    return gone


def shown(nbytes: int) -> str:
    """Bytes as text."""
    return f"{nbytes / MIB:.1f} MiB" if abs(nbytes) >= MIB else f"{nbytes / 1024:.1f} KiB"
