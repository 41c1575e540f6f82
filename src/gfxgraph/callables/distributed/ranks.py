"""The size that several processes run a call at.

Problem: ranks of one job meet in collectives, whose sizes must match. Idea: each says its size on the host, through
torch.distributed's store; no collective, no GPU.

    every rank:  post my size ──> wait for all, at most ``timeout_s`` ──> propose a verdict
    the store:   keeps the first verdict proposed, "these are the sizes" or "some rank is missing"
    every rank:  reads the stored verdict, the same for all

So nobody waits forever, and a late rank finds the verdict that the others used. With a rank missing, all raise
`ranks_missing`: their collectives would wait for it.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

from gfxgraph.core.locks import new_lock
from gfxgraph.errors import CaptureError

# Verdict of a decision for which not every rank answered in time.
_MISSING = "missing"

_n_made: Counter[str] = Counter()


class Ranks:
    """One group of ranks. Every rank makes the same decisions in the same order.

    Args:
        group: a process group, None for all ranks.
        timeout_s: how long a decision waits for the slowest rank, in seconds.
        name: separates the decisions of several users of one group; those of one name are made in the same order on
        every rank.
        store: used in place of torch.distributed's own; requires ``rank`` and ``size``.
        rank: this process's number in the group, from 0 on.
        size: how many ranks there are.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        timeout_s: float = 60.0,
        name: str = "graphs",
        store: Any = None,
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        # lazily: only programs of several processes have it
        import torch.distributed as dist

        self.timeout_s = timeout_s
        if store is None:
            members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
            self.rank, self.size = dist.get_rank(group), len(members)
            name = f"{name}/{'-'.join(map(str, members))}"
            store = dist.distributed_c10d._get_default_store()
        else:
            assert rank is not None and size is not None
            self.rank, self.size = rank, size
        # A second user of the same name must not see the verdicts of the first.
        self._store = dist.PrefixStore(f"gfxgraph/{name}/{_n_made[name]}", store)
        _n_made[name] += 1
        self._n_decisions = 0
        self._lock = new_lock()

    def largest(self, mine: int) -> int:
        """The largest number that any rank gave.

        Args:
            mine: this rank's number.

        Raises:
            CaptureError: `ranks_missing`, on every rank: one did not answer in time.
        """
        with self._lock:
            number = self._n_decisions
            self._n_decisions += 1
            keys = [f"{number}/{rank}" for rank in range(self.size)]
            self._store.set(keys[self.rank], str(int(mine)))
            verdict = self._store.compare_set(f"{number}/verdict", "", self._verdict(keys)).decode()
            if verdict == _MISSING:
                absent = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
                raise CaptureError(
                    "ranks_missing",
                    decision="the size of a call",
                    ranks=", ".join(absent) or "(late)",
                    seconds=self.timeout_s,
                )
            if number > 1:  # every rank has read it, since all have answered a later one
                with suppress(RuntimeError):  # a store without delete
                    self._store.delete_key(f"{number - 2}/{self.rank}")
                    if self.rank == 0:
                        self._store.delete_key(f"{number - 2}/verdict")
            return int(max(json.loads(verdict)))

    def _verdict(self, keys: list[str]) -> str:
        """The verdict to propose: all numbers as JSON, or that some are missing."""
        try:
            self._store.wait(keys, timedelta(seconds=self.timeout_s))
        except RuntimeError:  # torch's DistStoreError is one
            return _MISSING
        return json.dumps([int(self._store.get(key)) for key in keys])
