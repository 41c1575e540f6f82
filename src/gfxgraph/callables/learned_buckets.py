"""The sizes that one graphed callable has seen, and the buckets learned from them.

    sizes seen ──learn──> buckets ──pick──> (size, bucket) ──judge──> content of the padding, cut of results
                                                             └──> refused: eager, with the reason

"auto" begins with powers of two, which need no knowledge, and learns from the sizes seen after 64 calls,
then after three times as many, and so on: each time only if the new buckets save enough to justify
new captures.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace as replace_in
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gfxgraph import files
from gfxgraph.core.bucket_sizes import BucketPlan, Buckets, explicit, ladder, learn_plan
from gfxgraph.errors import ConfigError
from gfxgraph.process import process

if TYPE_CHECKING:
    from gfxgraph.callables.captured_signature import Captures, Route

LEARN_AFTER = 64
LEARN_AGAIN = 3
WORTH = 0.002
"""The share of work that new buckets must save before graphs are captured again for them."""


class Unbounded:
    """Powers of two without limit: the initial buckets of "auto"."""

    def pick(self, n: int, /) -> int | None:
        return 1 << max(0, n - 1).bit_length()


class BucketSizes(Mapping[str, Any]):
    """The buckets of every dynamic dim, by its name, and the sizes that calls have had.

    Args:
        given: as the user wrote it: sizes, "auto", "powers", "ladder", a ``BucketPlan``, an object with ``pick``, the
        path of a saved plan, or one of these by dim name.
    """

    def __init__(self, given: Any) -> None:
        self.seen: Counter[tuple[int, ...]] = Counter()
        self.names: tuple[str, ...] = ()
        self.learned: BucketPlan | None = None
        self._next_look = LEARN_AFTER
        self._n_seen = 0
        if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".json")):
            given = BucketPlan.from_json(_text_of(Path(given)), str(given))
        if isinstance(given, BucketPlan):
            self.learned = given
            self.names, self.seen = tuple(given.dims), Counter(given.seen)
            given = dict(given.dims)
            self._next_look = 0
        self.given = given
        self.is_auto = given is None or given == "auto"
        self._by_name: dict[str, Any] = {}
        for rule in given.values() if isinstance(given, Mapping) else [given]:
            _rule(rule)  # raises here for a mistake, not at the first call

    # -- Mapping: Dims looks up names ----------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        if self.learned is not None and name in self.learned.dims:
            return self.learned.dims[name]
        found = self._by_name.get(name)
        if found is None:
            given = self.given.get(name) if isinstance(self.given, Mapping) else self.given
            found = self._by_name[name] = _rule(given)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def get(self, name: str, default: Any = None) -> Any:
        if isinstance(self.given, Mapping) and name not in self.given and self.learned is None:
            return default
        return self[name]

    # -- learning -----------------------------------------------------------------------------------

    def note(self, actual: Mapping[str, int], n_calls: int = 1) -> None:
        """Count calls of these sizes."""
        names = tuple(actual)
        if min(actual.values(), default=0) < 1:
            return
        if names != self.names:
            if not self.names:
                self.names = names
            elif set(names) != set(self.names):
                return  # a tree with other dims, which the plan does not cover
        self.seen[tuple(actual[name] for name in self.names)] += n_calls
        self._n_seen += n_calls

    def look(self) -> bool:
        """Learn if it is time to; True if the buckets have changed."""
        if not self.is_auto or not self._next_look or self._n_seen < self._next_look:
            return False
        self._next_look *= LEARN_AGAIN
        try:
            found = learn_plan(self.names, self.seen)
        except ConfigError as error:
            _report("plan_not_learned", str(error).splitlines()[0])
            return False
        old = self.plan()
        saved = old.n_elements_padded - found.n_elements_padded
        is_outgrown = any(old.pick(sizes) is None for sizes in self.seen)
        if self.learned is not None and saved < WORTH * old.n_elements_seen and not is_outgrown:
            return False
        self.learned = found
        return True

    def plan(self) -> BucketPlan:
        """The current buckets, with the sizes seen."""
        dims = {}
        for axis, name in enumerate(self.names):
            rule = self.get(name)
            if isinstance(rule, Buckets):
                dims[name] = rule
            elif isinstance(rule, Unbounded) or not hasattr(rule, "sizes"):
                picked = {rule.pick(sizes[axis]) for sizes in self.seen} if rule is not None else {1}
                dims[name] = Buckets(tuple(n for n in picked if n), "powers")
            else:
                dims[name] = explicit(rule.sizes)
        return BucketPlan(dims, dict(self.seen))


class Planned:
    """The sizes of one callable's calls.

    Args:
        sizes: the current buckets, and the sizes seen.
    """

    def __init__(self, sizes: BucketSizes) -> None:
        self.sizes = sizes
        self.refused: list[Mapping[str, int]] = []
        """Sizes that their bucket cannot serve."""
        self.last: tuple[Mapping[str, int], Captures, int] | None = None
        """The sizes of the last slow call, its entry, and that entry's number of replays then."""

    def count(self, route: Route) -> Callable[[Captures], bool] | None:
        """Count one more call of this size; if buckets were learned, return a test for entries that belong to none of
        them.
        """
        actual = route.too_large
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
        """Count the calls that took the fast path since the last slow one: all had its size."""
        if self.last is not None:
            actual, entry, n = self.last
            self.last = None
            n_fast = entry.n_replays() - n
            if n_fast > 0:
                self.sizes.note(actual, n_fast)

    def plan(self) -> BucketPlan:
        """The current buckets and the sizes seen; prints as a table."""
        self.count_fast_calls()
        found = self.sizes.plan()
        refused = frozenset(tuple(sizes.get(name, 0) for name in found.dims) for sizes in self.refused)
        return replace_in(found, refused=refused)

    def by_bucket(self, name: str) -> list[dict[str, Any]]:
        """Calls and elements by bucket so far, as plain data. Changes nothing, so any thread may call it."""
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


def _rule(given: Any) -> Any:
    if given is None or given in ("auto", "powers", "powers_of_two"):
        return Unbounded()
    if given == "ladder":
        return ladder()
    if isinstance(given, str):
        raise ConfigError("bad_buckets", given=repr(given), problem="there is no rule with that name")
    if hasattr(given, "pick"):
        return given
    if not isinstance(given, Iterable):
        raise ConfigError("bad_buckets", given=repr(given), problem="it is neither a list of sizes nor a rule")
    return explicit(given)


def _text_of(path: Path) -> str:
    try:
        return files.read_named(path).decode("utf-8")
    except OSError as error:
        raise ConfigError("bucket_plan_unreadable", path=str(path), problem=str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("bucket_plan_unreadable", path=str(path), problem=f"not UTF-8: {error.reason}") from error


def _report(kind: str, reason: str) -> None:
    state = process.current()
    if state is not None:
        state.report(kind, reason, level=logging.INFO)
