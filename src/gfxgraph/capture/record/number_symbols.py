"""Passes tracked numbers through torch as torch's symbolic scalars.

``torch.SymFloat`` and ``torch.SymInt`` carry a Python object through torch's argument parser, its
composite operations and autograd's formulas down to the dispatcher, where the recorder finds it again: in the
forward operation and in each operation of its backward. If C++ needs the number itself it calls
``guard_float`` or ``guard_int`` here, and the number is pinned.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gfxgraph.capture.record.tracked_numbers import TrackedNumber
from gfxgraph.core.expressions import Ref

_KINDS = (torch.SymFloat, torch.SymInt)
_WANTED = "an operation that needs the number itself"
alive: weakref.WeakSet[HostSymNode] = weakref.WeakSet()
"""All that there are: autograd keeps those of a forward for its backward, which may have a capture of its own."""


class WantsNumber(Exception):
    """torch accepts no symbolic scalar here."""


class HostSymNode:
    """Our implementation of torch's SymNode: a tracked number, or one that torch computed from tracked numbers.

    Args:
        is_refused: called when C++ needs the number; if it returns True, WantsNumber is raised.
    """

    def __init__(self, number: Any, is_refused: Callable[[], bool] | None = None) -> None:
        self.number = number
        self.is_refused = is_refused
        alive.add(self)

    def _now(self) -> Any:
        return self.number._value if type(self.number) is TrackedNumber else self.number

    def _leave(self) -> Any:
        if type(self.number) is not TrackedNumber:
            return self.number
        if self.is_refused is not None and self.is_refused():
            raise WantsNumber
        return self.number._leave(_WANTED)

    def is_int(self) -> bool:
        return isinstance(self._now(), int) and not self.is_bool()

    def is_float(self) -> bool:
        return isinstance(self._now(), float)

    def is_bool(self) -> bool:
        return isinstance(self._now(), bool)

    # What C++ may ask besides.
    is_symbolic = has_hint = lambda self: True  # noqa: E731
    is_nested_int = is_constant = lambda self: False  # noqa: E731
    nested_int = maybe_as_int = maybe_as_float = maybe_as_bool = lambda self: None  # noqa: E731

    def guard_int(self, file: Any = "", line: Any = 0) -> int:
        return int(self._leave())

    def guard_float(self, file: Any = "", line: Any = 0) -> float:
        return float(self._leave())

    def guard_bool(self, file: Any = "", line: Any = 0) -> bool:
        return bool(self.number)

    guard_size_oblivious = expect_true = expect_size = guard_or_false = guard_or_true = guard_bool
    statically_known_true = bool_ = guard_bool
    int_, float_ = guard_int, guard_float

    def wrap_int(self, number: int) -> HostSymNode:
        return HostSymNode(number)

    wrap_float = wrap_bool = wrap_int

    def clone(self) -> HostSymNode:
        return self

    def str(self) -> str:
        return repr(self._now())

    _graph_repr = str


def _computing(func: Any) -> Any:
    return lambda self, *others: HostSymNode(
        func(self.number, *[getattr(other, "number", other) for other in others])
    )


_FUNCTIONS = {
    "truediv": operator.truediv, "float_truediv": operator.truediv, "int_truediv": operator.truediv,
    "floordiv": operator.floordiv, "int_floordiv": operator.floordiv, "float_pow": pow, "pow_by_natural": pow,
    "pow": pow, "add": operator.add, "sub": operator.sub, "mul": operator.mul, "mod": operator.mod,
    "neg": operator.neg, "pos": operator.pos, "abs": abs, "round": round, "floor": math.floor, "ceil": math.ceil,
    "trunc": math.trunc, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "is_integer": lambda a: a.is_integer(), "sym_float": lambda a: a + 0.0,
    "sym_int": math.trunc, "sym_not": operator.not_, "sym_max": lambda a, b: a if a > b else b,
    "sym_min": lambda a, b: a if a < b else b, "and_": operator.and_, "or_": operator.or_,
    "sym_ite": lambda test, a, b: a if test else b,
}  # fmt: skip
for _name, _func in _FUNCTIONS.items():
    setattr(HostSymNode, _name, _computing(_func))


def symbolic(item: Any, is_refused: Callable[[], bool]) -> Any:
    """Replace each tracked number in the arguments by a symbolic scalar; complex ones escape tracking."""
    kind = type(item)
    if kind is TrackedNumber:
        if isinstance(item, float):
            return torch.SymFloat(HostSymNode(item, is_refused))
        return (
            torch.SymInt(HostSymNode(item, is_refused))
            if isinstance(item, int)
            else item._leave("a complex argument")
        )
    if kind is list or kind is tuple:
        return kind(symbolic(part, is_refused) for part in item)
    if kind is dict:
        return {name: symbolic(part, is_refused) for name, part in item.items()}
    return item


def holds_symbols(args: Any, kwargs: Any) -> bool:
    """True if an operation's arguments contain one of our symbolic scalars."""
    return any(map(_is_or_holds, args)) or any(map(_is_or_holds, kwargs.values()))


def _is_or_holds(item: Any) -> bool:
    kind = type(item)
    if kind is list or kind is tuple:
        return any(map(_is_or_holds, item))
    return kind in _KINDS and type(item.node) is HostSymNode


def numbers_of(item: Any, leave: bool) -> Any:
    """Replace each symbolic scalar in the arguments by its tracked number.

    Args:
        leave: replace it by its plain value instead, which is pinned.
    """
    kind = type(item)
    if kind is list or kind is tuple:
        return kind(numbers_of(part, leave) for part in item)
    if kind is dict:
        return {name: numbers_of(part, leave) for name, part in item.items()}
    if kind in _KINDS and type(item.node) is HostSymNode:
        return item.node._leave() if leave else item.node.number
    return item


def refs_and_values(item: Any) -> tuple[Any, Any]:
    """Arguments with references in place of tracked numbers, as a step stores them, and with current values."""
    kind = type(item)
    if kind is TrackedNumber:
        return Ref(item._ref.row), item._value
    if kind is list or kind is tuple:
        pairs = [refs_and_values(part) for part in item]
        return kind(ref for ref, _ in pairs), kind(value for _, value in pairs)
    if kind is dict:
        pairs = [refs_and_values(part) for part in item.values()]
        return dict(zip(item, (ref for ref, _ in pairs))), dict(zip(item, (value for _, value in pairs)))
    if kind is slice:
        refs, values = refs_and_values((item.start, item.stop, item.step))
        return slice(*refs), slice(*values)
    return item, item
