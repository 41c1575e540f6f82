"""Choose eager or graph from timings, with a stated reason.

Problem: a graph is usually faster, sometimes slower (few nodes on HIP, quantized models), and timings are noisy.
Idea: samples come in pairs, eager and graph close together in time, so that what slows both cancels. After a fixed
number of pairs eager wins if it was the faster one in so many of them that chance does so once in a hundred times,
and by more than a margin; else the graph, which costs less CPU.

Source: docs/decisions/callables.md, 0069; the counts are the sign test's at 1 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum


class Way(StrEnum):
    """How a call can run."""

    EAGER = "eager"
    GRAPH = "graph"


N_PAIRS, N_FASTER = 32, 23
MARGIN = 0.02
"""A share below which a difference counts as none."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision and the figures behind it."""

    way: Way
    reason: str
    speedup: float
    low: float
    high: float
    n_pairs: int
    eager_us: float
    graph_us: float

    def __str__(self) -> str:
        return (
            f"{self.way.value}: {self.reason} (eager {self.eager_us:.1f} us, graph {self.graph_us:.1f} us; "
            f"graph {self.speedup:.2f}x as fast, {self.low:.2f} to {self.high:.2f}, {self.n_pairs} pairs)"
        )


@dataclass(slots=True)
class Choice:
    """Timings of one signature, and the decision from them."""

    decision: Decision | None = None
    _ratios: list[float] = field(default_factory=list)
    _waiting: dict[Way, list[float]] = field(default_factory=lambda: {Way.EAGER: [], Way.GRAPH: []})
    _sums: dict[Way, float] = field(default_factory=lambda: {Way.EAGER: 0.0, Way.GRAPH: 0.0})

    @property
    def n_pairs(self) -> int:
        return len(self._ratios)

    def add(self, way: Way, us: float) -> Decision | None:
        """Add one timing; return a decision if this one settled it.

        A timing that is not a positive number is ignored: the clock jumped.
        """
        if not (us > 0.0 and math.isfinite(us)):
            return None
        self._waiting[way].append(us)
        eager, graph = self._waiting[Way.EAGER], self._waiting[Way.GRAPH]
        if not (eager and graph):
            return None
        a, b = eager.pop(0), graph.pop(0)
        self._ratios.append(math.log(a / b))
        self._sums[Way.EAGER] += a
        self._sums[Way.GRAPH] += b
        return self._decide()

    def next_way(self, n_timed: int) -> Way:
        """The way to time as the ``n_timed``-th: pairs alternate in order, so that neither is always first."""
        pair, second = divmod(n_timed, 2)
        return (Way.EAGER, Way.GRAPH)[(pair % 2) ^ second]

    def why(self) -> str:
        """What was decided and from what, or what is still missing."""
        if self.decision is not None:
            return str(self.decision)
        return f"undecided: {self.n_pairs} pairs of timings, {N_PAIRS} needed"

    def _decide(self) -> Decision | None:
        n = len(self._ratios)
        if n < N_PAIRS:
            return None
        ordered = sorted(self._ratios)
        low, middle, high = ordered[n // 4], ordered[n // 2], ordered[-1 - n // 4]
        least = math.log1p(MARGIN)
        n_eager = sum(ratio < 0 for ratio in ordered)
        if n_eager >= N_FASTER and middle < -least:
            way, reason = Way.EAGER, "the graph is slower"
        elif n - n_eager >= N_FASTER and middle > least:
            way, reason = Way.GRAPH, "the graph is faster"
        else:
            way, reason = Way.GRAPH, "no difference, and a graph takes less CPU"
        speedup, least_of, most_of = (round(math.exp(ratio), 4) for ratio in (middle, low, high))
        eager_us, graph_us = (round(self._sums[each] / n, 2) for each in (Way.EAGER, Way.GRAPH))
        self.decision = Decision(way, reason, speedup, least_of, most_of, n, eager_us, graph_us)
        return self.decision
