"""Find import circles under ``src/`` and imports inside functions that give no reason.

    python tools/import_circles.py [--limit 3] [--arrows]

Every import counts: at the top of a file, inside a function, under ``TYPE_CHECKING``. A circle is a strongly
connected component of that graph. An import of torch or of these packages inside a function needs a comment
that starts with ``# lazily:`` on its line or above it, since such an import otherwise hides a circle.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("gfxgraph", "gfxgraph_kernels", "gfxgraph_port", "gfxgraph_simulator")
REASON = "# lazily:"
_Import = ast.Import | ast.ImportFrom


@dataclass(frozen=True, slots=True)
class Module:
    """One source file and what it imports."""

    name: str
    path: Path
    imports: dict[str, int]  # module of these packages: line of its first import
    unexplained: tuple[int, ...] = field(default=())  # lines


def read(source: Path) -> dict[str, Module]:
    """Return the modules of the packages in folder ``source`` by dotted name."""
    paths = {_dotted(path, source): path for name in PACKAGES for path in sorted((source / name).rglob("*.py"))}
    return {name: _module(name, path, paths) for name, path in paths.items()}


def circles(modules: dict[str, Module]) -> list[list[str]]:
    """Return the strongly connected components of two modules or more, the largest first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in modules[name].imports:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            at = stack.index(name)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in modules:
        if name not in index:
            visit(name)
    return sorted(found, key=lambda circle: (-len(circle), circle))


def _dotted(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(name: str, path: Path, known: dict[str, Path]) -> Module:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    imports: dict[str, int] = {}
    unexplained = []
    for node, is_unexplained in _imports(ast.parse(text), lines, inside=False):
        targets = [target for target in _targets(node, known) if target != name]
        for target in targets:
            imports.setdefault(target, node.lineno)
        if is_unexplained and (targets or _is_torch(node)):
            unexplained.append(node.lineno)
    return Module(name, path, imports, tuple(unexplained))


def _imports(node: ast.AST, lines: list[str], *, inside: bool) -> Iterator[tuple[_Import, bool]]:
    """Yield each import below ``node``, and whether it is in a function without a reason beside it."""
    before: ast.AST | None = None
    explained = False
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Import):
            # One reason serves a block of imports.
            explained = _is_explained(lines, child) or (explained and isinstance(before, _Import))
            yield child, inside and not explained
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, lines, inside=inside or is_function)
        before = child


def _targets(node: _Import, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    module = node.module or ""
    for alias in node.names:
        below = f"{module}.{alias.name}"
        if below in known:
            yield below
        elif module in known:
            yield module


def _is_torch(node: _Import) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return any(name.split(".")[0] == "torch" for name in names)


def _is_explained(lines: list[str], node: ast.stmt) -> bool:
    around = lines[max(node.lineno - 2, 0) : node.end_lineno or node.lineno]
    return any(REASON in line for line in around)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=3, help="files that a circle may have (default 3)")
    parser.add_argument("--arrows", action="store_true", help="print the imports that make each circle")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    options = parser.parse_args(arguments)
    modules = read(options.source)
    problems = 0
    for circle in circles(modules):
        too_large = len(circle) > options.limit
        problems += too_large
        if too_large or options.arrows:
            print(f"circle of {len(circle)} files: {', '.join(circle)}")
            for name in circle:
                for target, line in modules[name].imports.items():
                    if target in circle:
                        print(f"  {modules[name].path.relative_to(options.source)}:{line}: imports {target}")
    for module in modules.values():
        for line in module.unexplained:
            problems += 1
            where = module.path.relative_to(options.source)
            print(f"{where}:{line}: import inside a function; move it to the top, or say why not: {REASON} ...")
    return min(problems, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
