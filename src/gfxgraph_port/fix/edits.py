"""Edits as rules propose them, and their application.

A rule module may define ``fix_python(node, file)`` or ``fix_cpp(hit, file)``; either returns an Edit or a
Refusal. Python edits replace an expression, C++ edits whole lines; comments and formatting stay.
"""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass, replace

ROCM = "torch.version.hip"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the expression from (line, column) to ``end`` by ``text``; ``{old}`` stands for the old expression.

    Args:
        last_line: whole lines are replaced, from ``line`` to this one.
        needs: the precondition, in words, which a reviewer is to check.
        define: lines that go below the file's last ``#include``, once.
    """

    line: int
    column: int
    text: str
    rule: str = ""
    last_line: int = 0
    needs: str = ""
    define: str = ""
    end: tuple[int, int] = (0, 0)


def of(node: ast.expr, text: str, *, needs: str = "", define: str = "") -> Edit:
    """The edit of a Python expression."""
    end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return Edit(node.lineno, node.col_offset, text, needs=needs, define=define, end=end)


@dataclass(frozen=True, slots=True)
class EditRefusal:
    """Why a place is left to a person."""

    line: int
    reason: str
    rule: str = ""


def torch_is_bound(tree: ast.Module, node: ast.AST, *, at_import: bool) -> bool:
    """Whether ``torch`` is PyTorch, imported at the top level, and before a node that runs at import."""
    for n in ast.walk(tree):
        bound = n.id if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load) else getattr(n, "arg", "")
        if bound == "torch" or (isinstance(n, ast.Attribute) and n.attr == "hip" and not isinstance(n.ctx, ast.Load)):
            return False
        if isinstance(n, ast.alias) and n.asname == "torch" != n.name:
            return False
    for statement in tree.body:
        if isinstance(statement, ast.Import) and any(
            a.asname is None and a.name.split(".")[0] == "torch" for a in statement.names
        ):
            return not at_import or statement.lineno < getattr(node, "lineno", 0)
    return False


def torch_import(tree: ast.Module, node: ast.AST) -> str | None:
    """What binds ``torch`` before a node: "" where it is bound, an import to add beside one of torch's; None else."""
    if torch_is_bound(tree, node, at_import=True):
        return ""
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == "torch":
            return "import torch\n" if statement.lineno < getattr(node, "lineno", 0) else None
    return None


def apply_python(text: str, edits: list[Edit]) -> str:
    """Apply edits to Python source; everything that is not edited stays byte for byte.

    Raises:
        SyntaxError: an edit's place holds no expression, or its text is not one.
    """
    if any(e.define for e in edits):
        made = apply_python(text, [replace(e, define="") for e in edits])
        at = re.search(r"^from torch\b", made, re.M)
        return made[: at.start()] + "import torch\n" + made[at.start() :] if at else made
    rows = [row.encode() for row in re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)]  # the tokenizer's lines
    starts = [0, *itertools.accumulate(map(len, rows))]
    data = b"".join(rows)
    done: list[tuple[int, int]] = []  # where an edit began, and by how much it grew
    for e in sorted(edits, key=lambda e: (e.line, e.column), reverse=True):
        first, last = starts[e.line - 1] + e.column, starts[e.end[0] - 1] + e.end[1]
        last += sum(grown for at, grown in done if at < last)
        old = data[first:last].decode()
        new = e.text.replace("{old}", old)
        ast.parse(new, mode="eval")
        data = data[:first] + new.encode() + data[last:]
        done.append((first, len(new.encode()) - (last - first)))
    made = data.decode()
    ast.parse(made)
    return made


def apply_cpp(text: str, edits: list[Edit]) -> str:
    """Replace whole lines, and put below the includes what edits ask for."""
    lines = text.split("\n")
    added = list(dict.fromkeys(e.define for e in edits if e.define and e.define not in text))
    if added:
        depth, places = 0, []
        for n, row in enumerate(lines, 1):
            word = row.lstrip().removeprefix("#").lstrip()[:7] if row.lstrip().startswith("#") else ""
            depth += word.startswith("if") - word.startswith("endif")
            places += [(-depth, n)] if word == "include" else []
        last = max(places, default=(0, 0))[1]  # the last that stands under the fewest conditions
        pragma = next((n for n, row in enumerate(lines, 1) if row.startswith("#pragma once")), 0)
        at = last or pragma
        lines += [""] if at == len(lines) else []
        edits = [*edits, Edit(at + 1, 0, "".join(added).rstrip("\n"), last_line=at)]
    return apply_lines("\n".join(lines), [e for e in edits if e.last_line or e.text])


def apply_lines(text: str, edits: list[Edit]) -> str:
    """Replace whole lines, from the end."""
    lines = text.split("\n")
    for e in sorted(edits, key=lambda e: (e.line, e.last_line), reverse=True):
        lines[e.line - 1 : e.last_line] = e.text.split("\n")
    return "\n".join(lines)
