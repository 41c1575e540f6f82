"""CUDA architectures set in CMake."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX406",
    code="cmake-cuda-arch",
    severity=Severity.LOW,
    phase=4,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "CUDA architectures set in CMake",
        "{text}",
        "HIP ignores them.",
        "Set CMAKE_HIP_ARCHITECTURES beside them.",
    ),
    zh=Text("在 CMake 中设置 CUDA 架构", "{text}", "HIP 会忽略它们。", "旁边加上 CMAKE_HIP_ARCHITECTURES。"),
    path="CMakeLists.txt",
    bad="set(CMAKE_CUDA_ARCHITECTURES 80 90)\n",
    good="set(CMAKE_HIP_ARCHITECTURES gfx90a gfx1100)\n",
    needs=("cuda_arch", "cuda_standard", "cuda_flags"),
)


def check_cmake(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry in f.entries:
        if re.search(
            r"\b(CMAKE_CUDA_ARCHITECTURES|CUDA_ARCHITECTURES|CUDA_ARCH_LIST|CUDA_ARCHS|CMAKE_CUDA_STANDARD\w*|CMAKE_CUDA_(HOST_)?COMPILER\w*)\b",
            entry.text,
        ) and entry.keyword.lower() in ("set", "list", "set_property", "set_target_properties", "string"):
            yield entry_hit(f, entry, text=f"{entry.keyword}({entry.text[:60]})")


def fix_cmake(hit: Hit, f: TextFile, ctx: Context) -> Edit | EditRefusal | None:
    return fix_entry(f, hit.line)
