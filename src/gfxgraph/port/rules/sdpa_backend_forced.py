"""Attention is forced onto a CUDA-only backend."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX504",
    code="sdpa-backend-forced",
    severity=Severity.MEDIUM,
    phase=5,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "Attention is forced onto a CUDA-only backend",
        "{expr}",
        'ROCm has no cuDNN attention: "No available kernel".',
        "Add FLASH_ATTENTION, EFFICIENT_ATTENTION and MATH to the list.",
    ),
    zh=Text(
        "把注意力限定在仅 CUDA 才有的后端",
        "{expr}",
        'ROCm 没有 cuDNN 注意力：会报 "No available kernel"。',
        "在列表中加入 FLASH_ATTENTION、EFFICIENT_ATTENTION 与 MATH。",
    ),
    bad="import torch\n\ntorch.backends.cuda.enable_cudnn_sdp(True)\n",
    good="from torch.nn.attention import SDPBackend, sdpa_kernel\n\nwith sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):\n    pass\n",
    needs=("sdpa_kernel", "cudnn_sdp", "sdp_kernel"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("torch.nn.attention.sdpa_kernel", "*.sdpa_kernel"):
        names = re.findall(
            r"\b(CUDNN_ATTENTION|FLASH_ATTENTION|EFFICIENT_ATTENTION|MATH|OVERRIDEABLE)\b", f.source(call)
        )
        if names and set(names) == {"CUDNN_ATTENTION"}:
            yield hit(call, expr=f.source(call)[:80])
    for call in f.calls("torch.backends.cuda.enable_cudnn_sdp"):
        if call.args and is_true(call.args[0]):
            yield hit(call, expr=f.source(call)[:80])
    for call in f.calls("torch.backends.cuda.sdp_kernel"):
        off = {k.arg for k in call.keywords if isinstance(k.value, ast.Constant) and k.value.value is False}
        if {"enable_math", "enable_flash"} <= off:
            yield hit(call, expr=f.source(call)[:80])
