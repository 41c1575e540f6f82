"""FlashAttention for Hopper or Blackwell only."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX502",
    code="fa3-fa4-import",
    severity=Severity.HIGH,
    phase=5,
    fix=Fix.SUGGEST,
    en=Text(
        "FlashAttention for Hopper or Blackwell only",
        "{name}",
        "There is no ROCm build; a capability gate usually lets AMD in here.",
        "Gate on NVIDIA; FlashAttention 2 or SDPA on ROCm.",
    ),
    zh=Text(
        "仅限 Hopper 或 Blackwell 的 FlashAttention",
        "{name}",
        "没有 ROCm 构建；通常是计算能力判断把 AMD 放了进来。",
        "限定为 NVIDIA；ROCm 用 FlashAttention 2 或 SDPA。",
    ),
    bad="from flash_attn_interface import flash_attn_func\n",
    good="try:\n    from flash_attn_interface import flash_attn_func\nexcept ImportError:\n    flash_attn_func = None\n",
    needs=("flash_attn", "flash-attn3", "fa3", "fa4"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from import_hits(
        f,
        r"flash_attn_interface|flash_attn_3|flash_attn\.cute|flash_attn_3_cuda|hopper\.flash_attn_interface",
        Severity.HIGH,
        Severity.MEDIUM,
    )
    for call in f.calls("*.activate_flash_attention_impl"):
        if text_of(call.args[0] if call.args else None) in ("FA3", "FA4"):
            yield hit(call, name=f.source(call)[:60])
    for node in f.nodes(ast.Constant):
        if node.value in ("kernels-community/flash-attn3", "kernels-community/vllm-flash-attn3"):
            yield hit(node, name=str(node.value))
