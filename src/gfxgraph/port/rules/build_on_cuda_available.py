"""The build asks torch.cuda.is_available() whether to build for CUDA."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX413",
    code="build-on-cuda-available",
    severity=Severity.MEDIUM,
    phase=4,
    fix=Fix.SUGGEST,
    en=Text(
        "The build asks torch.cuda.is_available() whether to build for CUDA",
        "{expr}",
        "It is true on ROCm as well, so CUDA's flags, sources and version checks are used there; and a build machine without a GPU gets neither.",
        "Ask torch.version.hip and torch.version.cuda, which say what torch was built for.",
    ),
    zh=Text(
        "构建时以 torch.cuda.is_available() 决定是否构建 CUDA",
        "{expr}",
        "ROCm 上它同样为真，于是会使用 CUDA 的选项、源文件与版本检查；而没有 GPU 的构建机两者都得不到。",
        "改问 torch.version.hip 与 torch.version.cuda，它们说明 torch 为谁构建。",
    ),
    path="setup.py",
    bad="import torch\n\nWITH_CUDA = torch.cuda.is_available()\n",
    good="import torch\n\nWITH_GPU = torch.version.hip is not None or torch.version.cuda is not None\n",
    needs=("is_available",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not f.path.endswith("setup.py") and "CUDAExtension" not in f.text:
        return
    for call in f.calls("torch.cuda.is_available"):
        statement = f.statement(call)
        text = (
            f.source(statement.test if isinstance(statement, ast.If) else statement) if statement is not None else ""
        )
        if not re.search(r"version\.hip|rocm", text, re.I):
            yield hit(call, expr=text[:100])
