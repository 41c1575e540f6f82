"""Every pattern of the catalogue, in a form that loads fast and searches fast.

Reading all entries takes tens of milliseconds, so the data for matching is kept in a derived file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from gfxgraph.diagnostics import derived, statuses
from gfxgraph.diagnostics.entries import FOLDER, LANGUAGES

VERSION = 40
"""Increased when the format of the derived file changes."""


class Item:
    """One expression and the meaning of a match.

    ``kind`` is "strong", "weak", "status", "number", "own", "hint" or "combo"; ``number`` tells which hint,
    or which part of which combination (the combination times 100 plus the part). A match contains one text of
    each of ``needs``. Of the texts that are searched for, by number, it contains one of each of ``found_by``;
    the rarest come first and lead to the item.
    """

    __slots__ = ("code", "kind", "number", "regex", "needs", "found_by", "compiled", "_needed")

    def __init__(
        self, code: str, kind: str, number: int, regex: str, needs: list[list[str]], found_by: list[list[int]]
    ) -> None:
        self.code, self.kind, self.number, self.regex = code, kind, number, regex
        self.needs, self.found_by = needs, found_by
        self.compiled: re.Pattern[str] | None = None
        self._needed: list[list[bytes]] | None = None

    def may_match(self, lower: bytes) -> bool:
        """Whether ``lower``, a line in lower case, contains everything that a match needs."""
        if self._needed is None:
            self._needed = [[text.encode() for text in texts] for texts in self.needs]
        for texts in self._needed:
            for text in texts:
                if text in lower:
                    break
            else:
                return False
        return True

    def search(self, line: str, lower: str) -> re.Match[str] | None:
        for texts in self.needs:
            for text in texts:
                if text in lower:
                    break
            else:
                return None
        if self.compiled is None:
            self.compiled = re.compile(self.regex, re.IGNORECASE)
        return self.compiled.search(line)


class Index:
    """All items, with the data to choose which to try and to order what they find.

    ``texts`` are searched for, and ``items_of`` maps the number of a text to the items to try; ``adding``
    maps a text to hints and parts of combinations, which add to other findings and are not findings by
    themselves.
    """

    def __init__(self, plain: dict[str, Any]) -> None:
        self.items = [Item(*row) for row in plain["items"]]
        self.texts: list[str] = plain["texts"]
        self.items_of: list[list[int]] = [[] for _ in self.texts]
        self.adding: dict[str, list[int]] = {}
        for number, item in enumerate(self.items):
            for text in item.found_by[0] if item.found_by else ():
                self.items_of[text].append(number)
            for word in item.needs[0] if item.kind in _ADDING else ():
                self.adding.setdefault(word, []).append(number)
        self.ranks: dict[str, int] = plain["ranks"]
        self.n_combos: dict[str, list[int]] = plain["n_combos"]
        self.numbers: dict[str, str] = plain["numbers"]


_ADDING = ("hint", "combo")
_RARE = 0.3


class EntryNames:
    """The names of every entry: its rank, its older names, its title in each language."""

    def __init__(self, plain: dict[str, Any]) -> None:
        self.ranks: dict[str, int] = plain["ranks"]
        self.aliases: dict[str, str] = plain["aliases"]
        self.titles: dict[str, dict[str, str]] = plain["titles"]


@lru_cache(maxsize=1)
def names() -> EntryNames:
    """Return the names; much smaller than the index, and enough for codes and lists."""
    return derived.load("names", VERSION, [FOLDER], _names, EntryNames)


def _names() -> dict[str, Any]:
    tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]
    return {
        "ranks": {table["code"]: table.get("rank", 50) for table in tables},
        "aliases": {alias: table["code"] for table in tables for alias in table.get("aliases", ())},
        "titles": {table["code"]: {lang: table[lang]["title"] for lang in LANGUAGES} for table in tables},
    }


@lru_cache(maxsize=1)
def load() -> Index:
    """Return the index, from the derived file if that is current."""
    return derived.load("catalogue", VERSION, [FOLDER, statuses.FOLDER], build, Index)


def build() -> dict[str, Any]:
    """Read the whole catalogue and return the index as plain data."""
    rows: list[list[Any]] = []
    plain: dict[str, Any] = {"ranks": {}, "n_combos": {}}
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        code = table["code"]
        plain["ranks"][code] = table.get("rank", 50)
        if table.get("combos"):
            plain["n_combos"][code] = [len(combo) for combo in table["combos"]]
        rows += _rows_of(code, table)
    for status in statuses.every():
        if status.number == 0:
            continue
        # Names of statuses are recognised anywhere; their texts only after "error".
        if status.name != "hipErrorNotReady":
            rows.append(_row(status.entry, "status", 0, rf"\b{re.escape(status.name)}\b"))
            if status.name.startswith("hipError"):  # XLA's spelling
                rows.append(_row(status.entry, "status", 0, rf"\bHIP_ERROR_{re.escape(status.name[8:])}\b"))
        if status.text:
            text = re.escape(status.text).replace(r"\ ", " ")
            marked = rf"(error|fail\w*|\bhip[a-z]{{4}}\w*|returned|status|what\(\))\b.{{0,100}}{text}"
            rows.append(_row(status.entry, "status", 0, marked))
    # Programs that print only the number of HIP's status, in the forms that they use.
    rows += (_row("", "number", 0, regex) for regex in _NUMBERED)
    # Our own errors, printed by a program and piped back to us, end with this line.
    rows.append(_row("", "own", 0, r"(?:more: |详情：)gfxgraph explain (\w+)"))
    plain["items"] = rows
    texts: dict[str, int] = {}
    for row in rows:
        row[5] = [[texts.setdefault(text, len(texts)) for text in found_by] for found_by in row[5]]
    plain["texts"] = list(texts)
    plain["numbers"] = {
        str(status.number): status.entry
        for status in reversed(statuses.every())
        if status.api == "HIP" and status.number
    }
    return plain


_NUMBERED = (
    r"\bhip[A-Z]\w{3,40}\b.{0,80}?\breturned (?:error |status |code )*\(?(\d{1,4})\b(?!\.)",
    r"\bhip[A-Z]\w{3,40}\b.{0,80}?\berror(?: code)?\W{1,3}(\d{1,4})\b(?!\.)",
    r"\b(?:HIP|ROCm) (?:runtime |driver )?error(?: code)?\W{1,3}(\d{1,4})\b(?!\.)",
    r"\b(?:HIP|ROCm) failure (\d{1,4})\b",
    r"\bhipError_t\W{1,2}(\d{1,4})\b",
    r"\bhip(?!\w*(?:Get|Count|Version))[A-Z]\w{2,40}\(\): (\d{1,4})\b",
)


def _rows_of(code: str, table: dict[str, Any]) -> Iterator[list[Any]]:
    for kind, regexes in (("strong", table.get("patterns", ())), ("weak", table.get("weak", ()))):
        for regex in regexes:
            yield _row(code, kind, 0, regex)
    for number, hint in enumerate(table.get("hint", ())):
        if "when" in hint:
            yield _row(code, "hint", number, hint["when"])
    for number, combo in enumerate(table.get("combos", ())):
        for part, regex in enumerate(combo):
            yield _row(code, "combo", number * 100 + part, regex)


def _row(code: str, kind: str, number: int, regex: str) -> list[Any]:
    # lazily: explain must start fast
    from gfxgraph.diagnostics import patterns  # reads expressions; not needed if the derived file is current

    needs = patterns.requirements(regex)
    if not needs:
        raise ValueError(f"{code}: no literal text in pattern {regex!r}")
    # The rarest texts lead here; if other rare ones are missing in a whole block, it is not searched.
    rare = [texts for place, texts in enumerate(needs) if place == 0 or patterns.rarity(texts) >= _RARE]
    found_by = [] if kind in _ADDING else [sorted(set(map(patterns.sharpest, texts))) for texts in rare]
    return [code, kind, number, regex, [list(texts) for texts in needs], found_by]
