"""The one account of calls: every call of a graphed callable, every replay of a plain graph, in exactly one way.

    by graph    one launch did all of it
    in pieces   graphs with Python, or operations that no graph holds, between them
    eager       no graph did any of it; with the reason
    raised      with the error and its line

``stats()``, ``explain()``, the closing line, the report, ``GFXGRAPH_STATS``, ``check`` and engines' counters read
this and nothing else. Launches on the fast path are counted by their graphs, which an account asks when it is read:
the fast path pays nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

WAYS = ("by_graph", "in_pieces", "eager", "raised")
WARM_UP = "warm-up"
MOST_PLACES = 256
"""Lines and times are kept for this many reasons of an account."""
_lock = threading.Lock()


class Reasons(Counter[str]):
    """Calls by reason."""

    def count(self, why: str) -> None:
        """Count one, from any thread."""
        with _lock:
            self[why] += 1


class Account:
    """How the calls of one callable, or the replays of the graphs captured at one line, ran.

    Args:
        name: the callable's, or what captured.
        where: its line.
        replays: how often its living graphs were replayed.
        is_part: of another callable, whose calls are counted there.
    """

    is_of_graphs = False

    def __init__(
        self,
        name: str,
        where: str = "",
        replays: Callable[[], int] = int,
        *,
        eager: object = None,
        pieces: object = None,
        is_part: bool = False,
    ) -> None:
        self.name, self.where, self.replays = name, where, replays
        self.eager: Any = Reasons() if eager is None else eager
        self.pieces: Any = Reasons() if pieces is None else pieces
        self.raised = Reasons()
        self.slow: Counter[str] = Counter()
        """Of those by graph, or in pieces: calls that no generated function serves, by reason."""
        self.n_gone = self.n_otherwise = 0
        """Replays of graphs that are gone; replays that were not by graph, and are in pieces or eager."""
        self.places: dict[str, str] = {}
        """Lines of reasons."""
        self.took: dict[str, tuple[float, int]] = {}
        """Seconds of timed eager calls and their number, by reason."""
        self.parts: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Operations of the calls in pieces: those in graphs, and all."""
        self._n_parts = (0, 0)
        self._is_part = is_part
        if not is_part:
            _open.add(self)

    @property
    def by_graph(self) -> int:
        return self.n_gone + self.replays() - self.n_otherwise

    def replayed(self, n: int, of: int, why: str, where: str = "") -> None:
        """Count a replay with ``n`` of its operations in graphs: eager if none, else in pieces."""
        self.n_otherwise += 1
        if n:
            self._n_parts = self._n_parts[0] + n, self._n_parts[1] + of
        (self.pieces if n else self.eager).count(why)
        self.at(why, where)

    def failed(self, error: BaseException, where: str = "") -> None:
        """Count a call that raised."""
        self.raised.count(type(error).__name__)
        self.at(type(error).__name__, where)

    def at(self, why: str, where: str) -> None:
        """Note the line of a reason, unless one is known."""
        if where and len(self.places) < MOST_PLACES:
            self.places.setdefault(why, where)

    def timed(self, why: str, seconds: float) -> None:
        """Note how long an eager call took."""
        total, n = self.took.get(why, (0.0, 0))
        if n or len(self.took) < MOST_PLACES:
            self.took[why] = total + seconds, n + 1

    def close(self, replays: int = 0, parts: tuple[int, int] = (0, 0)) -> None:
        """Its callable is about to go: keep its counts, with others' of its name.

        Args:
            replays: as the callable has them now; a weak reference to what the collector found is dead already.
            parts: likewise.
        """
        if self._is_part:
            return
        self.n_gone, self.replays = self.n_gone + replays, int
        self._n_parts = self._n_parts[0] + parts[0], self._n_parts[1] + parts[1]
        self.parts = lambda: (0, 0)
        _open.discard(self)
        kept = _closed.setdefault((self.name, self.where), self)
        if kept is not self:
            kept._add(self)

    def _add(self, other: Account) -> None:
        for name in ("eager", "pieces", "raised", "slow"):
            getattr(self, name).update(getattr(other, name))
        self.n_gone += other.n_gone
        self.n_otherwise += other.n_otherwise
        self._n_parts = tuple(map(sum, zip(self._n_parts, other._n_parts)))  # type: ignore[assignment]
        self.places = {**other.places, **self.places}
        for why, (total, n) in other.took.items():
            mine = self.took.get(why, (0.0, 0))
            self.took[why] = mine[0] + total, mine[1] + n

    def _operations(self) -> tuple[int, int]:
        n, of = self.parts()
        return self._n_parts[0] + n, self._n_parts[1] + of

    def reset(self) -> None:
        """Set every count to zero."""
        for each in (self.eager, self.pieces, self.raised, self.slow, self.places, self.took):
            each.clear()
        self.n_gone, self.n_otherwise, self._n_parts = -self.replays(), 0, (0, 0)
        before = self.parts()
        if before != (0, 0):
            self._n_parts = -before[0], -before[1]

    def table(self) -> dict[str, Any]:
        """The account as plain data."""
        ways = {"eager": dict(self.eager), "raised": dict(self.raised), "in_pieces": dict(self.pieces)}
        seconds = {why: round(total / n * ways["eager"][why], 6) for why, (total, n) in self.took.items()
                   if why in ways["eager"]}  # fmt: skip
        found = {"name": self.name, "where": self.where, "by_graph": self.by_graph, **ways}
        more = {"operations": self._operations(), "slow": dict(self.slow), "places": dict(self.places)}
        return {**found, **more, "seconds": seconds}


_open: weakref.WeakSet[Account] = weakref.WeakSet()
_closed: dict[tuple[str, str], Account] = {}
"""By name and line: accounts of callables that are gone."""
others: list[Any] = []
"""Accounts that are kept elsewhere, of compiled regions: ``tables()`` gives them, ``reset()`` begins anew."""


_plain: dict[str, _OfGraphs] = {}
"""By line: accounts of plain graphs."""


class _OfGraphs(Account):
    """The account of the plain graphs captured at one line."""

    is_of_graphs = True

    def __init__(self, where: str) -> None:
        super().__init__("graph", where, self._sum, is_part=True)
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()

    def _sum(self) -> int:
        return sum(graph.n_replays for graph in list(self.graphs))


def of_graph(where: str) -> _OfGraphs:
    """The account of plain graphs captured at this line."""
    found = _plain.get(where)
    if found is None:
        found = _plain[where] = _OfGraphs(where)
    return found


def tables() -> list[dict[str, object]]:
    """Every account in which anything was counted."""
    found = [each.table() for each in (*list(_open), *list(_closed.values()), *list(_plain.values()))]
    found += [table for other in others for table in other.tables()]
    return [each for each in found if any(n_of(each, way) for way in WAYS)]


def n_of(table: dict[str, Any], way: str) -> int:
    """How many calls of an account ran in this way."""
    return table[way] if way == "by_graph" else sum(table[way].values())


def _together(one: Any, other: Any) -> object:
    """Two values of one key of a table as one."""
    if isinstance(one, dict):
        return {**other, **{key: _together(one[key], other[key]) if key in other else one[key] for key in one}}
    if isinstance(one, (tuple, list)):
        return tuple(map(sum, zip(one, other)))
    return one if isinstance(one, str) else one + other


def summed(found: Iterable[dict[str, Any]]) -> dict[str, object]:
    """All accounts in one: calls by way, and the accounts themselves, those with the most calls first.

    Callables of one name and line, in this process or in several, are one.
    """
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for table in found:
        known = merged.setdefault((table["name"], table["where"]), {})
        for key, value in table.items():
            known[key] = _together(known[key], value) if key in known else value
    rows = sorted(merged.values(), key=lambda table: -sum(n_of(table, way) for way in WAYS))
    return {**{way: sum(n_of(table, way) for table in rows) for way in WAYS}, "of": rows}


def reset() -> None:
    """Set every account to zero."""
    _closed.clear()
    for account in (*list(_open), *list(_plain.values()), *others):
        account.reset()
