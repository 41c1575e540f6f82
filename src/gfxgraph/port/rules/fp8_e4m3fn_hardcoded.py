"""FP8 type chosen without asking the architecture."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX116",
    code="fp8-e4m3fn-hardcoded",
    severity=Severity.HIGH,
    phase=1,
    fix=Fix.SUGGEST,
    archs=FNUZ,
    en=Text(
        "FP8 type chosen without asking the architecture",
        "{expr}",
        "gfx940 to gfx942 have only the fnuz encodings: the same bits mean half the value, the byte for -0.0 is NaN, and the largest value is 240, not 448. gfx950, gfx12 and NVIDIA use e4m3fn.",
        "Choose once, lazily: fnuz where gcnArchName starts with gfx94, e4m3fn elsewhere; gfxgraph.rocm.fp8_dtype() does. Converting stored weights: reinterpret, clear byte 0x80, double the scale.",
    ),
    zh=Text(
        "未询问架构就选定 FP8 类型",
        "{expr}",
        "gfx940 至 gfx942 只有 fnuz 编码：同样的位表示一半的数值，-0.0 的字节变为 NaN，最大值是 240 而非 448。gfx950、gfx12 与 NVIDIA 使用 e4m3fn。",
        "只在一处延迟选择：gcnArchName 以 gfx94 开头用 fnuz，其余用 e4m3fn；gfxgraph.rocm.fp8_dtype() 即如此。转换已存权重：重新解释、清除字节 0x80、scale 加倍。",
    ),
    bad="import torch\n\n\ndef quantize(x, scale):\n    return (x * scale).to(torch.float8_e4m3fn)\n",
    good="from gfxgraph.rocm import fp8_dtype\n\n\ndef quantize(x, scale):\n    return (x * scale).to(fp8_dtype())\n",
    needs=("e4m3", "float8_e5m2"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    found = []
    for node in f.nodes(ast.Attribute):
        if f.dotted(node) not in ("torch.float8_e4m3fn", "torch.float8_e5m2"):
            continue
        if _is_harmless(f, node):
            continue
        found.append(hit(node, expr=f.source(f.parent(node) or node)[:100] or node.attr))
    for constant in f.nodes(ast.Constant):
        if constant.value in _BY_NAME and not f.is_docstring(constant) and not _is_harmless(f, constant):
            found.append(hit(constant, severity=Severity.MEDIUM, expr=f.source(f.parent(constant) or constant)[:100]))
    yield from once_a_line(found)


_BY_NAME = ("float8_e4m3fn", "fp8_e4m3fn", "fp8_e4m3", "e4m3fn", "torch.float8_e4m3fn")


def _is_harmless(f: PyFile, node: ast.AST) -> bool:
    """Comparing with a type, or listing and mapping types, chooses nothing."""
    for up in f.ancestors(node):
        if isinstance(up, ast.Compare | ast.Assert | ast.Dict | ast.Set | ast.Tuple | ast.List | ast.Subscript):
            return True
        if isinstance(up, ast.IfExp):
            return "fnuz" in f.source(up)
        if isinstance(up, ast.stmt):
            return isinstance(up, ast.If) or in_function_named(f, node, r"fnuz|normalize|convert")
    return False
