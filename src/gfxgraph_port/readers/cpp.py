"""C++ and CUDA source: its lines, names and directives, over every preprocessor arm. Offsets never move.

No tree is made: what asks for one is the compiler's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gfxgraph_port.readers.directives import Arm, arms_of, blank_comments, scan

if TYPE_CHECKING:
    from gfxgraph_port.archs import Arch

_IDENT = re.compile(r"[A-Za-z_]\w*")


class CppFile:
    """One C++ or CUDA file.

    Args:
        path: repository-relative.
        text: decoded source.
    """

    kind = "cpp"

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.lines = self.text.split("\n")
        self.code = blank_comments(self.text)
        self.directives = scan(self.code)
        self.arms = arms_of(self.directives, len(self.lines))
        self._arm_at = _arm_index(self.arms)
        self.reached: dict[tuple[object, ...], tuple[tuple[Arch, ...], str]] = {}  # by arm and architectures
        self._idents: dict[str, list[tuple[int, int]]] | None = None
        self._bare: list[str] | None = None

    # -- arms --------------------------------------------------------------------------------------

    def arm(self, line: int) -> Arm | None:
        """The innermost arm of a line of the file."""
        return self._arm_at.get(line)

    def line_text(self, line: int) -> str:
        index = line - 1
        return self.lines[index] if 0 <= index < len(self.lines) else ""

    @property
    def bare(self) -> list[str]:
        """The lines without comments and without what strings say."""
        if self._bare is None:
            self._bare = blank_comments(self.text, strings=True).split("\n")
        return self._bare

    @property
    def idents(self) -> dict[str, list[tuple[int, int]]]:
        """Every identifier outside comments, strings and include lines, with its (line, column)s."""
        if self._idents is None:
            self._idents = defaultdict(list)
            included = {d.line for d in self.directives if d.kind in ("include", "error", "pragma")}
            for number, line in enumerate(self.bare, 1):
                if number in included:
                    continue
                for match in _IDENT.finditer(line):
                    self._idents[match.group()].append((number, match.start()))
        return self._idents

    def idents_like(self, pattern: str) -> Iterator[tuple[str, int, int]]:
        matcher = re.compile(pattern)
        for name, places in self.idents.items():
            if matcher.fullmatch(name):
                for line, column in places:
                    yield name, line, column

    def includes(self) -> Iterator[tuple[str, int]]:
        """Included headers with their lines."""
        for d in self.directives:
            if d.kind == "include":
                match = re.search(r'[<"]([^<">]+)[">]', d.body[:1000])
                if match:
                    yield match.group(1).strip(), d.line

    def conditions(self) -> Iterator[Arm]:
        """Arms that ask something."""
        for arm in self.arms:
            if arm.condition is not None:
                yield arm

    def defines(self) -> set[str]:
        """Names of the macros that the file defines."""
        found = (_IDENT.match(d.body.lstrip(" \t")) for d in self.directives if d.kind == "define")
        return {name.group() for name in found if name}


def _arm_index(arms: list[Arm]) -> dict[int, Arm | None]:
    found: dict[int, Arm | None] = {}
    for arm in arms:  # outer arms come first, so inner ones overwrite
        for line in range(arm.first_line, arm.last_line + 1):
            found[line] = arm
    return found
