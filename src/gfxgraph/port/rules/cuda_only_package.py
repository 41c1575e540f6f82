"""Package whose published wheel is for CUDA only."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX004",
    code="cuda-only-package",
    severity=Severity.MEDIUM,
    phase=0,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "Package whose published wheel is for CUDA only",
        "{name}: on ROCm {instead}",
        "No ROCm wheel exists under this name: the install fails, or a CUDA binary fails when imported.",
        "Use the counterpart named with the finding, or make the package optional and rely on the fallback.",
    ),
    zh=Text(
        "只发布 CUDA wheel 的包",
        "{name}：ROCm 上 {instead}",
        "该名称下没有 ROCm wheel：要么安装失败，要么 CUDA 二进制在导入时失败。",
        "使用所列的替代包，或改为可选依赖并走回退路径。",
    ),
    path="requirements.txt",
    bad="onnxruntime-gpu>=1.17\n",
    good="onnxruntime>=1.17\n",
)
_TABLE = (
    (r"cupy-cuda1\w*", "cupy-rocm-*"), (r"onnxruntime-gpu", "onnxruntime-rocm or the MIGraphX provider"),
    (r"faiss-gpu.*", "faiss-cpu, or build faiss with FAISS_ENABLE_ROCM"), (r"tensorrt.*|torch-tensorrt", "MIGraphX"),
    (r"nvidia-dali.*", "rocAL"), (r"(cudf|cuml|cugraph|dask-cuda|rmm|cuvs)(-.*)?", "none"), (r"spconv-cu.*", "build from source"),
    (r"flash-attn-3", "flash-attn 2 or aiter"), (r"flashinfer.*", "aiter"), (r"sageattention", "SDPA or aiter"),
    (r"deep-gemm|deep-ep", "aiter or mori"), (r"transformer-engine.*", "ROCm's build of TransformerEngine"),
    (r"apex", "ROCm's build of apex"), (r"numba-cuda|pycuda", "hip-python or Triton"), (r"kvikio.*", "none"),
    (r"nvidia-modelopt.*", "Quark"), (r"pynvml|nvidia-ml-py3?|py3nvml", "amdsmi"), (r"nvitop|gpustat|gputil|nvgpu", "amd-smi"),
)  # fmt: skip


def check_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    if f.is_lock:
        return
    for need in f.needs:
        if is_cuda_group(need.group) or "rocm" in need.spec:
            continue
        for pattern, instead in _TABLE:
            if re.fullmatch(pattern, need.name):
                optional = need.group not in ("", "build-system")
                yield line_hit(
                    need.line, severity=Severity.LOW if optional else None, name=need.name, instead=instead
                )
