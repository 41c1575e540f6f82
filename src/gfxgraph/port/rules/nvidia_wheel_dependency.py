"""NVIDIA runtime wheel among the dependencies."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX003",
    code="nvidia-wheel-dependency",
    severity=Severity.HIGH,
    phase=0,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "NVIDIA runtime wheel among the dependencies",
        "{name} holds NVIDIA's libraries",
        "These wheels carry only NVIDIA's libraries: hundreds of megabytes without use on AMD, and their headers and library names can shadow HIP's.",
        "Gate it by platform or move it to a CUDA extra.",
    ),
    zh=Text(
        "依赖中含有 NVIDIA 运行时 wheel",
        "{name} 只含 NVIDIA 的库",
        "这些 wheel 只含 NVIDIA 的库，在 AMD 上毫无用处却占数百 MB，其头文件与库名还可能遮蔽 HIP 的。",
        "按平台加条件，或移到 CUDA extra。",
    ),
    path="requirements.txt",
    bad="nvidia-cublas-cu12==12.4.5.8\n",
    good="numpy>=1.26\n",
    needs=("nvidia-", "nvidia_", "cuda-", "cudatoolkit", "cudnn"),
)
_NAME = re.compile(
    r"nvidia-.+-cu1\d|nvidia-(cublas|cudnn|nccl|cuda-.*|nvtx|nvjitlink|cusparselt|cutlass.*|cufft|curand|cusolver|cusparse|nvshmem.*)|"
    r"cuda-(python|bindings|core|toolkit)|cudatoolkit(-dev)?|pytorch-cuda|cudnn|cuda-(nvcc|cudart|version|libraries|runtime|compiler)(-.+)?"
)


def check_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    found = [
        line_hit(n.line, name=n.name, group="wheels", severity=Severity.LOW if f.is_lock else None)
        for n in f.needs
        if _NAME.fullmatch(n.name) and not is_cuda_group(n.group)
    ]
    yield from once_a_line(found[:1] if f.is_lock else found)  # a lock is made anew as a whole
