"""Refuse private names of torch outside ``gfxgraph/torch_names.py``, and lines of its table that nothing uses.

    python tools/check_torch_names.py

A name is private if a part of it begins with one underscore. It is found in imports, in ``torch.a._b``, under any
name that an import gave to a part of torch, and in strings that are such a name as a whole (``sys.modules.get``). A
private attribute of anything else must be one of ours (something in the package defines it), one of the table's, or
one of ``OF_OBJECTS``; in ``getattr``, ``hasattr`` and ``setattr`` it counts as written out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
TABLE = SOURCE / "gfxgraph" / "torch_names.py"
APART = {"gfxgraph_port"}
"""Packages that know other programs' source, and not torch."""
ENGINES = {"adapters", "generation"}
"""Rooms that know other engines' objects: only names of torch are looked for."""
OF_PYTHON = frozenset(
    "_asdict _at_fork_reinit _current_frames _exit _fields _initializing _is_owned _lru_cache_wrapper".split()
    + ["_older", "_takes_keywords"]
)  # and what compat/graph_classes.py gives to the classes that it makes
A_NAME = re.compile(r"torch(\.\w+)*\._[a-zA-Z]\w*(\.\w+)*")
OF_TABLE = ("torch_names", "names")
"""What the table's module is called where it is used."""
Found = tuple[int, str]


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an expression that is only that; else ""."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def of_torch(tree: ast.AST) -> Iterator[Found]:
    """Private names of torch in a file: imported, written out, or as a string."""
    imported = {"torch": "torch"}  # as an argument, too
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] == "torch":
                    imported[each.asname or "torch"] = each.name if each.asname else "torch"
                    if is_private(each.name):
                        yield node.lineno, each.name
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == "torch":
            for each in node.names:
                name = f"{node.module}.{each.name}"
                imported[each.asname or each.name] = name
                if is_private(name):
                    yield node.lineno, name
    texts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Expr) for part in [node.value]}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            first, _, rest = dotted(node).partition(".")
            if first in imported and is_private(rest):
                yield node.lineno, f"{imported[first]}.{rest}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            if A_NAME.fullmatch(node.value):
                yield node.lineno, repr(node.value)


def attributes(tree: ast.AST) -> Iterator[Found]:
    """Private attributes that a file reads or sets of anything, also by ``getattr`` and its like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            given = node.args[1]
            of = node.func.id in ("getattr", "hasattr", "setattr", "delattr") and isinstance(given, ast.Constant)
            name = str(given.value) if of else ""  # type: ignore[attr-defined]
        else:
            continue
        if name.startswith("_") and not name.startswith("__"):
            yield node.lineno, name


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that a file defines: functions, classes, variables, arguments, attributes of ``self``, slots."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "made", "instance"):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("_gfxgraph_"):
            yield node.value


def used(tree: ast.AST) -> set[str]:
    """Keys of the table that a file uses: as ``torch_names.X``, or as a string."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OF_TABLE:
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def main() -> int:
    sys.path.insert(0, str(SOURCE))
    from gfxgraph import torch_names

    files = [path for path in sorted(SOURCE.rglob("*.py")) if path != TABLE]
    trees = {path: ast.parse(path.read_text("utf-8")) for path in files if not APART & set(path.parts)}
    ours = {name for tree in trees.values() for name in defined(tree)} | OF_PYTHON | torch_names.OF_OBJECTS
    problems = []
    for path, tree in trees.items():
        where = path.relative_to(ROOT)
        for line, name in of_torch(tree):
            problems.append(f"{where}:{line}: {name}: private to torch: a line of torch_names.py, used from there")
        for line, name in attributes(tree) if not ENGINES & set(path.parts) else ():
            if name not in ours and name not in torch_names.NAMES:
                problems.append(
                    f"{where}:{line}: .{name}: ours nowhere: a line of torch_names.py, or of its OF_OBJECTS"
                )
    every = [*trees.values(), ast.parse(TABLE.read_text("utf-8"))]
    idle = set(torch_names.NAMES) - {key for tree in every for key in used(tree)}
    problems += [f"{TABLE.relative_to(ROOT)}: {key}: nothing uses it" for key in sorted(idle)]
    for each in problems:
        sys.stderr.write(each + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
