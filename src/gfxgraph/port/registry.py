"""The rules, found by listing their folder.

A rule module holds ``RULE`` and one check for each kind of file it reads: ``check_python``, ``check_cpp``,
``check_requirements``, ``check_docker``, ``check_shell``, ``check_cmake``, ``check_make``, ``check_recipe`` (other
build tools), ``check_yaml``, ``check_ini``; ``check_repo`` looks at the repository as a whole,
``check_env`` at the machine.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from gfxgraph.port import rules as _package
from gfxgraph.port.fix.requirement_lists import ANSWERED
from gfxgraph.port.model import Fix, Rule

KINDS = ("python", "cpp", "requirements", "docker", "shell", "cmake", "make", "recipe", "yaml", "ini", "repo", "env")
Check = Callable[..., Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rule with its checks by kind."""

    rule: Rule
    checks: dict[str, Check]


@lru_cache(maxsize=1)
def load() -> tuple[Loaded, ...]:
    """Every rule, by id."""
    found = []
    for info in pkgutil.iter_modules(_package.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{_package.__name__}.{info.name}")
        rule: Rule = module.RULE
        if info.name != rule.code.replace("-", "_"):
            raise RuntimeError(f"rule file {info.name}.py holds {rule.code!r}: name the file for its rule")
        checks = {k: getattr(module, f"check_{k}") for k in KINDS if hasattr(module, f"check_{k}")}
        if rule.fix is Fix.SUGGEST and not (rule.id in ANSWERED or any(hasattr(module, f"fix_{k}") for k in KINDS)):
            rule = replace(rule, fix=Fix.NONE, effort=rule.cost)  # "suggested" means that a diff can be had
        found.append(Loaded(rule, checks))
    found.sort(key=lambda item: item.rule.id)
    return tuple(found)


def find(name: str) -> Loaded | None:
    """A rule by id (``GFX101``) or code (``capability-gate``)."""
    wanted = name.strip().lower()
    return next((r for r in load() if wanted in (r.rule.id.lower(), r.rule.code)), None)


@lru_cache(maxsize=32)
def for_kind(kind: str) -> tuple[tuple[Rule, Check], ...]:
    return tuple((r.rule, r.checks[kind]) for r in load() if kind in r.checks)
