"""How Python tells devices apart: capabilities, names, versions, tools and FP8 kinds."""

from __future__ import annotations

from gfxgraph_port.rule_api import *

_NAMED = re.compile(
    r"(?i)(compute_?)capabilit|^(device_)?capability$|^cuda_capability|device_capability|^compute_cap|^sm_?(version|arch|major)$|^cuda_arch|^cc_major$"
)
_HELPER = re.compile(
    r"is_sm_?\d+\w*|is_sm_at_least\w*|has_cuda_capability|has_device_capability|is_device_capability\w*|is_(hopper|ampere|blackwell|ada)\w*|get_sm_version|get_cuda_arch\w*"
)


def is_capability(f: PyFile, node: ast.AST | None, depth: int = 6) -> bool:
    """Whether an expression's value comes from the device's compute capability."""
    if node is None or depth == 0:
        return False
    if isinstance(node, ast.Call):
        name = f.dotted(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        last = name.rpartition(".")[2]
        if last in ("get_device_capability", "get_device_capability_major") or re.fullmatch(
            r"get_sm_version|get_cuda_arch\w*", last
        ):
            return True
        if last in ("int", "float", "str", "tuple", "Version", "parse", "map", "join", "as_version_str", "to_int"):
            return any(is_capability(f, a, depth - 1) for a in node.args) or (
                isinstance(node.func, ast.Attribute) and is_capability(f, node.func.value, depth - 1)
            )
        return False
    if isinstance(node, ast.Attribute):
        if node.attr in ("major", "minor"):
            return _is_properties(f, node.value, depth - 1) or is_capability(f, node.value, depth - 1)
        return bool(_NAMED.search(node.attr))
    if isinstance(node, ast.Subscript):
        return is_capability(f, node.value, depth - 1)
    if isinstance(node, ast.BinOp):
        return is_capability(f, node.left, depth - 1) or is_capability(f, node.right, depth - 1)
    if isinstance(node, ast.JoinedStr):
        return any(is_capability(f, v.value, depth - 1) for v in node.values if isinstance(v, ast.FormattedValue))
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(is_capability(f, e, depth - 1) for e in node.elts)
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return is_capability(f, node.elt, depth - 1) or any(
            is_capability(f, g.iter, depth - 1) for g in node.generators
        )
    if isinstance(node, ast.Name):
        bound = f.lookup(node.id, node)
        if any(is_capability(f, b, depth - 1) for b in bound if b is not node):
            return True
        return bool(_NAMED.search(node.id))
    return False


def _is_properties(f: PyFile, node: ast.AST, depth: int) -> bool:
    if depth <= 0:
        return False
    if isinstance(node, ast.Call):
        return f.call_name(node).rpartition(".")[2] == "get_device_properties"
    if isinstance(node, ast.Name):
        return any(_is_properties(f, b, depth - 1) for b in f.lookup(node.id, node))
    return False


def _number(node: ast.AST) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and all(_number(e) for e in node.elts)
    if isinstance(node, ast.Constant):
        return (
            isinstance(node.value, int | float)
            and not isinstance(node.value, bool)
            or bool(isinstance(node.value, str) and re.fullmatch(r"(sm_?)?\d+(\.\d+)?a?", node.value))
        )
    return isinstance(node, ast.Name | ast.Attribute | ast.Call)


def capability_gate(f: PyFile, ctx: Context) -> Iterator[Hit]:
    """Gates on a capability, and the questions that they rest on; one that every AMD GPU passes is told, no more."""
    hits = list(_all(f))
    yield from (replace(h, severity=Severity.INFO) if 0 < (_least(f, h.node) or 0) < 9 else h for h in hits)
    if hits:
        yield from (hit(c, severity=Severity.INFO, expr=f.source(c)) for c in f.calls("*.get_device_capability"))


def _all(f: PyFile) -> Iterator[Hit]:
    for node in f.nodes(ast.Compare):
        sides = [node.left, *node.comparators]
        for i, side in enumerate(sides):
            others = [s for j, s in enumerate(sides) if j != i]
            if is_capability(f, side) and all(_number(o) for o in others):
                if any(isinstance(o, ast.Constant) and o.value is None for o in others):
                    continue
                yield hit(node, expr=f.source(node)[:120])
                break
    for call in f.nodes(ast.Call):
        name = f.call_name(call).rpartition(".")[2] or (
            call.func.attr if isinstance(call.func, ast.Attribute) else ""
        )
        if (
            name == "startswith"
            and isinstance(call.func, ast.Attribute)
            and call.args
            and re.fullmatch(r"\d{1,2}(\.\d?)?", text_of(call.args[0]) or "")
            and is_capability(f, call.func.value)
        ):
            yield hit(call, expr=f.source(call)[:120])
        if _HELPER.fullmatch(name) and not name.startswith("get_"):
            yield hit(call, expr=f.source(call)[:120])


def fix_capability_gate(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    """Closed for AMD where the number is one of Hopper's or later; a demand that AMD already meets stays open."""
    if isinstance(node, ast.Call) and last_name(f, node) == "get_device_capability":
        return None  # the question; its gates are edited
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    least = _least(f, node)
    if not isinstance(node, ast.Compare) or least is None:
        return EditRefusal(node.lineno, "which side AMD belongs to is a decision")
    if _is_demanded(f, node):
        return edit_of(node, f"({ROCM} is not None or {{old}})", needs="AMD runs what follows")
    up, is_less = f.parent(node), isinstance(node.ops[0], ast.Lt | ast.LtE)
    if is_less and isinstance(up, ast.If) and up.test is node and _stops(up.body):
        return edit_of(node, f"({ROCM} is None and {{old}})", needs="AMD runs what follows")
    if not isinstance(node.ops[0], ast.Gt | ast.GtE | ast.Eq | ast.In):
        return EditRefusal(node.lineno, "which side AMD belongs to is a decision")
    if least < 9:
        return EditRefusal(
            node.lineno, "every AMD GPU of the last years passes, and most have the feature: a decision"
        )
    return edit_of(node, f"({ROCM} is None and {{old}})", needs="the feature is NVIDIA's alone")


def _least(f: PyFile, node: ast.expr) -> int | None:
    """The major version that is compared with."""
    for side in node.comparators if isinstance(node, ast.Compare) else ():
        first = side.elts[0] if isinstance(side, ast.Tuple | ast.List) and side.elts else side
        if isinstance(first, ast.Constant) and isinstance(first.value, int | float):
            value = int(first.value)
            return value // 10 if value >= 20 else value
    return None


def _is_demanded(f: PyFile, node: ast.AST) -> bool:
    """Whether a false answer stops the program: an ``assert``, or ``if not ...: raise``."""
    child, turned = node, False
    for up in f.ancestors(node):
        if isinstance(up, ast.UnaryOp) and isinstance(up.op, ast.Not):
            turned = not turned
        elif isinstance(up, ast.Assert):
            return up.test is child and not turned
        elif isinstance(up, ast.If):
            return up.test is child and turned and _stops(up.body)
        elif not isinstance(up, ast.BoolOp):
            return False
        child = up
    return False


def _stops(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in ("sys.exit", "exit", "pytest.skip", "quit")
    return isinstance(last, ast.Raise)


def fix_alloc_conf_combo(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    return gated(node, f, f'("expandable_segments:True" if {ROCM} else {{old}})')


def fp8_e4m3fn_hardcoded(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if is_test_file(f.path):
        return
    for node in f.nodes(ast.Attribute, ast.Constant):
        name = f.dotted(node) if isinstance(node, ast.Attribute) else text_of(node) or ""
        if name in _FP8 and not f.is_docstring(node) and not _is_harmless(f, node):
            severity = None if isinstance(node, ast.Attribute) else Severity.MEDIUM
            yield hit(node, severity=severity, expr=f.source(f.parent(node) or node)[:100])


_FP8 = frozenset(
    "torch.float8_e4m3fn torch.float8_e5m2 float8_e4m3fn fp8_e4m3fn fp8_e4m3 e4m3fn torch.float8_e4m3fn".split()
)


def _is_harmless(f: PyFile, node: ast.AST) -> bool:
    """Comparing with a type, or listing and mapping types, chooses nothing."""
    for up in f.ancestors(node):
        if isinstance(up, ast.Compare | ast.Assert | ast.Dict | ast.Set | ast.Tuple | ast.List | ast.Subscript):
            return True
        if isinstance(up, ast.IfExp):
            return "fnuz" in f.source(up)
        if isinstance(up, ast.stmt):
            around = (u.name for u in f.ancestors(node) if isinstance(u, Function))
            return isinstance(up, ast.If) or any(re.search(r"fnuz|normalize|convert", name) for name in around)
    return False


_GFX = re.compile(r"gfx[0-9a-f]{1,5}")


def hardcoded_gfx(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, text in strings(f) if not is_test_file(f.path) else ():
        up = f.parent(node)
        asked = isinstance(up, ast.Compare) or (isinstance(up, ast.Call) and last_name(f, up) == "startswith")
        if up is not None and asked and _GFX.fullmatch(text) and len(set(_GFX.findall(around(f, node)))) == 1:
            yield hit(node, name=text, expr=f.source(up)[:100])
