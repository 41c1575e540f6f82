"""Python source as a tree with parents, resolved names and an index by node type.

Names are resolved through the file's imports, so ``from torch import cuda as c; c.graph(...)`` is found
under ``torch.cuda.graph``. Nothing is imported.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, TypeVar, overload

A = TypeVar("A", bound=ast.AST)
B = TypeVar("B", bound=ast.AST)
C = TypeVar("C", bound=ast.AST)
D = TypeVar("D", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class PyFile:
    """One parsed Python file.

    Args:
        path: repository-relative, with forward slashes.
        text: decoded source.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the file is not Python that this interpreter
            can parse.
    """

    kind = "python"

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = text.splitlines()
        with warnings.catch_warnings():  # invalid escapes in other people's strings are not our news
            warnings.simplefilter("ignore")
            self.tree = ast.parse(text)
        self._by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self._parent: dict[ast.AST, ast.AST] = {}
        self._index()
        self.imports: dict[str, str] = {}
        self.import_sites: list[tuple[ast.AST, str, int, tuple[str, ...]]] = []
        self._collect_imports()
        self._bindings: dict[ast.AST, dict[str, list[ast.AST]]] = {}
        self._calls: dict[str, list[ast.Call]] | None = None
        self._encoded: list[bytes] | None = None
        self.guards: Any = None  # what guards/python.py learned, kept as long as the tree
        self.guard_values: dict[Any, Any] = {}

    # -- structure ---------------------------------------------------------------------------------

    def _index(self) -> None:
        stack: list[ast.AST] = [self.tree]
        parent, by_type = self._parent, self._by_type
        while stack:
            node = stack.pop()
            by_type[type(node)].append(node)
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, ast.AST):
                    if not isinstance(value, ast.expr_context | ast.operator | ast.cmpop):
                        parent[value] = node
                        stack.append(value)
                elif isinstance(value, list):
                    for item in value:
                        if isinstance(item, ast.AST) and not isinstance(item, ast.cmpop):
                            parent[item] = node
                            stack.append(item)

    @overload
    def nodes(self, a: type[A], /) -> Iterator[A]: ...
    @overload
    def nodes(self, a: type[A], b: type[B], /) -> Iterator[A | B]: ...
    @overload
    def nodes(self, a: type[A], b: type[B], c: type[C], /) -> Iterator[A | B | C]: ...
    @overload
    def nodes(self, a: type[A], b: type[B], c: type[C], d: type[D], /) -> Iterator[A | B | C | D]: ...
    def nodes(self, *types: type[ast.AST]) -> Iterator[ast.AST]:
        """Every node of these types, in source order."""
        found = [n for t in types for n in self._by_type.get(t, ())]
        found.sort(key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))
        return iter(found)

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parent.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        current = self._parent.get(node)
        while current is not None:
            yield current
            current = self._parent.get(current)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement a node belongs to."""
        current: ast.AST | None = node
        while current is not None and not isinstance(current, ast.stmt):
            current = self._parent.get(current)
        return current

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function round a node."""
        for up in self.ancestors(node):
            if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
                return up
        return None

    def scope(self, node: ast.AST) -> ast.AST:
        """The function or module whose names a node sees first."""
        return self.function(node) or self.tree

    def at_import(self, node: ast.AST) -> bool:
        """Whether the node runs when the module is imported."""
        for up in self.ancestors(node):
            if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return False
            if isinstance(up, ast.If) and is_main_test(up.test):
                return False
        return True

    def source(self, node: ast.AST) -> str:
        """The node's own text on one line.

        As ``ast.get_source_segment`` has it, which splits the whole file again for every node.
        """
        first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if first is None or last is None:
            return ""
        if self._encoded is None:  # the tokenizer's lines: a form feed does not end one
            self._encoded = [line.encode() for line in re.split(r"\r\n|\r|\n", self.text)]
        start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        rows = self._encoded[first - 1 : last]
        if first == last:
            return " ".join(rows[0][start:end].decode("utf-8", "replace").split()) if rows else ""
        parts = [rows[0][start:], *rows[1:-1], rows[-1][:end]]
        return " ".join(b"\n".join(parts).decode("utf-8", "replace").split())

    def is_docstring(self, node: ast.AST) -> bool:
        """Whether a string constant is a bare expression: a docstring or a comment in disguise."""
        return isinstance(self._parent.get(node), ast.Expr)

    # -- names -------------------------------------------------------------------------------------

    def _collect_imports(self) -> None:
        for node in self.nodes(ast.Import):
            for alias in node.names:
                self.imports[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                self.import_sites.append((node, alias.name, 0, ()))
        for source in self.nodes(ast.ImportFrom):
            module = source.module or ""
            for alias in source.names:
                full = f"{module}.{alias.name}" if module else alias.name
                self.imports[alias.asname or alias.name] = "." * source.level + full
            self.import_sites.append((source, module, source.level, tuple(a.name for a in source.names)))

    def dotted(self, node: ast.AST | None) -> str:
        """``a.b.c`` with the first name resolved through imports; "" where it is not a plain chain."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imports.get(node.id, node.id))
        return ".".join(reversed(parts))

    def call_name(self, call: ast.AST) -> str:
        return self.dotted(call.func) if isinstance(call, ast.Call) else ""

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Calls of these resolved names; a leading ``*.`` matches any owner."""
        if self._calls is None:
            self._calls = defaultdict(list)
            for call in self.nodes(ast.Call):
                name = self.dotted(call.func)
                if name:
                    self._calls[name].append(call)
                last = call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]
                if last:
                    self._calls["*." + last].append(call)
        seen: set[int] = set()
        for name in names:
            for call in self._calls.get(name, ()):
                if id(call) not in seen:
                    seen.add(id(call))
                    yield call

    def bindings(self, scope: ast.AST) -> dict[str, list[ast.AST]]:
        """Names bound in a scope, each with the expressions or definitions bound to it."""
        if scope not in self._bindings:
            found: dict[str, list[ast.AST]] = defaultdict(list)
            self._bindings[scope] = found
            stack: list[ast.AST] = list(ast.iter_child_nodes(scope))
            while stack:
                node = stack.pop()
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found[node.name].append(node)
                    continue
                if isinstance(node, ast.Lambda):
                    continue
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        for name, value in _unpack(target, node.value):
                            found[name].append(value)
                elif isinstance(node, ast.AnnAssign) and node.value is not None:
                    if isinstance(node.target, ast.Name):
                        found[node.target.id].append(node.value)
                elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    found[node.target.id].append(node)
                elif isinstance(node, ast.NamedExpr):
                    found[node.target.id].append(node.value)
                elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                    for name, value in _unpack(node.target, node):
                        found[name].append(value)
                elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                    for name, value in _unpack(node.optional_vars, node.context_expr):
                        found[name].append(value)
                stack.extend(ast.iter_child_nodes(node))
        return self._bindings[scope]

    def lookup(self, name: str, at: ast.AST) -> list[ast.AST]:
        """What a name may be bound to where ``at`` stands: innermost scope that binds it."""
        scopes: list[ast.AST] = [s for s in self.ancestors(at) if isinstance(s, Function)]
        for scope in [*scopes, self.tree]:
            found = self.bindings(scope).get(name)
            if found:
                return found
            if isinstance(scope, Function) and name in {a.arg for a in all_args(scope)}:
                return []
        return []

    # -- try ---------------------------------------------------------------------------------------

    def caught(self, node: ast.AST, *exceptions: str) -> ast.Try | None:
        """The ``try`` whose body holds the node and whose handlers catch one of the exceptions.

        A handler that only raises again does not count.
        """
        child: ast.AST = node
        for up in self.ancestors(node):
            if isinstance(up, Function):
                return None
            if isinstance(up, ast.Try) and child in up.body:
                for handler in up.handlers:
                    if _reraises(handler):
                        continue
                    caught = _exception_names(handler.type)
                    if not caught or caught & ({"Exception", "BaseException"} | set(exceptions)):
                        return up
            if isinstance(up, ast.With) and any(
                self.dotted(i.context_expr.func).endswith("suppress")
                for i in up.items
                if isinstance(i.context_expr, ast.Call)
            ):
                return ast.Try(body=[], handlers=[], orelse=[], finalbody=[], lineno=up.lineno)
            child = up
        return None


def _unpack(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else None
        for index, item in enumerate(target.elts):
            same = values is not None and len(values) == len(target.elts)
            yield from _unpack(item, values[index] if same and values is not None else value)
    elif isinstance(target, ast.Starred):
        yield from _unpack(target.value, value)


def _exception_names(node: ast.AST | None) -> set[str]:
    items = node.elts if isinstance(node, ast.Tuple) else [node] if node is not None else []
    return {i.id if isinstance(i, ast.Name) else i.attr for i in items if isinstance(i, ast.Name | ast.Attribute)}


def _reraises(handler: ast.ExceptHandler) -> bool:
    return len(handler.body) == 1 and isinstance(handler.body[0], ast.Raise)


def all_args(function: Function | ast.Lambda) -> list[ast.arg]:
    a = function.args
    extra = [x for x in (a.vararg, a.kwarg) if x is not None]
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *extra]


def defaults(function: Function) -> Iterator[tuple[ast.arg, ast.expr]]:
    """Each parameter that has a default, with the default."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    if a.defaults:
        yield from zip(positional[-len(a.defaults) :], a.defaults)
    for arg, value in zip(a.kwonlyargs, a.kw_defaults):
        if value is not None:
            yield arg, value


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """A call's keyword argument."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """A call's argument by keyword or position."""
    found = keyword(call, name)
    if found is None and len(call.args) > position and not isinstance(call.args[position], ast.Starred):
        found = call.args[position]
    return found


def text_of(node: ast.AST | None) -> str | None:
    """The value of a string constant; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def int_of(node: ast.AST | None) -> int | None:
    """The value of an integer constant; booleans are not integers here."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value
    return None


def is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def is_main_test(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == "__name__"
