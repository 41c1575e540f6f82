"""What the room takes from torch that torch does not promise: few names, and each is there in the torch installed."""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ROOM = Path(__file__).parents[3] / "src/gfxgraph/callables"
MOST = 79
"""May fall, not rise: each is a name to look after with every new torch."""
OF_SOME_BUILDS = {
    f"torch._C._cuda_{name}" for name in ("getCurrentRawStream", "getDevice", "memoryStats", "set_sync_debug_mode")
}
"""Not in builds for the CPU alone."""

WHERE = {
    "torch._dynamo.": ("trace/", "padding/rows.py"),
    "torch._C._dynamo.": ("trace/", "fast_path.py"),
    "torch._subclasses.": ("padding/rows.py", "pieces/region.py"),
    "torch.fx._": ("trace/dynamo.py",),
}
"""Who alone may know the inside of a part of torch."""


def dotted(node: ast.expr) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def names_in(text: str) -> set[str]:
    """Full names of what a file takes from torch, if a part of the name begins with an underscore."""
    tree = ast.parse(text)
    imported, inner = {}, set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {each.asname or "torch": each.name if each.asname else "torch" for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            found |= {f"{node.module}.{each.name}" for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:
            inner |= {each for each in ast.walk(node.value) if isinstance(each, ast.Attribute)}
            first, _, rest = dotted(node).partition(".")
            if first in imported and imported[first].partition(".")[0] == "torch":
                found.add(f"{imported[first]}.{rest}")
    return {name for name in found if name.startswith("torch.") and "._" in name and ".__" not in name}


@functools.cache
def private_names() -> dict[str, list[str]]:
    """By name: the files that use it."""
    found: dict[str, list[str]] = {}
    for path in sorted(ROOM.rglob("*.py")):
        for name in names_in(path.read_text("utf-8")):
            found.setdefault(name, []).append(str(path.relative_to(ROOM)))
    return found


def is_there(name: str) -> bool:
    """Whether the installed torch has it."""
    parts = name.split(".")
    value: Any = torch
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join(parts[:i]))
            except ImportError:
                return False
        value = getattr(value, part, None)
    return value is not None


def test_they_do_not_become_more() -> None:
    """Each new one needs another to go."""
    assert len(private_names()) <= MOST, sorted(private_names())


def test_each_is_in_this_torch() -> None:
    """A torch that has renamed or dropped one is named here with the files to change."""
    gone = {name: files for name, files in private_names().items() if not is_there(name)}
    assert not gone.keys() - OF_SOME_BUILDS, gone


@pytest.mark.parametrize("part", WHERE)
def test_a_part_of_torch_is_known_in_few_places(part: str) -> None:
    """So that a new torch is a change in one place."""
    for name, files in private_names().items():
        if name.startswith(part):
            assert all(file.startswith(WHERE[part]) for file in files), (name, files)
