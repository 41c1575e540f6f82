"""Fnuz FP8 chosen for every ROCm build."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX117",
    code="fp8-fnuz-for-any-hip",
    severity=Severity.HIGH,
    phase=1,
    fix=Fix.SUGGEST,
    archs=NOT_FNUZ_FP8,
    scope=Scope.ONLY_AMD,
    en=Text(
        "fnuz FP8 chosen for every ROCm build",
        "{expr}",
        "gfx950 and gfx12 use the OCP encodings: numbers come out silently mis-scaled there.",
        "Test the architecture (gfx94x) at run time; a fat binary needs both variants.",
    ),
    zh=Text(
        "对所有 ROCm 构建都选择 fnuz FP8",
        "{expr}",
        "gfx950 与 gfx12 使用 OCP 编码：数值会被悄悄缩放错误。",
        "运行时判断架构（gfx94x）；胖二进制需要两种变体。",
    ),
    bad="import torch\n\nFP8 = torch.float8_e4m3fnuz if torch.version.hip else torch.float16\n",
    good='import torch\n\n\ndef fp8():\n    arch = torch.cuda.get_device_properties(0).gcnArchName\n    return torch.float8_e4m3fnuz if arch.startswith(("gfx940", "gfx941", "gfx942")) else torch.float16\n',
    needs=("fnuz",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Attribute):
        if re.fullmatch(r"float8_e[45]m[32]fnuz", node.attr):
            up = f.parent(node)
            if isinstance(up, ast.Compare | ast.Dict | ast.Tuple | ast.List | ast.Set | ast.Subscript):
                continue
            yield hit(node, expr=f.source(up or node)[:100])


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for name, line, column in f.idents_like(r"Float8_e[45]m[32]fnuz|__hip_fp8_e[45]m[32]_fnuz"):
        yield line_hit(line, column, expr=name)
