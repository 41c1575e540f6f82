"""Buckets: the sizes that are captured, and which of them serves a call.

A captured graph has one size; a smaller input is padded up to it. Many buckets waste little work
but cost memory and capture time; few do the reverse. If the sizes seen are known, the best set
for each number of buckets is computed exactly (``learn``).

Invariants: sizes ascend and are positive; ``pick`` gives the smallest bucket that holds the size;
a learned plan pads no more, on the histogram it learned from, than any other set of as many buckets.

Source: docs/decisions/0067; tests/property/test_buckets.py. vLLM's ladder as in its 0.33.0,
``config/vllm.py``: 1, 2, 4, then steps of 8 below 256, then of 16.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gfxgraph.errors import ConfigError

LADDER_MAX = 512
"""The largest size of vLLM's ladder on most devices."""


@dataclass(frozen=True)
class Buckets:
    """The captured sizes of one dynamic dimension.

    Args:
        sizes: in any order, repeats allowed; kept ascending, each once.
        source: where they come from, for people: "explicit", "powers", "ladder", "learned".

    Raises:
        ConfigError: `bad_buckets`, a size is not a whole number above zero, or there is none.
    """

    sizes: tuple[int, ...]
    source: str = "explicit"

    def __post_init__(self) -> None:
        for size in self.sizes:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ConfigError("bad_buckets", given=repr(size), problem="it is not a whole number above zero")
        if not self.sizes:
            raise ConfigError("bad_buckets", given="()", problem="it contains no size")
        object.__setattr__(self, "sizes", tuple(sorted(set(self.sizes))))

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def largest(self) -> int:
        return self.sizes[-1]

    def pick(self, n: int) -> int | None:
        """The smallest bucket holding ``n``; None above the largest."""
        at = bisect_left(self.sizes, n)
        return self.sizes[at] if at < len(self.sizes) else None

    def padded(self, n: int) -> int:
        """The size that a call of ``n`` runs at: its bucket, or ``n`` itself, eagerly."""
        return self.pick(n) or n

    def padding(self, histogram: Mapping[int, int]) -> int:
        """Padded work: rows computed and discarded, over all calls of the histogram."""
        return sum(n_calls * (self.padded(n) - n) for n, n_calls in histogram.items())


def powers(largest: int) -> Buckets:
    """1, 2, 4, ... up to the first power of two that holds ``largest``."""
    return Buckets(tuple(1 << i for i in range((max(largest, 1) - 1).bit_length() + 1)), "powers")


def ladder(largest: int = LADDER_MAX) -> Buckets:
    """vLLM's capture sizes up to ``largest``, which is a bucket itself."""
    steps = itertools.chain((1, 2, 4), range(8, 256, 8), range(256, largest + 1, 16))
    return Buckets((*(size for size in steps if size <= largest), largest), "ladder")


def explicit(sizes: Iterable[int]) -> Buckets:
    """The sizes given."""
    return Buckets(tuple(sizes), "explicit")


MIN_GAIN = 0.0005
"""A further bucket must save this share of the real work, or it is not worth its memory."""


def learn(histogram: Mapping[int, int], n_most: int | None = None, *, min_gain: float = MIN_GAIN) -> Buckets:
    """The buckets that pad least on the sizes seen: as many as are worth their cost.

    There are never more buckets than in vLLM's ladder up to the largest size seen, and never more padding.

    Args:
        histogram: calls by size, such as ``{17: 240, 18: 3}``.
        n_most: at most so many; then they may pad more than the ladder.
        min_gain: a bucket is added while it saves this share of the real work.

    Raises:
        ConfigError: `bad_buckets`, nothing was seen.
    """
    seen = {n: n_calls for n, n_calls in sorted(histogram.items()) if n_calls > 0}
    if not seen:
        raise ConfigError("bad_buckets", given="{}", problem="no size has been seen yet")
    rule = ladder(max(seen))
    as_good_as = rule.padding(seen)
    work = sum(n * n_calls for n, n_calls in seen.items())
    found: tuple[int, ...] = (max(seen),)
    padding = Buckets(found).padding(seen)
    for candidate in best_sizes(seen, min(len(seen), n_most or len(rule))):
        saved, padded = padding - Buckets(candidate).padding(seen), padding
        if len(candidate) > 1 and saved < min_gain * work and padded <= as_good_as:
            break
        found, padding = candidate, padded - saved
    return Buckets(found, "learned")


@dataclass(frozen=True, slots=True)
class Served:
    """Calls that one bucket served: the elements that they requested, and the elements that were run."""

    bucket: tuple[int, ...]
    n_calls: int
    n_asked: int
    n_run: int


@dataclass(frozen=True)
class BucketPlan:
    """Buckets for every dynamic dimension of one function, and the sizes that they were made for.

    ``seen`` counts calls by their sizes, in the order of ``dims``: ``{(3, 128): 40}``.
    """

    dims: Mapping[str, Buckets]
    seen: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    refused: frozenset[tuple[int, ...]] = frozenset()
    """Sizes seen whose bucket cannot serve them: their calls run eagerly."""

    def pick(self, sizes: Sequence[int]) -> tuple[int, ...] | None:
        """The bucket of a call, one size per dimension; None if any size is above its largest bucket."""
        found = []
        for buckets, n in zip(self.dims.values(), sizes):
            bucket = buckets.pick(n)
            if bucket is None:
                return None
            found.append(bucket)
        return tuple(found)

    @cached_property
    def to_capture(self) -> tuple[tuple[int, ...], ...]:
        """Every bucket that a call seen so far needs, else every combination, largest first."""
        wanted: set[tuple[int, ...]] = {b for sizes in self.seen if (b := self.pick(sizes)) is not None}
        every: Iterator[tuple[int, ...]] = itertools.product(*(b.sizes for b in self.dims.values()))
        return tuple(sorted(wanted or every, key=_elements, reverse=True))

    @property
    def n_elements_seen(self) -> int:
        return sum(_elements(sizes) * n for sizes, n in self.seen.items())

    @property
    def n_elements_padded(self) -> int:
        """Elements computed and discarded over the calls seen."""
        padded = 0
        for sizes, n in self.seen.items():
            if sizes in self.refused:
                continue
            runs_at = [b.padded(size) for b, size in zip(self.dims.values(), sizes)]
            padded += n * (_elements(runs_at) - _elements(sizes))
        return padded

    def by_bucket(self) -> list[Served]:
        """What each bucket served of the calls seen, largest bucket first."""
        rows = []
        for bucket in self.to_capture:
            served = {s: n for s, n in self.seen.items() if self.pick(s) == bucket and s not in self.refused}
            asked = sum(_elements(s) * n for s, n in served.items())
            rows.append(Served(bucket, calls := sum(served.values()), asked, calls * _elements(bucket)))
        return rows

    def __str__(self) -> str:
        """The plan for people: one line a bucket, largest first, and the whole."""
        lines = [
            f"{' x '.join(map(str, row.bucket))}: {row.n_calls} calls"
            + (f", padding {1 - row.n_asked / row.n_run:.1%}" if row.n_calls else "")
            for row in self.by_bucket()
        ]
        n_eager = sum(n for sizes, n in self.seen.items() if sizes in self.refused or self.pick(sizes) is None)
        lines += [f"eager: {n_eager} calls"] if n_eager else []
        sources = ", ".join(f"{name}: {b.source}, {len(b)} sizes" for name, b in self.dims.items())
        total = self.n_elements_seen + self.n_elements_padded
        tail = f"{sources}; padding {self.n_elements_padded / total:.1%} of the work seen" if total else sources
        return "\n".join([*lines, tail])


def learn_plan(names: Sequence[str], seen: Mapping[tuple[int, ...], int], *, n_rounds: int = 4) -> BucketPlan:
    """A plan learned over several dimensions, one at a time with the others fixed, until nothing changes.

    A row of one dimension costs as many elements as the other dimensions are padded to, so each
    round weighs the sizes by that; no round pads more than the one before.
    """
    dims = {name: Buckets(tuple({sizes[axis] for sizes in seen}), "learned") for axis, name in enumerate(names)}
    for _ in range(n_rounds if len(names) > 1 else 1):
        before = dict(dims)
        for axis, name in enumerate(names):
            weights: Counter[int] = Counter()
            for sizes, n in seen.items():
                others = [b.padded(s) for i, (b, s) in enumerate(zip(dims.values(), sizes)) if i != axis]
                weights[sizes[axis]] += n * _elements(others)
            dims[name] = learn(weights)
        if dims == before:
            break
    return BucketPlan(dims, dict(seen))


# Only sizes that were seen can be buckets: lowering one to the largest size it serves never pads more. With the sizes
# s[0] < s[1] < ... and calls w, a bucket at s[j] that serves s[i+1..j] costs s[j] * (W[j] - W[i]) rows; W sums w.
# The real rows are the same in every plan and left out. So
#     best[k][j] = min over i of best[k-1][i] + s[j] * (W[j] - W[i])
# and the best i never falls as j grows: halving the sizes halves the choices, and k buckets over m sizes take
# k * m * log m steps.
def best_sizes(histogram: Mapping[int, int], n_most: int) -> Iterator[tuple[int, ...]]:
    """The best set of 1, 2, ... ``n_most`` buckets, in that order.

    Args:
        histogram: calls by size, all counts above zero; not empty.
        n_most: at most as many as there are sizes.
    """
    sizes = sorted(histogram)
    calls = [0]  # calls[j]: calls of the first j sizes together
    for size in sizes:
        calls.append(calls[-1] + histogram[size])
    m = len(sizes)
    # cost[j]: rows computed for the first j sizes with the buckets so far; j is a bucket.
    cost = [0.0] + [float(sizes[j - 1] * calls[j]) for j in range(1, m + 1)]
    chosen: list[list[int]] = [[0] * (m + 1)]
    yield (sizes[-1],)
    for k in range(2, n_most + 1):
        cost, choice = _one_more(sizes, calls, cost, k)
        chosen.append(choice)
        yield _walk_back(sizes, chosen)


def _one_more(sizes: list[int], calls: list[int], before: list[float], k: int) -> tuple[list[float], list[int]]:
    """Costs with exactly ``k`` buckets from those with ``k - 1``, and where each last bucket begins."""
    m = len(sizes)
    cost, choice = [float("inf")] * (m + 1), [0] * (m + 1)
    pending = [(k, m, k - 1, m - 1)]  # of the sizes from .. to, the best i lies between .. and
    while pending:
        low, high, first, last = pending.pop()
        if low > high:
            continue
        j = (low + high) // 2
        cost[j], choice[j] = min(
            (before[i] + sizes[j - 1] * (calls[j] - calls[i]), i) for i in range(first, min(last, j - 1) + 1)
        )
        pending += [(low, j - 1, first, choice[j]), (j + 1, high, choice[j], last)]
    return cost, choice


def _walk_back(sizes: list[int], chosen: list[list[int]]) -> tuple[int, ...]:
    found = []
    at = len(sizes)
    for choice in reversed(chosen):
        found.append(sizes[at - 1])
        at = choice[at]
    return tuple(reversed(found))


def _elements(sizes: Iterable[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
