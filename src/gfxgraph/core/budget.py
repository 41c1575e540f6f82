"""Budgets of graph memory: what a further capture will need, and what must go to make room.

Plain numbers; who measures them and who frees is the runtime's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes that captures of one function will take, from two of them made in a pool thrown away.

    ``first`` is what the largest takes, ``second`` what the next one adds to the same pool.
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

    ``room`` is what is left now. Empty where nothing has to go; all of them where that is not enough.
    """
    gone: list[int] = []
    for item in sorted(held, key=lambda item: item.used_at):
        if needed <= room:
            break
        gone.append(item.key)
        room += item.nbytes
    return gone


def shown(nbytes: int) -> str:
    """Bytes for people."""
    return f"{nbytes / MIB:.1f} MiB" if abs(nbytes) >= MIB else f"{nbytes / 1024:.1f} KiB"
