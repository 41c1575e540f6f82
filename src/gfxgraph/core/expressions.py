"""What a program computed from values that it read from the device, as a list of rows in SSA form, and its guards.

A replay does not run Python again. So each number that came from a read is known by the row that makes it:
a read, or a function of earlier rows and constants. At a replay the reads give new values, and the rest is
computed from them on demand, once. What the program decided from a value, or made of it, is a row too: each replay
asks whether that row still gives what it gave.

Invariant: a row's arguments come before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gfxgraph.types import Where

_LONGEST = 60
_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">=",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ref:
    """The number that one row makes."""

    row: int


REFS: frozenset[type] = frozenset({Ref})


@dataclass(frozen=True, slots=True)
class ValueGuard:
    """A number that must be what it was at capture."""

    subject: Ref
    expected: object
    where: Where


class Expressions:
    """The rows of one program, and their values in its latest replay."""

    def __init__(self) -> None:
        self.rows: list[tuple[Callable[..., object] | None, tuple[object, ...]]] = []
        self.values: dict[int, object] = {}

    def add(self, value: object, func: Callable[..., object] | None = None, args: tuple[object, ...] = ()) -> Ref:
        """A new row, whose value is set by a read, or is ``func`` of numbers, of which some are rows.

        Args:
            value: what it gives now.
        """
        self.rows.append((func, args))
        self.values[len(self.rows) - 1] = value
        return Ref(len(self.rows) - 1)

    def value(self, ref: Ref) -> Any:
        """The number in the latest replay.

        Raises:
            KeyError: a read that it depends on has not been made.
            ArithmeticError, ValueError: as the program's own arithmetic raises on the new values.
        """
        values = self.values
        pending = [ref.row]
        while pending:
            row = pending[-1]
            if row in values:
                pending.pop()
                continue
            func, args = self.rows[row]
            if func is None:
                raise KeyError(row)
            missing = [arg.row for arg in args if type(arg) is Ref and arg.row not in values]
            if missing:
                pending += missing
                continue
            values[row] = func(*[values[arg.row] if type(arg) is Ref else arg for arg in args])
            pending.pop()
        return values[ref.row]

    def reads_of(self, refs: Iterable[Ref]) -> set[int]:
        """Rows of the reads that these numbers depend on."""
        seen: set[int] = set()
        pending = [ref.row for ref in refs]
        while pending:
            row = pending.pop()
            if row not in seen:
                seen.add(row)
                pending += [arg.row for arg in self.rows[row][1] if type(arg) is Ref]
        return {row for row in seen if self.rows[row][0] is None}

    def text(self, item: object, depth: int = 4) -> str:
        """A number as a person would write it: ``value * 2``."""
        if type(item) is not Ref:
            return repr(item)
        func, args = self.rows[item.row]
        if func is None:
            return "value"
        if not depth:
            return "..."
        shown = [self.text(arg, depth - 1) for arg in args]
        name = getattr(func, "__name__", str(func))
        if name == "getitem":
            return f"{shown[0]}[{shown[1]}]"
        is_pair = name in _SYMBOLS and len(shown) == 2
        made = f"({shown[0]} {_SYMBOLS[name]} {shown[1]})" if is_pair else f"{name}({', '.join(shown)})"
        return made if len(made) <= _LONGEST else f"{name}(...)"


def same_value(a: object, b: object) -> bool:
    """Whether two values are equal as stored: NaN equals NaN, and 0.0 differs from -0.0, since a program may divide
    by it.
    """
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, float) and isinstance(b, float) and a == b == 0:
        return math.copysign(1, a) == math.copysign(1, b)
    return bool(a == b) or bool(a != a and b != b)


def where_they_differ(text: str, was: object, now: object) -> tuple[str, object, object]:
    """What to show of two values that differ: of lists their lengths, or the first elements that differ."""
    while isinstance(was, (list, tuple)) and isinstance(now, (list, tuple)):
        if len(was) != len(now):
            return f"len({text})", len(was), len(now)
        index = next(i for i, (a, b) in enumerate(zip(was, now)) if not same_value(a, b))
        text, was, now = f"{text}[{index}]", was[index], now[index]
    return text, was, now
