"""What ``explain()`` says beside the signatures: arguments that would be better given another way."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

MANY_CONSTANTS = 6
"""So many values of one constant argument, and it belongs in a tensor."""


def advice(fn: Callable[..., Any], calls: Sequence[Any]) -> list[str]:
    """Arguments that are another constant at each call, by name.

    Args:
        calls: the structures of the calls seen (signature.py).
    """
    positional = [structure[1][1:] for structure in calls if isinstance(structure, tuple)]
    try:
        names = list(inspect.signature(getattr(fn, "forward", fn)).parameters)
    except (TypeError, ValueError):
        names = []
    found = []
    for i in range(min((len(each) for each in positional), default=0)):
        seen = {each[i] for each in positional if _is_number(each[i])}
        if len(seen) >= MANY_CONSTANTS:
            name = names[i] if i < len(names) else f"number {i + 1}"
            found.append(
                f"argument {name} was {len(seen)} different numbers, each a graph of its own: "
                "pass it as a tensor on the device"
            )
    return found


def folded(lines: Sequence[str]) -> list[str]:
    """The lines, equal ones once, with how often."""
    return [line if n == 1 else f"{line} ({n} signatures)" for line, n in Counter(lines).items()]


def table(rows: Sequence[tuple[int, str, str]]) -> list[str]:
    """Lines of a table: how many calls ran which way, and why."""
    lines = [f"{'calls':>7}  way         why"]
    return lines + [f"{n:>7}  {way:<10}  {why}".rstrip() for n, way, why in rows]


def _is_number(structure: Any) -> bool:
    return isinstance(structure, tuple) and len(structure) == 2 and structure[0] in (int, float)
