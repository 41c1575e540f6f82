"""What kind of line a line is, by its form and the names in it: one search for all expressions of kinds.toml.

The words of components and programs are searched for with them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent
_LONGEST = 2048  # bytes of a line
_MOST_PROGRAMS = 2  # a log of a container names many


class Item(NamedTuple):
    """One expression and the meaning of a match.

    In the catalogue ``kind`` is "strong", "weak", "unless", "status", "number", "own", "cause",
    "combo" or "refuted", and ``number`` tells which cause, or which part of which combination (the
    combination times 100 plus the part). Of a kind of lines, ``kind`` is its name; the least ``number`` comes first.
    """

    code: str
    kind: str
    number: int
    regex: str


class Advisor(NamedTuple):
    """A component or a program: the codes for which it has advice (none: any), and the advice by language."""

    codes: frozenset[str]
    do: Mapping[str, Sequence[str]]


def rows() -> Iterator[Item]:
    """Every expression."""
    for kind, regexes in tomllib.loads((_HERE / "kinds.toml").read_text(encoding="utf-8")).items():
        for number, regex in enumerate(regexes):
            yield Item("", kind, number, regex) if isinstance(regex, str) else Item(regex[0], kind, number, regex[1])
    for kind in ("component", "program"):
        for number, row in enumerate(_table(kind)):
            yield Item(row["name"], kind, number, f"(?i){row['words']}")


@lru_cache(maxsize=2)
def advisors(kind: str) -> dict[str, Advisor]:
    """Every "component" or "program" by name, most specific first."""
    return {
        row["name"]: Advisor(
            frozenset(row.get("codes", "").split()),
            {lang: [row[lang]] if isinstance(row[lang], str) else row[lang] for lang in ("en", "zh")},
        )
        for row in _table(kind)
    }


def _table(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((_HERE / f"{kind}s.toml").read_text(encoding="utf-8"))[kind]
    return found


@lru_cache(maxsize=2048)
def of(line: str) -> Mapping[str, Sequence[str]]:
    """The kinds of ``line``, each with the names found in it, the first ones first."""
    # lazily: the index is made of these rows
    from gfxgraph.diagnostics.index import load

    searcher = load().kinds
    found: dict[str, list[str]] = {}
    for number in sorted(searcher.search(line.encode("utf-8", "replace")[:_LONGEST])):
        item = searcher.items[number]
        found.setdefault(item.kind, []).append(item.code)
    return found


def programs_named(lines: Iterable[str], code: str) -> tuple[str, ...]:
    """Names of the programs in ``lines`` that have advice about ``code``."""
    named = {name for line in lines for name in of(line).get("program", ())}
    found = [name for name, program in advisors("program").items() if name in named and code in program.codes]
    return tuple(found[:_MOST_PROGRAMS])
