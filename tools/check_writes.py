"""Find what opens a file for writing, makes a folder or moves a file elsewhere than in ``gfxgraph/files.py``.

    python tools/check_writes.py

Calls are known by their last name and their mode; a temporary folder of the library's own is none of these.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "gfxgraph"
THE_WRITER = SOURCE / "files.py"
METHODS = frozenset(
    {"write_text", "write_bytes", "mkdir", "makedirs", "symlink_to", "hardlink_to", "touch", "symlink", "rename"}
)
OF_OS = frozenset({"rename", "replace", "renames", "link", "truncate", "mkfifo"})
OF_SHUTIL = frozenset({"copy", "copy2", "copyfile", "copytree", "move"})
OF_TEMPFILE = frozenset({"NamedTemporaryFile", "mkstemp", "TemporaryFile", "SpooledTemporaryFile"})
FLAGS = frozenset({"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"})


def writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each call that writes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FLAGS:
            yield node.lineno, f"os.{node.attr}"
        if not isinstance(node, ast.Call):
            continue
        name, owner = _name(node.func)
        if name in METHODS or (owner == "os" and name in OF_OS) or (owner == "shutil" and name in OF_SHUTIL):
            yield node.lineno, f"{owner}.{name}" if owner else name
        elif name in OF_TEMPFILE:
            yield node.lineno, name
        elif name == "open" and owner != "os" and _mode(node, is_method=isinstance(node.func, ast.Attribute)):
            yield node.lineno, "open for writing"


def _name(func: ast.expr) -> tuple[str, str]:
    if isinstance(func, ast.Attribute):
        return func.attr, func.value.id if isinstance(func.value, ast.Name) else ""
    return (func.id, "") if isinstance(func, ast.Name) else ("", "")


def _mode(call: ast.Call, is_method: bool) -> bool:
    """True where the mode of an ``open`` is one that writes; ``r+`` on a file that is there is not."""
    at = 0 if is_method else 1
    given = call.args[at : at + 1] + [word.value for word in call.keywords if word.arg == "mode"]
    return any(isinstance(g, ast.Constant) and isinstance(g.value, str) and set("wax") & set(g.value) for g in given)


def main() -> int:
    found = 0
    for path in sorted(SOURCE.rglob("*.py")):
        if path == THE_WRITER:
            continue
        for line, what in sorted(writes(ast.parse(path.read_text(encoding="utf-8")))):
            found += 1
            sys.stderr.write(
                f"{path.relative_to(SOURCE.parents[1])}:{line}: {what}: files.py writes (gfxgraph.files)\n"
            )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
