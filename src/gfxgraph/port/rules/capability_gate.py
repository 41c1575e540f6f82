"""NVIDIA compute capability decides a feature."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX101",
    code="capability-gate",
    severity=Severity.HIGH,
    phase=1,
    fix=Fix.SUGGEST,
    en=Text(
        "NVIDIA compute capability decides a feature",
        "{expr}",
        "AMD devices answer with numbers too: gfx90a (9,0), gfx942 (9,4), gfx950 (9,5), gfx1030 (10,3), gfx1100 (11,0), gfx1200 (12,0). A gate such as >= (8,0) or >= (9,0) therefore opens NVIDIA-only paths on AMD.",
        "Add torch.version.hip is None where the feature is NVIDIA's own; where AMD has it too, test the architecture instead of closing it for all of AMD.",
    ),
    zh=Text(
        "用 NVIDIA 计算能力决定功能",
        "{expr}",
        "AMD 设备同样返回数字：gfx90a (9,0)、gfx942 (9,4)、gfx950 (9,5)、gfx1030 (10,3)、gfx1100 (11,0)、gfx1200 (12,0)。因此 >= (8,0) 或 >= (9,0) 之类的判断会在 AMD 上打开仅限 NVIDIA 的路径。",
        "功能只属于 NVIDIA 时加上 torch.version.hip is None；AMD 也有该功能时应按架构判断，不要对所有 AMD 关闭。",
    ),
    bad="import torch\n\nUSE_FAST = torch.cuda.get_device_capability() >= (9, 0)\n",
    good="import torch\n\nUSE_FAST = torch.version.hip is None and torch.cuda.get_device_capability() >= (9, 0)\n",
    needs=(
        "capability",
        "get_device_properties",
        "is_sm",
        "compute_cap",
        "sm_version",
        "sm_arch",
        "cuda_arch",
    ),
)
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
        if last in (
            "int",
            "float",
            "str",
            "tuple",
            "Version",
            "parse",
            "map",
            "join",
            "as_version_str",
            "to_int",
        ):
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


def _is_item_of(f: PyFile, node: ast.AST) -> bool:
    """A loop variable over a name such as ``compute_capabilities``."""
    return isinstance(node, ast.Name) and any(
        isinstance(up, ast.For) and f.source(up.target) == node.id and _NAMED.search(f.source(up.iter))
        for up in f.ancestors(node)
    )


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


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    hits = list(once_a_line(_all(f)))
    seen = {h.line for h in hits}
    for node in f.nodes(ast.Assign):
        if node.lineno in seen or not isinstance(node.value, ast.Call | ast.Subscript | ast.Tuple):
            continue
        asked = any(
            isinstance(n, ast.Call) and f.call_name(n).rpartition(".")[2] == "get_device_capability"
            for n in ast.walk(node.value)
        )
        scope = f.scope(node)
        gates = [i for i, h in enumerate(hits) if f.scope(h.node) is scope and h.line > node.lineno]
        if asked and gates and isinstance(scope, ast.FunctionDef):  # the question and its gates are one finding
            group = f"line {node.lineno}"
            hits = [replace(h, group=group) if i in gates else h for i, h in enumerate(hits)]
            hits.append(hit(node, expr=f.source(node)[:120], group=group))
    yield from hits


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
            and (is_capability(f, call.func.value) or _is_item_of(f, call.func.value))
        ):
            yield hit(call, expr=f.source(call)[:120])
        if _HELPER.fullmatch(name) and not name.startswith("get_"):
            yield hit(call, expr=f.source(call)[:120])


def fix_python(node: ast.expr | ast.stmt, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    """Closed for AMD where the number is one of Hopper's or later; a demand that AMD already meets stays open."""
    if isinstance(node, ast.stmt):
        return None  # the question; its gates are edited
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    least = _least(f, node)
    if not isinstance(node, ast.Compare) or least is None:
        return EditRefusal(node.lineno, "which side AMD belongs to is a decision")
    if _is_demanded(f, node):
        return Edit(node.lineno, node.col_offset, f"({ROCM} is not None or {{old}})", needs="AMD runs what follows")
    if isinstance(node.ops[0], ast.Lt | ast.LtE) and _raises(f, node):
        return Edit(node.lineno, node.col_offset, f"({ROCM} is None and {{old}})", needs="AMD runs what follows")
    if not isinstance(node.ops[0], ast.Gt | ast.GtE | ast.Eq | ast.In):
        return EditRefusal(node.lineno, "which side AMD belongs to is a decision")
    if least < 9:
        return EditRefusal(
            node.lineno, "every AMD GPU of the last years passes, and most have the feature: a decision"
        )
    return Edit(node.lineno, node.col_offset, f"({ROCM} is None and {{old}})", needs="the feature is NVIDIA's alone")


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


def _raises(f: PyFile, node: ast.AST) -> bool:
    up = f.parent(node)
    return isinstance(up, ast.If) and up.test is node and _stops(up.body)


def _stops(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in ("sys.exit", "exit", "pytest.skip", "quit")
    return isinstance(last, ast.Raise)
