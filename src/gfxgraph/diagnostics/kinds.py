"""What kind of line a line is, by its form and the names in it: one search for all expressions of kinds.toml.

The words of components are searched for with them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent
_LONGEST = 2048  # bytes of a line


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


def rows() -> Iterator[Item]:
    """Every expression."""
    for kind, regexes in tomllib.loads((_HERE / "kinds.toml").read_text(encoding="utf-8")).items():
        for number, regex in enumerate(regexes):
            yield Item("", kind, number, regex) if isinstance(regex, str) else Item(regex[0], kind, number, regex[1])
    for number, (name, row) in enumerate(components().items()):
        yield Item(name, "component", number, f"(?i){row['words']}")


@lru_cache(maxsize=1)
def components() -> dict[str, dict[str, Any]]:
    """Every component by name, most specific first: "words" that name it, and its next steps by language."""
    table = tomllib.loads((_HERE / "components.toml").read_text(encoding="utf-8"))
    return {row["name"]: row for row in table["component"]}


@lru_cache(maxsize=2048)
def of(line: str) -> Mapping[str, Sequence[str]]:
    """The kinds of ``line``, each with the names found in it, the first ones first."""
    # lazily: the index is made of these rows
    from gfxgraph.diagnostics.expression_index import load

    searcher = load().kinds
    found: dict[str, list[str]] = {}
    for number in sorted(searcher.search(line.encode("utf-8", "replace")[:_LONGEST])):
        item = searcher.items[number]
        found.setdefault(item.kind, []).append(item.code)
    return found
