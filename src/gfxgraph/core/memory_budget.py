"""Budgets of graph memory: what a further capture will need, and what must go to make room.

Plain numbers only: other rooms measure and free the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted memory of the captures of one function, from two captures in a temporary pool.

    ``first`` is the memory of the largest capture, ``second`` what the next one adds to the same pool.
    """

    first: int
    second: int

    def total(self, n: int) -> int:
        """Bytes for ``n`` captures in one pool, the largest first.

        Source: vLLM 0.33, gpu_model_runner.profile_cudagraph_memory, which takes at least 1 MiB for
        each further one; what a graph adds in one shared pool may be nothing, so no least is taken.
        """
        return self.first + (n - 1) * self.second if n > 0 else 0

    def how_many(self, n: int, room: int) -> int:
        """How many of ``n`` captures fit into ``room`` bytes."""
        if n <= 0 or self.first > room:
            return 0
        return n if self.second <= 0 else min(n, 1 + (room - self.first) // self.second)


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
