"""The literal text that a regular expression requires for a match.

Trying a thousand expressions on every line of a log is far too slow, and searching for fixed texts is
very fast (``literals.Finder``). So each expression is stored with sets of texts: any match contains one text
of each set. The set that is rarest in ordinary text is searched for; the others are checked
on the line found before the expression is compiled and tried.

The expressions are parsed by Python's own parser. Syntax that is not understood here only ends a literal, which
makes the search less selective, never wrong.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

# The standard library's parser, which has no public name.
ops: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")

LEAST = 3
"""Shorter texts are in every line and are useless."""

_LONGEST = 24
"""Longer texts are searched by a part."""
_MOST_TEXTS = 24
"""A larger set of texts is not enumerated."""

Texts = tuple[str, ...]


def requirements(pattern: str) -> tuple[Texts, ...]:
    """Return sets of lower-case texts: every match of ``pattern`` contains at least one text of each set.

    The rarest set comes first; () if nothing of at least ``LEAST`` characters is certain.
    """
    exact, found = _walk(parser.parse(pattern))
    sets = [_reduced(texts) for texts in (*found, *([exact] if exact else [])) if min(map(len, texts)) >= LEAST]
    return tuple(sorted(dict.fromkeys(sets), key=rarity, reverse=True))


def weight(text: str) -> float:
    """Roughly how rare ``text`` is: its words, of which common ones count little, and their combination."""
    words = [*re.finditer(r"[^\W_]+", text)]
    return sum(_weight(word[0], word.start() == 0) for word in words) + 0.7 * (len(words) - 1)


def _weight(word: str, open_before: bool) -> float:
    """The weight of ``word``, which may be part of a longer word where it is open."""
    rare = max(0.5, len(word) - 2 + (not word.isalpha()))
    begins, ends = _common_words()
    # A word that is closed on both sides is also looked up among beginnings: the difference is small.
    return min(begins.get(word, rare), ends.get(word, rare) if open_before else rare)


@lru_cache(maxsize=1)
def _common_words() -> tuple[dict[str, float], dict[str, float]]:
    """The weights of common words and of their beginnings, and those of their ends."""
    text = (Path(__file__).parent / "common_words.txt").read_text(encoding="utf-8")
    tiers = [line.split() for line in text.splitlines() if not line.startswith("#")]
    begins: dict[str, float] = {}
    ends: dict[str, float] = {}
    for value, words in zip((1.2, 0.6, 0.2), reversed(tiers)):
        for word in words:
            begins |= {word[:stop]: value for stop in range(2, len(word) + 1)}
            ends |= {word[start:]: value for start in range(len(word) - 1)}
    return begins, ends


def sharpest(text: str) -> str:
    """The part of ``text`` to search for: whole words, few of them to keep the automaton small, and rare."""
    if len(text) <= _LONGEST:
        return text
    stops = [0, *(place for place, char in enumerate(text) if char == " "), len(text)]
    parts = [text[begin:stop] for begin in stops for stop in stops if LEAST <= stop - begin <= _LONGEST]
    parts += (word[:_LONGEST] for word in text.split(" ") if len(word) >= LEAST)
    return max(parts, key=weight)


def rarity(texts: Collection[str]) -> float:
    """How rare it is to find one of ``texts``."""
    # A set is as selective as its most common text, and many texts cost more than few.
    return min(map(weight, texts)) - len(texts) / 20


def _reduced(texts: Iterable[str]) -> Texts:
    """The set without texts that contain another of its texts."""
    unique = sorted(set(texts), key=len)
    kept: list[str] = []
    for text in unique:
        if not any(short in text for short in kept):
            kept.append(text)
    return tuple(sorted(kept))


def _walk(tree: Any) -> tuple[Texts | None, list[Texts]]:
    """Return all texts that ``tree`` can match, if they are few, and the sets that any match contains."""
    runs: Texts = ("",)
    whole = True
    found: list[Texts] = []

    def cut() -> None:
        nonlocal runs, whole
        whole = False
        if min(map(len, runs)) >= LEAST:
            found.append(runs)
        runs = ("",)

    def extend(choices: Texts | None, inside: Iterable[Texts] = ()) -> None:
        """Continue with one of ``choices``; if they are unknown or many, with what is certain inside."""
        nonlocal runs
        if choices is None or len(choices) * len(runs) > _MOST_TEXTS:
            cut()
            found.extend(inside)
        if choices is not None and len(choices) * len(runs) <= _MOST_TEXTS:
            runs = tuple(run + choice for run in runs for choice in choices)

    for op, value in tree:
        if op is ops.LITERAL:
            extend((chr(value).lower(),))
        elif op is ops.IN:
            extend(_members(value))
        elif op is ops.SUBPATTERN:
            exact, inside = _walk(value[-1])
            extend(exact, inside)
        elif op is ops.BRANCH:
            branches = [_walk(branch) for branch in value[1]]
            extend(_united([exact for exact, _ in branches]), _common(branches))
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            least, most, body = value
            exact, inside = _walk(body)
            if most == 1 and exact is not None:
                extend((*exact, "") if least == 0 else exact)
            else:
                certain = [*inside, *([exact] if exact and min(map(len, exact)) >= LEAST else [])]
                extend(None, certain if least else ())
        elif op not in (ops.AT, ops.ASSERT, ops.ASSERT_NOT):
            cut()
    if whole:
        return runs, []
    cut()
    return None, found


def _members(value: Any) -> Texts | None:
    if len(value) <= 4 and all(op is ops.LITERAL for op, _ in value):
        return tuple(dict.fromkeys(chr(code).lower() for _, code in value))
    return None


def _united(exact: list[Texts | None]) -> Texts | None:
    texts = [text for one in exact if one is not None for text in one]
    return tuple(dict.fromkeys(texts)) if all(one is not None for one in exact) else None


def _common(branches: list[tuple[Texts | None, list[Texts]]]) -> list[Texts]:
    """The set that applies whichever branch matches: the rarest of each branch, together."""
    best: list[str] = []
    for exact, inside in branches:
        sets = [texts for texts in (*inside, *([exact] if exact else [])) if min(map(len, texts)) >= LEAST]
        if not sets:
            return []
        best += max(sets, key=lambda texts: rarity(tuple(texts)))
    return [tuple(dict.fromkeys(best))]
