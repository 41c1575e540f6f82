"""Conditions in Python: what an expression comes to in a world.

Names and helpers defined elsewhere are followed, through imports too. Not guards: ``torch.cuda.is_available()``,
``device.type == "cuda"``, ``hasattr(torch, "cuda")``; all three hold on AMD.
"""

from __future__ import annotations

import ast
from typing import Protocol

from gfxgraph_port.guards.names import arch_matches, judge, words
from gfxgraph_port.guards.worlds import SOME, UNKNOWN, DeviceKind, Value, all_of, any_of, negate, truth
from gfxgraph_port.project import Project
from gfxgraph_port.readers.python import Function, PyFile, text_of

_AMD_TEXTS = frozenset({"rocm", "hip", "amd", "amdgpu", "HIP", "ROCM", "AMD", "ROCm", "Hip"})
_NVIDIA_TEXTS = frozenset({"nvidia", "NVIDIA", "Nvidia"})
_MAX_DEPTH = 12


class Reach(Protocol):
    """Which lines of a file can run; ``python.PyGuards`` is one."""

    def exclusion(self, node: ast.AST, world: DeviceKind) -> ast.AST | None:
        """The guard that keeps a node from running in a world; None when it may run."""

    def conditions_in(self, other: PyFile) -> Conditions:
        """The conditions of another file of the repository."""


class Conditions:
    """Evaluates the conditions of one file.

    Args:
        file: the parsed file.
        modules: where names from other files are looked up; None to stay inside the file.
        reach: which of several definitions of a name can run.
    """

    def __init__(self, file: PyFile, modules: Project | None, reach: Reach) -> None:
        self.file = file
        self.modules = modules
        self._reach = reach
        self._vendor_subjects: set[str] | None = None
        self._evaluating: set[tuple[int, DeviceKind]] = set()

    @property
    def is_evaluating(self) -> bool:
        """Whether a name is being evaluated just now: an answer may then lack what is being asked."""
        return bool(self._evaluating)

    def value(self, node: ast.AST | None, world: DeviceKind, depth: int = 0) -> Value:
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

    def _either(self, node: ast.BoolOp, world: DeviceKind, depth: int) -> Value:
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

    def _name(self, node: ast.Name | ast.Attribute, world: DeviceKind, depth: int) -> Value:
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

    def _variable(self, node: ast.Name, world: DeviceKind, depth: int) -> Value:
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
            reached = [v for v, b in zip(values, bound) if self._reach.exclusion(b, world) is None]
            if len(reached) == 1 and reached[0] is not UNKNOWN:
                return reached[0]
            if UNKNOWN not in values and len(set(values)) == 1:
                return values[0]
        return self._elsewhere(node.id, world, depth)

    def _definition(self, bound: ast.AST, world: DeviceKind, depth: int) -> Value:
        if isinstance(bound, ast.expr) and not isinstance(bound, ast.Constant):
            return self.value(bound, world, depth + 1)
        if isinstance(bound, Function):
            return self._body(bound.body, world, depth + 1)
        return UNKNOWN

    def _elsewhere(self, name: str, world: DeviceKind, depth: int) -> Value:
        """Follow an imported name to the file that defines it."""
        full = self.file.imports.get(name)
        if full is None or self.modules is None or depth > _MAX_DEPTH:
            return UNKNOWN
        key = (name, world, depth)
        known: dict[tuple[str, DeviceKind, int], Value] = self.file.guard_values
        if key not in known:
            known[key] = UNKNOWN  # what a cycle of imports sees
            known[key] = self._followed(full, world, depth)
        return known[key]

    def _followed(self, full: str, world: DeviceKind, depth: int) -> Value:
        assert self.modules is not None
        found = self.modules.module(self.file.path, full)
        if found is None or not found[1] or found[0] is self.file:
            return UNKNOWN
        other, rest = found
        inner = self._reach.conditions_in(other)
        bound = other.bindings(other.tree).get(rest.split(".")[0], [])
        values = {inner._definition(b, world, depth + 1) for b in bound} - {UNKNOWN}
        if len(values) == 1:
            return values.pop()
        if not bound and rest in other.imports:
            return inner._elsewhere(rest, world, depth + 1)
        return UNKNOWN

    def _compare(self, left: ast.AST, op: ast.cmpop, right: ast.AST, world: DeviceKind, depth: int) -> Value:
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
                    same = self.equals(a, word, world, depth)
                    return UNKNOWN if same is None else same == wanted
        if isinstance(op, ast.In | ast.NotIn):
            inside = self._contains(left, right, world, depth)
            return UNKNOWN if inside is None else inside == isinstance(op, ast.In)
        return UNKNOWN

    def equals(self, node: ast.AST, word: str, world: DeviceKind, depth: int) -> bool | None:
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

    def _contains(self, item: ast.AST, holder: ast.AST, world: DeviceKind, depth: int) -> bool | None:
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
        outcomes = [self.equals(item, m, world, depth) for m in members]
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

    def _call(self, call: ast.Call, world: DeviceKind, depth: int) -> Value:
        name = self.file.dotted(call.func)
        if name == "hasattr" and len(call.args) == 2 and text_of(call.args[1]) == "hip":
            return True if world.is_amd else UNKNOWN
        if name == "getattr" and len(call.args) >= 2 and text_of(call.args[1]) in ("hip", "cuda"):
            if "version" in self.file.source(call.args[0]):
                return SOME if (text_of(call.args[1]) == "hip") == world.is_amd else None
        if name == "bool" and len(call.args) == 1:
            value = truth(self.value(call.args[0], world, depth))
            return UNKNOWN if value is None else value
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
        return UNKNOWN

    def _body(self, body: list[ast.stmt], world: DeviceKind, depth: int) -> Value:
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
                    taken = statement.body if test else statement.orelse
                    inner = self._body(taken, world, depth)
                    if inner is not UNKNOWN or any(isinstance(each, ast.Return) for each in taken):
                        return inner
                case ast.Try():
                    inner = self._body(statement.body, world, depth)
                    if inner is not UNKNOWN or _returns(statement):
                        return inner
                case ast.With() | ast.For() | ast.While() | ast.AsyncWith() | ast.AsyncFor() | ast.Match():
                    if _returns(statement):
                        return UNKNOWN
        return UNKNOWN


def _returns(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))
