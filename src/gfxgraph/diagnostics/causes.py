"""Which cause of a class it was: predicates over facts, of the text and of a machine.

A class has causes. A cause holds if its expression is in the log (``log``) or if what it asks of a machine is so
(``facts``); what is not known neither proves nor excludes it. Its words are shown for it alone.

Facts are a flat mapping: ``{"torch.kind": "cuda", "gpu.arch": ["gfx1031"], "package.bitsandbytes": "0.44.1"}``. A
predicate is "name operator value": ``==`` and ``!=`` (of a list: one of its values), ``<`` and ``>=`` (numbers or
versions), ``not_in`` (no value of the fact is among those of another fact), ``~`` (an expression is found in one).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

Facts = Mapping[str, object]
LISTED = 2  # causes that an answer lists; of more the class's own reason and check are told
_NEAR = 8  # lines
_SILENT = 2  # nothing speaks for a cause
_TERM = re.compile(r"([\w.-]+) (==|!=|<|>=|~|not_in) (.*)")


class Words(NamedTuple):
    """What is said of a cause in one language; ``means`` is what the check's outcome shows."""

    why: str
    do: str
    means: str = ""


class PossibleCause(NamedTuple):
    """One cause of a class. ``where`` is the situation it belongs to, as in "@windows: ", '' if any.

    ``decides`` is false of what many healthy logs and machines have, too: it puts the cause first and proves nothing.

    ``name`` and ``state`` are those of doctor's line, which it has where ``shown_if`` holds as well; ``each`` is a
    fact with a line for each of its values.
    """

    log: str
    facts: tuple[str, ...]
    check: str
    words: Mapping[str, Words]
    where: str = ""
    sources: tuple[str, ...] = ()
    decides: bool = True
    name: str = ""
    state: str = ""
    shown_if: tuple[str, ...] = ()
    each: str = ""


class Judged(NamedTuple):
    """A cause with what shows it: ``proof`` is "log", "machine", or '' if it is neither proved nor excluded."""

    cause: PossibleCause
    proof: str
    line: int = 0
    rank: tuple[int, int] = (0, 0)


@lru_cache(maxsize=1)
def _of_machines() -> list[tuple[frozenset[str], PossibleCause]]:
    table = tomllib.loads(Path(__file__).with_name("machine_causes.toml").read_text(encoding="utf-8"))
    return [(frozenset(row.get("codes", "").split()), read(row)) for row in table["cause"]]


def of_machines(code: str) -> list[PossibleCause]:
    """The causes of a class that a machine proves or excludes."""
    return [cause for codes, cause in _of_machines() if code in codes]


def of_doctor() -> list[PossibleCause]:
    """The rows of which doctor has a line."""
    return [cause for _, cause in _of_machines() if cause.name]


def read(table: Mapping[str, Any]) -> PossibleCause:
    """A cause as the catalogue's file has it."""
    words = {lang: Words(**{"why": "", "do": "", **table[lang]}) for lang in ("en", "zh")}
    facts, sources = table.get("facts", ()), table.get("sources", ())
    log, check, where = (table.get(name, "") for name in ("log", "check", "where"))
    shown = {name: table[name] for name in ("name", "state", "each", "decides") if name in table}
    shown["shown_if"] = tuple(table.get("shown_if", ()))
    return PossibleCause(log, tuple(facts), check, words, where, tuple(sources), **shown)


def holds(terms: Iterable[str], facts: Facts) -> bool | None:
    """Whether all of ``terms`` are so; None if that is not known."""
    answers = [_holds(term, facts) for term in terms]
    return False if False in answers else None if None in answers else True


def _holds(term: str, facts: Facts) -> bool | None:
    match = _TERM.fullmatch(term)
    if match is None:
        raise ValueError(f"not a predicate: {term!r}")
    name, operator, value = match.groups()
    if name not in facts or (operator == "not_in" and not values(facts, value)):
        return None
    found = values(facts, name)
    if operator == "not_in":
        return not set(found) & set(values(facts, value)) if found else None
    if operator in ("==", "!="):
        return any(fnmatchcase(one, value) for one in found) == (operator == "==")
    if operator == "~":
        return any(re.search(value, one) for one in found)
    versions = [numbers(one) for one in found if numbers(one)]
    return any((one < numbers(value)) == (operator == "<") for one in versions) if versions else None


def values(facts: Facts, name: str) -> list[str]:
    """A fact as texts, none if it is not known."""
    found = facts.get(name, [])
    rows = found if isinstance(found, (list, tuple)) else [found]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in rows]


def shown(terms: Iterable[str], facts: Facts) -> str:
    """The facts that ``terms`` are about, with their values."""
    named = ((name, values(facts, name)) for name in sorted(names_in(terms)))
    return "; ".join(f"{name}: {' '.join(found[:8])}" for name, found in named if found)


def names_in(terms: Iterable[str]) -> set[str]:
    """The names of the facts that ``terms`` are about."""
    return {name for term in terms for name in re.findall(r"\b[a-z]\w*(?:\.[a-z]\w*)+", term)}


def numbers(version: object) -> tuple[int, ...]:
    """The numbers that a version begins with: ``2.11.0+rocm7.2`` is (2, 11, 0); () where there are none."""
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", str(version))
    return tuple(map(int, match[1].split("."))) if match else ()


def judge(
    causes: Iterable[PossibleCause],
    lines: Mapping[int, int],
    root: int,
    facts: Facts,
    fits: Callable[[PossibleCause], bool],
    most: int = LISTED,
) -> list[Judged]:
    """The causes that are proved, best first, or, if none is, those that are not excluded.

    Of more than ``most`` that are not excluded only those count that something speaks for.

    Args:
        causes: of the class.
        lines: by the number of a cause, the line of the log that its expression was found in.
        root: the line that failed. A proof in it comes first, then the machine's, then the nearest one; none is far.
        facts: of the machine that failed, as far as known.
        fits: whether a cause can be one of this log: of its system, its program, its GPU.
    """
    proved: list[Judged] = []
    open_: list[Judged] = []
    for number, cause in enumerate(causes):
        so = holds(cause.facts, facts)
        distance = abs(lines[number] - root) if number in lines else 0
        if so is False or not fits(cause):
            continue
        if number in lines and cause.decides and distance <= _NEAR:
            proved.append(Judged(cause, "log", lines[number], (2 if distance else 0, distance)))
        elif cause.facts and so and cause.decides:
            proved.append(Judged(cause, "machine", 0, (1, -len(cause.facts))))
        elif cause.check and (number in lines or cause.facts):
            known = any(holds([term], facts) for term in cause.facts)
            speaks = 0 if number in lines or (cause.facts and so) else 1 if known else _SILENT
            open_.append(Judged(cause, "", lines.get(number, 0), (speaks, 0)))
    likely = [one for one in open_ if one.rank[0] < _SILENT]
    return sorted(proved or (open_ if len(open_) <= most else likely), key=lambda one: one.rank)
