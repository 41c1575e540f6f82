"""What an adapter needs from an engine: a few names as data, and the function that checks for them.

Problem: an adapter depends on names inside an engine, and a version number does not show whether they still
exist. Idea: each adapter lists the names that it replaces, calls or reads, with the arguments and attributes that
it relies on. What an engine lacks of these is reported, and an engine that has all of them is used, whatever its
version.

A name does not show its meaning. So an adapter that computes with an engine's parts also compares results
(gfxgraph_kernels.generation.version_check); one that only wraps a capture needs no comparison, since a failure there
is the engine's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any


@dataclass(frozen=True, slots=True)
class NeededName:
    """A name in one of an engine's modules.

    Attributes:
        name: inside the module, such as ``GenerationMixin._sample``.
        takes: arguments that are passed or read by name, separated by spaces.
        keeps: attributes that instances of the class have, likewise.
    """

    name: str
    takes: str = ""
    keeps: str = ""


def missing(part: object, needs: Iterable[NeededName]) -> list[str]:
    """What a module lacks of the needed names, as text; empty if it has everything."""
    return [lacking for need in needs for lacking in _lacking(part, need)]


def _lacking(part: Any, need: NeededName) -> Iterator[str]:
    found = part
    for name in need.name.split("."):
        found = getattr(found, name, None)
        if found is None:
            yield f"{part.__name__}.{need.name}"
            return
    yield from (f"{need.name}({name}=)" for name in _not_taken(found, need.takes.split()))
    yield from (f"{need.name}().{name}" for name in need.keeps.split() if name not in _kept(found))


def _not_taken(function: Any, names: list[str]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a compiled function has no signature
        return []
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return []
    return [name for name in names if name not in parameters]


def _kept(owner: type) -> set[str]:
    """Names of the attributes that a class, or one of its methods, sets on instances."""
    found: set[str] = set()
    for each in inspect.getmro(owner):
        found |= vars(each).keys() | set(inspect.get_annotations(each))
        for member in vars(each).values():
            function = inspect.unwrap(member) if callable(member) else member
            if isinstance(function, FunctionType):
                found |= _names(function.__code__)
    return found


def _names(code: CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names, inner))
