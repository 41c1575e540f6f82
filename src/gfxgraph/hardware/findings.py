"""What doctor says of a machine: the rows of the table of causes that hold on it, each with what mends it.

Facts are read in parts, each with a time limit: a read from sysfs can hang on a wedged GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from gfxgraph import config
from gfxgraph.diagnostics import causes
from gfxgraph.hardware import bad_versions, facts
from gfxgraph.hardware.facts import Site
from gfxgraph.hardware.time_limit import Aside

LIMIT_S = 3.0
_ORDER = (
    "GPU", "kernel driver", "device files", "PCIe atomics", "IOMMU", "shared memory", "speed", "gfxgraph", "ROCm",
    "PyTorch", "kernels", "wheels", "engines", "known to be bad", "override", "variables", "settings",
)  # fmt: skip
_FACT = re.compile(r"\{([a-z]\w*(?:\.[\w-]+)*)\}")


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


def probe(site: Site | None = None, limit_s: float = 0) -> tuple[dict[str, object], list[CheckResult]]:
    """The facts of a machine, and a finding for each part that does not answer in time or cannot be read."""
    site = site or Site()
    found: dict[str, object] = {}
    lacking = []
    for part in facts.PARTS:
        name = part.__name__.replace("_facts", "")
        try:
            found |= Aside().within(limit_s or LIMIT_S, lambda part=part: part(site))  # type: ignore[misc]
        except TimeoutError:
            lacking.append(hung(name, limit_s or LIMIT_S))
        except (OSError, ValueError, KeyError) as error:
            lacking.append(
                CheckResult(name, CheckState.AMBER, f"could not be checked: {error}", f"无法检查：{error}")
            )
    found["bad"] = [row.id for row in bad_versions.matching(found)]
    return {name: value for name, value in sorted(found.items()) if value not in (None, "")}, lacking


def hung(name: str, limit_s: float = 0) -> CheckResult:
    """Say that something on this machine does not answer."""
    limit_s = limit_s or LIMIT_S
    en, zh = f"did not answer within {limit_s:g} s", f"{limit_s:g} 秒内没有响应"
    return CheckResult(name, CheckState.AMBER, en, zh, "sudo dmesg | grep -i amdgpu | tail")


def of(known: causes.Facts, environ: causes.Facts | None = None) -> list[CheckResult]:
    """What is to be said of a machine with these facts, and of all its variables if given, as the screen has it."""
    known = {**known, **{f"environ.{name}": value for name, value in (environ or {}).items()}}
    found = [line for row in causes.of_doctor() for line in _lines(row, known)]
    for bad in bad_versions.matching(known) if known.get("gpu.n") else ():
        en, zh = (f"{bad.id} ({bad.date}): {words['why']}" for words in (bad.en, bad.zh))
        found.append(CheckResult("known to be bad", CheckState.AMBER, en, zh, bad.en.get("do", "")))
    return sorted(found, key=lambda one: _ORDER.index(re.sub(r" \d+$", "", one.name)))


def settings() -> list[CheckResult]:
    """Values of our own variables that were refused, and names that are not settings."""
    found = []
    for name, meant in config.misspelt().items():
        en, zh = (
            f"{name} is not a setting of gfxgraph; did you mean {meant}?",
            f"没有任何代码读取 {name}；是否想写 {meant}？",
        )
        found.append(CheckResult("settings", CheckState.AMBER, en, zh, f"unset {name}"))
    for bad in config.load().problems:
        said = f"{bad.variable}={bad.value}"
        en, zh = f"{said} is not one of: {bad.allowed}", f"{said} 不在允许的取值内：{bad.allowed}"
        found.append(CheckResult("settings", CheckState.RED, en, zh, f"unset {bad.variable}"))
    return found


def _lines(row: causes.PossibleCause, known: causes.Facts) -> Iterator[CheckResult]:
    if not causes.holds((*row.facts, *row.shown_if), known):
        return
    values = causes.values(known, row.each) if row.each else [""]
    seen = causes.shown(row.facts, known) if row.check else ""
    for number, value in enumerate(values):
        here = {"value": value, "arch": ", ".join(causes.values(known, "gpu.arch"))}
        en, zh = (
            _filled(row.words[lang].why, known, here) + (f"   ({seen})" if seen else "") for lang in ("en", "zh")
        )
        name = f"{row.name} {number}" if row.each else row.name
        yield CheckResult(name, CheckState(row.state), en, zh, _filled(row.words["en"].do, known, here))


def _filled(text: str, known: causes.Facts, here: dict[str, str]) -> str:
    return _FACT.sub(lambda fact: here.get(fact[1]) or ", ".join(causes.values(known, fact[1])), text)
