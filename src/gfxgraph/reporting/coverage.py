"""How much of a program's device work ran in graphs, as plain data.

Enters: counts, names, source lines.
Stays out: torch; launch_counts.py counts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class EagerLine:
    """The eager launches of one operation at one source line."""

    op: str
    where: str
    why: str
    n: int = 0
    rewrite: str = ""


@dataclass(slots=True)
class Coverage:
    """The counts. ``str()`` gives one line; ``table()`` lists the source lines that ran eagerly.

    Args:
        graph_launches: nodes that replays launched while coverage was on.
        eager_launches: operations outside graphs in the same time that launch something.
        validation_launches: launches by gfxgraph itself, to compare replays with eager; in no share.
        n_elsewhere: replays on threads that coverage does not watch.
        downgrades: fallbacks and engines' graphs that became eager, with counts.
        n_once: eager launches before the first replay, at lines that launch no more; in no share.
    """

    graph_launches: int = 0
    eager_launches: int = 0
    n_replays: int = 0
    validation_launches: int = 0
    n_elsewhere: int = 0
    lines: list[EagerLine] = field(default_factory=list)
    downgrades: list[str] = field(default_factory=list)
    n_once: int = 0

    @property
    def share(self) -> float | None:
        """The share of launches made by graphs; None if nothing was launched."""
        total = self.graph_launches + self.eager_launches
        return self.graph_launches / total if total else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share}

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Coverage:
        made = cls(**{name: table[name] for name in cls.__slots__ if name in table})  # type: ignore[attr-defined]
        made.lines = [EagerLine(**row) for row in table["lines"]]
        return made

    def __add__(self, other: Coverage) -> Coverage:
        """The sum of both processes' counts."""
        merged: dict[tuple[str, str, str], EagerLine] = {}
        for line in (*self.lines, *other.lines):
            key = line.op, line.where, line.why
            merged.setdefault(key, EagerLine(*key, rewrite=line.rewrite)).n += line.n
        return Coverage(
            self.graph_launches + other.graph_launches,
            self.eager_launches + other.eager_launches,
            self.n_replays + other.n_replays,
            self.validation_launches + other.validation_launches,
            self.n_elsewhere + other.n_elsewhere,
            sorted(merged.values(), key=lambda line: -line.n),
            [*self.downgrades, *other.downgrades],
            self.n_once + other.n_once,
        )

    def __str__(self) -> str:
        if self.share is None:
            return "coverage: no device work was seen"
        text = f"coverage: {self.share:.1%} of launches in graphs"
        text += f" ({self.graph_launches} launches by {self.n_replays} replays, {self.eager_launches} eager)"
        if self.n_once:
            text += f"; {self.n_once} before the first replay are left out"
        if self.lines:
            first = self.lines[0]
            text += f"; most by {first.op} at {first.where}: {first.why}"
        return text

    def table(self, n: int = 20) -> str:
        """The lines that launched eagerly, most launches first."""
        rows = [f"{'launches':>8}  operation, line, why"]
        for line in self.lines[:n]:
            rows.append(f"{line.n:>8}  {line.op}  {line.where}")
            rows.append(f"{'':>10}{line.why}" + (f"; instead: {line.rewrite}" if line.rewrite else ""))
        if len(self.lines) > n:
            rows.append(f"{'':>10}and {len(self.lines) - n} more")
        rows += [f"  {line}" for line in self.downgrades]
        return "\n".join(rows)
