"""CUTLASS among inductor's GEMM backends."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX606",
    code="inductor-cutlass-backend",
    severity=Severity.MEDIUM,
    phase=6,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "CUTLASS among inductor's GEMM backends",
        "{value}",
        "It is not available on ROCm; Composable Kernel is.",
        '"ATEN,TRITON,CK" on ROCm.',
    ),
    zh=Text(
        "inductor 的 GEMM 后端含 CUTLASS",
        "{value}",
        "ROCm 上没有它，但有 Composable Kernel。",
        'ROCm 上用 "ATEN,TRITON,CK"。',
    ),
    bad='import torch._inductor.config\n\ntorch._inductor.config.max_autotune_gemm_backends = "ATEN,CUTLASS"\n',
    good='import torch._inductor.config\n\ntorch._inductor.config.max_autotune_gemm_backends = "ATEN,TRITON"\n',
    needs=("_backends", "cutlass"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for _node, key, value in inductor_settings(f):
        text = text_of(value) or ""
        if key.endswith("_backends") and re.search(r"CUTLASS|NVGEMM|TMA", text):
            yield hit(value, value=text)
        elif key.startswith("cuda.cutlass"):
            yield hit(value, value=key)
