"""Known cases: below a recognised class, what others with the same signature found to be the cause and the fix.

Records are in ``cases/CODE.toml``, where CODE is the class that is recognised in their logs. A record is near if
most of the weight of its signature's words is in the log; a word weighs the more the fewer records contain it. What
the text or the machine contradicts (another GPU, system or version) is removed.
"""

from __future__ import annotations

import math
import operator
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "cases"
FACTS = frozenset(
    "not_in_render no_kfd no_dri in_container in_wsl override_set visible_empty amdgpu_not_loaded cuda_torch"
    " cpu_torch arch_not_in_torch iommu_on low_memlock small_shm".split()
)
"""What a machine can prove or contradict."""
_NONE: Mapping[str, str] = MappingProxyType({})
_LEAST_SHARE = 0.8
"""Of the weight of a signature, which must be in the text: by cross-validation, see docs/decisions/explain.md."""
_PROVED, _PRINTED = 5.0, 12.0
"""What a fact about the machine and the case's message add to its words' weight."""
_CLEARLY = 1.25
"""The best case is shown alone if it weighs so much more than the next."""


class KnownCase(NamedTuple):
    """One known case; empty fields say nothing. The fields are described in CONTRIBUTING.md."""

    signature: str
    cause: Mapping[str, str]
    fix: Mapping[str, str]
    check: Mapping[str, str]
    source: str
    message: str = ""
    program: str = ""
    arch: str = ""
    system: str = ""
    versions: Mapping[str, str] = _NONE
    machine: str = ""


class Setting(NamedTuple):
    """What is known of the place of a failure: the text in lower case, GPUs and their families, systems."""

    text: str
    gpus: frozenset[str] = frozenset()
    systems: frozenset[str] = frozenset()


class Near(NamedTuple):
    """A case that fits, by how much, and whether its message was found."""

    case: KnownCase
    weight: float
    is_printed: bool = False


@cache
def cases(code: str) -> tuple[KnownCase, ...]:
    """The known cases below this class."""
    try:
        data = (FOLDER / f"{code}.toml").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    return tuple(map(parse, tomllib.loads(data)["case"]))


def parse(row: Mapping[str, Any]) -> KnownCase:
    """Turn one record of a file into a ``KnownCase``; its texts by language, Chinese only where it differs.

    Raises:
        TypeError: a key is missing or unknown.
        ValueError: an unknown fact about machines.
    """
    fields = dict(row)
    for name in ("cause", "fix", "check"):
        english = fields.pop("cause_en") if name == "cause" else fields.pop(name, "")
        fields[name] = {"en": english, "zh": fields.pop(f"{name}_zh", english)}
    if fields.get("machine", "") not in {"", *FACTS}:
        raise ValueError(f"unknown fact about a machine: {fields['machine']!r}; known: {', '.join(sorted(FACTS))}")
    return KnownCase(**fields)


def frequencies() -> dict[str, int]:
    """How many records' signatures contain each word, and under '' the number of records."""
    records = [case for path in FOLDER.glob("*.toml") for case in cases(path.stem)]
    counted = Counter(word for case in records for word in set(_words(case)))
    return {"": len(records), **counted}


def _words(case: KnownCase) -> list[str]:
    return case.signature.lower().split()


def near(code: str, printed: Iterable[int], setting: Setting, frequency: Mapping[str, int]) -> list[Near]:
    """The cases below ``code`` that fit, the best first; ``printed`` numbers those whose message was found."""
    found = []
    sure = set(printed)
    has = cache(lambda word: contains(setting.text, word))  # many records have the same words
    for number, case in enumerate(cases(code)):
        if _is_elsewhere(case, setting):
            continue
        if number not in sure and case.arch and not setting.gpus and "gfx" in case.cause["en"] + case.fix["en"]:
            continue  # it speaks of a GPU, and none is named
        weights = {word: math.log(1 + frequency.get("", 1) / frequency.get(word, 1)) for word in _words(case)}
        weight = sum(weight for word, weight in weights.items() if has(word))
        if number in sure or weight >= _LEAST_SHARE * sum(weights.values()):
            found.append(Near(case, weight + _PRINTED * (number in sure), number in sure))
    return sorted(found, key=lambda one: -one.weight)


def best(found: Iterable[Near], know: Callable[[str], bool | None] = lambda fact: None) -> list[Near]:
    """The clearly best case, or the two best that differ in their fix; ``know`` tells facts about the machine."""
    asked = {one.case.machine: know(one.case.machine) for one in found if one.case.machine}
    left = [
        one._replace(weight=one.weight + _PROVED) if asked.get(one.case.machine) else one
        for one in found
        if asked.get(one.case.machine) is not False
    ]
    left.sort(key=lambda one: -one.weight)
    others = [one for one in left[1:] if one.case.fix != left[0].case.fix]
    if not others or left[0].weight >= _CLEARLY * others[0].weight:
        return left[:1]
    return [left[0], others[0]]


def contains(text: str, word: str) -> bool:
    """Whether ``text`` contains ``word``, not as a part of a longer one."""
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        before, after = text[at - 1 : at], text[end : end + 1]
        if not (before.isalnum() and word[0].isalnum()) and not (after.isalnum() and word[-1].isalnum()):
            return True
        at = text.find(word, at + 1)
    return False


def _is_elsewhere(case: KnownCase, setting: Setting) -> bool:
    """Whether the text shows another GPU, system or version than the case's."""
    if case.system and case.system not in setting.systems and (setting.systems or case.system != "linux"):
        return True  # Windows and WSL show in a log; plain Linux often does not
    if "wsl" in setting.systems and "usermod" in case.fix["en"]:  # it has no /dev/kfd whose group counts
        return True
    wanted = {name.lower() for name in case.arch.split()}
    if wanted and setting.gpus and wanted.isdisjoint(setting.gpus):
        return True
    return any(_is_other_version(name, wanted, setting.text) for name, wanted in case.versions.items())


_COMPARED: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<": operator.lt,
    "==": lambda shown, wanted: shown[: len(wanted)] == wanted,
}


def _is_other_version(name: str, wanted: str, text: str) -> bool:
    shown = {"kernel": r"(?:linux|kernel)", "driver": r"(?:driver|adrenalin)"}.get(name, re.escape(name.lower()))
    found = {
        _numbers(number) for number in re.findall(rf"{shown}[^\d\n]{{0,12}}(\d{{1,3}}(?:\.\d{{1,5}}){{1,3}})", text)
    }
    bounds = [(part.strip("0123456789. ") or "==", _numbers(part)) for part in wanted.split(",")]
    return bool(found) and not any(all(_COMPARED[how](one, limit) for how, limit in bounds) for one in found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
