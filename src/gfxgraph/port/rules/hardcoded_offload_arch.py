"""The build names one gfx target."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX404",
    code="hardcoded-offload-arch",
    severity=Severity.MEDIUM,
    phase=4,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "The build names one gfx target",
        "{text}",
        "On another device there is no binary for the GPU. --amdgpu-target is deprecated besides.",
        "Detect the device, or keep a list behind an option.",
    ),
    zh=Text(
        "构建只写了一个 gfx 目标",
        "{text}",
        "换一种设备就没有可用的 GPU 二进制；此外 --amdgpu-target 已弃用。",
        "检测设备，或用选项提供一个列表。",
    ),
    path="build.sh",
    bad="hipcc --offload-arch=gfx90a k.cpp\n",
    good="hipcc --offload-arch=$ARCH k.cpp\n",
    needs=("gfx",),
)
_ONE = re.compile(
    r"(--offload-arch=|--amdgpu-target=|\b(?:PYTORCH_ROCM_ARCH|GPU_TARGETS|AMDGPU_TARGETS|GPU_ARCHS|CMAKE_HIP_ARCHITECTURES|HIP_ARCHITECTURES|HCC_AMDGPU_TARGET|GFX_ARCH\w*)\s*[=: ]\s*[\"']?)(gfx[0-9a-f]{3,5})(?![0-9a-f;,| ]*[;, ]gfx)"
)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(_ONE.pattern):
        if len(set(re.findall(r"gfx[0-9a-f]{3,5}", entry.text))) == 1 and not re.search(r"\?=|:-", entry.text):
            yield entry_hit(f, entry, match.group(2), text=match.group()[:60])


check_docker = check_shell = check_make = check_cmake = check_yaml = _scan


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and re.fullmatch(
            r"--(offload-arch|amdgpu-target)=gfx[0-9a-f]{3,5}", node.value
        ):
            statement = f.statement(node)
            if len(set(re.findall(r"gfx[0-9a-f]{3,5}", f.source(statement) if statement else ""))) == 1:
                yield hit(node, text=node.value)
    for write, key, value in env_writes(f):
        if key in ("PYTORCH_ROCM_ARCH", "GPU_ARCHS") and re.fullmatch(r"gfx[0-9a-f]{3,5}", text_of(value) or ""):
            yield hit(write, text=f"{key}={text_of(value)}")
