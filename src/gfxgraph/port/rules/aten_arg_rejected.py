"""An argument or operator that the ROCm back end refuses."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX512",
    code="aten-arg-rejected",
    severity=Severity.MEDIUM,
    phase=5,
    fix=Fix.SUGGEST,
    en=Text(
        "An argument or operator that the ROCm back end refuses",
        "{expr}",
        "RuntimeError: not supported on ROCm.",
        "Pass it only where torch.version.hip is None, and keep another path.",
    ),
    zh=Text(
        "ROCm 后端拒绝的参数或算子",
        "{expr}",
        "RuntimeError：ROCm 不支持。",
        "只在 torch.version.hip is None 时传入，并保留另一条路径。",
    ),
    bad="import torch\n\nout = torch._scaled_mm(a, b, scale_a=row, scale_b=col)\n",
    good="import torch\n\nout = torch.mm(a, b)\n",
    needs=("num_splits", "_scaled_mm", "bfx9", "green"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("torch._scaled_mm", "torch.ops.aten._scaled_mm", "torch._scaled_grouped_mm"):
        yield hit(call, expr=f.source(call)[:80])
    for call in f.nodes(ast.Call):
        name = f.call_name(call)
        if (
            name.endswith(("varlen_attn", "_flash_attention_forward", "_varlen_attn"))
            and keyword(call, "num_splits") is not None
        ):
            yield hit(call, expr=f"{name}(num_splits=...)")
    for node, name, value in assigned(f):
        if name.endswith("fp32_precision") and text_of(value) == "bfx9":
            yield hit(node, expr=f.source(node))
    for call in f.calls("torch.cuda.green_contexts.GreenContext.create", "torch.cuda.GreenContext.create"):
        yield hit(call, expr=f.source(call)[:80])
