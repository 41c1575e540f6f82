"""Guards in Python: find the condition that keeps a node from running in a world.

Shapes understood: if/elif/else arms, ternaries, and/or terms, comprehension filters, early exits (return,
raise, continue, break, assert, pytest.skip, sys.exit), skip decorators and marks, TYPE_CHECKING.
"""

from __future__ import annotations

import ast

from gfxgraph_port.archs import Arch
from gfxgraph_port.guards.conditions import Conditions
from gfxgraph_port.guards.names import AMD_WORDS, words
from gfxgraph_port.guards.worlds import DeviceKind, truth
from gfxgraph_port.project import Project
from gfxgraph_port.readers.python import PyFile, text_of

_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort", "pytest.skip", "pytest.exit", "pytest.fail"})


class PyGuards:
    """Evaluates the guards of one file.

    Args:
        file: the parsed file.
        modules: where names from other files are looked up; None to stay inside the file.
    """

    def __init__(self, file: PyFile, modules: Project | None = None) -> None:
        self.file = file
        self.modules = modules
        self.conditions = Conditions(file, modules, self)
        self._stop_cache: dict[tuple[int, DeviceKind], bool] = {}
        self._may_cache: dict[int, bool] = {}
        self._exclusions: dict[tuple[int, DeviceKind], ast.AST | None] = {}

    def exclusion(self, node: ast.AST, world: DeviceKind) -> ast.AST | None:
        """The guard that keeps a node from running in a world; None when it may run."""
        child: ast.AST = node
        passed: list[tuple[int, DeviceKind]] = []
        found: ast.AST | None = None
        for up in self.file.ancestors(node):
            if isinstance(child, ast.stmt):
                key = (id(child), world)
                if key in self._exclusions:
                    found = self._exclusions[key]
                    break
                passed.append(key)
            found = self._excluded_in(up, child, world)
            if found is not None:
                break
            child = up
        if not self.conditions.is_evaluating:  # else the answer may lack what is being asked just now
            self._exclusions.update(dict.fromkeys(passed, found))
        return found

    def _excluded_in(self, up: ast.AST, child: ast.AST, world: DeviceKind) -> ast.AST | None:
        found: ast.AST | None = None
        match up:
            case ast.If() | ast.IfExp() | ast.While():
                found = self._not_taken(up, child, world)
            case ast.BoolOp():
                decides = isinstance(up.op, ast.Or)
                terms = (term for term in up.values if term is not child)
                found = next((term for term in terms if truth(self.conditions.value(term, world)) is decides), None)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                tests = (test for generator in up.generators for test in generator.ifs if test is not child)
                found = next((test for test in tests if truth(self.conditions.value(test, world)) is False), None)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                skips = (d for d in up.decorator_list if d is not child and self._skips(d, world))
                found = next(skips, None)
        return found if found is not None else self._earlier_exit(up, child, world)

    def _not_taken(self, up: ast.If | ast.IfExp | ast.While, child: ast.AST, world: DeviceKind) -> ast.AST | None:
        """The test that keeps a branch from being taken."""
        body: list[ast.AST] = [*up.body] if isinstance(up.body, list) else [up.body]
        orelse: list[ast.AST] = [*up.orelse] if isinstance(up.orelse, list) else [up.orelse]
        if child in body and truth(self.conditions.value(up.test, world)) is False:
            return up.test
        if child in orelse and not isinstance(up, ast.While) and truth(self.conditions.value(up.test, world)) is True:
            return up.test
        return None

    def _earlier_exit(self, up: ast.AST, child: ast.AST, world: DeviceKind) -> ast.AST | None:
        if not isinstance(child, ast.stmt):
            return None
        for name in ("body", "orelse", "finalbody"):
            block: list[ast.stmt] | None = getattr(up, name, None)
            if isinstance(block, list) and child in block:
                for statement in block:
                    if statement is child:
                        return None
                    if self._stops(statement, world):
                        return statement
        return None

    def _stops(self, statement: ast.stmt, world: DeviceKind) -> bool:
        """Whether control never gets past a statement in this world, because of a guard in it."""
        if not self._may_stop(statement):
            return False
        key = (id(statement), world)
        if key not in self._stop_cache:
            self._stop_cache[key] = self._stops_uncached(statement, world)
        return self._stop_cache[key]

    def _may_stop(self, statement: ast.stmt) -> bool:
        """Whether a statement holds anything that ends a block, whatever the world."""
        known = self._may_cache.get(id(statement))
        if known is None:
            match statement:
                case ast.If():
                    known = any(self._may_stop(s) for s in (*statement.body, *statement.orelse))
                case ast.With():
                    known = any(self._may_stop(s) for s in statement.body)
                case ast.Return() | ast.Raise() | ast.Continue() | ast.Break() | ast.Assert():
                    known = True
                case ast.Expr(value=ast.Call() as call):
                    name = self.file.call_name(call)
                    known = name in _EXITS or "skip" in name.lower()
                case ast.Assign(targets=[ast.Name(id="pytestmark")]):
                    known = True
                case _:
                    known = False
            self._may_cache[id(statement)] = known
        return known

    def _stops_uncached(self, statement: ast.stmt, world: DeviceKind) -> bool:
        match statement:
            case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
                return True
            case ast.Expr(value=ast.Call() as call):
                name = self.file.call_name(call)
                if name in _EXITS or name.endswith((".skipTest", ".skip_test")):
                    return True
                parts = words(name.rpartition(".")[2])  # of skip_if_rocm() and the like, called as a statement
                return world.is_amd and "skip" in parts and not AMD_WORDS.isdisjoint(parts)
            case ast.Assert():
                return truth(self.conditions.value(statement.test, world)) is False
            case ast.If():
                test = truth(self.conditions.value(statement.test, world))
                if test is True:
                    return self._block_stops(statement.body, world)
                if test is False:
                    return self._block_stops(statement.orelse, world)
                return self._block_stops(statement.body, world) and self._block_stops(statement.orelse, world)
            case ast.With():
                return self._block_stops(statement.body, world)
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                items = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
                return any(self._skips(i, world) for i in items)
        return False

    def _block_stops(self, block: list[ast.stmt], world: DeviceKind) -> bool:
        return any(self._stops(s, world) for s in block)

    def _skips(self, decorator: ast.AST, world: DeviceKind) -> bool:
        """Whether a decorator or mark skips what it stands on."""
        call = decorator if isinstance(decorator, ast.Call) else None
        name = self.file.dotted(call.func if call else decorator)
        last = name.rpartition(".")[2]
        parts = words(last)
        if last in ("skipif", "skipIf") and call and call.args:
            condition = call.args[0]
            text = text_of(condition)
            if text is not None:
                return _text_condition(text, self, world)
            return truth(self.conditions.value(condition, world)) is True
        if last in ("skipUnless",) and call and call.args:
            return truth(self.conditions.value(call.args[0], world)) is False
        amd = bool(set(parts) & AMD_WORDS)
        if "skip" in parts and amd:
            negated = bool({"no", "not", "non", "unless"} & set(parts))
            return world.is_amd != negated
        if {"require", "requires", "only"} & set(parts):
            if amd:
                return not world.is_amd
            if {"nvidia", "nv"} & set(parts):
                return world.is_amd
        return False

    def conditions_in(self, other: PyFile) -> Conditions:
        """The conditions of another file of the repository."""
        guards: PyGuards = other.guards or PyGuards(other, self.modules)
        other.guards = guards
        return guards.conditions

    # -- answers -----------------------------------------------------------------------------------

    def reaching(self, node: ast.AST, archs: tuple[Arch, ...]) -> tuple[tuple[Arch, ...], str]:
        """Which architectures can run a node, and in words the guard that keeps others out."""
        reached: list[Arch] = []
        reason = ""
        for arch in archs:
            guard = self.exclusion(node, DeviceKind(arch))
            if guard is None:
                reached.append(arch)
            elif not reason:
                reason = self.describe(guard)
        return tuple(reached), reason

    def describe(self, guard: ast.AST) -> str:
        shown: ast.AST = guard.test if isinstance(guard, ast.If | ast.Assert) else guard
        text = self.file.source(shown)
        return f"line {getattr(guard, 'lineno', 0)}: {text[:100]}"


def _text_condition(text: str, guards: PyGuards, world: DeviceKind) -> bool:
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return False
    return truth(guards.conditions.value(node, world)) is True
