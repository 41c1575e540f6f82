"""How much of the device's work graphs did, as plain numbers: for one process, or summed over several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gfxgraph.process.process import Samples


@dataclass(slots=True)
class EagerLine:
    """Eager launches of one operation from one line."""

    op: str
    where: str
    why: str
    n: int = 0
    seconds: float = 0.0
    rewrite: str = ""

    def as_dict(self) -> dict[str, Any]:
        made = {"op": self.op, "where": self.where, "why": self.why, "launches": self.n, "seconds": self.seconds}
        return made | {"rewrite": self.rewrite}


@dataclass(slots=True)
class Coverage:
    """The counts. ``str()`` gives one line; ``table()`` lists the source lines that ran eagerly.

    Args:
        graph_launches: nodes that replays launched while coverage was on.
        eager_launches: launches outside graphs in the same time.
        n_replays: replays in that time; ``n_steps`` are those of the most replayed graph.
        seconds: watched wall time, out of ``elapsed``.
        seconds_before_replays: the part of ``seconds_eager`` before the first replay, which belongs to no step.
    """

    graph_launches: int = 0
    eager_launches: int = 0
    n_replays: int = 0
    n_steps: int = 0
    seconds_in_graphs: float = 0.0
    seconds_eager: float = 0.0
    seconds_before_replays: float = 0.0
    seconds_capturing: float = 0.0
    validation_launches: int = 0
    """Launches by gfxgraph itself, to compare replays with eager; not part of any share."""
    seconds: float = 0.0
    elapsed: float = 0.0
    own_seconds: float = 0.0
    n_windows: int = 0
    is_exact: bool = True
    n_elsewhere: int = 0
    """Replays on threads that coverage does not watch."""
    lines: list[EagerLine] = field(default_factory=list)
    downgrades: list[str] = field(default_factory=list)
    """Fallbacks and engines' graphs that became eager, with counts."""

    @property
    def share(self) -> float | None:
        """The share of launches made by graphs; None if nothing was launched."""
        total = self.graph_launches + self.eager_launches
        return self.graph_launches / total if total else None

    @property
    def share_of_time(self) -> float | None:
        """The share of wall time taken by graphs; None if nothing was launched."""
        total = self.seconds_in_graphs + self.seconds_eager
        return self.seconds_in_graphs / total if total else None

    @property
    def eager_ms_per_step(self) -> float | None:
        """Cost of eager launches since the first replay, in ms per replay of the most replayed graph."""
        spent = self.seconds_eager - self.seconds_before_replays
        return 1e3 * max(0.0, spent) / self.n_steps if self.n_steps else None

    def as_dict(self) -> dict[str, Any]:
        names = [name for name in self.__slots__ if name != "lines"]  # type: ignore[attr-defined]
        made = {name: getattr(self, name) for name in names}
        derived = {"share": self.share, "share_of_time": self.share_of_time}
        derived |= {"eager_ms_per_step": self.eager_ms_per_step}
        return made | derived | {"lines": [line.as_dict() for line in self.lines]}

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Coverage:
        names = [name for name in cls.__slots__ if name != "lines"]  # type: ignore[attr-defined]
        made = cls(**{name: table[name] for name in names if name in table})
        rows = table["lines"]
        made.lines = [
            EagerLine(r["op"], r["where"], r["why"], r["launches"], r["seconds"], r.get("rewrite", "")) for r in rows
        ]
        return made

    def __add__(self, other: Coverage) -> Coverage:
        """The sum of both processes' counts."""
        numbers = [n for n in self.__slots__ if isinstance(getattr(self, n), (int, float)) and n != "is_exact"]  # type: ignore[attr-defined]
        made = Coverage(**{name: getattr(self, name) + getattr(other, name) for name in numbers})
        made.is_exact = self.is_exact and other.is_exact
        merged: dict[tuple[str, str, str], EagerLine] = {}
        for line in (*self.lines, *other.lines):
            key = line.op, line.where, line.why
            known = merged.setdefault(key, EagerLine(*key, rewrite=line.rewrite))
            known.n += line.n
            known.seconds += line.seconds
        made.lines = sorted(merged.values(), key=lambda line: (-line.seconds, -line.n))
        made.downgrades = [*self.downgrades, *other.downgrades]
        return made

    def __str__(self) -> str:
        if self.share is None:
            return "coverage: no device work was seen" + (" yet" if not self.n_windows else "")
        text = f"coverage: {self.share:.1%} of launches in graphs"
        if self.share_of_time is not None:
            text += f", {self.share_of_time:.1%} of wall time"
        text += f" ({self.graph_launches} launches by {self.n_replays} replays, {self.eager_launches} eager"
        if self.eager_ms_per_step is not None and self.eager_launches:
            text += f", {self.eager_ms_per_step:.3g} ms a step"
        if not self.is_exact:
            text += f"; sampled: {self.seconds:.2g} s of {self.elapsed:.3g} s in {self.n_windows} windows"
        text += ")"
        if self.lines:
            first = self.lines[0]
            text += f"; most by {first.op} at {first.where}: {first.why}"
        return text

    def table(self, n: int = 20) -> str:
        """The lines that launched eagerly, most expensive first."""
        rows = [f"{'ms':>10}  {'launches':>8}  operation, line, why"]
        for line in self.lines[:n]:
            rows.append(f"{1e3 * line.seconds:>10.3f}  {line.n:>8}  {line.op}  {line.where}")
            rows.append(f"{'':>22}{line.why}" + (f"; instead: {line.rewrite}" if line.rewrite else ""))
        if len(self.lines) > n:
            rows.append(f"{'':>22}and {len(self.lines) - n} more")
        rows += [f"  {line}" for line in self.downgrades]
        return "\n".join(rows)


def as_families(seen: Coverage) -> Samples:
    """The numbers for Prometheus."""
    totals = {
        "gfxgraph_graph_launches_total": ("Launches by graphs while watched", seen.graph_launches),
        "gfxgraph_eager_launches_total": ("Launches outside graphs while watched", seen.eager_launches),
        "gfxgraph_eager_seconds_total": ("Wall time of launches outside graphs", seen.seconds_eager),
        "gfxgraph_graph_seconds_total": ("Wall time of launches by graphs", seen.seconds_in_graphs),
        "gfxgraph_watched_seconds_total": ("Wall time that was watched", seen.seconds),
    }
    made: Samples = [(name, "counter", text, [({}, float(n))]) for name, (text, n) in totals.items()]
    if seen.share is not None:
        made.append(("gfxgraph_coverage_ratio", "gauge", "Share of launches in graphs", [({}, seen.share)]))
    seconds: Counter[tuple[str, str]] = Counter()
    for line in seen.lines:
        seconds[line.op, line.where] += line.seconds  # type: ignore[assignment]
    by_line: list[tuple[dict[str, str], float]] = [
        ({"op": op, "where": where}, spent) for (op, where), spent in seconds.most_common(10)
    ]
    made.append(("gfxgraph_eager_line_seconds_total", "counter", "Wall time of eager launches, by line", by_line))
    return made
