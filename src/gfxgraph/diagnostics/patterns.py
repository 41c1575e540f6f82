"""What a regular expression cannot match without: the literal text inside it.

Trying six hundred expressions on every line of a log is far too slow, and looking for a fixed
text is very fast. So each expression is stored with literals of which any match must contain one,
and is compiled only when a line has it.

Only the syntax that catalogue patterns use is understood; anything else merely ends a literal,
which makes the search less sharp and never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

LEAST = 3
"""Shorter literals are in every line and tell nothing."""

HEX = "0123456789abcdefABCDEF"
"""Characters of numbers and addresses: what is left without them is the form of a line."""

_NO_HEX = str.maketrans("", "", HEX)

_CLASSES = "bBdDwWsSAZ"


def alternatives(pattern: str) -> list[str]:
    """Split at ``|`` outside groups and classes."""
    parts, depth, start, index = [], 0, 0, 0
    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            index += 1
        elif char == "[":
            index = _class_end(pattern, index)
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(pattern[start:index])
            start = index + 1
        index += 1
    return [*parts, pattern[start:]]


def form(text: str) -> str:
    """``text`` without hexadecimal digits: lines that differ in numbers only have one form."""
    return text.translate(_NO_HEX)


def form_length(text: str) -> int:
    """How sharp the form of ``text`` is: the length of its longest word."""
    return max(map(len, form(text).split()), default=0)


def literals(pattern: str, length: Callable[[str], int] = len) -> tuple[str, ...]:
    """Return lower-case texts of which every match of ``pattern`` contains at least one.

    Args:
        pattern: a regular expression.
        length: how sharp a text is; ``form_length`` where forms of lines are searched.

    Returns:
        The sharpest such set, or () where there is none of at least ``LEAST`` characters.
    """
    branches = alternatives(pattern)
    if len(branches) > 1:
        found = [literals(branch, length) for branch in branches]
        return tuple(dict.fromkeys(text for one in found for text in one)) if all(found) else ()
    candidates: list[tuple[str, ...]] = []
    run = ""
    index = 0

    def end_run() -> None:
        nonlocal run
        if length(run) >= LEAST:
            candidates.append((run.lower(),))
        run = ""

    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            escaped = pattern[index + 1]
            if escaped == "x":
                run += chr(int(pattern[index + 2 : index + 4], 16))
                index += 4
                continue
            index += 2
            if escaped in _CLASSES or escaped.isdigit():
                end_run()
            else:
                run += escaped
            continue
        if char in "?*{":
            run = run[:-1]  # the character before may be absent
            end_run()
            index = pattern.index("}", index) + 1 if char == "{" else index + 1
            continue
        if char == "(":
            end_run()
            close = _group_end(pattern, index)
            following = pattern[close + 1 : close + 2]
            inner = pattern[index + 1 : close]
            if not inner.startswith("?") and (following == "" or following not in "?*{"):
                inside = literals(inner, length)
                if inside:
                    candidates.append(inside)
            index = close + 1
            continue
        if char == "[":
            end_run()
            index = _class_end(pattern, index) + 1
            continue
        if char in ".^$+":
            end_run()
        else:
            run += char
        index += 1
    end_run()
    # One long literal beats many; of many, the shortest decides how sharp the set is.
    return max(candidates, key=lambda texts: min(map(length, texts)) - len(texts) / 4, default=())


def anchors(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return, for one word of each text's form, the forms it stands for.

    Any line that holds a text has, in its form, a word that contains the text's anchor.
    """
    found: dict[str, list[str]] = {}
    for text in dict.fromkeys(form(text) for text in texts):
        # The longest word is the rarest, nearly always; everyday words go last.
        anchor = max(text.split(), key=lambda word: (word not in _EVERYDAY, len(word)))
        found.setdefault(anchor, []).append(text)
    return found


_EVERYDAY = frozenset(
    form(word)
    for word in (
        "supported", "unsupported", "available", "requires", "operation", "required", "support", "during",
        "memory", "device", "loading", "running", "process", "system", "version", "runtime", "torch", "model",
        "request", "worker", "engine", "timeout", "failed", "error", "invalid", "unable", "cannot", "could",
        "found", "missing", "without", "returned", "library", "warning", "exception", "installed", "stream",
    )
)  # fmt: skip


def _class_end(pattern: str, start: int) -> int:
    index = start + 1
    if pattern[index] == "^":
        index += 1
    if pattern[index] == "]":
        index += 1
    while pattern[index] != "]":
        index += 2 if pattern[index] == "\\" else 1
    return index


def _group_end(pattern: str, start: int) -> int:
    depth, index = 0, start
    while True:
        char = pattern[index]
        if char == "\\":
            index += 1
        elif char == "[":
            index = _class_end(pattern, index)
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return index
        index += 1
