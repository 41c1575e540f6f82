"""The preprocessor's view of a C++ or CUDA file: directives, and the arms they cut it into.

Every arm is kept. A compiler that skips inactive arms never sees half of the code a port is about.
"""

from __future__ import annotations

import ast
import itertools
import re
import warnings
from dataclasses import dataclass, field
from functools import lru_cache

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
    condition: ast.expr | None  # None for #else
    text: str
    line: int
    first_line: int
    last_line: int = 0
    earlier: tuple[Arm, ...] = ()
    later: list[Arm] = field(default_factory=list)

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
    for d in directives:
        if d.kind in ("if", "ifdef", "ifndef"):
            parent = stack[-1][-1] if stack else None
            arm = Arm(len(arms), parent, _condition(d), f"#{d.kind} {d.body.strip()}", d.line, d.last_line + 1)
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


def _condition(d: Directive) -> ast.expr:
    match = re.search(r"[A-Za-z_]\w*", d.body)
    if d.kind.endswith("def"):
        return parse_condition(f"{'!' * d.kind.endswith('ndef')}defined({match[0] if match else ''})")
    return parse_condition(d.body)


# C's operators as Python's; a question of the compiler's is one that is not answered.
_AS_PYTHON = (
    (re.compile(r"(?<!\w)__has_\w+\s*\([^()]*\)"), "unknown()"),
    (re.compile(r"\bdefined\s+(\w+)"), r"defined(\1)"),
    (re.compile(r"(?<=\b\d)([xX]?[\da-fA-F]*)[uUlL]+\b"), r"\1"),
    (re.compile(r"&&"), " and "),
    (re.compile(r"\|\|"), " or "),
    (re.compile(r"!(?!=)"), " not "),
)


@lru_cache(maxsize=4096)
def parse_condition(text: str) -> ast.expr:
    """An ``#if`` expression as Python's tree; what is not understood is None's."""
    text = " ".join(text.split())
    for pattern, instead in _AS_PYTHON:
        text = pattern.sub(instead, text)
    try:
        with warnings.catch_warnings():  # of the interpreter's, about numbers
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Constant(None)


def names_in(condition: ast.expr | None) -> set[str]:
    """Every macro a condition asks about."""
    found = {n.id for n in ast.walk(condition) if isinstance(n, ast.Name)} if condition is not None else set()
    return found - {"defined", "unknown"}
