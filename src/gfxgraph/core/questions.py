"""Questions asked of a value that was read from the device, and whether the answers still hold.

A replay does not run Python again. What Python decided from a value is therefore remembered as
the question it asked (``> 1e9``) and the answer it got, and asked again at each replay: the value
may change freely as long as the answers do not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gfxgraph.core.expressions import Expressions, Ref, refs_in
from gfxgraph.types import Where

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}

TRUTH = "is true"
EXACTLY = "is exactly"


@dataclass(frozen=True, slots=True)
class Question:
    """One question about a number, and its answer at capture.

    ``test`` is a key of COMPARISONS (``operand`` is a number or another row), ``TRUTH``, or
    ``EXACTLY`` for a pinned value.
    """

    subject: Ref
    test: str
    operand: Any
    answer: bool
    where: Where

    def refs(self) -> Iterator[Ref]:
        """Every number that the question needs."""
        yield self.subject
        yield from refs_in(self.operand)

    def text(self, numbers: Expressions) -> str:
        """The question as a person would write it: ``value > 1e+09``."""
        shown = numbers.text(self.subject)
        if self.test in COMPARISONS:
            return f"{shown} {self.test} {numbers.text(self.operand)}"
        return f"bool({shown})" if self.test == TRUTH else shown


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


def ask(question: Question, numbers: Expressions) -> tuple[bool, Any]:
    """Ask again. Returns (whether the answer still holds, the present value)."""
    value = numbers.value(question.subject)
    if question.test == EXACTLY:
        return same_value(value, question.operand), value
    if question.test in COMPARISONS:
        answer = bool(COMPARISONS[question.test](value, numbers.fill(question.operand)))
    else:
        answer = bool(value)
    return answer == question.answer, answer
