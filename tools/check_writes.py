"""Find what opens a file for writing, makes a folder or moves a file elsewhere than in ``gfxgraph/files.py``.

    python tools/check_writes.py

Calls are known by their last name and their mode; a temporary folder of the library's own is none of these. A mode
or a flag that does not stand in the call counts as writing, and so does a name that hides where it comes from
(``from os import replace``).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
THE_WRITER = SOURCE / "gfxgraph" / "files.py"
METHODS = frozenset(
    {"write_text", "write_bytes", "mkdir", "makedirs", "symlink_to", "hardlink_to", "touch", "symlink", "rename"}
)
OF_OS = frozenset({"rename", "replace", "renames", "link", "truncate", "mkfifo"})
OF_SHUTIL = frozenset({"copy", "copy2", "copyfile", "copytree", "move"})
OF_TEMPFILE = frozenset({"NamedTemporaryFile", "mkstemp", "TemporaryFile", "SpooledTemporaryFile"})
SAVERS = frozenset({"dump_stats", "FileHandler", "RotatingFileHandler", "savetxt", "savez", "tofile", "ZipFile"})
FLAGS = frozenset({"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"})


def writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each call that writes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FLAGS:
            yield node.lineno, f"os.{node.attr}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _hidden(node)
        if not isinstance(node, ast.Call):
            continue
        name, owner = _name(node.func)
        if name in METHODS or (owner == "os" and name in OF_OS) or (owner == "shutil" and name in OF_SHUTIL):
            yield node.lineno, f"{owner}.{name}" if owner else name
        elif name in OF_TEMPFILE or name in SAVERS or (name == "save" and _is_of_file(owner, node)):
            yield node.lineno, name
        elif name == "replace" and owner and len(node.args) == 1 and not node.keywords:
            yield node.lineno, "Path.replace"
        elif name == "open" and (_flags(node) if owner == "os" else _mode(node)):
            yield node.lineno, "open for writing"


def _hidden(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        known = [each.name for each in node.names if each.asname and each.name in ("os", "shutil", "tempfile")]
    else:
        of = {"os": METHODS | OF_OS | FLAGS | {"open"}, "shutil": OF_SHUTIL, "io": {"open"}, "codecs": {"open"}}
        known = [each.name for each in node.names if each.name in of.get(node.module or "", ())]
    for name in known:
        yield node.lineno, f"{name} under another name"


def _is_of_file(owner: str, call: ast.Call) -> bool:
    """A library's save; into a buffer it is none."""
    to_buffer = any(isinstance(arg, ast.Name) and arg.id == "buffer" for arg in call.args)
    return owner in ("torch", "np", "numpy") and not to_buffer


def _name(func: ast.expr) -> tuple[str, str]:
    if isinstance(func, ast.Attribute):
        return func.attr, func.value.id if isinstance(func.value, ast.Name) else ""
    return (func.id, "") if isinstance(func, ast.Name) else ("", "")


def _mode(call: ast.Call) -> bool:
    """True where the mode of an ``open`` is one that writes; ``r+`` on a file that is there is not."""
    given = [word.value for word in call.keywords if word.arg == "mode"]
    if isinstance(call.func, ast.Name):
        of_devnull = isinstance(call.args[0], ast.Attribute) and call.args[0].attr == "devnull"
        given += [] if of_devnull else call.args[1:2]
        if any(not isinstance(each, ast.Constant) for each in given):
            return True
    else:
        given += call.args[:2]  # of a method, or of io, gzip, codecs
    texts = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return any(set(text) <= set("rwxabtU+") and set("wax") & set(text) for text in texts)


def _flags(call: ast.Call) -> bool:
    """True unless the flags stand there by name; those that write are found where they stand."""
    return not all(
        isinstance(part, (ast.Attribute, ast.BinOp, ast.operator, ast.expr_context))
        or (isinstance(part, ast.Name) and part.id == "os")
        for flags in call.args[1:2]
        for part in ast.walk(flags)
    )


def main() -> int:
    found = 0
    for path in sorted(SOURCE.rglob("*.py")):
        if path == THE_WRITER:
            continue
        for line, what in sorted(writes(ast.parse(path.read_text(encoding="utf-8")))):
            found += 1
            sys.stderr.write(f"{path.relative_to(SOURCE.parent)}:{line}: {what}: files.py writes (gfxgraph.files)\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
