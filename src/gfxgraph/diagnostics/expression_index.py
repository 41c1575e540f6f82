"""Every expression of the catalogue, and the search for all of them at once.

Nearly every expression needs one of a few literals. Hyperscan looks for all literals in one pass, and only the
expressions whose literal is there are tried, line by line. An automaton of the whole expressions takes seconds to
compile: it is made for a stream that is longer than that.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from gfxgraph import files
from gfxgraph.diagnostics import derived_files, kinds, statuses
from gfxgraph.diagnostics.entries import FOLDER, LANGUAGES
from gfxgraph.diagnostics.kinds import Item
from gfxgraph.diagnostics.literals import LEAST, n_ways, needed

VERSION = 56
"""Increased when the format of the derived file changes."""
hyperscan: Any = None  # a platform without a wheel, or a plain copy of the package
with suppress(ImportError):
    hyperscan = importlib.import_module("hyperscan")
_IGNORE_CASE = (True, True, False)
"""Of findings, of additions to them, of kinds of lines."""
DIGITS = b"0123456789"
DIGIT = re.compile(r"(?<![\[{\d,-])\d(?!\d*,?\d*\}|-)")
"""What an expression holds if a text must hold that digit, not one of a set or a count."""
_MOST_KNOWN = 4096
_MUCH = 16 << 20  # bytes searched, from which on an automaton of all expressions saves more than it costs
_SHORT = 240  # bytes of a text that no expression takes long for

_Automaton = tuple[Any, Any]


class Searcher:
    """Finds which of ``items`` match a text: literals first, all at once, then the expressions that need them."""

    def __init__(self, items: Sequence[Item], literals: Sequence[str], needs: Mapping[str, list[int]], ignores: bool):
        self.items = items
        self._flags = re.MULTILINE | (re.IGNORECASE if ignores else 0)
        self._literals = [literal.encode() for literal in literals]
        self._needs = [needs[literal] for literal in literals]
        self._always = needs.get("", [])
        # Logs repeat with other numbers, on which most expressions do not depend.
        self._digital = {number for number, item in enumerate(items) if DIGIT.search(item.regex)}
        self._known: dict[bytes, list[int]] = {}
        self._expressions: dict[tuple[int, bool], Callable[[bytes], object]] = {}
        self._database, self._scratch = _database(self._literals)
        self._whole: _Automaton = (None, None)
        self._n_bytes = 0
        self._found: list[int] = []
        self._lock = threading.Lock()  # two searches cannot share their working memory

    def may_match(self, text: bytes) -> bool:
        """Whether a literal of some expression is in ``text``, or, in a long stream, whether one matches."""
        self._n_bytes += len(text)
        if self._n_bytes > _MUCH and self._whole[0] is None and hyperscan is not None:
            self._whole = _automaton([item.regex.encode() for item in self.items], self._flags)
        return bool(self._scan(self._whole, text) if self._whole[0] else self._always or self._present(text))

    def search(self, text: bytes) -> tuple[int, ...]:
        """The numbers of the items that match, each once, in order."""
        if self._whole[0]:
            return tuple(sorted(self._scan(self._whole, text)))
        form = text.translate(None, DIGITS)
        numbers = {*self._always}.union(*(self._needs[literal] for literal in self._present(text)))
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        if form not in self._known:
            self._known[form] = [n for n in numbers if n not in self._digital and self._matches(n, text)]
        return tuple(sorted(self._known[form] + [n for n in numbers & self._digital if self._matches(n, text)]))

    def _present(self, text: bytes) -> list[int]:
        if self._database is None:
            small = text.lower()
            return [number for number, literal in enumerate(self._literals) if literal in small]
        return self._scan((self._database, self._scratch), text)

    def _scan(self, automaton: _Automaton, text: bytes) -> list[int]:
        with self._lock:
            self._found.clear()
            automaton[0].scan(text, match_event_handler=self._note, scratch=automaton[1])
            return [*self._found]

    def _matches(self, number: int, text: bytes) -> bool:
        key = number, len(text) > _SHORT
        if key not in self._expressions:
            self._expressions[key] = self._compiled(self.items[number].regex, is_long=key[1])
        return bool(self._expressions[key](text))

    def _compiled(self, regex: str, *, is_long: bool) -> Callable[[bytes], object]:
        """``re`` where it tries few ways, else an automaton, which takes longer to make."""
        if hyperscan is None or not is_long or n_ways(parser.parse(regex)) < 2:
            return re.compile(regex.encode(), self._flags).search
        automaton = _automaton([regex.encode()], self._flags)
        return lambda text: self._scan(automaton, text)

    def _note(self, number: int, start: int, end: int, flags: int, context: object) -> None:
        self._found.append(number)


def _database(literals: Sequence[bytes]) -> _Automaton:
    """An automaton of literals and its working memory: a tenth of a second for thousands; nothing is kept on disk."""
    if hyperscan is None or not literals:
        return None, None
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    flags = hyperscan.HS_FLAG_SINGLEMATCH | hyperscan.HS_FLAG_CASELESS
    database.compile(expressions=literals, elements=len(literals), flags=flags, literal=True)
    return database, hyperscan.Scratch(database)


def _automaton(expressions: Sequence[bytes], flags: int) -> _Automaton:
    """An automaton of whole expressions."""
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    how = hyperscan.HS_FLAG_SINGLEMATCH | hyperscan.HS_FLAG_MULTILINE
    how |= hyperscan.HS_FLAG_CASELESS if flags & re.IGNORECASE else 0
    database.compile(expressions=expressions, elements=len(expressions), flags=how)
    return database, hyperscan.Scratch(database)


class Index(NamedTuple):
    """All items: findings; causes and parts of combinations, which only add to findings; kinds of lines."""

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


@lru_cache(maxsize=1)
def _tables() -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]


@lru_cache(maxsize=1)
def load() -> Index:
    """Return the index, from the derived file if that is current."""
    return derived_files.load("catalogue", VERSION, [FOLDER, statuses.FOLDER, FOLDER.parent], _build, _understand)


def _build() -> bytes:
    """Read the whole catalogue, and which literals each expression needs."""
    items = rows()
    parts = [
        [item for item in items if item.kind not in _ADDING],
        [item for item in items if item.kind in _ADDING],
        [*kinds.rows()],
    ]
    tables = _tables()
    plain = {
        "items": parts,
        "needs": [_needs(part) for part in parts],
        "n_combos": {t["code"]: [len(combo) for combo in t["combos"]] for t in tables if t.get("combos")},
        "numbers": {
            str(status.number): status.entry
            for status in reversed(statuses.every())
            if status.api == "HIP" and status.number
        },
    }
    return json.dumps(plain, ensure_ascii=False).encode()


def _needs(items: Sequence[Item]) -> dict[str, list[int]]:
    """Numbers of the items by the literals that they need, '' where no literal is long enough to tell much."""
    found: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        literals = needed(parser.parse(item.regex))
        for literal in literals if min(map(len, literals)) >= LEAST else ("",):
            found.setdefault(literal, []).append(number)
    return found


def _understand(data: bytes) -> Index:
    plain = json.loads(data)
    searchers = [
        Searcher([Item(*row) for row in rows_of], [literal for literal in needs if literal], needs, ignores)
        for rows_of, needs, ignores in zip(plain["items"], plain["needs"], _IGNORE_CASE, strict=True)
    ]
    finding, adding, of_lines = searchers
    return Index(finding, adding, of_lines, plain["n_combos"], plain["numbers"])


_ADDING = ("cause", "combo", "refuted")


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
    for number, cause in enumerate(table.get("cause", ())):
        if "log" in cause:
            yield Item(code, "cause", number, cause["log"])
    for number, combo in enumerate(table.get("combos", ())):
        for part, regex in enumerate(combo):
            yield Item(code, "combo", number * 100 + part, regex)
