"""Line-shaped files: shell, Dockerfile, CMake, Make, YAML, requirement lists.

Each becomes a list of logical lines; a logical line keeps the conditions round it, so that a branch for
one platform is seen as such.
"""

from __future__ import annotations

import re as _plain_re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gfxgraph_port import bounded as re
from gfxgraph_port.readers.directives import TooDeepError

_MOST_NESTED = 64  # conditionals within conditionals: what people read
_MOST_UNCLOSED = 8


@dataclass(frozen=True, slots=True)
class PreprocessorBranch:
    """One branch a line stands in; ``taken`` says whether in the arm of the test itself or in its else."""

    text: str
    taken: bool
    line: int
    siblings: Sequence[str] = ()


@dataclass(slots=True)
class LogicalLine:
    """One logical line. ``keyword`` is a Dockerfile instruction or a CMake command, "" elsewhere.

    A CMake condition is an entry too, with keyword ``if``.
    """

    line: int
    text: str
    keyword: str = ""
    last_line: int = 0
    conditions: tuple[PreprocessorBranch, ...] = ()
    column: int = 0


class TextFile:
    """A line-shaped file of one kind: shell, docker, cmake, make, yaml, requirements, ini or text."""

    def __init__(self, path: str, text: str, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.text = text
        self.lines = without_prose(text.splitlines(), kind)
        reader = {"shell": _shell, "docker": _docker, "cmake": _cmake, "make": _make}.get(kind, _plain)
        self.entries: list[LogicalLine] = reader(self.lines)
        if kind == "cmake":
            for entry in (e for e in self.entries if e.keyword.lower() == "message"):
                self.lines[entry.line - 1 : entry.last_line] = [""] * (entry.last_line - entry.line + 1)
            self.entries = [e for e in self.entries if e.keyword.lower() != "message"]

    def commands(self, *keywords: str) -> Iterator[LogicalLine]:
        wanted = {k.lower() for k in keywords}
        for entry in self.entries:
            if entry.keyword.lower() in wanted:
                yield entry


_HERE = re.compile(r"<<-?[ \t]*([\"']?)(\w+)\1")
_RUNS = re.compile(r"(?:^|[\s/|;&(])(?:(?:ba|z|k|c)?sh|ssh|python3?|srun|docker|podman)\b[^<]*<<")
_SAYS = re.compile(
    r"[ \t]*[@-]?[ \t]*(?:(?:if|then|else|&&|\|\|)[ \t]+)?"
    r"(?:echo|printf|print|warn\w*|error\w*|die|fatal|fail|info|log\w*|usage|AC_MSG_\w+|\$\((?:info|warning|error))\b"
)
_WRITES = re.compile(r"(?<![0-9&>])>>?[ \t]*(?!&|/dev/)\S|\|[ \t]*\w|`|\$\(")


def without_prose(lines: list[str], kind: str) -> list[str]:
    """The lines with here-documents that no program reads, and with messages, left blank."""
    found, until = [], ""
    for line in lines if kind in ("shell", "make", "docker", "recipe", "yaml") else ():
        if until:
            found.append("")
            until = "" if line.strip() == until else until
            continue
        here = _HERE.search(line)
        until = here[2] if here and not _RUNS.search(line) else ""
        said = _SAYS.match(line)
        found.append("" if said and not until and not _WRITES.search(line[said.end() :]) else line)
    return found if found and not until else lines


def _plain(lines: list[str]) -> list[LogicalLine]:
    found = []
    for number, line in enumerate(lines, 1):
        text = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if text.strip():
            found.append(LogicalLine(number, text, last_line=number, column=len(text) - len(text.lstrip())))
    return found


def _logical(lines: list[str], comment: str = "#") -> Iterator[tuple[int, int, str]]:
    """Lines joined over trailing backslashes, comments dropped."""
    start = 0
    parts: list[str] = []
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if stripped.startswith(comment):
            if not parts:
                continue
            stripped = ""
        if not parts:
            start = number
        text = re.sub(r"(?<=\s)#.*$", "", line).rstrip() if stripped else ""
        if text.endswith("\\"):
            parts.append(text[:-1])
            continue
        if line.strip().startswith(comment) and parts:
            continue  # a comment line inside a continued command
        parts.append(text)
        joined = " ".join(p.strip() for p in parts).strip()
        if joined:
            yield start, number, joined
        parts = []
    joined = " ".join(p.strip() for p in parts).strip()
    if joined:
        yield start, len(lines), joined


class _Branches:
    """The open conditionals. The arms of one share a list, so that each knows its siblings when the chain closes."""

    def __init__(self) -> None:
        self.stack: list[tuple[PreprocessorBranch, list[str]]] = []
        self.now: tuple[PreprocessorBranch, ...] = ()

    def open(self, text: str, line: int) -> None:
        if len(self.stack) >= _MOST_NESTED:
            raise TooDeepError(f"line {line}: more than {_MOST_NESTED} conditionals within each other")
        arms = [text]
        self.stack.append((PreprocessorBranch(text, True, line, arms), arms))
        self._note()

    def arm(self, text: str, line: int) -> None:
        if self.stack:
            arms = self.stack[-1][1]
            arms.append(text)
            self.stack[-1] = (PreprocessorBranch(text or arms[0], bool(text), line, arms), arms)
            self._note()

    def close(self) -> None:
        if self.stack:
            self.stack.pop()
            self._note()

    def _note(self) -> None:
        self.now = tuple(branch for branch, _ in self.stack)


def _shell(lines: list[str], first: int = 0) -> list[LogicalLine]:
    found: list[LogicalLine] = []
    branches = _Branches()
    for start, last, text in _logical(lines):
        for part in _shell_parts(text):
            _shell_step(part, start + first, last + first, branches, found)
    return found


def _shell_parts(text: str) -> list[str]:
    """Split a logical line at ``;`` and line-level keywords; quoted text stays whole."""
    parts = re.findall(r"""(?:[^;"']|"(?:\\.|[^"\\])*+"?|'[^']*+'?|;;)++""", text)
    return [p.strip() for p in parts if p.strip()] or [text]


def _shell_step(text: str, line: int, last: int, branches: _Branches, found: list[LogicalLine]) -> None:
    while True:
        if match := re.match(r"if\s+(.*)$", text):
            branches.open(match.group(1), line)
            _shell_emit(match.group(1), line, last, branches, found, in_test=True)
            return
        if match := re.match(r"elif\s+(.*)$", text):
            branches.arm(match.group(1), line)
            return
        if match := re.match(r"then\b\s*(.*)$", text):
            text = match.group(1)
        elif match := re.match(r"else\b\s*(.*)$", text):
            branches.arm("", line)
            text = match.group(1)
        elif re.match(r"fi\b", text):
            branches.close()
            return
        elif match := re.match(r"case\s+(.*?)\s+in\b\s*(.*)$", text):
            branches.open("case " + match.group(1), line)
            text = match.group(2)
        elif re.match(r"esac\b", text):
            branches.close()
            return
        elif (
            branches.stack
            and branches.stack[-1][1][0].startswith("case ")
            and (match := re.match(r"\(?([\w*|\" .-]+)\)\s*(.*)$", text))
        ):
            branches.arm(branches.stack[-1][1][0][5:] + " = " + match.group(1), line)
            text = match.group(2)
        else:
            break
        if not text:
            return
    _shell_emit(text, line, last, branches, found)


def _shell_emit(
    text: str, line: int, last: int, branches: _Branches, found: list[LogicalLine], *, in_test: bool = False
) -> None:
    conditions = branches.now[:-1] if in_test else branches.now
    found.append(LogicalLine(line, text, last_line=last, conditions=conditions))


def _docker(lines: list[str]) -> list[LogicalLine]:
    found: list[LogicalLine] = []
    for start, last, text in _logical(lines):
        match = re.match(r"([A-Za-z]+)\s+(.*)$", text)
        if not match:
            continue
        keyword = match.group(1).upper()
        if keyword != "RUN":
            found.append(LogicalLine(start, match.group(2), keyword, last))
            continue
        branches = _Branches()
        inner: list[LogicalLine] = []
        for part in re.split(r"&&|(?<!\|)\|\|(?!\|)", match.group(2)):
            for piece in _shell_parts(part.strip()):
                _shell_step(piece, start, last, branches, inner)
        for entry in inner:
            entry.keyword = "RUN"
        found.extend(inner)
    return found


_CMAKE_NAME = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_CMAKE_PART = _plain_re.compile(r'[^()"]++|"(?:\\.|[^"\\])*+"?|[()]', _plain_re.S)


def commands(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Commands as (start, end, name, arguments): brackets are counted, those in strings are not."""
    at = unclosed = 0
    while unclosed < _MOST_UNCLOSED and (match := _CMAKE_NAME.search(text, at)):
        depth, end = 1, match.end()
        for part in _CMAKE_PART.finditer(text, match.end()):
            depth += {"(": 1, ")": -1}.get(part.group(), 0)
            end = part.end()
            if not depth:
                break
        if not depth:
            yield match.start(), end, match.group(1), text[match.end() : end - 1]
            at = end
        else:
            at, unclosed = match.end(), unclosed + 1  # never closed: look for commands inside


def _cmake(lines: list[str]) -> list[LogicalLine]:
    text = "\n".join(re.sub(r"(^|\s)#(?!\[\[).*$", "", line) for line in lines)
    found: list[LogicalLine] = []
    branches = _Branches()
    line, seen = 1, 0
    for start, end, keyword, arguments in commands(text):
        body = " ".join(arguments.split())
        line, seen = line + text.count("\n", seen, start), start
        last = line + text.count("\n", start, end)
        lowered = keyword.lower()
        if lowered in ("if", "elseif"):
            if lowered == "if":
                branches.open(body, line)
            else:
                branches.arm(body, line)
            found.append(LogicalLine(line, body, "if", last, branches.now[:-1]))
        elif lowered == "else":
            branches.arm("", line)
        elif lowered == "endif":
            branches.close()
        else:
            found.append(LogicalLine(line, body, keyword, last, branches.now))
    return found


def _make(lines: list[str]) -> list[LogicalLine]:
    found: list[LogicalLine] = []
    branches = _Branches()
    for start, last, text in _logical(lines):
        if match := re.match(r"(ifeq|ifneq|ifdef|ifndef)\b\s*(.*)$", text):
            branches.open(("! " if match.group(1) in ("ifneq", "ifndef") else "") + match.group(2), start)
        elif match := re.match(r"else\b\s*(?:(ifeq|ifneq|ifdef|ifndef)\b\s*(.*))?$", text):
            negated = "! " if match.group(1) in ("ifneq", "ifndef") else ""
            branches.arm(negated + match.group(2) if match.group(2) else "", start)
        elif re.match(r"endif\b", text):
            branches.close()
        else:
            found.append(LogicalLine(start, text, last_line=last, conditions=branches.now))
    return found
