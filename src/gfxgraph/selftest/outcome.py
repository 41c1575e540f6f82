"""How a case of the self-test ended: the words for it, and how they follow from what became of its process.

skip  the case does not apply here, and says why
pass  the fact holds, and the process ended with status 0
fail  the fact does not hold, or holds only because eager execution stood in for the graph
crash the process ended otherwise: by a signal, or after the case had passed
hang  the process did not end in time and was killed
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gfxgraph.diagnostics.explain import explain
from gfxgraph.selftest.processes import Ended
from gfxgraph.selftest.worker import FAIL, PASS, REFUSED, SKIP

N_FIRST_LINES, N_LAST_LINES = 12, 24


class Outcome(StrEnum):
    """How a case ended; the module's text says what each means."""

    PASS = "pass"  # noqa: S105  (not a password)
    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Listed:
    """A case that there is; ``is_alone``: nothing else may run beside it."""

    name: str
    fact: str
    limit_s: float
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case that was run, or was not: then ``exit_status`` is None."""

    name: str
    fact: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    exit_status: int | None = None
    stderr: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    times_s: Mapping[str, float] = field(default_factory=dict)
    """What the seconds went into; ``import`` was spent before the case got its process, where that was prepared."""

    @property
    def is_bad(self) -> bool:
        return self.outcome in (Outcome.FAIL, Outcome.CRASH, Outcome.HANG)

    @property
    def may_harm(self) -> bool:
        """It ended in a way that may have taken the GPU with it."""
        return self.outcome in (Outcome.CRASH, Outcome.HANG)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; what is empty is left out."""
        values: dict[str, Any] = {
            "name": self.name,
            "outcome": str(self.outcome),
            "fact": self.fact,
            "reason": self.reason,
            "seconds": round(self.seconds, 2),
            "times_s": {name: round(seconds, 3) for name, seconds in self.times_s.items()},
            "exit_status": self.exit_status,
            "stderr": list(self.stderr),
            "explained": list(self.explained),
            "figures": dict(self.figures),
            "stats": dict(self.stats),
        }
        return {name: value for name, value in values.items() if value not in ("", [], {}) and value is not None}


def result_of(case: Listed, ended: Ended) -> CaseResult:
    """What became of the process is the case's outcome."""
    said = ended.said
    outcome, reason = _judge(ended.status, ended.was_killed, said, case.limit_s)
    is_told = outcome not in (Outcome.PASS, Outcome.SKIP)
    tail = _ends(ended.lines) if is_told else ()
    explained = tuple(match.code for match in explain("\n".join(ended.lines)).matches) if tail else ()
    return CaseResult(
        case.name,
        case.fact,
        outcome,
        reason,
        ended.seconds,
        ended.status,
        tail,
        explained,
        said.get("figures", {}),
        said.get("stats", {}),
        said.get("times_s", {}),
    )


def _judge(status: int | None, was_killed: bool, found: Mapping[str, Any], limit_s: float) -> tuple[Outcome, str]:
    said = str(found.get("reason", ""))
    if status is None:
        return Outcome.HANG, f"did not end within {limit_s:.0f} s, and could not even be killed"
    if was_killed:
        after = " after the case was done" if found else ""
        return Outcome.HANG, f"did not end within {limit_s:.0f} s{after}"
    if not found:
        return Outcome.CRASH, f"ended by {_how(status)} without a result"
    if status == SKIP:
        return Outcome.SKIP, said
    if status == PASS:
        return Outcome.PASS, said
    if status in (FAIL, REFUSED) and said:
        return Outcome.FAIL, said
    return Outcome.CRASH, f"the case was done, and then the process ended by {_how(status)}"


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return f"signal {-status} ({signal.Signals(-status).name})"
    return f"signal {-status}"


def _ends(lines: Sequence[str]) -> tuple[str, ...]:
    """The first and the last lines: a runtime says what happened before Python says where it stood then."""
    told: list[str] = []
    for line in lines:
        if line.startswith("Extension modules:"):
            continue
        if line.strip() == "<no Python frame>" and told and told[-1].startswith("Thread "):
            told.pop()  # torch's idle threads
        elif line.strip():
            told.append(line)
    left_out = len(told) - N_FIRST_LINES - N_LAST_LINES
    if left_out > 0:
        told[N_FIRST_LINES:-N_LAST_LINES] = [f"... {left_out} lines left out ..."]
    return tuple(told)
