"""Edits as rules propose them, and their application.

A rule module may define ``fix_python(node, file)`` or ``fix_cpp(hit, file)``; either returns an Edit or a
Refusal. Python edits go through LibCST, so that comments and formatting stay; C++ edits replace characters.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

ROCM = "torch.version.hip"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the expression at (line, column) by ``text``; ``{old}`` stands for the old expression.

    Args:
        last_line: whole lines are replaced, from ``line`` to this one.
        needs: the precondition, in words, which a reviewer is to check.
        absent: a macro that the edit asks for and that no build of NVIDIA's defines.
        define: lines that go below the file's last ``#include``, once.
    """

    line: int
    column: int
    text: str
    rule: str = ""
    last_line: int = 0
    needs: str = ""
    define: str = ""
    absent: str = ""


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
        ValueError: an edit's place holds no expression, or its text is not one.
    """
    if any(e.define for e in edits):
        made = apply_python(text, [replace(e, define="") for e in edits])
        at = re.search(r"^from torch\b", made, re.M)
        return made[: at.start()] + "import torch\n" + made[at.start() :] if at else made
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider

    wanted = {(e.line, e.column): e for e in edits}
    wrapper = MetadataWrapper(cst.parse_module(text))

    class _Apply(cst.CSTTransformer):
        METADATA_DEPENDENCIES = (PositionProvider,)

        def __init__(self) -> None:
            super().__init__()
            self.done: set[tuple[int, int]] = set()
            self.targets: dict[int, tuple[int, int]] = {}

        def on_visit(self, node: cst.CSTNode) -> bool:
            if isinstance(node, cst.BaseExpression):
                start = self.get_metadata(PositionProvider, node).start
                key = (start.line, start.column)
                # The outermost expression that starts here is the one meant.
                if key in wanted and key not in self.done:
                    self.done.add(key)
                    self.targets[id(node)] = key
            return super().on_visit(node)

        def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
            key = self.targets.get(id(original))
            if key is None:
                return updated
            old = wrapper.module.code_for_node(original)
            made = cst.parse_expression(wanted[key].text.replace("{old}", old))
            return made

    worker = _Apply()
    result = wrapper.visit(worker)
    missing = set(wanted) - worker.done
    if missing:
        raise ValueError(f"no expression at line {min(missing)[0]}")
    return result.code


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
