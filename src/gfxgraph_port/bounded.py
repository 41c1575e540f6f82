"""``re`` for untrusted text: every repetition is bounded.

Problem: ``\\w*(size|width)\\w*`` takes a time that grows with the square or the cube of what it is given, and a
hostile file gives it a line of a megabyte. Idea: a repetition of characters in a rule stands for a name, a gap or a
stretch of one statement, all of which are short; so every ``*``, ``+`` and ``{n,}`` is given an upper bound here, in
one place, and the time of a search grows with the text only. ``tools/check_patterns.py`` holds every expression to
50 ms on 8 KB.

A module of rules writes ``from gfxgraph_port import bounded as re`` and the syntax of ``re``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from re import Match, Pattern, error, escape

I = IGNORECASE = re.I  # noqa: E741 - the name that ``re`` has
M = MULTILINE = re.M
S = DOTALL = re.S
__all__ = [
    "Match", "Pattern", "bound", "compile", "error", "escape", "findall", "finditer", "fullmatch", "match", "search",
    "split", "sub",
]  # fmt: skip
NAME, STRETCH = 48, 160  # characters of a name or a gap; of anything else

_PIECE = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\]){0,100}+\]|\(\?(?:P<\w{1,40}>|[aiLmsux-]{1,8}[:)]|[:=!>]|<[=!])?|[()|^$.]|\{\d{0,4},?\d{0,4}\}|[*+?]|[^\\]",
    re.S,
)


def bound(pattern: str) -> str:
    """The expression with every endless repetition bounded."""
    out: list[str] = []
    atom = ""
    for found in _PIECE.finditer(pattern):
        piece, rest = found.group(), pattern[found.end() :]
        if not rest.strip(")") or (atom == "." and not rest.strip(")$")):
            out.append(piece)  # nothing after it can fail, so nothing is tried again
        elif piece in ("*", "+") and atom and atom not in ("(", "|", "^", "quantifier"):
            limit = NAME if atom in (r"\w", r"\s", r"\d", r"\S", "[ \\t]", ")", " ") else STRETCH
            out.append(f"{{{0 if piece == '*' else 1},{limit}}}")
            atom = "quantifier"
        elif re.fullmatch(r"\{\d{1,4},\}", piece):
            out.append(f"{piece[:-1]}{STRETCH}}}")
            atom = "quantifier"
        else:
            out.append(piece)
            atom = "quantifier" if piece == "?" or re.fullmatch(r"\{\d{0,4},?\d{0,4}\}", piece) else piece
    return "".join(out)


@lru_cache(maxsize=4096)
def compile(pattern: str, flags: int = 0) -> Pattern[str]:  # noqa: A001 - the name that ``re`` has
    return re.compile(bound(pattern), flags)


def search(pattern: str, text: str, flags: int = 0) -> Match[str] | None:
    return compile(pattern, flags).search(text)


def match(pattern: str, text: str, flags: int = 0) -> Match[str] | None:
    return compile(pattern, flags).match(text)


def fullmatch(pattern: str, text: str, flags: int = 0) -> Match[str] | None:
    return compile(pattern, flags).fullmatch(text)


def finditer(pattern: str, text: str, flags: int = 0) -> Iterator[Match[str]]:
    return compile(pattern, flags).finditer(text)


def findall(pattern: str, text: str, flags: int = 0) -> list[str]:
    return compile(pattern, flags).findall(text)


def sub(pattern: str, new: str | Callable[[Match[str]], str], text: str, count: int = 0, flags: int = 0) -> str:
    return compile(pattern, flags).sub(new, text, count)


def split(pattern: str, text: str, maxsplit: int = 0, flags: int = 0) -> list[str]:
    return [part or "" for part in compile(pattern, flags).split(text, maxsplit)]
