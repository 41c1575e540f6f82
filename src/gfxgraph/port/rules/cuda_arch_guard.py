"""__CUDA_ARCH__ decides code that HIP also needs."""

from __future__ import annotations

from collections.abc import Iterator

from gfxgraph.port.engine import Context
from gfxgraph.port.model import Fix, Hit, Rule, Severity, Text
from gfxgraph.port.readers.cpp import CppFile
from gfxgraph.port.rules._common import (
    line_hit,
    macro_tests,
)

RULE = Rule(
    id="GFX207",
    code="cuda-arch-guard",
    severity=Severity.HIGH,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "__CUDA_ARCH__ decides code that HIP also needs",
        "{text}",
        "It is undefined under HIP, where < 700 is then true (0 < 700) and >= 800 false: polyfills and fast paths disappear without a word.",
        "Decide which side AMD belongs to, then add || defined(USE_ROCM) or an arm of its own; to tell device from host code use __HIP_DEVICE_COMPILE__ beside it.",
    ),
    zh=Text(
        "由 __CUDA_ARCH__ 决定 HIP 也需要的代码",
        "{text}",
        "HIP 下它未定义，于是 < 700 成立（0 < 700）而 >= 800 不成立：补丁代码与快速路径会无声消失。",
        "先确定 AMD 属于哪一侧，再加 || defined(USE_ROCM) 或单独的分支；区分设备与主机代码时并用 __HIP_DEVICE_COMPILE__。",
    ),
    path="atomics.cuh",
    bad="#if __CUDA_ARCH__ < 700\n__device__ void add_half() {}\n#endif\n",
    good="#if defined(USE_ROCM) || __CUDA_ARCH__ < 700\n__device__ void add_half() {}\n#endif\n",
    needs=("__cuda_arch__",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for arm, _ in macro_tests(f, r"__CUDA_ARCH__|__CUDA_ARCH_FEAT_\w+|__CUDA_ARCH_LIST__", ctx.project.macros):
        yield line_hit(arm.line + f.offset, text=arm.text[:100], guard_free=True)
