"""The preprocessor's view of a C++ or CUDA file: directives, and the arms they cut it into.

Every arm is kept. A compiler that skips inactive arms never sees half of the code a port is about.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from functools import lru_cache

Expr = tuple[object, ...]

_COMMENT = re.compile(
    # What is never closed goes to the end (of the line, for a string), so that nothing is read twice.
    r'R"([^()\\\s]{0,16})\(.*?(?:\)\1"|\Z)|"(?:\\.|[^"\\\n])*+"?|\'(?:\\.|[^\'\\\n]){0,16}\'|'
    r"//(?:[^\n\\]|\\.)*+|/\*.*?(?:\*/|\Z)",
    re.S,
)
_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(ifdef|ifndef|if|elifdef|elifndef|elif|else|endif|define|undef|include|error|pragma)\b"
    r"((?:\\\r?\n|[^\n])*)",
    re.M,
)
_TOKEN = re.compile(r"(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|&&|\|\||[<>=!]=|[-+*/%!<>()?:,~&|^])")


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive. ``body`` starts at byte-free character ``start`` of the file."""

    kind: str
    line: int
    last_line: int
    body: str
    start: int


@dataclass(slots=True)
class Arm:
    """One arm of an ``#if`` chain; ``earlier`` are the conditions of the arms before it."""

    index: int
    parent: Arm | None
    chain: int
    condition: Expr | None  # None for #else
    text: str
    line: int
    first_line: int
    last_line: int = 0
    earlier: tuple[Arm, ...] = ()
    later: list[Arm] = field(default_factory=list)
    arms: list[Arm] = field(default_factory=list)

    def lineage(self) -> list[Arm]:
        """From the outermost arm to this one."""
        found: list[Arm] = []
        arm: Arm | None = self
        while arm is not None:
            found.append(arm)
            arm = arm.parent
        return found[::-1]


def blank_comments(text: str, *, strings: bool = False) -> str:
    """The text with comments, and strings if asked, turned into spaces; offsets and lines stay."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        if found[0] in "\"'R" and not strings:
            return found
        if strings and found[0] in "\"'" and len(found) >= 2:
            return found[0] + _spaces(found[1:-1]) + found[-1]
        return _spaces(found)

    return _COMMENT.sub(blank, text)


_BRACKET = {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}
_NO_BRACKETS = re.compile(r"[^(){}\[\]]+")


def check_brackets(code: str, limit: int = 400) -> None:
    """Refuse text whose brackets nest beyond the limit.

    Raises:
        TooDeepError: they do.
    """
    for text in (code, blank_comments(code, strings=True)):  # most files pass before strings must be told apart
        if text.count("(") + text.count("{") + text.count("[") <= limit:
            return
        depth = max(itertools.accumulate(_BRACKET[c] for c in _NO_BRACKETS.sub("", text)), default=0)
        if depth <= limit:
            return
    raise TooDeepError(f"brackets nested {depth} deep, limit {limit}")


def _spaces(text: str) -> str:
    return "\n".join(" " * len(part) for part in text.split("\n"))


def scan(code: str) -> list[Directive]:
    """Directives of a text whose comments are blank."""
    found: list[Directive] = []
    line, position = 1, 0
    for match in _DIRECTIVE.finditer(code):
        line += code.count("\n", position, match.start())
        position = match.start()
        body = match.group(2)
        found.append(
            Directive(match.group(1), line, line + body.count("\n"), body.replace("\\\n", " \n"), match.start(2))
        )
    return found


MAX_NESTED = 256  # conditionals within conditionals: what a C++ compiler must take
MAX_CHAIN = 1_000  # arms of one conditional


class TooDeepError(ValueError):
    """Nested or chained beyond what any compiler takes: the file is reported, not read."""


def arms_of(directives: list[Directive], n_lines: int) -> list[Arm]:
    """The arms of every conditional, in source order; an unclosed one ends with the file.

    Raises:
        TooDeepError: more conditionals within each other, or more arms in one, than the limits.
    """
    arms: list[Arm] = []
    stack: list[list[Arm]] = []
    chains = 0
    for d in directives:
        if d.kind in ("if", "ifdef", "ifndef"):
            parent = stack[-1][-1] if stack else None
            arm = Arm(
                len(arms),
                parent,
                chains,
                _condition(d),
                f"#{d.kind} {d.body.strip()}",
                d.line,
                d.last_line + 1,
            )
            chains += 1
            arms.append(arm)
            stack.append([arm])
            if len(stack) > MAX_NESTED:
                raise TooDeepError(f"line {d.line}: more than {MAX_NESTED} conditionals within each other")
        elif d.kind in ("elif", "elifdef", "elifndef", "else") and stack:
            chain = stack[-1]
            if len(chain) > MAX_CHAIN:
                raise TooDeepError(f"line {d.line}: more than {MAX_CHAIN} arms in one conditional")
            chain[-1].last_line = d.line - 1
            condition = None if d.kind == "else" else _condition(d)
            arm = Arm(
                len(arms),
                chain[0].parent,
                chain[0].chain,
                condition,
                f"#{d.kind} {d.body.strip()}".strip(),
                d.line,
                d.last_line + 1,
                earlier=tuple(chain),
            )
            for before in chain:
                before.later.append(arm)
            arms.append(arm)
            chain.append(arm)
        elif d.kind == "endif" and stack:
            stack.pop()[-1].last_line = d.line - 1
    for chain in stack:
        chain[-1].last_line = n_lines
    return arms


def _condition(d: Directive) -> Expr:
    if d.kind in ("ifdef", "elifdef"):
        return ("defined", _first_name(d.body))
    if d.kind in ("ifndef", "elifndef"):
        return ("not", ("defined", _first_name(d.body)))
    return parse_condition(d.body)


def _first_name(text: str) -> str:
    match = re.search(r"[A-Za-z_]\w*", text)
    return match.group() if match else ""


@lru_cache(maxsize=4096)
def parse_condition(text: str) -> Expr:
    """Parse an ``#if`` expression; what is not understood becomes ``("unknown",)``."""
    tokens = [m.group(1) for m in _TOKEN.finditer(text)]
    try:
        tree, rest = _or(tokens, 0)
    except (IndexError, RecursionError):
        return ("unknown",)
    return tree if rest == len(tokens) else ("unknown",)


def _or(t: list[str], i: int) -> tuple[Expr, int]:
    left, i = _and(t, i)
    while i < len(t) and t[i] == "||":
        right, i = _and(t, i + 1)
        left = ("or", left, right)
    return left, i


def _and(t: list[str], i: int) -> tuple[Expr, int]:
    left, i = _compare(t, i)
    while i < len(t) and t[i] == "&&":
        right, i = _compare(t, i + 1)
        left = ("and", left, right)
    return left, i


def _compare(t: list[str], i: int) -> tuple[Expr, int]:
    left, i = _sum(t, i)
    if i < len(t) and t[i] in ("==", "!=", "<", ">", "<=", ">="):
        op = t[i]
        right, i = _sum(t, i + 1)
        return ("cmp", op, left, right), i
    return left, i


def _sum(t: list[str], i: int) -> tuple[Expr, int]:
    left, i = _unary(t, i)
    while i < len(t) and t[i] in ("+", "-", "*", "/", "%", "&", "|", "^"):
        op = t[i]
        right, i = _unary(t, i + 1)
        left = ("arith", op, left, right)
    return left, i


def _unary(t: list[str], i: int) -> tuple[Expr, int]:
    token = t[i]
    if token == "!":
        inner, i = _unary(t, i + 1)
        return ("not", inner), i
    if token == "(":
        inner, i = _or(t, i + 1)
        if t[i] != ")":
            raise IndexError
        return inner, i + 1
    if token == "defined":
        if t[i + 1] == "(":
            return ("defined", t[i + 2]), i + 4
        return ("defined", t[i + 1]), i + 2
    if token[0].isdigit():
        return (
            "num",
            int(token, 0) if not token.startswith("0") or "x" in token.lower() else int(token, 10),
        ), i + 1
    if token[0].isalpha() or token[0] == "_":
        if i + 1 < len(t) and t[i + 1] == "(":
            depth, i = 1, i + 2
            while depth:
                depth += {"(": 1, ")": -1}.get(t[i], 0)
                i += 1
            return ("call", token), i
        return ("name", token), i + 1
    raise IndexError


def names_in(expr: Expr | None) -> set[str]:
    """Every macro a condition asks about."""
    if expr is None:
        return set()
    found: set[str] = set()
    for item in expr[1:]:
        if isinstance(item, tuple):
            found |= names_in(item)
        elif isinstance(item, str) and expr[0] in ("defined", "name", "call"):
            found.add(item)
    return found


def selections(arms: list[Arm], limit: int = 8) -> list[frozenset[int]]:
    """Choices of one arm a chain that together show every arm once, up to ``limit`` choices.

    Each choice makes a text without conditionals that a parser can take whole, however the arms cut through
    statements and braces.
    """
    chains: dict[int, list[Arm]] = {}
    for arm in arms:
        chains.setdefault(arm.chain, []).append(arm)
    uncovered = {a.index for a in arms}
    below: dict[int, set[int]] = {a.index: {a.index} for a in arms}
    for arm in reversed(arms):
        if arm.parent is not None:
            below[arm.parent.index] |= below[arm.index]
    found: list[frozenset[int]] = []
    while (uncovered or not found) and len(found) < limit:
        chosen: set[int] = set()
        for members in chains.values():
            parent = members[0].parent
            if parent is not None and parent.index not in chosen:
                continue
            best = max(members, key=lambda a: (len(below[a.index] & uncovered), -a.index))
            chosen.add(best.index)
        found.append(frozenset(chosen))
        uncovered -= chosen
        if not chosen:
            break
    return found
