"""Python stack on top of the CUDA driver."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX221",
    code="cuda-python-stack",
    severity=Severity.HIGH,
    phase=2,
    tier="extended",
    confidence="documented",
    en=Text(
        "Python stack on top of the CUDA driver",
        "{name}",
        "It speaks only to the CUDA driver.",
        "hip-python, a Triton or torch rewrite; cupy has a ROCm build.",
    ),
    zh=Text(
        "直接建立在 CUDA 驱动之上的 Python 库",
        "{name}",
        "它只与 CUDA 驱动通信。",
        "改用 hip-python，或以 Triton、torch 重写；cupy 有 ROCm 构建。",
    ),
    bad="from numba import cuda\n",
    good="try:\n    from numba import cuda\nexcept ImportError:\n    cuda = None\n",
    needs=("numba", "pycuda", "cuda", "nvmath", "warp"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    own = ctx.project.module_path(f.path, "cuda")
    pattern = r"numba\.cuda|pycuda|nvmath|warp|cuda\.(tile|core|cccl)|cuda\.bindings" + (
        "" if own else r"|cuda\.cuda|cuda\.cudart|cuda\.nvrtc"
    )
    for h in import_hits(f, pattern, Severity.HIGH, Severity.MEDIUM):
        yield replace(h, group="imports")
