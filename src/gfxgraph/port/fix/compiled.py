"""Edits that a compiler's message asks for by itself, at the very place that it names.

Each is one that leaves the program the same for every compiler that took it before: a keyword that C++ demands and
nvcc does not, or execution space attributes under HIP alone.

Enters: diagnostics, source text.
Stays out: whether the unit then compiles; the loop asks the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gfxgraph.port.build.judge import CompilerFinding

_TYPENAME = re.compile(r"^missing 'typename' prior to dependent type name")
_TEMPLATE = re.compile(r"^use 'template' keyword to treat '(\w+)' as a dependent template name")


def is_known(said: CompilerFinding) -> bool:
    """Whether a message is answered here."""
    return bool(_TYPENAME.match(said.text) or _TEMPLATE.match(said.text))


def edit(text: str, messages: Iterable[CompilerFinding]) -> tuple[str, list[tuple[int, str]]]:
    """A file with what its messages ask for, and where: line and what was done.

    Args:
        messages: of this file.
    """
    lines = text.split("\n")
    done: list[tuple[int, str]] = []
    places: dict[tuple[int, int], str] = {}
    for said in messages:
        if _TYPENAME.match(said.text):
            places[said.line, said.column] = "typename "
        elif _TEMPLATE.match(said.text):
            places[said.line, said.column] = "template "
    for (line, column), word in sorted(places.items(), reverse=True):  # from the end, so that columns stay right
        if not 0 < line <= len(lines):
            continue
        row = lines[line - 1].encode()
        at = row[column - 1 :].decode("utf-8", "ignore")
        before = row[: column - 1].decode("utf-8", "ignore")
        if not re.match(r"[A-Za-z_:]", at) or before.endswith(word):
            continue
        lines[line - 1] = f"{before}{word}{at}"
        done.append((line, f"{word.strip()} before a dependent name"))
    return "\n".join(lines), done
