"""Questions asked of a value that was read from the device, and whether the answers still hold.

A replay does not run Python again. What Python decided from a value is therefore remembered as
the question it asked (``> 1e9``) and the answer it got, and asked again at each replay: the value
may change freely as long as the answers do not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gfxgraph.types import Where

Number = float | int | bool | complex

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}

PREDICATES: dict[str, Callable[[Any], bool]] = {
    "is true": bool,
    "is NaN": lambda v: v != v,
    "is finite": lambda v: math.isfinite(v) if not isinstance(v, complex) else v == v,
    "is infinite": lambda v: math.isinf(v) if not isinstance(v, complex) else False,
    "is an integer": lambda v: float(v).is_integer() if not isinstance(v, int) else True,
}


@dataclass(frozen=True, slots=True)
class Reference:
    """Another value read in the same program: position of its read, and what was made of it."""

    read: int
    path: tuple[tuple[str, tuple[Any, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """One question to the value of read ``subject`` and the answer that the capture got.

    ``test`` is a key of COMPARISONS (``operand`` is a number or a Reference), of PREDICATES, or
    ``"is exactly"`` for a pinned value.
    """

    subject: Reference
    test: str
    operand: Any
    answer: bool
    where: Where

    def text(self) -> str:
        """The question as a person would write it: ``value > 1e+09``."""
        shown = "value"
        for name, args in self.subject.path:
            shown = f"{name}({', '.join([shown, *map(repr, args)])})"
        if self.test in COMPARISONS:
            other = "another value read" if isinstance(self.operand, Reference) else repr(self.operand)
            return f"{shown} {self.test} {other}"
        if self.test == "is exactly":
            return f"{shown}"
        return f"{shown} {self.test}"


STEPS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "neg": operator.neg,
    "pos": operator.pos,
    "round": round,
    "real": lambda v: v.real,
    "imag": lambda v: v.imag,
}


def follow(value: Any, path: tuple[tuple[str, tuple[Any, ...]], ...]) -> Any:
    """Apply the recorded one-argument steps (rounding, absolute value) to a raw value."""
    for name, args in path:
        value = STEPS[name](value, *args)
    return value


def same_number(a: Any, b: Any) -> bool:
    """Equal as stored: NaN equals NaN, and 0.0 differs from -0.0 only in sign, which is ignored."""
    return bool(a == b) or (a != a and b != b)


def ask(question: Question, values: dict[int, Any]) -> tuple[bool, Any]:
    """Ask again. Returns (does the answer still hold, what is there now).

    Args:
        values: raw value by read position, at least for every read the question mentions.
    """
    value = follow(values[question.subject.read], question.subject.path)
    if question.test == "is exactly":
        return same_number(value, question.operand), value
    if question.test in COMPARISONS:
        operand = question.operand
        if isinstance(operand, Reference):
            operand = follow(values[operand.read], operand.path)
        answer = bool(COMPARISONS[question.test](value, operand))
    else:
        answer = bool(PREDICATES[question.test](value))
    return answer == question.answer, answer
