"""Advice about the program that failed, in addition to the failure: its settings, its other backends."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gfxgraph.diagnostics.lazy import Expression

_FILE = Path(__file__).parent / "programs.toml"
_MOST = 2  # a log of a container names many programs


class ProgramRule(NamedTuple):
    """How to recognise a program, the codes for which it has advice, and the advice by language."""

    words: Expression
    codes: frozenset[str]
    says: Mapping[str, str]


@lru_cache(maxsize=1)
def programs() -> dict[str, ProgramRule]:
    """Every program by name."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {
        row["name"]: ProgramRule(
            Expression(row["words"], re.IGNORECASE),
            frozenset(row["codes"].split()),
            {"en": row["en"], "zh": row["zh"]},
        )
        for row in table["program"]
    }


def named(lines: Iterable[str], code: str) -> tuple[str, ...]:
    """Names of the programs in ``lines`` that have advice about ``code``."""
    text = "\n".join(lines)
    found = [name for name, program in programs().items() if code in program.codes and program.words.search(text)]
    return tuple(found[:_MOST])
