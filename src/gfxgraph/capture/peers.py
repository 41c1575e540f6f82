"""Asks the other ranks of a job through torch.distributed's store: no collective, no GPU.

Every rank's watch thread answers for its rank, so a rank that hangs in a collective still reports.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

_POLL_S = 0.05
NO_ANSWER = "does not answer"


class Peers:
    """Args:
    store: shared by all ranks; used from the watch's thread as well as the program's.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._n_answered = 0

    def exchange(self, topic: str, mine: Sequence[str], wait_s: float) -> list[list[str] | None]:
        """Exchange lines on ``topic`` with all ranks; by rank, None for those that did not answer in time."""
        self.store.set(f"{topic}/{self.rank}", json.dumps(list(mine)))
        return [json.loads(text) if text is not None else None for text in self._collect(topic, wait_s)]

    def ask(self, mine: str, wait_s: float) -> list[str]:
        """Ask every rank where it is; the ranks' watch threads answer."""
        number = self.store.add("asked", 1)
        self._say(number, mine)
        self._n_answered = number
        return [text if text is not None else NO_ANSWER for text in self._collect(f"answer/{number}", wait_s)]

    def answer(self, mine: str) -> None:
        """Answer the questions of other ranks since the last call."""
        asked = self.store.add("asked", 0)
        for number in range(self._n_answered + 1, asked + 1):
            self._say(number, mine)
        self._n_answered = max(asked, self._n_answered)

    def _say(self, number: int, mine: str) -> None:
        self.store.set(f"answer/{number}/{self.rank}", mine)

    def _collect(self, topic: str, wait_s: float) -> list[str | None]:
        """Poll what the ranks have stored under ``topic``; the store can only wait for keys that exist."""
        deadline = time.monotonic() + wait_s
        found: list[str | None] = [None] * self.size
        while True:
            for rank in range(self.size):
                key = f"{topic}/{rank}"
                if found[rank] is None and self.store.check([key]):
                    found[rank] = self.store.get(key).decode()
            if None not in found or time.monotonic() > deadline:
                return found
            time.sleep(_POLL_S)


def peers_of_process() -> Peers | None:
    """The ranks of torch.distributed, once it has started with more than one."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    store = dist.distributed_c10d._get_default_store()
    if hasattr(store, "clone"):  # a separate connection: the program may be waiting on the other one
        store = store.clone()
    store = dist.PrefixStore("gfxgraph/watch", store)
    store.set_timeout(timedelta(seconds=10))
    return Peers(store, dist.get_rank(), dist.get_world_size())
