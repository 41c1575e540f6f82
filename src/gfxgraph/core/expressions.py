"""What a program computed from values that it read from the device, as a list of rows in SSA form.

A replay does not run Python again. So each number that came from a read is known by the row that makes it:
a read, or a function of earlier rows and constants. At a replay the reads give new values, and the rest is
computed from them on demand, once.

Invariant: a row's arguments come before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_LONGEST = 60
_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ref:
    """The number that one row makes."""

    row: int


_REFS = frozenset({Ref})


class Expressions:
    """The rows of one program, and their values in its latest replay."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Callable[..., Any] | None, tuple[Any, ...]]] = []
        self.values: dict[int, Any] = {}

    def read(self) -> Ref:
        """A new row whose value is set by a read."""
        self.rows.append(("read", None, ()))
        return Ref(len(self.rows) - 1)

    def apply(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], value: object) -> Ref:
        """A new row: ``func`` of numbers, of which some are rows; ``value`` is what it gives now."""
        self.rows.append((name, func, args))
        self.values[len(self.rows) - 1] = value
        return Ref(len(self.rows) - 1)

    def forget(self) -> None:
        """Forget all values, when a replay begins."""
        self.values.clear()

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
            _, func, args = self.rows[row]
            if func is None:
                raise KeyError(row)
            missing = [arg.row for arg in refs_in(args) if arg.row not in values]
            if missing:
                pending += missing
                continue
            values[row] = func(*[self.fill(arg) for arg in args])
            pending.pop()
        return values[ref.row]

    def fill(self, item: Any) -> Any:
        """Arguments with each row replaced by its number."""
        kind = type(item)
        if kind is Ref:
            return self.value(item)
        if kind is list or kind is tuple:
            return kind(self.fill(part) for part in item)
        if kind is dict:
            return {name: self.fill(part) for name, part in item.items()}
        if kind is slice:
            return slice(self.fill(item.start), self.fill(item.stop), self.fill(item.step))
        return item

    def reads_of(self, refs: Iterable[Ref]) -> set[int]:
        """Rows of the reads that these numbers depend on."""
        seen: set[int] = set()
        pending = [ref.row for ref in refs]
        while pending:
            row = pending.pop()
            if row not in seen:
                seen.add(row)
                pending += [arg.row for arg in refs_in(self.rows[row][2])]
        return {row for row in seen if self.rows[row][1] is None}

    def text(self, item: Any, depth: int = 4) -> str:
        """A number as a person would write it: ``value * 2``."""
        if type(item) is not Ref:
            return repr(item)
        name, func, args = self.rows[item.row]
        if func is None:
            return "value"
        if not depth:
            return "..."
        shown = [self.text(arg, depth - 1) for arg in args]
        if name == "item":
            made = f"{shown[0]}[{shown[1]}]"
        elif name in _SYMBOLS and len(shown) == 2:
            made = f"({shown[0]} {_SYMBOLS[name]} {shown[1]})"
        else:
            made = f"{name}({', '.join(shown)})"
        return made if len(made) <= _LONGEST else f"{name}(...)"


def refs_in(item: object) -> Iterator[Ref]:
    """Every row among arguments, nested lists included."""
    return among(_REFS, item)


def among(wanted: frozenset[type], item: Any) -> Iterator[Any]:
    """Everything of exactly these types among arguments, nested lists, dicts and slices included."""
    kind = type(item)
    if kind in wanted:
        yield item
    elif kind is list or kind is tuple:
        for part in item:
            yield from among(wanted, part)
    elif kind is dict:
        yield from among(wanted, list(item.values()))
    elif kind is slice:
        yield from among(wanted, [item.start, item.stop, item.step])
