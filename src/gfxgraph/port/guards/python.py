"""Guards in Python: evaluate conditions in a world, and find the one that excludes a node.

Shapes understood: if/elif/else arms, ternaries, and/or terms, comprehension filters, early exits (return,
raise, continue, break, assert, pytest.skip, sys.exit), skip decorators and marks, ``match``, TYPE_CHECKING,
class defaults that ``__post_init__`` overrides, functions only ever called under a guard, and names and
helpers defined elsewhere, followed through imports.

Not guards: ``torch.cuda.is_available()``, ``device.type == "cuda"``, ``hasattr(torch, "cuda")``; all three
hold on AMD.
"""

from __future__ import annotations

import ast
from typing import Protocol

from gfxgraph.port.archs import Arch
from gfxgraph.port.guards.names import AMD_WORDS, arch_matches, judge, words
from gfxgraph.port.guards.worlds import SOME, UNKNOWN, DeviceWorld, Value, all_of, any_of, negate, truth
from gfxgraph.port.readers.python import Function, PyFile, text_of

_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort", "pytest.skip", "pytest.exit", "pytest.fail"})
_AMD_TEXTS = frozenset({"rocm", "hip", "amd", "amdgpu", "HIP", "ROCM", "AMD", "ROCm", "Hip"})
_NVIDIA_TEXTS = frozenset({"nvidia", "NVIDIA", "Nvidia"})
_MAX_DEPTH = 12


class Modules(Protocol):
    """Finds another module of the repository; ``project.Project`` is one."""

    def module(self, from_path: str, dotted: str) -> tuple[PyFile, str] | None:
        """The file that defines a dotted name, and what remains of the name inside it."""

    def named_elsewhere(self, path: str, name: str) -> bool:
        """Whether any other Python file mentions a name."""


class PyGuards:
    """Evaluates the guards of one file.

    Args:
        file: the parsed file.
        modules: where names from other files are looked up; None to stay inside the file.
    """

    def __init__(self, file: PyFile, modules: Modules | None = None) -> None:
        self.file = file
        self.modules = modules
        self._stop_cache: dict[tuple[int, DeviceWorld], bool] = {}
        self._may_cache: dict[int, bool] = {}
        self._exclusions: dict[tuple[int, DeviceWorld], ast.AST | None] = {}
        self._uses: dict[str, list[ast.Name | ast.Attribute]] | None = None
        self._call_reach: dict[tuple[int, DeviceWorld], ast.AST | None] = {}
        self._busy: set[tuple[int, DeviceWorld]] = set()
        self._vendor_subjects: set[str] | None = None
        self._evaluating: set[tuple[int, DeviceWorld]] = set()

    # -- values ------------------------------------------------------------------------------------

    def value(self, node: ast.AST | None, world: DeviceWorld, depth: int = 0) -> Value:
        """Evaluate an expression in a world."""
        if node is None or depth > _MAX_DEPTH:
            return UNKNOWN
        match node:
            case ast.Constant(value=v):
                return v if isinstance(v, str) or v is None else bool(v)
            case ast.UnaryOp(op=ast.Not()):
                return negate(self.value(node.operand, world, depth))
            case ast.BoolOp(op=ast.And()):
                return all_of([self.value(v, world, depth) for v in node.values])
            case ast.BoolOp():
                return self._either(node, world, depth)
            case ast.IfExp():
                test = truth(self.value(node.test, world, depth))
                if test is None:
                    return UNKNOWN
                return self.value(node.body if test else node.orelse, world, depth)
            case ast.Compare(ops=[op], comparators=[right]):
                return self._compare(node.left, op, right, world, depth)
            case ast.Call():
                return self._call(node, world, depth)
            case ast.Name() | ast.Attribute():
                return self._name(node, world, depth)
            case ast.NamedExpr():
                return self.value(node.value, world, depth)
        return UNKNOWN

    def _either(self, node: ast.BoolOp, world: DeviceWorld, depth: int) -> Value:
        # ``os.getenv("CUDA_VERSION") or torch.version.cuda`` is a vendor test with an override: the
        # override is taken as unset.
        values = [self.value(v, world, depth) for v in node.values]
        if any(v is None for v in values):
            known = [v for v, n in zip(values, node.values) if not self._is_env_read(n)]
            if known and all(v is None for v in known):
                return None
        return any_of(values)

    def _is_env_read(self, node: ast.AST) -> bool:
        name = self.file.call_name(node)
        if name in ("os.getenv", "os.environ.get"):
            return True
        return isinstance(node, ast.Subscript) and self.file.dotted(node.value) == "os.environ"

    def _name(self, node: ast.Name | ast.Attribute, world: DeviceWorld, depth: int) -> Value:
        dotted = self.file.dotted(node)
        if dotted.endswith("version.hip"):
            return SOME if world.is_amd else None
        if dotted.endswith("version.cuda"):
            return None if world.is_amd else SOME
        if dotted.endswith("TYPE_CHECKING"):
            return False
        key = (id(node), world)
        if isinstance(node, ast.Name) and key not in self._evaluating:
            self._evaluating.add(key)
            try:
                value = self._variable(node, world, depth)
            finally:
                self._evaluating.discard(key)
            if value is not UNKNOWN:
                return value
        name = dotted.rpartition(".")[2] or (node.attr if isinstance(node, ast.Attribute) else node.id)
        if dotted.endswith(("ROCM_HOME", "HIP_HOME")):
            return SOME if world.is_amd else None
        if name == "CUDA_HOME":
            return UNKNOWN
        judged = judge(name, world)
        if judged is UNKNOWN and isinstance(node, ast.Attribute):
            owner = self.file.dotted(node.value).rpartition(".")[2]
            if "device" in words(name) and {"cuda", "hip"} & set(words(name)):
                return UNKNOWN
            if owner and "platform" in words(owner) and name in ("is_cuda", "cuda"):
                return not world.is_amd
        return judged

    def _variable(self, node: ast.Name, world: DeviceWorld, depth: int) -> Value:
        """A name's value from what it is bound to here, or in the file it is imported from."""
        bound = self.file.lookup(node.id, node) if self.file.parent(node) is not None else []
        if len(bound) == 1:
            value = self._definition(bound[0], world, depth)
            if value is not UNKNOWN:
                return value
        elif bound:
            values = [self._definition(b, world, depth) for b in bound]
            if all(v is UNKNOWN for v in values):  # which of them is reached cannot matter, and is dear to ask
                return self._elsewhere(node.id, world, depth)
            reached = [v for v, b in zip(values, bound) if self.exclusion(b, world) is None]
            if len(reached) == 1 and reached[0] is not UNKNOWN:
                return reached[0]
            if UNKNOWN not in values and len(set(values)) == 1:
                return values[0]
        return self._elsewhere(node.id, world, depth)

    def _definition(self, bound: ast.AST, world: DeviceWorld, depth: int) -> Value:
        if isinstance(bound, ast.expr) and not isinstance(bound, ast.Constant):
            return self.value(bound, world, depth + 1)
        if isinstance(bound, Function):
            return self._body(bound.body, world, depth + 1)
        return UNKNOWN

    def _elsewhere(self, name: str, world: DeviceWorld, depth: int) -> Value:
        """Follow an imported name to the file that defines it."""
        full = self.file.imports.get(name)
        if full is None or self.modules is None or depth > _MAX_DEPTH:
            return UNKNOWN
        key = (name, world, depth)
        known: dict[tuple[str, DeviceWorld, int], Value] = self.file.guard_values
        if key not in known:
            known[key] = UNKNOWN  # what a cycle of imports sees
            known[key] = self._followed(full, world, depth)
        return known[key]

    def _followed(self, full: str, world: DeviceWorld, depth: int) -> Value:
        assert self.modules is not None
        found = self.modules.module(self.file.path, full)
        if found is None or not found[1] or found[0] is self.file:
            return UNKNOWN
        other, rest = found
        inner = other.guards = other.guards or PyGuards(other, self.modules)
        bound = other.bindings(other.tree).get(rest.split(".")[0], [])
        values = {inner._definition(b, world, depth + 1) for b in bound} - {UNKNOWN}
        if len(values) == 1:
            return values.pop()
        if not bound and rest in other.imports:
            return inner._elsewhere(rest, world, depth + 1)
        return UNKNOWN

    def _compare(self, left: ast.AST, op: ast.cmpop, right: ast.AST, world: DeviceWorld, depth: int) -> Value:
        if isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
            wanted = isinstance(op, ast.Is | ast.Eq)
            for a, b in ((left, right), (right, left)):
                if isinstance(b, ast.Constant) and (b.value is None or isinstance(b.value, bool)):
                    value = self.value(a, world, depth)
                    if value is UNKNOWN:
                        return UNKNOWN
                    if b.value is None:
                        return (value is None) == wanted
                    return (truth(value) is b.value) == wanted
            for a, b in ((left, right), (right, left)):
                word = text_of(b)
                if word is not None:
                    same = self._equals(a, word, world, depth)
                    return UNKNOWN if same is None else same == wanted
        if isinstance(op, ast.In | ast.NotIn):
            inside = self._contains(left, right, world, depth)
            return UNKNOWN if inside is None else inside == isinstance(op, ast.In)
        return UNKNOWN

    def _equals(self, node: ast.AST, word: str, world: DeviceWorld, depth: int) -> bool | None:
        """Whether an expression equals a word that names a vendor or an architecture."""
        if word in _AMD_TEXTS:
            return world.is_amd
        if word in _NVIDIA_TEXTS:
            return not world.is_amd
        if word.startswith("gfx"):
            return world.arch is not None and world.arch.name == word.split(":")[0]
        if word == "cuda":
            dotted = self.file.dotted(node) or self.file.source(node)
            last = dotted.rpartition(".")[2].removesuffix("()")
            subject = "target" in dotted and last == "backend"
            if subject or dotted in self.vendor_subjects():
                return not world.is_amd
        value = self.value(node, world, depth)
        return value == word if isinstance(value, str) else None

    def vendor_subjects(self) -> set[str]:
        """Expressions this file also compares with ``"hip"`` or ``"rocm"``: their ``"cuda"`` is a vendor."""
        if self._vendor_subjects is None:
            self._vendor_subjects = set()
            for node in self.file.nodes(ast.Compare):
                sides = [node.left, *node.comparators]
                texts = {text_of(s) for s in sides} | {
                    text_of(e) for s in sides if isinstance(s, ast.Tuple | ast.List | ast.Set) for e in s.elts
                }
                if texts & {"hip", "rocm", "amd"}:
                    for side in sides:
                        if not isinstance(side, ast.Constant | ast.Tuple | ast.List | ast.Set):
                            self._vendor_subjects.add(self.file.dotted(side) or self.file.source(side))
        return self._vendor_subjects

    def _contains(self, item: ast.AST, holder: ast.AST, world: DeviceWorld, depth: int) -> bool | None:
        word = text_of(item)
        if word is not None:
            if word.startswith("gfx"):
                return world.arch is not None and arch_matches(word, world.arch)
            if word.lower() in ("rocm", "hip"):
                return world.is_amd
            return None
        members = self._members(holder, depth)
        if members is None:
            return None
        outcomes = [self._equals(item, m, world, depth) for m in members]
        if any(o is True for o in outcomes):
            return True
        return False if outcomes and all(o is False for o in outcomes) else None

    def _members(self, node: ast.AST, depth: int) -> list[str] | None:
        """The strings of a literal collection, followed through one name."""
        if isinstance(node, ast.Name) and depth <= _MAX_DEPTH:
            bound = self.file.lookup(node.id, node) if self.file.parent(node) is not None else []
            return self._members(bound[0], depth + 1) if len(bound) == 1 else None
        if isinstance(node, ast.Call) and node.args and self.file.call_name(node) in ("set", "frozenset", "tuple"):
            return self._members(node.args[0], depth + 1)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            texts = [text_of(e) for e in node.elts]
            return [t for t in texts if t is not None] if all(t is not None for t in texts) else None
        return None

    def _call(self, call: ast.Call, world: DeviceWorld, depth: int) -> Value:
        name = self.file.dotted(call.func)
        if name == "hasattr" and len(call.args) == 2 and text_of(call.args[1]) == "hip":
            return True if world.is_amd else UNKNOWN
        if name == "getattr" and len(call.args) >= 2 and text_of(call.args[1]) in ("hip", "cuda"):
            if "version" in self.file.source(call.args[0]):
                return SOME if (text_of(call.args[1]) == "hip") == world.is_amd else None
        if name == "bool" and len(call.args) == 1:
            value = truth(self.value(call.args[0], world, depth))
            return UNKNOWN if value is None else value
        if name in ("any", "all") and len(call.args) == 1:
            return self._quantified(call.args[0], world, depth, any_=name == "any")
        if isinstance(call.func, ast.Attribute):
            method = call.func.attr
            if method == "startswith" and call.args:
                prefixes = self._members(call.args[0], depth) or [text_of(call.args[0]) or ""]
                if all(p.startswith("gfx") for p in prefixes):
                    return world.arch is not None and any(arch_matches(p, world.arch) for p in prefixes)
            if method in ("is_cuda", "is_nvidia") and not call.args:
                if isinstance(call.func.value, ast.Name) and "platform" in call.func.value.id.lower():
                    return not world.is_amd
                return UNKNOWN
            if method in ("lower", "upper", "strip") and not call.args:
                return self.value(call.func.value, world, depth)
        if isinstance(call.func, ast.Name | ast.Attribute):
            named = self._name(call.func, world, depth + 1)
            if named is not UNKNOWN and name:
                return named
            if name.rpartition(".")[2] == "is_cuda" and not call.args and self._knows_hip():
                return not world.is_amd
        return UNKNOWN

    def _knows_hip(self) -> bool:
        return any(set(words(n.id)) & AMD_WORDS for n in self.file.nodes(ast.Name))

    def _quantified(self, node: ast.AST, world: DeviceWorld, depth: int, *, any_: bool) -> Value:
        """``any(a in name for a in ("gfx942", "gfx950"))``."""
        if isinstance(node, ast.List | ast.Tuple):
            values = [self.value(e, world, depth) for e in node.elts]
            return any_of(values) if any_ else all_of(values)
        if isinstance(node, ast.GeneratorExp | ast.ListComp) and len(node.generators) == 1:
            members = self._members(node.generators[0].iter, depth)
            if members and all(m.startswith("gfx") for m in members) and any_:
                return world.arch is not None and any(arch_matches(m, world.arch) for m in members)
        return UNKNOWN

    def _body(self, body: list[ast.stmt], world: DeviceWorld, depth: int) -> Value:
        """What a small helper returns: the first return that is reached for certain."""
        for statement in body:
            match statement:
                case ast.Return(value=value):
                    return self.value(value, world, depth)
                case ast.If():
                    test = truth(self.value(statement.test, world, depth))
                    if test is None:
                        if _returns(statement):
                            return UNKNOWN
                        continue
                    inner = self._body(statement.body if test else statement.orelse, world, depth)
                    if inner is not UNKNOWN or _returns_directly(statement.body if test else statement.orelse):
                        return inner
                case ast.Try():
                    inner = self._body(statement.body, world, depth)
                    if inner is not UNKNOWN or _returns(statement):
                        return inner
                case ast.With() | ast.For() | ast.While() | ast.AsyncWith() | ast.AsyncFor() | ast.Match():
                    if _returns(statement):
                        return UNKNOWN
        return UNKNOWN

    # -- reach -------------------------------------------------------------------------------------

    def exclusion(self, node: ast.AST, world: DeviceWorld) -> ast.AST | None:
        """The guard that keeps a node from running in a world; None when it may run."""
        child: ast.AST = node
        passed: list[tuple[int, DeviceWorld]] = []
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
        if not self._busy and not self._evaluating:  # else the answer may lack what is being asked just now
            self._exclusions.update(dict.fromkeys(passed, found))
        return found

    def _excluded_in(self, up: ast.AST, child: ast.AST, world: DeviceWorld) -> ast.AST | None:
        found: ast.AST | None = None
        match up:
            case ast.If() | ast.IfExp() | ast.While():
                found = self._not_taken(up, child, world)
            case ast.BoolOp():
                decides = isinstance(up.op, ast.Or)
                terms = (term for term in up.values if term is not child)
                found = next((term for term in terms if truth(self.value(term, world)) is decides), None)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                tests = (test for generator in up.generators for test in generator.ifs if test is not child)
                found = next((test for test in tests if truth(self.value(test, world)) is False), None)
            case ast.match_case():
                found = self._case(up, world)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found = self._not_called(up, child, world)
        return found if found is not None else self._earlier_exit(up, child, world)

    def _not_taken(self, up: ast.If | ast.IfExp | ast.While, child: ast.AST, world: DeviceWorld) -> ast.AST | None:
        """The test that keeps a branch from being taken."""
        body: list[ast.AST] = [*up.body] if isinstance(up.body, list) else [up.body]
        orelse: list[ast.AST] = [*up.orelse] if isinstance(up.orelse, list) else [up.orelse]
        if child in body and truth(self.value(up.test, world)) is False:
            return up.test
        if child in orelse and not isinstance(up, ast.While) and truth(self.value(up.test, world)) is True:
            return up.test
        return None

    def _not_called(
        self, up: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, child: ast.AST, world: DeviceWorld
    ) -> ast.AST | None:
        """What keeps a function, or a class, from being used: a decorator that skips it, or all of its callers."""
        for decorator in up.decorator_list:
            if decorator is not child and self._skips(decorator, world):
                return decorator
        return self._call_sites(up, world) if isinstance(up, Function) else self._post_init(up, child, world)

    def _earlier_exit(self, up: ast.AST, child: ast.AST, world: DeviceWorld) -> ast.AST | None:
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

    def _stops(self, statement: ast.stmt, world: DeviceWorld) -> bool:
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

    def _stops_uncached(self, statement: ast.stmt, world: DeviceWorld) -> bool:
        match statement:
            case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
                return True
            case ast.Expr(value=ast.Call() as call):
                name = self.file.call_name(call)
                if name in _EXITS or name.endswith((".skipTest", ".skip_test")):
                    return True
                return self._exits_when(call, name, world)
            case ast.Assert():
                return truth(self.value(statement.test, world)) is False
            case ast.If():
                test = truth(self.value(statement.test, world))
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

    def _exits_when(self, call: ast.Call, name: str, world: DeviceWorld) -> bool:
        """``skip_if_rocm()`` and the like, called as a statement."""
        parts = words(name.rpartition(".")[2])
        return world.is_amd and "skip" in parts and bool(set(parts) & AMD_WORDS)

    def _block_stops(self, block: list[ast.stmt], world: DeviceWorld) -> bool:
        return any(self._stops(s, world) for s in block)

    def _skips(self, decorator: ast.AST, world: DeviceWorld) -> bool:
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
            return truth(self.value(condition, world)) is True
        if last in ("skipUnless",) and call and call.args:
            return truth(self.value(call.args[0], world)) is False
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

    def _case(self, case: ast.match_case, world: DeviceWorld) -> ast.AST | None:
        match = self.file.parent(case)
        if not isinstance(match, ast.Match):
            return None
        if case.guard is not None and truth(self.value(case.guard, world)) is False:
            return case.guard
        patterns = case.pattern.patterns if isinstance(case.pattern, ast.MatchOr) else [case.pattern]
        values = [text_of(p.value) for p in patterns if isinstance(p, ast.MatchValue)]
        if values and len(values) == len(patterns):
            outcomes = [self._equals(match.subject, v, world, 0) if v else None for v in values]
            if all(o is False for o in outcomes):
                return case.pattern
        return None

    def _post_init(self, cls: ast.ClassDef, child: ast.AST, world: DeviceWorld) -> ast.AST | None:
        """A class default that the object's making replaces in this world is not what runs there."""
        targets = child.targets if isinstance(child, ast.Assign) else [getattr(child, "target", None)]
        names = {t.id for t in targets if isinstance(t, ast.Name)}
        for method in cls.body if names else ():
            if not (isinstance(method, Function) and method.name in ("__post_init__", "__init__")):
                continue
            for node in ast.walk(method):
                given: list[ast.stmt] = []
                if isinstance(node, ast.If) and truth(self.value(node.test, world)) is True:
                    given, test = node.body, node.test
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp) and node in method.body:
                    test = node.value.test
                    given = [node] if truth(self.value(test, world)) is not None else []
                for inner in given:
                    replaced = (t.attr for t in getattr(inner, "targets", ()) if isinstance(t, ast.Attribute))
                    if not names.isdisjoint(replaced):
                        return test
        return None

    def _call_sites(self, function: Function, world: DeviceWorld) -> ast.AST | None:
        """A function used only where this world cannot get is excluded with its callers."""
        if self._uses is None:
            self._uses = {}
            for node in self.file.nodes(ast.Name, ast.Attribute):
                if isinstance(node.ctx, ast.Load):
                    name = node.id if isinstance(node, ast.Name) else node.attr
                    self._uses.setdefault(name, []).append(node)
        key = (id(function), world)
        if key in self._call_reach:
            return self._call_reach[key]
        if key in self._busy:
            return None
        uses = [u for u in self._uses.get(function.name, ()) if function not in self.file.ancestors(u)]
        found: ast.AST | None = None
        if uses and not function.name.startswith("test"):
            self._busy.add(key)
            for use in uses:  # one that can be reached settles it: names such as ``add`` have thousands
                reason = self.exclusion(use, world)
                if reason is None:
                    found = None
                    break
                found = found or reason
            self._busy.discard(key)
            if found is not None and self._named_elsewhere(function):
                found = None
        self._call_reach[key] = found
        return found

    def _named_elsewhere(self, function: Function) -> bool:
        """Whether another file of the repository names a function of this one's top level."""
        if self.modules is None or function not in self.file.tree.body:
            return False
        return self.modules.named_elsewhere(self.file.path, function.name)

    # -- answers -----------------------------------------------------------------------------------

    def reaching(self, node: ast.AST, archs: tuple[Arch, ...]) -> tuple[tuple[Arch, ...], str]:
        """Which architectures can run a node, and in words the guard that keeps others out."""
        reached: list[Arch] = []
        reason = ""
        for arch in archs:
            guard = self.exclusion(node, DeviceWorld(arch))
            if guard is None:
                reached.append(arch)
            elif not reason:
                reason = self.describe(guard)
        return tuple(reached), reason

    def describe(self, guard: ast.AST) -> str:
        shown: ast.AST = guard.test if isinstance(guard, ast.If | ast.Assert) else guard
        text = self.file.source(shown)
        return f"line {getattr(guard, 'lineno', 0)}: {text[:100]}"


def _returns(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def _returns_directly(block: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for n in block)


def _text_condition(text: str, guards: PyGuards, world: DeviceWorld) -> bool:
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return False
    return truth(guards.value(node, world)) is True
