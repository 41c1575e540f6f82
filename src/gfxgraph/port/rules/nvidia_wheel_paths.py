"""Paths inside NVIDIA's runtime wheels."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX412",
    code="nvidia-wheel-paths",
    severity=Severity.LOW,
    phase=4,
    fix=Fix.SUGGEST,
    tier="extended",
    en=Text(
        "Paths inside NVIDIA's runtime wheels",
        "{text}",
        "The wheels are absent on ROCm; left over from an earlier CUDA install, their headers shadow HIP's.",
        "Gate on torch.version.cuda.",
    ),
    zh=Text(
        "指向 NVIDIA 运行时 wheel 内部的路径",
        "{text}",
        "ROCm 上没有这些 wheel；若是先前 CUDA 安装的残留，其头文件会遮蔽 HIP 的。",
        "按 torch.version.cuda 加条件。",
    ),
    path="setup.py",
    bad='INCLUDE = "nvidia/cuda_runtime/include"\n',
    good='INCLUDE = "include"\n',
    needs=("nvidia",),
)
_PATH = re.compile(
    r"(^|/)nvidia/(cuda_runtime|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|cuda_nvrtc|cu1\d|nvtx|nvjitlink)(/|$)"
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and _PATH.search(node.value) and not f.is_docstring(node):
            yield hit(node, text=node.value[:60])
    for call in f.calls("os.path.join"):
        parts = [text_of(a) or "" for a in call.args]
        if "nvidia" in parts and any(
            re.fullmatch(r"cuda_runtime|cublas|cudnn|cufft|cusparse|nccl|cuda_nvrtc", p) for p in parts
        ):
            yield hit(call, text=f.source(call)[:60])
