"""The identity gate: with every ROCm guard folded to its NVIDIA value, new and old code must be the same.

Problem: a fix for AMD must not change what NVIDIA runs, and a promise is no proof. Idea: fold both files as
NVIDIA would see them and compare what is left. Python trees are compared without positions; C++ as tokens.

Invariants:
1. Only ``torch.version.hip`` and ``torch.version.cuda`` are folded, and names that this very file binds
   once, at its top level, to nothing but a test of them. Any other guard stays, so a change under it shows.
2. Folding never drops code that NVIDIA would run: ``a and None`` keeps ``a``.
3. What cannot be parsed is refused.

It compares values, not bytes, and takes ``torch`` to be PyTorch.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from gfxgraph.port.readers.directives import Expr, arms_of, blank_comments, scan
from gfxgraph.port.readers.text import commands

_HIP = "torch.version.hip"
_CUDA = "torch.version.cuda"
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether an edit may pass, and why not."""

    passes: bool
    reason: str = ""


def check(path: str, old: str, new: str, absent: frozenset[str] = frozenset()) -> GateVerdict:
    """Judge an edit of a file by its kind; ``absent`` as for `check_cpp`."""
    if path.endswith(".py"):
        return check_python(old, new)
    if re.search(r"\.(cu|cuh|c|cc|cpp|cxx|h|hpp|hh|inl)$", path):
        return check_cpp(old, new, absent)
    if re.search(r"(^|/)CMakeLists\.txt$|\.cmake$", path):
        return check_cmake(old, new)
    if re.search(r"(?i)(^|/)(dockerfile|containerfile)[^/]*$|\.dockerfile$", path):
        return check_docker(old, new)
    if path.endswith(".gitignore"):
        kept = new.startswith(old)
        return GateVerdict(kept, "" if kept else "existing lines of .gitignore changed")
    return GateVerdict(False, "no gate for this kind of file")


# -- Python ----------------------------------------------------------------------------------------


def check_python(old: str, new: str) -> GateVerdict:
    """Whether NVIDIA sees the same program in both texts."""
    try:
        before, after = project(old), project(new)
    except (SyntaxError, ValueError, RecursionError) as error:
        return GateVerdict(False, f"does not parse: {error}")
    if before == after:
        return GateVerdict(True)
    return GateVerdict(False, f"NVIDIA's path would change: {_first_difference(before, after)}")


def project(text: str) -> str:
    """The syntax tree as NVIDIA runs it, as text."""
    tree = ast.parse(text)
    if any(isinstance(s, ast.ImportFrom) and (s.module or "").split(".")[0] == "torch" for s in tree.body):
        # A module of torch's is imported anyway: that of torch itself only binds a name.
        tree.body = [s for s in tree.body if not (isinstance(s, ast.Import) and ast.unparse(s) == "import torch")]
    folded = _Fold(_trusted(tree)).visit(tree)
    return ast.dump(folded, include_attributes=False, indent=1)


def _first_difference(a: str, b: str) -> str:
    for left, right in zip(a.splitlines(), b.splitlines()):
        if left != right:
            return f"{left.strip()} became {right.strip()}"[:160]
    return "a different length"


def _dotted(node: ast.AST) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _trusted(tree: ast.Module) -> dict[str, bool]:
    """Names bound exactly once in the file, at its top level, to a test of torch.version alone."""
    rebound: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            rebound[node.id] = rebound.get(node.id, 0) + 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            rebound[node.name] = rebound.get(node.name, 0) + 1
        elif isinstance(node, ast.arg):
            rebound[node.arg] = rebound.get(node.arg, 0) + 1
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                rebound[name] = rebound.get(name, 0) + 2
        elif isinstance(node, ast.alias):
            bound = (node.asname or node.name).split(".")[0]
            if bound != "torch" or node.name.split(".")[0] != "torch":
                rebound[bound] = rebound.get(bound, 0) + 1
    if rebound.get("torch"):
        return {"torch": False}  # torch is not torch here: trust nothing
    if any(_dotted(t).startswith("torch.version") for t in _stored_attributes(tree)):
        return {"torch": False}
    trusted: dict[str, bool] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name) and rebound.get(target.id) == 1:
                value = _value(statement.value, {})
                if isinstance(value, bool):
                    trusted[target.id] = value
    return trusted


def _stored_attributes(tree: ast.Module) -> list[ast.Attribute]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store | ast.Del)]


def _value(node: ast.AST, trusted: dict[str, bool]) -> object:
    """The value on NVIDIA of an expression made of torch.version tests only; ``_UNKNOWN`` otherwise."""
    if trusted.get("torch") is False:
        return _UNKNOWN
    match node:
        case ast.Attribute():
            name = _dotted(node)
            return None if name == _HIP else "cuda" if name == _CUDA else _UNKNOWN
        case ast.Name(id=name):
            return trusted.get(name, _UNKNOWN)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value="hip"), *_]):
            return None if _dotted(owner) == "torch.version" else _UNKNOWN
        case ast.Call(func=ast.Name(id="bool"), args=[inner], keywords=[]):
            value = _value(inner, trusted)
            return _UNKNOWN if value is _UNKNOWN else bool(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            value = _value(operand, trusted)
            return _UNKNOWN if value is _UNKNOWN else not value
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
            value = _value(left, trusted)
            return _UNKNOWN if value is _UNKNOWN else (value is None) == isinstance(op, ast.Is)
        case ast.BoolOp(op=op, values=values):
            if isinstance(op, ast.And) and _is_hasattr(values[0]):
                values = values[1:]
            stop = isinstance(op, ast.Or)
            found: object = _UNKNOWN
            for term in values:  # left to right: what stands after the deciding term never runs
                found = _value(term, trusted)
                if found is _UNKNOWN or bool(found) is stop:
                    return found
            return found
    return _UNKNOWN


def _plain(value: object) -> bool | str | None:
    return value if isinstance(value, bool | str) else None


def _is_hasattr(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value="hip")]):
            return _dotted(owner) == "torch.version"
    return False


def _sets_none(handler: ast.ExceptHandler, body: list[ast.stmt]) -> bool:
    """Whether a handler of ImportError gives exactly the imported names None."""
    if not isinstance(handler.type, ast.Name) or handler.type.id not in ("ImportError", "ModuleNotFoundError"):
        return False
    bound = {
        (a.asname or a.name).split(".")[0]
        for s in body
        if isinstance(s, ast.Import | ast.ImportFrom)
        for a in s.names
    }
    given: set[str] = set()
    for s in handler.body:
        if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Constant) or s.value.value is not None:
            return False
        given |= {t.id for t in s.targets if isinstance(t, ast.Name)}
    return given == bound


class _Fold(ast.NodeTransformer):
    """Replace every known guard by what NVIDIA gets."""

    def __init__(self, trusted: dict[str, bool]) -> None:
        self.trusted = trusted

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not block and name == "body":
                block.append(ast.Pass())
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        value = _value(node.test, self.trusted)
        if value is _UNKNOWN:
            self.generic_visit(node)
            return node
        kept = node.body if value else node.orelse
        done: list[ast.stmt] = []
        for statement in kept:
            result = self.visit(statement)
            done += result if isinstance(result, list) else [result] if result is not None else []
        return done

    def visit_Try(self, node: ast.Try) -> ast.AST | list[ast.stmt]:
        """``try: import x / except ImportError: x = None`` is the import, where the package is there."""
        self.generic_visit(node)
        imports = all(isinstance(s, ast.Import | ast.ImportFrom) for s in node.body)
        plain = not node.orelse and not node.finalbody and len(node.handlers) == 1
        if imports and plain and _sets_none(node.handlers[0], node.body):
            return node.body
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        value = _value(node.test, self.trusted)
        if value is _UNKNOWN:
            self.generic_visit(node)
            return node
        kept: ast.AST = self.visit(node.body if value else node.orelse)
        return kept

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        is_and = isinstance(node.op, ast.And)
        kept: list[ast.expr] = []
        for index, term in enumerate(node.values):
            value = _value(term, self.trusted)
            last = index == len(node.values) - 1
            if value is _UNKNOWN:
                kept.append(self.visit(term))
            elif bool(value) is is_and:
                if last:  # ``x and True`` is not ``x``
                    kept.append(ast.Constant(value=_plain(value)))
            else:
                kept.append(ast.Constant(value=_plain(value)))
                break  # the terms after it never run
        if len(kept) == 1:
            return kept[0]
        return ast.BoolOp(op=node.op, values=kept)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        return self._constant(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self._constant(node)

    def _constant(self, node: ast.UnaryOp | ast.Compare) -> ast.AST:
        value = _value(node, self.trusted)
        if isinstance(value, bool):
            return ast.Constant(value=_plain(value))
        self.generic_visit(node)
        return node


# -- C++ -------------------------------------------------------------------------------------------

_ROCM_MACROS = frozenset(
    {"USE_ROCM", "__HIPCC__", "__HIP__", "__HIP_PLATFORM_AMD__", "__HIP_PLATFORM_HCC__", "__AMDGCN__",
     "__HIP_DEVICE_COMPILE__"}
)  # fmt: skip
_WORD = re.compile(r'[A-Za-z_]\w*|\d[\w.]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|\S')


def check_cpp(old: str, new: str, absent: frozenset[str] = frozenset()) -> GateVerdict:
    """Whether the token stream with ROCm's macros undefined is the same in both texts.

    Args:
        absent: macros of the edit's own that no build of NVIDIA's defines; one that the old text knows is not taken.
    """
    known = set(re.findall(r"\w+", old))
    before, after = project_cpp(old), _expanded(project_cpp(new, absent - known), known)
    if before == after:
        return GateVerdict(True)
    at = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    around = " ".join(after[max(0, at - 3) : at + 5])
    return GateVerdict(False, f"NVIDIA's tokens would change near: {around}"[:160])


def _expanded(tokens: list[str], known: set[str]) -> list[str]:
    """Tokens with the object-like macros that are new in this text replaced by what they stand for."""
    values: dict[str, str] = {}
    kept: list[str] = []
    i = 0
    while i < len(tokens):
        if tokens[i : i + 2] == ["#", "define"] and len(tokens) > i + 3 and tokens[i + 2] not in known:
            values[tokens[i + 2]] = tokens[i + 3]
            i += 4
        else:
            kept.append(tokens[i])
            i += 1
    return [values.get(t, t) for t in kept]


def project_cpp(text: str, absent: frozenset[str] = frozenset()) -> list[str]:
    """Tokens that NVIDIA's build sees: ROCm macros undefined, arms that follow from that resolved.

    Args:
        absent: further macros that no build of NVIDIA's defines.
    """
    code = blank_comments(text)
    lines = code.split("\n")
    directives = scan(code)
    arms = arms_of(directives, len(lines))
    dropped: set[int] = set()  # directive lines that are resolved, and the arms that NVIDIA never compiles
    hidden: set[int] = set()
    shown: dict[int, str] = {}
    by_chain: dict[int, list[int]] = {}
    for i, arm in enumerate(arms):
        by_chain.setdefault(arm.chain, []).append(i)
    ends = _endifs(code)
    for chain, members in by_chain.items():
        taken, open_ = False, False
        for i in members:
            arm = arms[i]
            condition = _fold_expr(arm.condition, absent) if arm.condition is not None else True
            dropped |= set(range(arm.line, arm.first_line))
            if taken or condition is False:
                hidden |= set(range(arm.first_line, arm.last_line + 1))
            elif condition is True:
                taken = True
                if open_:
                    shown[arm.line] = "#else"
            else:
                shown[arm.line] = ("#elif " if open_ else "#if ") + repr(condition)
                open_ = True
        if chain in ends:
            dropped.add(ends[chain])
            if open_:
                shown[ends[chain]] = "#endif"
    found: list[str] = []
    for number, line in enumerate(lines, 1):
        if number in hidden:
            continue
        if number in shown:
            found.append(shown[number])
        elif number not in dropped:
            found += _WORD.findall(line)
    return found


def _endifs(code: str) -> dict[int, int]:
    """The line of each chain's ``#endif``, by the order in which chains open."""
    found: dict[int, int] = {}
    stack: list[int] = []
    opened = 0
    for d in scan(code):
        if d.kind in ("if", "ifdef", "ifndef"):
            stack.append(opened)
            opened += 1
        elif d.kind == "endif" and stack:
            found[stack.pop()] = d.line
    return found


def _fold_expr(expr: Expr, absent: frozenset[str] = frozenset()) -> Expr | bool:
    """Simplify a condition with ROCm's macros undefined."""
    match expr:
        case ("defined" | "name", name) if name in _ROCM_MACROS or name in absent:
            return False
        case ("not", tuple(inner)):
            folded = _fold_expr(inner, absent)
            return not folded if isinstance(folded, bool) else ("not", folded)
        case ("and" | "or" as op, tuple(a), tuple(b)):
            left, right = _fold_expr(a, absent), _fold_expr(b, absent)
            decides = op == "or"
            if left is decides or right is decides:
                return decides
            if isinstance(left, bool):
                return right
            if isinstance(right, bool):
                return left
            return (op, left, right)
    return expr


# -- CMake and Dockerfiles -------------------------------------------------------------------------


def check_cmake(old: str, new: str) -> GateVerdict:
    """Whether the commands are the same with USE_HIP off, an option that the old text does not know."""
    if "USE_HIP" in old:
        return GateVerdict(False, "USE_HIP is already used here: what it means is not ours to say")
    before, after = project_cmake(old), project_cmake(new)
    if before == after:
        return GateVerdict(True)
    at = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    near = after[at] if at < len(after) else ("the end", "")
    return GateVerdict(False, f"the CUDA build would change at: {near[0]}({near[1]})"[:160])


def project_cmake(text: str) -> list[tuple[str, str]]:
    """Commands with USE_HIP off."""
    kept: list[tuple[str, str]] = []
    stack: list[bool | None] = []  # None: a condition that is not ours
    for _, _, keyword, arguments in commands("\n".join(line.split("#")[0] for line in text.splitlines())):
        name, body = keyword.lower(), " ".join(arguments.split())
        ours = {"USE_HIP": False, "NOT USE_HIP": True}.get(body)
        if name == "if":
            stack.append(ours)
            if ours is not None:
                continue
        elif name in ("else", "endif") and stack and stack[-1] is not None:
            if name == "else":
                stack[-1] = not stack[-1]
            else:
                stack.pop()
            continue
        if False in stack:
            if name == "endif":
                stack.pop()
            continue
        if name == "endif" and stack:
            stack.pop()
        if not (name == "option" and body.startswith("USE_HIP ")):
            kept.append((name, body))
    return kept


def check_docker(old: str, new: str) -> GateVerdict:
    """Whether the instructions are the same once new ARGs have their defaults."""
    values = {}
    kept = []
    for line in new.splitlines():
        given = re.fullmatch(r"ARG (\w+)=(\S+)", line.strip())
        if given and given[1] not in old:
            values[given[1]] = given[2]
            continue
        kept.append(re.sub(r"\$\{(\w+)\}", lambda m: values.get(m[1], m[0]), line))
    same = kept == old.splitlines()
    return GateVerdict(same, "" if same else "the image would change without build arguments")
