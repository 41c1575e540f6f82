"""Rules and findings: the vocabulary of the port room.

Enters: plain values.
Stays out: parsing, files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from gfxgraph_port.archs import ALL, ArchSet


class _Level(IntEnum):
    @property
    def label(self) -> str:
        return self.name.lower()


class Severity(_Level):
    """How bad it is on the worst architecture a finding affects."""

    INFO = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4


class Fix(StrEnum):
    """Who may apply the change: the tool by default, the tool on request, or only a person."""

    SAFE = "safe"
    SUGGEST = "suggest"
    NONE = "none"


class Impact(_Level):
    """What a finding does to a port, the worst first."""

    BREAKS = 0  # the build, the import or the first run
    SILENT = 1  # it runs and is wrong, or takes a path that was not meant
    SLOW = 2


@dataclass(frozen=True, slots=True)
class Text:
    """One language of a rule. ``what`` may hold ``{placeholders}`` that a hit fills in."""

    title: str
    what: str
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern: what it is about and its two examples, which are its documentation and its test.

    ``bad`` and ``good`` map paths to texts. ``seen`` is a place of a public repository where the rule was right, as
    ``owner/name@commit:path`` in the tree before that commit, which ported it.
    """

    id: str
    code: str
    severity: Severity
    phase: int
    en: Text
    zh: Text
    bad: Mapping[str, str]
    good: Mapping[str, str]
    seen: str
    harm: Impact = Impact.BREAKS
    fix: Fix = Fix.NONE
    archs: ArchSet = ALL
    needs: tuple[str, ...] = ()
    versions: str = ""

    def files(self, kind: str) -> dict[str, str]:
        """The ``"bad"`` or ``"good"`` example as a mapping of path to text."""
        return dict(self.bad if kind == "bad" else self.good)

    def text(self, lang: str) -> Text:
        return self.zh if lang == "zh" else self.en


@dataclass(frozen=True, slots=True)
class Hit:
    """What a check reports: a place, and what sets it apart.

    Args:
        line: 1-based line in the file.
        column: 0-based column.
        node: the reader's own node, from which the guards are read; None where lines are enough.
        values: placeholders of the rule's ``what``.
        end_line: the last line of the construct, where no node tells it.
        guarded_by: a guard the check itself saw (a ``try``), in words; the finding is then not reported.
    """

    line: int
    column: int = 0
    node: Any = None
    values: Mapping[str, str] = field(default_factory=dict)
    severity: Severity | None = None
    archs: ArchSet | None = None
    guarded_by: str = ""
    end_line: int = 0
    guard_free: bool = False  # the hit is about the guard itself: enclosing guards still count, its own not


@dataclass(frozen=True, slots=True)
class Finding:
    """One hit of one rule in one file, with its evidence; ``end_line`` is where the named construct ends."""

    rule: str
    code: str
    path: str
    line: int
    column: int
    severity: Severity
    phase: int
    fix: Fix
    archs: tuple[str, ...]
    evidence: str
    values: Mapping[str, str] = field(default_factory=dict)
    end_line: int = 0
    guarded_by: str = ""
    fingerprint: str = ""
    lines: tuple[int, ...] = ()  # every line that the rule is about in this file, in order

    def covers(self, line: int) -> bool:
        """Whether the finding is about a line."""
        return self.line <= line <= max(self.line, self.end_line) or line in self.lines

    def as_json(self) -> dict[str, object]:
        return {
            "rule": self.rule,
            "code": self.code,
            "path": self.path,
            "line": self.line,
            "column": self.column + 1,
            "end_line": max(self.line, self.end_line),
            "lines": list(self.lines) or [self.line],
            "count": len(self.lines) or 1,
            "severity": self.severity.label,
            "phase": self.phase,
            "fix": self.fix.value,
            "archs": list(self.archs),
            "evidence": self.evidence,
            "guarded_by": self.guarded_by,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was passed over, and why. Never silent: every report lists them."""

    path: str
    reason: str
    detail: str = ""


def fill(template: str, values: Mapping[str, str]) -> str:
    """Fill the placeholders of a rule's text; a placeholder without a value shows as ``?``."""
    return template.format_map(defaultdict(lambda: "?", values))
