"""Which paths ``.gitignore`` files leave out, by git's own rules and without git.

The last line of a file that matches decides, ``!`` turns it round, a deeper file goes before a shallower one, and
nothing below an ignored folder comes back (the walk does not enter it).

Enters: the text of ``.gitignore`` files, paths relative to them.
Stays out: files, git.

Source: gitignore(5), git 2.43; tests/property/port/test_gitignore.py compares with ``git check-ignore``.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IgnorePattern:
    """One pattern: what it matches, and whether it ignores or brings back."""

    matcher: re.Pattern[str]
    ignores: bool
    only_folders: bool


class GitIgnore:
    """One ``.gitignore`` file."""

    def __init__(self, text: str) -> None:
        self.lines = [line for raw in text.splitlines() if (line := parse(raw)) is not None]

    def decides(self, path: str, is_dir: bool) -> bool | None:
        """Whether a path below the file's folder is ignored; None where no line is about it."""
        for line in reversed(self.lines):
            if (is_dir or not line.only_folders) and line.matcher.fullmatch(path):
                return line.ignores
        return None


def parse(raw: str) -> IgnorePattern | None:
    """One line of the file; None for comments, empty lines and patterns git cannot match."""
    text = raw.rstrip("\r")
    stripped = text.rstrip(" ")
    lost = len(text) - len(stripped)
    if lost and (len(stripped) - len(stripped.rstrip("\\"))) % 2:
        stripped += " "  # a space after a backslash stays
    text = stripped
    if not text or text.startswith("#"):
        return None
    ignores = not text.startswith("!")
    text = text if ignores else text[1:]
    only_folders = text.endswith("/")
    text = text[:-1] if only_folders else text
    if not text:
        return None
    anchored = "/" in text
    text = text.removeprefix("/")
    body = _translate(text)
    if body is None:
        return None
    return IgnorePattern(re.compile(body if anchored else f"(?:.*/)?{body}", re.S), ignores, only_folders)


def _translate(text: str) -> str | None:
    """A pattern as a regular expression over the whole relative path; None where it can match nothing."""
    out: list[str] = []
    i = 0
    if text.startswith("**/"):
        out.append(_FOLDERS)
        i = _past_stars(text, 0)
    while i < len(text):
        if text.startswith("/**/", i):
            out += ["/", _FOLDERS]
            i = _past_stars(text, i + 1)
        elif text[i:] == "**" and out and out[-1] == _FOLDERS:
            out.append(".+")
            i += 2
        elif text.startswith("/**", i) and i + 3 == len(text):
            out.append("/.+")
            i += 3
        elif text[i] == "*":
            while i < len(text) and text[i] == "*":
                i += 1
            out.append(_STAR if text != "**" else ".*")
        elif text[i] == "?":
            out.append("[^/]")
            i += 1
        elif text[i] == "[":
            made = _class(text, i)
            if made is None:
                return None
            out.append(made[0])
            i = made[1]
        elif text[i] == "\\":
            if i + 1 == len(text):
                return None
            out.append(re.escape(text[i + 1]))
            i += 2
        else:
            out.append(re.escape(text[i]))
            i += 1
    return "".join(_folders(out))


def _folders(tokens: list[str]) -> list[str]:
    """Spell out ``**/``. What stands between two of them may be matched at the first place that fits: every folder
    name matches exactly one pattern, so an earlier place leaves no less to the rest. Never going back (an atomic
    group) keeps the time linear in stars times length.
    """
    parts = _split(tokens, _FOLDERS)
    out = _stars(parts[0])
    for part in parts[1:-1]:
        out += ["(?>(?:[^/]*/)*?", *_stars(part), ")"]
    return out if len(parts) == 1 else [*out, "(?:.*/)?", *_stars(parts[-1])]


def _stars(tokens: list[str]) -> list[str]:
    """Spell out ``*``, likewise; the last of a folder name goes as far as it can."""
    out: list[str] = []
    for n, segment in enumerate(_split(tokens, "/")):
        out += ["/"] if n else []
        parts = _split(segment, _STAR)
        out += parts[0]
        for part in parts[1:-1]:
            out += ["(?>[^/]*?", *part, ")"]
        out += [] if len(parts) == 1 else ["[^/]*", *parts[-1]]
    return out


def _split(tokens: list[str], at: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token == at:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


_FOLDERS, _STAR = "**/", "*"  # tokens that are still to be spelt out


def _past_stars(text: str, i: int) -> int:
    """Past ``**/``, once or several times."""
    while text.startswith("**/", i):
        i += 3
    return i


def _class(text: str, start: int) -> tuple[str, int] | None:
    """A bracket expression at ``start`` and where it ends; None when it is never closed."""
    i = start + 1
    negated = i < len(text) and text[i] in "!^"
    i += negated
    items: list[str] = []
    first = True
    while i < len(text) and (first or text[i] != "]"):
        first = False
        if text.startswith("[:", i) and (end := text.find(":]", i)) > 0:
            named = _NAMED.get(text[i + 2 : end])
            if named is None:
                return None
            items.append(named)
            i = end + 2
            continue
        low, i = _member(text, i)
        if i + 1 < len(text) and text[i] == "-" and text[i + 1] != "]":
            high, i = _member(text, i + 1)
            if low <= high:
                items.append(f"{re.escape(low)}-{re.escape(high)}")
        else:
            items.append(re.escape(low))
    if i >= len(text):
        return None
    body = "".join(items)
    if not body:
        return ("(?!)" if not negated else "[^/]"), i + 1
    return (f"(?!/)[{'^' if negated else ''}{body}]"), i + 1


def _member(text: str, i: int) -> tuple[str, int]:
    if text[i] == "\\" and i + 1 < len(text):
        return text[i + 1], i + 2
    return text[i], i + 1


_NAMED = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "digit": "0-9", "lower": "a-z", "upper": "A-Z", "space": r"\s",
    "xdigit": "0-9a-fA-F", "punct": r"!-/:-@\[-`{-~", "blank": r" \t", "print": r"\x20-\x7e", "graph": r"\x21-\x7e",
    "cntrl": r"\x00-\x1f\x7f",
}  # fmt: skip


def tracked(index: bytes) -> frozenset[str]:
    """The paths that a git index names, with every folder above them: git ignores none of those.

    Raises:
        ValueError: no index of version 2, 3 or 4, or a damaged one.

    Source: gitformat-index(5), git 2.43.
    """
    if index[:4] != b"DIRC" or len(index) < 12:
        raise ValueError("no git index")
    version, count = struct.unpack(">II", index[4:12])
    if version not in (2, 3, 4):
        raise ValueError(f"index version {version}")
    found: set[str] = set()
    at, name = 12, b""
    try:
        for _ in range(count):
            flags = struct.unpack_from(">H", index, at + 60)[0]
            start = at + (64 if flags & 0x4000 else 62)
            if version == 4:
                strip, start = _varint(index, start)
                end = index.index(b"\0", start)
                name, at = name[: len(name) - strip] + index[start:end], end + 1
            else:
                end = index.index(b"\0", start)
                name, at = index[start:end], at + ((end - at) // 8 + 1) * 8
            parts = name.decode("utf-8", "surrogateescape").split("/")
            found.update("/".join(parts[:n]) for n in range(1, len(parts) + 1))
    except (struct.error, IndexError) as error:
        raise ValueError(f"damaged index: {error}") from error
    return frozenset(found)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A length of index version 4, and where it ends."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
