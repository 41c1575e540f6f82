"""Read catalogue entries: one TOML file each, the file's name being the entry's code.

``entry(code)`` reads that one file and nothing else, so that rendering an error costs one small
parse. Callers that need every entry (matching, lists, pages) use ``index``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gfxgraph.diagnostics import causes
from gfxgraph.diagnostics.causes import PossibleCause

FOLDER = Path(__file__).parent / "catalogue"
LANGUAGES = ("en", "zh")


class EntryText(NamedTuple):
    """An entry's text in one language.

    ``seen`` replaces what, why and do if the condition was recognised in a third party's
    output, so that the fields of our own exception are unknown. ``check`` is the command that decides between the
    causes of a condition that has several, with what its outcome means; the first one that is for this system.
    """

    title: str
    what: str
    why: str
    do: tuple[str, ...]
    notes: Mapping[str, str] = MappingProxyType({})
    seen: EntryText | None = None
    check: tuple[str, ...] = ()


class Condition(NamedTuple):
    """One condition: what to say about it; how it is recognised is in the index."""

    code: str
    fields: tuple[str, ...]
    aliases: tuple[str, ...]
    texts: Mapping[str, EntryText]
    causes: tuple[PossibleCause, ...]
    sources: tuple[str, ...]

    def text(self, lang: str) -> EntryText:
        """The text in ``lang``, or in English if the language is unknown."""
        return self.texts.get(lang) or self.texts["en"]


class UnknownCodeError(KeyError):
    """No entry has this code."""


def codes() -> list[str]:
    """Return every code, sorted; reads names only."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@lru_cache(maxsize=64)
def entry(code: str) -> Condition:
    """Return the entry named ``code``.

    Raises:
        UnknownCodeError: there is no such file.
    """
    # A code is also a file name: refuse codes that could leave the folder.
    if not code.replace("_", "").isalnum():
        raise UnknownCodeError(code)
    try:
        data = (FOLDER / f"{code}.toml").read_bytes()
    except FileNotFoundError as error:
        raise UnknownCodeError(code) from error
    return parse(tomllib.loads(data.decode("utf-8")))


def parse(table: Mapping[str, Any]) -> Condition:
    """Turn a parsed file into a ``Condition``."""
    return Condition(
        table["code"],
        tuple(table.get("fields", ())),
        tuple(table.get("aliases", ())),
        {lang: _text(table[lang]) for lang in LANGUAGES},
        tuple(map(causes.read, table.get("cause", ()))),
        tuple(table.get("sources", ())),
    )


def _text(table: Mapping[str, Any]) -> EntryText:
    do = [table["do"]] if isinstance(table["do"], str) else table["do"]
    seen = _text({"title": table["title"], **table["seen"]}) if "seen" in table else None
    notes, check = dict(table.get("notes", {})), table.get("check", ())
    checks = (check,) if isinstance(check, str) else tuple(check)
    return EntryText(table["title"], table["what"], table["why"], tuple(do), notes, seen, checks)
