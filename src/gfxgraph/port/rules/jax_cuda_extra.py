"""CUDA extra of jax or tensorflow."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX002",
    code="jax-cuda-extra",
    severity=Severity.HIGH,
    phase=0,
    fix=Fix.SUGGEST,
    en=Text(
        "CUDA extra of jax or tensorflow",
        "{text} brings CUDA wheels",
        "The extra installs nvidia-* wheels and a CUDA plugin that cannot load on ROCm.",
        "Move it to a CUDA-only group; on ROCm take the PyTorch-only path, or jax's ROCm plugin where the project needs JAX.",
    ),
    zh=Text(
        "jax 或 tensorflow 的 CUDA extra",
        "{text} 会带来 CUDA 的 wheel",
        "该 extra 会安装 nvidia-* wheel 以及无法在 ROCm 上加载的 CUDA 插件。",
        "移到仅供 CUDA 的分组；ROCm 上只走 PyTorch 路径，确需 JAX 时使用其 ROCm 插件。",
    ),
    path="requirements.txt",
    bad="jax[cuda12]==0.4.30\n",
    good="jax==0.4.30\n",
    needs=("jax", "tensorflow"),
)


def check_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    if f.is_lock:
        return
    for need in f.needs:
        if is_cuda_group(need.group):
            continue
        by_extra = need.name in ("jax", "jaxlib", "tensorflow") and any("cuda" in e for e in need.extras)
        if by_extra or re.match(r"jax-cuda\d*-", need.name) or (need.name == "jaxlib" and "+cuda" in need.spec):
            yield line_hit(need.line, text=need.text)
