"""Status codes of HIP, HSA and the libraries: by name and by number, each with its entry and meaning."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

FOLDER = Path(__file__).parent / "codes"


class Status(NamedTuple):
    """One status: which interface, its name and number, the entry that explains it.

    ``text`` is the result of the library's own error-string function; ``aka`` are other names of the
    same status (CUDA's, older spellings); ``do`` is advice for programs that call the graph API
    themselves, by language, if it differs from the entry's.
    """

    api: str
    name: str
    number: int
    entry: str
    en: str
    zh: str
    text: str = ""
    aka: tuple[str, ...] = ()
    do: Mapping[str, str] = MappingProxyType({})

    def meaning(self, lang: str) -> str:
        return self.zh if lang == "zh" else self.en

    def shown_number(self) -> str:
        """HSA and exit statuses as users see them: hexadecimal for HSA, decimal elsewhere."""
        return f"0x{self.number:x}" if self.api == "HSA" else str(self.number)


@lru_cache(maxsize=1)
def every() -> tuple[Status, ...]:
    """Return every status of every table, HIP's first."""
    paths = sorted(FOLDER.glob("*.toml"), key=lambda path: (path.stem != "hip", path.stem))
    tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]
    rows = ({"api": table["api"], **row} for table in tables for row in table["status"])
    return tuple(Status(**(row | {"aka": tuple(row.get("aka", ()))})) for row in rows)


def by_name(name: str) -> Status | None:
    """Return the status called ``name``, in any letter case; CUDA's names find HIP's."""
    wanted = name.lower()
    for status in every():
        if status.name.lower() == wanted or any(other.lower() == wanted for other in status.aka):
            return status
    return None


def by_number(number: int) -> list[Status]:
    """Return every status with this number, HIP's first: a bare number does not show its interface."""
    return [status for status in every() if status.number == number]
