"""Edits as rules propose them, and their application.

A rule module may define ``fix_python(node, file)`` or ``fix_cpp(hit, file)``; either returns an Edit or a
Refusal. Python edits go through LibCST, so that comments and formatting stay; C++ edits replace characters.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

ROCM = "torch.version.hip"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the expression at (line, column) by ``text``; ``{old}`` stands for the old expression."""

    line: int
    column: int
    text: str
    rule: str = ""
    length: int = 0  # C++: characters replaced


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a place is left to a person."""

    line: int
    reason: str
    rule: str = ""


def torch_is_bound(tree: ast.Module, node: ast.AST, *, at_import: bool) -> bool:
    """Whether ``torch`` is imported at the top level, and before a node that runs at import."""
    for statement in tree.body:
        if isinstance(statement, ast.Import) and any(
            a.asname is None and a.name.split(".")[0] == "torch" for a in statement.names
        ):
            return not at_import or statement.lineno < getattr(node, "lineno", 0)
    return False


def apply_python(text: str, edits: list[Edit]) -> str:
    """Apply edits to Python source; everything that is not edited stays byte for byte.

    Raises:
        ValueError: an edit's place holds no expression, or its text is not one.
    """
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
    """Replace characters, from the end so that earlier places do not move."""
    lines = text.split("\n")
    for e in sorted(edits, key=lambda e: (e.line, e.column), reverse=True):
        row = lines[e.line - 1]
        lines[e.line - 1] = row[: e.column] + e.text + row[e.column + e.length :]
    return "\n".join(lines)
