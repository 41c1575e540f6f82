"""Known cases: below a recognised class, what others with the same signature found to be the cause and the fix.

Records are in ``cases/CODE.toml``, where CODE is the class that is recognised in their logs. A record fits if its
message was printed, or most of the weight of its signature's words is in the log; a word weighs the more the fewer
records contain it. What the text contradicts (another GPU or system) is removed. Of several that fit, the best is
told if it is clearly best, else none: two guesses are worse than the class.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "cases"
_LEAST_SHARE = 0.8
"""Of the weight of a signature, which must be in the text: by cross-validation, see docs/decisions/explain.md."""
_PRINTED = 12.0
"""What the case's message adds to its words' weight."""
_CLEARLY = 1.25
"""The best case is told if it weighs so much more than the next that has another fix."""


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


class Setting(NamedTuple):
    """What is known of the place of a failure: the text in lower case, GPUs and their families, systems."""

    text: str
    gpus: frozenset[str] = frozenset()
    systems: frozenset[str] = frozenset()


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
    """
    fields = dict(row)
    for name in ("cause", "fix", "check"):
        english = fields.pop("cause_en") if name == "cause" else fields.pop(name, "")
        fields[name] = {"en": english, "zh": fields.pop(f"{name}_zh", english)}
    return KnownCase(**fields)


def frequencies() -> dict[str, int]:
    """How many records' signatures contain each word, and under '' the number of records."""
    records = [case for path in FOLDER.glob("*.toml") for case in cases(path.stem)]
    counted = Counter(word for case in records for word in set(_words(case)))
    return {"": len(records), **counted}


def _words(case: KnownCase) -> list[str]:
    return case.signature.lower().split()


def best(code: str, printed: Iterable[int], setting: Setting, frequency: Mapping[str, int]) -> KnownCase | None:
    """The case below ``code`` that clearly fits best; ``printed`` numbers those whose message was found."""
    found = []
    sure = set(printed)
    for number, case in enumerate(cases(code)):
        speaks_of_gpu = case.arch and "gfx" in case.cause["en"] + case.fix["en"]
        if _is_elsewhere(case, setting) or (number not in sure and speaks_of_gpu and not setting.gpus):
            continue
        weights = {word: math.log(1 + frequency.get("", 1) / frequency.get(word, 1)) for word in _words(case)}
        weight = sum(weight for word, weight in weights.items() if contains(setting.text, word))
        if number in sure or weight >= _LEAST_SHARE * sum(weights.values()):
            found.append((weight + _PRINTED * (number in sure), case))
    if not found:
        return None
    weight, first = max(found, key=lambda one: one[0])
    is_clear = all(case.fix == first.fix or weight >= _CLEARLY * other for other, case in found)
    return first if is_clear else None


def contains(text: str, word: str) -> bool:
    """Whether ``text`` contains ``word``, not as a part of a longer one."""
    before, after = r"(?<![^\W_])" * word[0].isalnum(), r"(?![^\W_])" * word[-1].isalnum()
    return word in text and bool(re.search(before + re.escape(word) + after, text))


def _is_elsewhere(case: KnownCase, setting: Setting) -> bool:
    """Whether the text shows another GPU or system than the case's."""
    if case.system and case.system not in setting.systems and (setting.systems or case.system != "linux"):
        return True  # Windows and WSL show in a log; plain Linux often does not
    if "wsl" in setting.systems and "usermod" in case.fix["en"]:  # it has no /dev/kfd whose group counts
        return True
    wanted = {name.lower() for name in case.arch.split()}
    return bool(wanted and setting.gpus and wanted.isdisjoint(setting.gpus))
