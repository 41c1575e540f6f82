"""What a check is given, what it answers, and how long it may take."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from pathlib import Path

from gfxgraph.hardware.machine import Machine
from gfxgraph.hardware.software import Rocm, Torch, find_rocm, find_torch
from gfxgraph.hardware.time_limit import Aside
from gfxgraph.hardware.topology import Gpu, gpus


class CheckState(StrEnum):
    """GREEN is fine, AMBER works but will hurt, RED does not work."""

    GREEN = "green"
    AMBER = "amber"
    RED = "red"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of doctor's screen, in both languages, with the command that fixes it."""

    name: str
    state: CheckState
    en: str
    zh: str
    fix: str = ""

    def text(self, lang: str) -> str:
        return self.zh if lang == "zh" else self.en


@lru_cache(maxsize=1)
def _findings() -> dict[str, dict[str, str]]:
    """``findings.toml``, by key."""
    return tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))


def finding(key: str, **facts: object) -> CheckResult:
    """The finding of ``findings.toml`` with that key, filled in."""
    row = {name: text.format(**facts) for name, text in _findings()[key].items()}
    return CheckResult(row["name"], CheckState(row["state"]), row["en"], row["zh"], row.get("fix", ""))


@dataclass
class Site:
    """Everything that checks look at; read once, when first asked for."""

    machine: Machine = field(default_factory=Machine)
    search: Sequence[str] | None = None

    @cached_property
    def gpus(self) -> list[Gpu]:
        return gpus(self.machine)

    @cached_property
    def rocm(self) -> list[Rocm]:
        return find_rocm(self.machine)

    @cached_property
    def torch(self) -> Torch:
        return find_torch(self.search)


Check = Callable[[Site], list[CheckResult]]
LIMIT_S = 3.0


def run(checks: Sequence[Check], site: Site, limit_s: float = LIMIT_S) -> list[CheckResult]:
    """Run every check with a time limit each; a check that hangs becomes an amber finding.

    Returns:
        The findings in the order of ``checks``.
    """
    found: list[CheckResult] = []
    for check in checks:
        found += _limited(check, site, limit_s)
    return found


def hung(name: str, limit_s: float = LIMIT_S) -> CheckResult:
    """Say that something on this machine does not answer."""
    return finding("hung", check=name, limit_s=limit_s)


def _limited(check: Check, site: Site, limit_s: float) -> list[CheckResult]:
    name = check.__name__.replace("_", " ")
    try:
        return Aside().within(limit_s, lambda: check(site))
    except TimeoutError:
        return [hung(name, limit_s)]
    except (OSError, ValueError, KeyError) as error:
        return [finding("not_checked", check=name, error=error)]
