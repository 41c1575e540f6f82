"""Asks the other ranks of a job through torch.distributed's store: no collective, no GPU.

Every rank's watch thread answers for its rank, so a rank that hangs in a collective still reports. Nobody waits for
ranks but one that asks where they are, and it answers meanwhile: ranks that hang together ask together.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

_POLL_S = 0.05
NO_ANSWER = "does not answer: it has ended, or is not watched"


class Peers:
    """Args:
    store: shared by all ranks; used from the watch's thread as well as the program's.
    group: what it belongs to.
    """

    def __init__(self, store: Any, rank: int, size: int, group: object = None) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.group = weakref.ref(group) if group is not None else None
        self.is_over = threading.Event()
        self.is_lost = False
        """Whether the store has failed."""
        self._n_answered = 0

    def post(self, topic: str, text: str) -> None:
        self.store.set(topic, text)

    def read(self, topic: str) -> str | None:
        """What was posted; None if nothing was yet. The store itself can only wait for what is not there."""
        return str(self.store.get(topic).decode()) if self.store.check([topic]) else None

    def ask(self, mine: str, wait_s: float) -> list[str]:
        """Ask every rank where it is; the ranks' watch threads answer."""
        number = self.store.add("asked", 1)
        deadline = time.monotonic() + wait_s
        found: list[str | None] = [None] * self.size
        while True:
            self.answer(mine)
            for rank in range(self.size):
                found[rank] = found[rank] or self.read(f"answer/{number}/{rank}")
            if None not in found or time.monotonic() > deadline or self.is_over.wait(_POLL_S):
                return [text or NO_ANSWER for text in found]

    def answer(self, mine: str) -> None:
        """Answer every rank's questions since the last call."""
        asked = self.store.add("asked", 0)
        for number in range(self._n_answered + 1, asked + 1):
            self.post(f"answer/{number}/{self.rank}", mine)
        self._n_answered = asked


def peers_of_process(known: Peers | None) -> Peers | None:
    """The ranks of torch.distributed, once it has started with more than one; ``known`` while it is still they."""
    dist = sys.modules.get("torch.distributed")
    if known is not None and known.group is None:
        return known
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    group = dist.group.WORLD
    if known is not None and known.group is not None and known.group() is group:
        return None if known.is_lost else known
    store = dist.distributed_c10d._get_default_store()
    if hasattr(store, "clone"):  # a separate connection: the program may be waiting on the other one
        store = store.clone()
    store = dist.PrefixStore("gfxgraph/watch", store)
    store.set_timeout(timedelta(seconds=10))
    return Peers(store, dist.get_rank(), dist.get_world_size(), group)
