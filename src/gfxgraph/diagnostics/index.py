"""Every expression of the catalogue, compiled to automata that search for all of them at once.

Hyperscan looks for thousands of expressions in one pass whose time grows with the text alone, whatever
the text. Compiling takes seconds, so the automata are kept in a derived file.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from gfxgraph import files
from gfxgraph.diagnostics import derived_files, kinds, statuses
from gfxgraph.diagnostics.entries import FOLDER, LANGUAGES
from gfxgraph.diagnostics.kinds import Item

VERSION = 47
"""Increased when the format of the derived file changes."""
hyperscan: Any = None  # a platform without a wheel, or a plain copy of the package
with suppress(ImportError):
    hyperscan = importlib.import_module("hyperscan")
_IGNORE_CASE = (True, True, False)
"""Of findings, of additions to them, of kinds of lines."""


class Searcher:
    """Finds which of ``items`` match a text; without Hyperscan one by one, which is a thousand times slower."""

    def __init__(self, items: Sequence[Item], automaton: Any, ignores_case: bool) -> None:
        self.items = items
        self._automaton = automaton
        self._scratch = hyperscan.Scratch(automaton) if automaton else None
        self._flags = re.MULTILINE | (re.IGNORECASE if ignores_case else 0)
        self._expressions: list[re.Pattern[bytes]] = []
        self._found: list[int] = []
        self._lock = threading.Lock()  # two searches cannot share their working memory

    def search(self, text: bytes) -> tuple[int, ...]:
        """The numbers of the items that match, each once."""
        with self._lock:
            if self._automaton:
                self._found.clear()
                self._automaton.scan(text, match_event_handler=self._note, scratch=self._scratch)
                return tuple(self._found)
            if not self._expressions:
                self._expressions = [re.compile(item.regex.encode(), self._flags) for item in self.items]
            return tuple(n for n, expression in enumerate(self._expressions) if expression.search(text))

    def _note(self, number: int, start: int, end: int, flags: int, context: object) -> None:
        self._found.append(number)


class Index(NamedTuple):
    """All items: findings; hints and parts of combinations, which only add to findings; kinds of lines."""

    finding: Searcher
    adding: Searcher
    kinds: Searcher
    n_combos: dict[str, list[int]]
    numbers: dict[str, str]


class EntryNames(NamedTuple):
    """The names of every entry: its rank, its older names, its title in each language."""

    ranks: dict[str, int]
    aliases: dict[str, str]
    titles: dict[str, dict[str, str]]


@lru_cache(maxsize=1)
def names() -> EntryNames:
    """Return the names; much smaller than the index, and enough for codes and lists."""

    def make() -> bytes:
        tables = _tables()
        ranks = {table["code"]: table.get("rank", 50) for table in tables}
        aliases = {alias: table["code"] for table in tables for alias in table.get("aliases", ())}
        titles = {table["code"]: {lang: table[lang]["title"] for lang in LANGUAGES} for table in tables}
        return json.dumps([ranks, aliases, titles], ensure_ascii=False).encode()

    return derived_files.load("names", VERSION, [FOLDER], make, lambda data: EntryNames(*files.parse_json(data)))


def _tables() -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]


@lru_cache(maxsize=1)
def load() -> Index:
    """Return the index, from the derived file if that is current."""
    return derived_files.load("catalogue", VERSION, [FOLDER, statuses.FOLDER, FOLDER.parent], _build, _understand)


def _build() -> bytes:
    """Read the whole catalogue and compile it: a line of JSON, then the automata."""
    items = rows()
    parts = [
        [item for item in items if item.kind not in _ADDING],
        [item for item in items if item.kind in _ADDING],
        [*kinds.rows()],
    ]
    automata = [_compiled(part, ignores) for part, ignores in zip(parts, _IGNORE_CASE)]
    tables = _tables()
    plain = {
        "items": parts,
        "sizes": [len(automaton) for automaton in automata],
        "n_combos": {t["code"]: [len(combo) for combo in t["combos"]] for t in tables if t.get("combos")},
        "numbers": {
            str(status.number): status.entry
            for status in reversed(statuses.every())
            if status.api == "HIP" and status.number
        },
    }
    return json.dumps(plain, ensure_ascii=False).encode() + b"\n" + b"".join(automata)


def _compiled(items: Sequence[Item], ignores_case: bool) -> bytes:
    if hyperscan is None:
        return b""
    flags = hyperscan.HS_FLAG_SINGLEMATCH | hyperscan.HS_FLAG_MULTILINE
    flags |= hyperscan.HS_FLAG_CASELESS if ignores_case else 0
    automaton = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    automaton.compile(
        expressions=[item.regex.encode() for item in items],
        ids=list(range(len(items))),
        elements=len(items),
        flags=[flags] * len(items),
    )
    return bytes(hyperscan.dumpb(automaton))


def _understand(data: bytes) -> Index:
    head, _, rest = data.partition(b"\n")
    plain = json.loads(head)
    searchers = []
    for rows_of, size, ignores in zip(plain["items"], plain["sizes"], _IGNORE_CASE, strict=True):
        automaton = None
        if hyperscan is not None:
            try:
                automaton = hyperscan.loadb(rest[:size], hyperscan.HS_MODE_BLOCK)
            except hyperscan.error as error:  # cut off, or compiled for another machine
                raise ValueError(str(error)) from error
        searchers.append(Searcher([Item(*row) for row in rows_of], automaton, ignores))
        rest = rest[size:]
    finding, adding, of_lines = searchers
    return Index(finding, adding, of_lines, plain["n_combos"], plain["numbers"])


_ADDING = ("hint", "combo", "refuted")


def rows() -> list[Item]:
    """Every expression of the catalogue and the tables of statuses."""
    found = [item for table in _tables() for item in _rows_of(table["code"], table)]
    for status in statuses.every():
        if status.number == 0:
            continue
        # Names of statuses are recognised anywhere; their texts only after "error".
        if status.name != "hipErrorNotReady":
            found.append(Item(status.entry, "status", 0, rf"\b{re.escape(status.name)}\b"))
            if status.name.startswith("hipError"):  # XLA's spelling
                found.append(Item(status.entry, "status", 0, rf"\bHIP_ERROR_{re.escape(status.name[8:])}\b"))
        if status.text:
            text = re.escape(status.text).replace(r"\ ", " ")
            marked = rf"(error|fail\w*|\bhip[a-z]{{4}}\w*|returned|status|what\(\))\b.{{0,100}}{text}"
            found.append(Item(status.entry, "status", 0, marked))
    numbered = tomllib.loads((statuses.FOLDER / "hip.toml").read_text(encoding="utf-8"))["numbered"]
    found += (Item("", kind, 0, regex) for kind, regexes in numbered.items() for regex in regexes)
    # Our own errors, printed by a program and piped back to us, end with this line.
    found.append(Item("", "own", 0, r"(?:more: |详情：)gfxgraph explain (\w+)"))
    return found


def _rows_of(code: str, table: dict[str, Any]) -> Iterator[Item]:
    for kind, key in (("strong", "patterns"), ("weak", "weak"), ("unless", "unless"), ("refuted", "refuted")):
        yield from (Item(code, kind, 0, regex) for regex in table.get(key, ()))
    for number, hint in enumerate(table.get("hint", ())):
        if "when" in hint:
            yield Item(code, "hint", number, hint["when"])
        if "source" in hint:
            yield Item(code, "case", number, hint["when"])
    for number, combo in enumerate(table.get("combos", ())):
        for part, regex in enumerate(combo):
            yield Item(code, "combo", number * 100 + part, regex)
