"""The buckets of one callable as its calls have them: which sizes were seen, which are refused, what is learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace as replace_in
from typing import TYPE_CHECKING, Any

from gfxgraph.callables.plans import Sizes
from gfxgraph.core.buckets import BucketPlan

if TYPE_CHECKING:
    from gfxgraph.callables.entry import Captures
    from gfxgraph.callables.route import Route


class Planned:
    """The sizes of one callable's calls.

    Args:
        sizes: the buckets in force, and what has been seen.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.refused: list[Mapping[str, int]] = []
        """Sizes whose bucket does not serve them."""
        self.last: tuple[Mapping[str, int], Captures, int] | None = None
        """The sizes of the last slow call, its entry, and how often that had been replayed."""

    def count(self, route: Route) -> Callable[[Captures], bool] | None:
        """One more call of this size; where buckets were learned, which entries are in none of them."""
        actual = route.too_large.sizes if route.too_large is not None else None
        if route.bucketed is not None:
            actual = route.bucketed.actual
            if route.entry is not None:
                self.last = (actual, route.entry, route.entry.n_replays())
        if actual is None:
            return None
        self.sizes.note(actual)
        if not self.sizes.look():
            return None
        plan = self.sizes.plan()
        self.last = None

        def is_gone(entry: Captures) -> bool:
            bucket = tuple(entry.bucket.get(name, 0) for name in plan.dims)
            return bool(entry.bucket) and plan.pick(bucket) != bucket

        return is_gone

    def count_fast_calls(self) -> None:
        """Calls that took the fast path since the last slow one: all were of that one's size."""
        if self.last is not None:
            actual, entry, n = self.last
            self.last = None
            n_fast = entry.n_replays() - n
            if n_fast > 0:
                self.sizes.note(actual, n_fast)

    def plan(self) -> BucketPlan:
        """The buckets in force and the sizes seen; printed, a table."""
        self.count_fast_calls()
        found = self.sizes.plan()
        refused = frozenset(tuple(sizes.get(name, 0) for name in found.dims) for sizes in self.refused)
        return replace_in(found, refused=refused)

    def by_bucket(self, name: str) -> list[dict[str, Any]]:
        """Calls and elements by bucket so far, as plain data. It changes nothing, so any thread may ask."""
        found = self.sizes.plan()
        seen = Counter(found.seen)
        last = self.last
        if last is not None and set(last[0]) == set(found.dims):
            seen[tuple(last[0][name] for name in found.dims)] += max(0, last[1].n_replays() - last[2])
        refused = frozenset(tuple(sizes.get(name, 0) for name in found.dims) for sizes in self.refused)
        return [
            {
                "function": name,
                "bucket": ", ".join(f"{name}={n}" for name, n in zip(found.dims, row.bucket)),
                "calls": row.n_calls,
                "elements": row.n_asked,
                "elements_run": row.n_run,
            }
            for row in replace_in(found, seen=seen, refused=refused).by_bucket()
            if row.n_calls
        ]
