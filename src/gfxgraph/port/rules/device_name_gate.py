"""A feature or table depends on an NVIDIA device name."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX104",
    code="device-name-gate",
    severity=Severity.LOW,
    phase=1,
    fix=Fix.SUGGEST,
    tier="extended",
    en=Text(
        "A feature or table depends on an NVIDIA device name",
        "{expr}",
        "No AMD name matches, so AMD gets the default, often another card's numbers.",
        "Add rows for AMD parts (MI250, MI300X, MI325X, MI355X, Radeon), or compute from the device's properties.",
    ),
    zh=Text(
        "功能或表格依赖 NVIDIA 设备名",
        "{expr}",
        "没有 AMD 名称能匹配，于是 AMD 落到默认值，往往是别的显卡的数字。",
        "补充 AMD 型号（MI250、MI300X、MI325X、MI355X、Radeon），或根据设备属性计算。",
    ),
    bad='import torch\n\nname = torch.cuda.get_device_name()\nfast = "H100" in name\n',
    good="import torch\n\nname = torch.cuda.get_device_name()\nprint(name)\n",
    needs=("device_name", "a100", "h100", "rtx", "tesla", ".name"),
)
_CARD = re.compile(r"(?i)\b(nvidia|geforce|[ahblt]\d{2,3}|gh200|gb200|rtx|tesla|quadro|v100|a800|h800|h20)\b")


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: PyFile) -> Iterator[Hit]:
    for node in f.nodes(ast.Compare):
        sides = [node.left, *node.comparators]
        texts = [t for s in sides for t in _texts(s)]
        if any(_CARD.search(t) for t in texts) and any(_is_name(f, s) for s in sides):
            yield hit(node, expr=f.source(node)[:120])
    for call in f.calls("*.startswith", "*.find", "*.search", "*.match"):
        inside_ = [text_of(a) or "" for a in call.args]
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if any(_CARD.search(t) for t in inside_) and (_is_name(f, owner) or any(_is_name(f, a) for a in call.args)):
            yield hit(call, expr=f.source(call)[:120])
    for table in f.nodes(ast.Dict):
        keys = [text_of(k) or "" for k in table.keys]
        cards = [k for k in keys if re.search(r"(?i)\b(a100|h100|h200|v100|l40s?|a800|h800|b200)\b", k)]
        if len(cards) >= 2 and not any(re.search(r"(?i)mi\d{3}|radeon|gfx|amd", k) for k in keys):
            yield hit(table, expr="{" + ", ".join(cards[:5]) + "}")


def _texts(node: ast.AST) -> list[str]:
    items = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [t for i in items if (t := text_of(i))]


def _is_name(f: PyFile, node: ast.AST | None, depth: int = 3) -> bool:
    if node is None or depth == 0:
        return False
    if isinstance(node, ast.Call):
        last = f.call_name(node).rpartition(".")[2] or (
            node.func.attr if isinstance(node.func, ast.Attribute) else ""
        )
        if last in ("get_device_name", "device_name"):
            return True
        return (
            last in ("lower", "upper", "strip", "str")
            and isinstance(node.func, ast.Attribute)
            and _is_name(f, node.func.value, depth - 1)
        )
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return "propert" in f.source(node.value)
    if isinstance(node, ast.Name):
        return bool(re.search(r"(?i)(gpu|device|dev|card)_?name|gpu_type", node.id)) or any(
            _is_name(f, b, depth - 1) for b in f.lookup(node.id, node) if b is not node
        )
    return False
