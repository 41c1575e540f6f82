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
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gfxgraph.core.optimum import best_sizes
from gfxgraph.errors import ConfigError

VERSION = 1
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

    def below(self, bucket: int) -> int:
        """The next smaller bucket, or 0 for the smallest: ``bucket`` serves the sizes above it."""
        at = bisect_left(self.sizes, bucket)
        return self.sizes[at - 1] if at else 0

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

    def table(self) -> str:
        """The plan for people: one row a bucket."""
        names = list(self.dims)
        head = [" x ".join(names), "calls", "sizes served", "padding"]
        rows = [head]
        for row in self.by_bucket():
            share = f"{1 - row.n_asked / row.n_run:.1%}" if row.n_calls else "-"
            rows.append([_shown(row.bucket), str(row.n_calls), _served(self, row.bucket), share])
        if self.refused:
            eager = {s: n for s, n in self.seen.items() if s in self.refused}
            rows.append(["eager (padding refused)", str(sum(eager.values())), _range(eager), "-"])
        over = {s: n for s, n in self.seen.items() if self.pick(s) is None}
        if over:
            rows.append(["above (eager)", str(sum(over.values())), _range(over), "-"])
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        sources = ", ".join(f"{name}: {b.source}, {len(b)} sizes" for name, b in self.dims.items())
        total = self.n_elements_seen + self.n_elements_padded
        tail = f"{sources}; padding {self.n_elements_padded / total:.1%} of the work seen" if total else sources
        return "\n".join([*lines, tail])

    def __str__(self) -> str:
        return self.table()

    def to_json(self) -> str:
        """The plan as text that ``from_json`` reads."""
        dims = {n: {"sizes": b.sizes, "source": b.source} for n, b in self.dims.items()}
        seen = [{"sizes": sizes, "calls": n} for sizes, n in sorted(self.seen.items())]
        return json.dumps({"version": VERSION, "dims": dims, "seen": seen}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str = "the text") -> BucketPlan:
        """The plan that ``to_json`` wrote.

        Raises:
            ConfigError: `bucket_plan_unreadable`, with what is wrong.
        """
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.get("version") != VERSION:
                found = data.get("version") if isinstance(data, dict) else None
                raise ValueError(f"its version is {found!r}, and this gfxgraph reads version {VERSION}")
            dims = {str(name): Buckets(tuple(row["sizes"]), str(row["source"])) for name, row in data["dims"].items()}
            seen = Counter({tuple(map(int, row["sizes"])): int(row["calls"]) for row in data["seen"]})
            if any(len(sizes) != len(dims) for sizes in seen):
                raise ValueError(f"a call in it does not have {len(dims)} sizes")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, ConfigError) as error:
            problem = error.fields["problem"] if isinstance(error, ConfigError) else _problem(error)
            raise ConfigError("bucket_plan_unreadable", path=path, problem=problem) from error
        return cls(dims, seen)


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


def _problem(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


def _elements(sizes: Iterable[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _shown(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _served(plan: BucketPlan, bucket: Sequence[int]) -> str:
    """The sizes that the bucket serves, seen or not: ``9..16``."""
    spans = []
    for buckets, size in zip(plan.dims.values(), bucket):
        least = buckets.below(size) + 1
        spans.append(f"{least}..{size}" if least < size else str(size))
    return " x ".join(spans)


def _range(seen: Mapping[tuple[int, ...], int]) -> str:
    columns = list(zip(*seen))
    return " x ".join(f"{min(c)}..{max(c)}" if min(c) < max(c) else str(min(c)) for c in columns)
