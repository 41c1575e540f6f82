"""Every pattern of the catalogue in a form that starts fast and searches fast.

Reading all entries takes tens of milliseconds, so what matching needs is kept in a derived file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gfxgraph.diagnostics import derived, patterns, statuses
from gfxgraph.diagnostics.entries import FOLDER

VERSION = 9
"""Raised when the form of the derived file changes."""


@dataclass(slots=True)
class Item:
    """One expression and what its match says.

    ``kind`` is "strong", "weak", "status", "number", "own", "hint" or "combo"; ``number`` tells which hint,
    or which part of which combination (the combination times 100 plus the part). A match holds one of
    ``literals`` and one of ``sharp``; the first are chosen for their form, the second for being rare.
    """

    code: str
    kind: str
    number: int
    regex: str
    literals: tuple[str, ...]
    sharp: tuple[str, ...] = ()
    compiled: re.Pattern[str] | None = None

    def search(self, line: str, lower: str) -> re.Match[str] | None:
        if self.sharp and not any(text in lower for text in self.sharp):
            return None
        if self.compiled is None:
            self.compiled = re.compile(self.regex, re.IGNORECASE)
        return self.compiled.search(line)


@dataclass(slots=True)
class Index:
    """All items, and what is needed to choose those to try and to order what they find.

    ``by_form`` leads from the form of a literal to the items that need it, ``anchors`` from a word
    to such forms; ``adding`` are the hints and combinations, by literal.
    """

    items: list[Item]
    by_form: dict[bytes, list[int]]
    anchors: dict[bytes, list[bytes]]
    adding: dict[str, list[int]]
    ranks: dict[str, int]
    aliases: dict[str, str]
    titles: dict[str, dict[str, str]]
    n_combos: dict[str, list[int]]
    numbers: dict[str, str]


@lru_cache(maxsize=1)
def load() -> Index:
    """Return the index, from the derived file where that is current."""
    return derived.load("catalogue", VERSION, [FOLDER, statuses.FOLDER], build, _from_plain)


def build() -> dict[str, Any]:
    """Read the whole catalogue and return the index as plain data."""
    rows: list[list[Any]] = []
    plain: dict[str, Any] = {"ranks": {}, "aliases": {}, "titles": {}, "n_combos": {}}
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text())
        code = table["code"]
        plain["ranks"][code] = table.get("rank", 50)
        plain["aliases"] |= dict.fromkeys(table.get("aliases", ()), code)
        plain["titles"][code] = {"en": table["en"]["title"], "zh": table["zh"]["title"]}
        if table.get("combos"):
            plain["n_combos"][code] = [len(combo) for combo in table["combos"]]
        rows += _rows_of(code, table)
    for status in statuses.every():
        if status.number == 0:
            continue
        # Names of statuses are recognised wherever they stand; texts only after "error".
        # "Not ready" is an answer, not a failure: traces of the runtime are full of it.
        if status.name != "hipErrorNotReady":
            rows += _split(status.entry, "status", 0, rf"\b{re.escape(status.name)}\b")
            if status.name.startswith("hipError"):  # XLA's spelling
                rows += _split(status.entry, "status", 0, rf"\bHIP_ERROR_{re.escape(status.name[8:])}\b")
        if status.text:
            text = re.escape(status.text).replace(r"\ ", " ")
            rows += _split(
                status.entry,
                "status",
                0,
                rf"(error|fail\w*|\bhip[a-z]{{4}}\w*|returned|status|what\(\))\b.{{0,100}}{text}",
            )
    # Programs that print only the number of HIP's status, in the forms that they use.
    for regex in _NUMBERED:
        rows += _split("", "number", 0, regex)
    # Our own errors, printed by a program and piped back to us, end with this line.
    rows += _split("", "own", 0, r"(?:more: |详情：)gfxgraph explain (\w+)")
    plain["items"] = rows
    plain["numbers"] = {
        status.number: status.entry for status in reversed(statuses.every()) if status.api == "HIP" and status.number
    }
    plain["anchors"] = patterns.anchors(text for row in rows if row[1] not in _ADDING for text in row[4])
    return plain


_NUMBERED = (
    r"\bhip[A-Z]\w{3,40}\b.{0,80}?\breturned (?:error |status |code )*\(?(\d{1,4})\b(?!\.)",
    r"\bhip[A-Z]\w{3,40}\b.{0,80}?\berror(?: code)?\W{1,3}(\d{1,4})\b(?!\.)",
    r"\b(?:HIP|ROCm) (?:runtime |driver )?error(?: code)?\W{1,3}(\d{1,4})\b(?!\.)",
    r"\b(?:HIP|ROCm) failure (\d{1,4})\b",
    r"\bhipError_t\W{1,2}(\d{1,4})\b",
    r"\bhip(?!\w*(?:Get|Count|Version))[A-Z]\w{2,40}\(\): (\d{1,4})\b",
)

# Kinds that add to what was found and do not find by themselves.
_ADDING = ("hint", "combo")


def _rows_of(code: str, table: dict[str, Any]) -> Iterator[list[Any]]:
    for kind, regexes in (("strong", table.get("patterns", ())), ("weak", table.get("weak", ()))):
        for regex in regexes:
            yield from _split(code, kind, 0, regex)
    for number, hint in enumerate(table.get("hint", ())):
        yield from _split(code, "hint", number, hint["when"])
    for number, combo in enumerate(table.get("combos", ())):
        for part, regex in enumerate(combo):
            yield from _split(code, "combo", number * 100 + part, regex)


def _split(code: str, kind: str, number: int, regex: str) -> Iterator[list[Any]]:
    for branch in patterns.alternatives(regex):
        found = patterns.literals(branch, len if kind in _ADDING else patterns.form_length)
        if not found:
            raise ValueError(f"{code}: no literal text in pattern {branch!r}")
        sharp = patterns.literals(branch)
        yield [code, kind, number, branch, list(found), [] if sharp == found else list(sharp)]


def _from_plain(plain: dict[str, Any]) -> Index:
    items = [Item(row[0], row[1], row[2], row[3], tuple(row[4]), tuple(row[5])) for row in plain["items"]]
    by_form: dict[bytes, list[int]] = {}
    adding: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        for text in item.literals:
            if item.kind in _ADDING:
                adding.setdefault(text, []).append(number)
            else:
                by_form.setdefault(patterns.form(text).encode(), []).append(number)
    return Index(
        items,
        by_form,
        {word.encode(): [text.encode() for text in texts] for word, texts in plain["anchors"].items()},
        adding,
        plain["ranks"],
        plain["aliases"],
        plain["titles"],
        plain["n_combos"],
        {str(number): code for number, code in plain["numbers"].items()},
    )
