"""The rules, read from the tables in their folder.

A table ``[[rule]]`` holds what a rule says and its two examples. ``check`` names, for each kind of file, the
function that looks for it, or says as data what to look for (``checks.py``); ``edit`` names the function that
proposes a change. The kinds are those of `project.kind_of`.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gfxgraph_port import archs
from gfxgraph_port import rules as _package
from gfxgraph_port.model import Finding, Fix, Impact, Rule, Severity, Text

Table = dict[str, Any]
Check = Callable[..., Iterator[Any]]
Edit = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rule with its checks and its edits by kind."""

    rule: Rule
    checks: dict[str, Check]
    edits: dict[str, Edit]


@lru_cache(maxsize=1)
def load() -> tuple[Loaded, ...]:
    """Every rule, by id."""
    rows = [
        row
        for path in sorted(Path(next(iter(_package.__path__))).glob("*.toml"))
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["rule"]
    ]
    return tuple(sorted((_loaded(row) for row in rows), key=lambda item: item.rule.id))


def _loaded(row: Table) -> Loaded:
    # by name, like a rule's functions: a check sees the engine's context, and the engine asks here for its rules
    made = importlib.import_module("gfxgraph_port.checks").made
    check, edits = row.pop("check"), row.pop("edit", {})
    checks = {
        kind: _function(spec) if isinstance(spec, str) else made(kind, spec)
        for kinds, spec in check.items()
        for kind in kinds.split()
    }
    rule = Rule(
        phase=int(row["id"][3]), severity=Severity[row.pop("severity").upper()],
        harm=Impact[row.pop("harm", "breaks").upper()], fix=Fix(row.pop("fix", "none")),
        archs=getattr(archs, row.pop("archs", "ALL")),
        en=Text(*row.pop("en")), zh=Text(*row.pop("zh")),
        needs=tuple(row.pop("needs", ())), **row,
    )  # fmt: skip
    return Loaded(rule, checks, {kind: _function(name) for kind, name in edits.items()})


def _function(name: str) -> Any:
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"{_package.__name__}.{module}"), function)


def find(name: str) -> Loaded | None:
    """A rule by id (``GFX101``) or code (``capability-gate``)."""
    return _by_name().get(name.strip().lower())


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Loaded]:
    return {key: each for each in load() for key in (each.rule.id.lower(), each.rule.code)}


@lru_cache(maxsize=32)
def for_kind(kind: str) -> tuple[tuple[Rule, Check], ...]:
    return tuple((r.rule, r.checks[kind]) for r in load() if kind in r.checks)


def impact_of(code: str) -> Impact:
    """What a rule's findings do to a port, by its code."""
    loaded = find(code)
    return Impact.BREAKS if loaded is None else loaded.rule.harm


def rank(f: Finding) -> tuple[int, int, str, str, int]:
    """A sort key of findings: impact, then severity, then the place."""
    return impact_of(f.code), -f.severity, f.rule, f.path, f.line
