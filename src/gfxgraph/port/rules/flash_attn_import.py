"""Flash_attn is imported with no fallback."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX501",
    code="flash-attn-import",
    severity=Severity.MEDIUM,
    phase=5,
    fix=Fix.SUGGEST,
    en=Text(
        "flash_attn is imported with no fallback",
        "{name}",
        "The same interface exists on ROCm, through Composable Kernel or Triton, but has to be built; replacing it is one choice among several.",
        "Three tiers: flash_attn or aiter where importable, scaled_dot_product_attention, plain PyTorch; gfxgraph.rocm.attention does this.",
    ),
    zh=Text(
        "导入 flash_attn 却没有回退",
        "{name}",
        "ROCm 上经 Composable Kernel 或 Triton 有同样的接口，但需要自行构建；替换它只是选择之一。",
        "三级回退：可导入时用 flash_attn 或 aiter，其次 scaled_dot_product_attention，最后普通 PyTorch；gfxgraph.rocm.attention 即如此。",
    ),
    bad="from flash_attn import flash_attn_func\n",
    good="try:\n    from flash_attn import flash_attn_func\nexcept ImportError:\n    flash_attn_func = None\n",
    needs=("flash_attn", "xformers"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for h in import_hits(f, r"flash_attn|flash_attn_2_cuda|flash_attn_cuda|xformers", Severity.MEDIUM, Severity.LOW):
        name = h.values["name"]
        if re.match(r"flash_attn\.cute", name):
            continue
        if "_cuda" in name:
            yield Hit(h.line, h.column, h.node, h.values, Severity.HIGH, guarded_by=h.guarded_by)
        else:
            yield h


def fix_python(node: ast.AST, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    return optional_import(node, f)
