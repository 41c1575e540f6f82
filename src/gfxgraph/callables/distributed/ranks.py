"""Decisions that several processes take together.

Problem: ranks of one job meet in collectives. If one replays a graph and another runs eagerly, or they
replay graphs of different buckets, their collectives may wait for each other forever. Idea: whatever
changes what runs (capture or not, which bucket, give up a graph, evict one) is decided by all ranks
together, on the host, through torch.distributed's store; no collective, no GPU.

    every rank:  post my opinion ──> wait for all opinions, at most ``timeout_s`` ──> propose a verdict
    the store:   keeps the first verdict proposed, "these are the opinions" or "some rank is missing"
    every rank:  reads the stored verdict, the same for all

So nobody waits forever, and a late rank finds the verdict that the others used. After
a verdict with a rank missing the ranks no longer decide together: each takes the safe choice, which
is eager, and reports it (`ranks_missing`).

Replays are not decided one by one: that would cost more than the replay. A rank whose replay fails runs
the function itself, whose collectives match those of the others' graphs, and tells the others at the next
of the checks that all ranks make after the same number of calls; then all drop the graph together.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from gfxgraph.errors import CaptureError
from gfxgraph.process import process

# Verdict of a decision for which not every rank answered in time.
_MISSING = "missing"


_n_made: Counter[str] = Counter()


class RanksMissing(CaptureError):
    """Not every rank took part in a decision; `ranks_missing`."""


class Ranks:
    """Decisions of one group of ranks. Every rank makes the same ones in the same order.

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
        self._n_decisions: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.is_broken = False
        """True once a decision was incomplete: from then on each rank runs by itself, eagerly."""

    # -- deciding -------------------------------------------------------------------------------------

    def gather(self, topic: str, mine: Any) -> list[Any]:
        """Every rank's opinion.

        Args:
            topic: what is decided; the same on every rank.
            mine: this rank's opinion, a plain value (JSON).

        Returns:
            The opinions, by rank.

        Raises:
            RanksMissing: a rank did not answer in time; every rank gets this.
        """
        with self._lock:
            if self.is_broken:
                raise RanksMissing("ranks_missing", decision=topic, ranks="(an earlier decision)", seconds=0)
            number = self._n_decisions[topic]
            self._n_decisions[topic] += 1
            base = f"{topic}/{number}"
            keys = [f"{base}/{rank}" for rank in range(self.size)]
            self._store.set(keys[self.rank], json.dumps(mine))
            verdict = self._store.compare_set(f"{base}/verdict", "", self._opinion_of_all(keys)).decode()
            if verdict == _MISSING:
                self.is_broken = True
                absent = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
                state = process.current()
                if state is not None:
                    state.report("fallback", "ranks no longer decide together; functions run eagerly", topic)
                raise RanksMissing(
                    "ranks_missing",
                    decision=topic,
                    ranks=", ".join(absent) or "(late)",
                    seconds=self.timeout_s,
                )
            self._forget(topic, number - 2)
            return json.loads(verdict)  # type: ignore[no-any-return]

    def _opinion_of_all(self, keys: list[str]) -> str:
        """The verdict to propose: all opinions as JSON, or that some are missing."""
        try:
            self._store.wait(keys, timedelta(seconds=self.timeout_s))
        except RuntimeError:  # torch's DistStoreError is one
            return _MISSING
        return json.dumps([json.loads(self._store.get(key)) for key in keys])

    def _forget(self, topic: str, number: int) -> None:
        """Delete an old decision: every rank has read it, since all have answered a later one."""
        if number < 0:
            return
        try:
            self._store.delete_key(f"{topic}/{number}/{self.rank}")
            if self.rank == 0:
                self._store.delete_key(f"{topic}/{number}/verdict")
        except RuntimeError:
            process.log.debug("the store keeps old decisions: it has no delete")

    # -- decisions ------------------------------------------------------------------------------------

    def all_agree(self, topic: str, mine: bool, reason: str = "") -> bool:
        """Whether every rank says yes; if only some do, all ranks report the disagreement.

        Args:
            topic: what is decided.
            mine: whether this rank says yes.
            reason: why it says no; for the report.

        Returns:
            False also if not all answered.
        """
        try:
            opinions = self.gather(topic, [bool(mine), reason])
        except RanksMissing:
            return False
        no = [f"rank {rank}: {why or 'no'}" for rank, (yes, why) in enumerate(opinions) if not yes]
        if no and len(no) < self.size:
            self._disagreement(topic, no)
        return not no

    def largest(self, topic: str, mine: int) -> int | None:
        """The largest number that any rank gave, for buckets.

        Args:
            topic: what is decided.
            mine: this rank's number.

        Returns:
            The number; None if not all answered.
        """
        try:
            return max(self.gather(topic, int(mine)))
        except RanksMissing:
            return None

    def same(self, topic: str, mine: Any) -> bool:
        """Whether every rank gave the same value.

        Args:
            topic: what is decided.
            mine: this rank's value, plain (JSON).

        Returns:
            False also if not all answered.
        """
        try:
            opinions = self.gather(topic, mine)
        except RanksMissing:
            return False
        if any(opinion != opinions[0] for opinion in opinions):
            self._disagreement(topic, [f"rank {rank}: {opinion}" for rank, opinion in enumerate(opinions)])
            return False
        return True

    def victims(self, topic: str, mine: Sequence[str]) -> list[str]:
        """What to evict: everything that any rank must evict.

        Args:
            topic: what is decided.
            mine: names of what this rank must evict.

        Returns:
            The names in rank order, each once; [] if not all answered.
        """
        try:
            wanted = self.gather(topic, list(mine))
        except RanksMissing:
            return []
        return list(dict.fromkeys(name for names in wanted for name in names))

    def _disagreement(self, topic: str, ranks: list[str]) -> None:
        state = process.current()
        if state is not None:
            state.report("fallback", f"ranks disagreed on {topic}: {'; '.join(ranks)}", f"rank {self.rank}")
        process.log.info("%s", CaptureError("ranks_disagree", decision=topic, ranks="; ".join(ranks)))
