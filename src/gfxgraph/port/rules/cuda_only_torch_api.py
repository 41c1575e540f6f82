"""Torch.cuda interface without meaning on ROCm."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX513",
    code="cuda-only-torch-api",
    severity=Severity.LOW,
    phase=5,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "torch.cuda interface without meaning on ROCm",
        "{name}",
        "Unsupported or without effect. memory_*, Event, Stream, CUDAGraph and amp all work.",
        "Gate it.",
    ),
    zh=Text(
        "在 ROCm 上没有意义的 torch.cuda 接口",
        "{name}",
        "不受支持或没有效果。memory_*、Event、Stream、CUDAGraph 与 amp 都可用。",
        "加条件。",
    ),
    bad="import torch\n\nflags = torch.cuda.get_gencode_flags()\n",
    good="import torch\n\nfree = torch.cuda.memory_allocated()\n",
    needs=("jiterator", "get_gencode_flags", "_compile_kernel", "cufft_plan_cache"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.nodes(ast.Call):
        name = f.call_name(call)
        if re.match(r"torch\.cuda\.(jiterator\.\w+|get_gencode_flags|_compile_kernel|set_per_process_sm\w*)$", name):
            yield hit(call, name=name)
