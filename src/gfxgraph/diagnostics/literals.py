"""The literals of an expression: every text that it matches holds one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as constants  # type: ignore[attr-defined]
from typing import Any

LEAST = 2  # characters of a literal
_FEW = 4  # repetitions
_COMMON = re.compile("error|fail|support|not |invalid|available|found|unable|could|cannot|file|device|memory")

Nodes = Iterable[Any]
"""A parsed expression, as ``re`` has it."""


def needed(nodes: Nodes) -> frozenset[str]:
    """Literals of a parsed expression, in small letters, one of which is in every text that matches; {''} if none."""
    sets, run = [frozenset({""})], ""
    for op, value in [*nodes, (None, None)]:
        if op is constants.LITERAL and value < 128:
            run += chr(value).lower()
            continue
        sets.append(frozenset({run}))
        run = ""
        if op is constants.SUBPATTERN:
            sets.append(needed(value[3]))
        elif op is constants.BRANCH:
            sets.append(frozenset().union(*(needed(arm) for arm in value[1])))
        elif op in (constants.MAX_REPEAT, constants.MIN_REPEAT) and value[0] > 0:
            sets.append(needed(value[2]))
        elif op is constants.IN and all(kind is constants.LITERAL and code < 128 for kind, code in value):
            letters = {chr(code).lower() for _, code in value}
            run = letters.pop() if len(letters) == 1 else ""
    return max(sets, key=lambda one: (min(map(telling, one)), -len(one)))


def telling(literal: str) -> int:
    """How much a literal tells: its length, but little where every log is full of it."""
    return min(len(literal), LEAST) if _COMMON.search(literal) else len(literal)


def n_ways(nodes: Nodes) -> int:
    """How many repetitions of an expression multiply the ways that a search can go; one without end counts double."""
    total = 0
    for op, value in nodes:
        if op is constants.SUBPATTERN:
            total += n_ways(value[3])
        elif op is constants.BRANCH:
            total += max(map(n_ways, value[1]))
        elif op in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            total += (value[1] > _FEW) + (value[1] is constants.MAXREPEAT) + n_ways(value[2])
    return total
