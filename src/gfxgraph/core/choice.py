"""Choose eager or graph from timings, with a known confidence and a stated reason.

Problem: a graph is usually faster, sometimes slower (few nodes on HIP, quantized models), and
timings are noisy. A fixed number of samples is either too many or too few.

Idea: samples come in pairs, eager and graph close together in time, so that what slows both
cancels. The logarithm of their ratio is averaged, and after every pair an interval around
the average is computed that holds the true value with the wanted confidence *at all times at once* (a
confidence sequence: one may check after each pair and stop when satisfied; a t-test checked after
each pair would be wrong far more often than it states). The winner is known when the interval excludes
zero. If the interval lies within a negligible margin, the graph is chosen, because it costs less
CPU. A decision is not permanent: a later measurement overturns it only if the other way is better by more
than ``hysteresis``.

Source: docs/decisions/0069; the interval is the asymptotic normal-mixture sequence of
Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2021), theorem 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Way(StrEnum):
    """How a call can run."""

    EAGER = "eager"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """How certain a decision must be.

    Args:
        alpha: chance that a decision is wrong, over all checks together.
        least_pairs: no decision before this many.
        most_pairs: after this many, the better average wins.
        margin: a difference below this share counts as none.
        hysteresis: a later measurement overturns a decision only beyond this share.
    """

    alpha: float = 0.01
    least_pairs: int = 8
    most_pairs: int = 60
    margin: float = 0.02
    hysteresis: float = 0.05


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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"way": self.way.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decision:
        """Raises ValueError, KeyError or TypeError if ``as_dict`` did not write it."""
        floats = {name: float(data[name]) for name in ("speedup", "low", "high", "eager_us", "graph_us")}
        if not all(math.isfinite(number) for number in floats.values()):
            raise ValueError("a number in it is not finite")
        return cls(way=Way(data["way"]), reason=str(data["reason"]), n_pairs=int(data["n_pairs"]), **floats)

    def __str__(self) -> str:
        return (
            f"{self.way.value}: {self.reason} (eager {self.eager_us:.1f} us, graph {self.graph_us:.1f} us; "
            f"graph {self.speedup:.2f}x as fast, {self.low:.2f} to {self.high:.2f}, {self.n_pairs} pairs)"
        )


def half_width(spread: float, n: int, alpha: float) -> float:
    """Half the width of the interval around the mean of ``n`` values, valid for every n at once.

    Args:
        spread: standard deviation of the values.
        alpha: chance that the true mean is ever outside.
    """
    # rho sets where the interval is tightest; tuned for about 20 pairs as in equation 9 of the source.
    rho2 = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / 20
    t = n * rho2 + 1
    return spread * math.sqrt(2 * t / (n * n * rho2) * math.log(math.sqrt(t) / alpha))


@dataclass(slots=True)
class Choice:
    """Timings of one signature, and the decision from them."""

    rule: ChoiceRule = field(default_factory=ChoiceRule)
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
        return self._look()

    def next_way(self, n_timed: int) -> Way:
        """The way to time as the ``n_timed``-th: pairs alternate in order, so that neither is always first."""
        pair, second = divmod(n_timed, 2)
        return (Way.EAGER, Way.GRAPH)[(pair % 2) ^ second]

    def look_again(self) -> None:
        """Forget the timings, keep the decision: conditions may have changed."""
        self._ratios.clear()
        for way in Way:
            self._waiting[way].clear()
            self._sums[way] = 0.0

    def why(self) -> str:
        """What was decided and from what, or what is still missing."""
        if self.decision is not None:
            return str(self.decision)
        return f"undecided: {self.n_pairs} pairs of timings, at least {self.rule.least_pairs} needed"

    def _look(self) -> Decision | None:
        n, rule = len(self._ratios), self.rule
        if n < rule.least_pairs:
            return None
        # One slow outlier (another process, a clock change) must not decide: the outermost values are
        # drawn in to their neighbours, as many on each side.
        values, n_out = _drawn_in(self._ratios)
        mean = sum(values) / n
        # Drawing in narrows the spread; Yuen's correction (1974) widens it back. The rest pays for the
        # spread being an estimate, which the asymptotic interval leaves out.
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)) * (n - 1) / (n - 2 * n_out - 1)
        spread *= math.sqrt((n + 1) / (n - 3))
        half = half_width(max(spread, 1e-6), n, rule.alpha)
        low, high = mean - half, mean + half
        previous = self.decision.way if self.decision is not None else None
        to_eager = -math.log1p(rule.hysteresis) if previous is Way.GRAPH else 0.0
        to_graph = math.log1p(rule.hysteresis) if previous is Way.EAGER else 0.0
        margin = math.log1p(rule.margin)
        if high < to_eager:
            return self._decide(Way.EAGER, "the graph is slower", mean, low, high)
        if low > to_graph:
            return self._decide(Way.GRAPH, "the graph is faster", mean, low, high)
        if previous is not None:
            if (low > to_eager and previous is Way.GRAPH) or (high < to_graph and previous is Way.EAGER):
                return self._decide(
                    previous, "measured again: the difference is too small to change", mean, low, high
                )
        elif -margin < low and high < margin:
            return self._decide(Way.GRAPH, "no difference, and a graph takes less CPU", mean, low, high)
        if n >= rule.most_pairs:
            if previous is not None:
                return self._decide(previous, "measured again without a clear answer; kept", mean, low, high)
            way = Way.EAGER if mean < -margin else Way.GRAPH
            return self._decide(way, "too noisy to be certain; the better average was chosen", mean, low, high)
        return None

    def _decide(self, way: Way, reason: str, mean: float, low: float, high: float) -> Decision:
        n = len(self._ratios)
        self.decision = Decision(
            way,
            reason,
            round(math.exp(mean), 4),
            round(math.exp(low), 4),
            round(math.exp(high), 4),
            n,
            round(self._sums[Way.EAGER] / n, 2),
            round(self._sums[Way.GRAPH] / n, 2),
        )
        return self.decision


def _drawn_in(values: list[float]) -> tuple[list[float], int]:
    """The values with the outermost tenth on each side, at least one, set to the next inside; how many."""
    n_out = max(1, len(values) // 10)
    ordered = sorted(values)
    low, high = ordered[n_out], ordered[-1 - n_out]
    return [min(max(value, low), high) for value in values], n_out
