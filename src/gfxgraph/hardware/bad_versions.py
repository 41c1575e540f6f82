"""Versions known to be bad, one dated table (bad_versions.toml): doctor, explain and the defect table read it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gfxgraph.diagnostics import causes


class BadVersion(NamedTuple):
    """One row. ``when`` are predicates over facts (diagnostics/causes.py), ``codes`` what it explains; ``graph`` is
    its row in the table of graph defects, if it has one.
    """

    id: str
    date: str
    when: tuple[str, ...]
    codes: tuple[str, ...]
    sources: tuple[str, ...]
    en: Mapping[str, str]
    zh: Mapping[str, str]
    check: str = ""
    graph: Mapping[str, object] = MappingProxyType({})


@lru_cache(maxsize=1)
def rows() -> tuple[BadVersion, ...]:
    """The whole table."""
    with Path(__file__).with_suffix(".toml").open("rb") as file:
        table = tomllib.load(file)["row"]
    lists = ("when", "codes", "sources")
    made = [row | {key: tuple(row[key]) for key in lists} for row in table]
    return tuple(BadVersion(**row) for row in made)


def matching(facts: Mapping[str, object]) -> list[BadVersion]:
    """The rows that hold on a machine with these facts."""
    return [row for row in rows() if row.when and causes.holds(row.when, facts)]


def causes_of(code: str) -> list[causes.PossibleCause]:
    """The rows that may explain a failure, as causes of its class."""
    words = causes.Words
    return [
        causes.PossibleCause("", row.when, row.check, {"en": words(**row.en), "zh": words(**row.zh)}, "", row.sources)
        for row in rows()
        if code in row.codes
    ]
