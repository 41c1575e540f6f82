"""Tensors among the arguments and results of an operation."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def flat(*items: Any) -> list[Tensor]:
    """Every tensor among arguments or results, nested lists included."""
    found: list[Tensor] = []
    for item in items:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            found.extend(flat(*item))
        elif isinstance(item, dict):
            found.extend(flat(*item.values()))
    return found


def written(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, ...]:
    """The arguments that the operation writes to, by its schema."""
    targets: set[int] = set()
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            targets.update(id(t) for t in (given if isinstance(given, (list, tuple)) else (given,)))
    return tuple(t for t in flat(args, kwargs) if id(t) in targets)
