"""A list of nodes with its repeated layers folded: sixteen equal layers are one, sixteen times."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

LONGEST_PERIOD = 512


@dataclass(frozen=True, slots=True)
class Fold:
    """Items ``start`` to ``start + period``, ``n_times`` in a row."""

    start: int
    period: int
    n_times: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.n_times


def folded(items: Sequence[Hashable]) -> list[Fold]:
    """Cut ``items`` into repeating runs and single items, from the left, longest repetition first."""
    number: dict[Hashable, int] = {}
    tokens = [number.setdefault(item, len(number)) for item in items]
    found: list[Fold] = []
    at = 0
    while at < len(tokens):
        best = _best(tokens, at)
        found.append(best)
        at = best.end
    return found


def _best(tokens: list[int], at: int) -> Fold:
    best, covered = Fold(at, 1, 1), 0
    for period in range(1, min(LONGEST_PERIOD, (len(tokens) - at) // 2) + 1):
        if tokens[at] != tokens[at + period]:
            continue
        end = at
        while end + period < len(tokens) and tokens[end] == tokens[end + period]:
            end += 1
        n_times = (end - at) // period + 1
        # A few equal nodes in a row do not hide a layer: longer repetitions win, with their shortest period.
        if n_times > 1 and n_times * period > covered:
            best, covered = Fold(at, period, n_times), n_times * period
    return best
