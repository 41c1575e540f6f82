"""Nccl.h, nvToolsExt.h or nvml.h."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX217",
    code="nccl-nvtx-nvml-cpp",
    severity=Severity.LOW,
    phase=2,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "NCCL, NVTX, NVML or CUPTI in C++",
        "{name}",
        "rccl.h and roctx are nearly drop-in; NVML's and CUPTI's counterparts (amd-smi, roctracer, rocprofiler-sdk) are not.",
        "Map nccl.h to rccl/rccl.h and nvtx to roctx; guard NVML and CUPTI.",
    ),
    zh=Text(
        "C++ 中的 NCCL、NVTX、NVML 或 CUPTI",
        "{name}",
        "rccl.h 与 roctx 几乎可以直接替换；NVML 与 CUPTI 的对应物（amd-smi、roctracer、rocprofiler-sdk）则不然。",
        "nccl.h 映射到 rccl/rccl.h，nvtx 映射到 roctx；NVML 与 CUPTI 加条件。",
    ),
    path="comm.cpp",
    bad="#include <nccl.h>\n",
    good="#ifdef USE_ROCM\n#include <rccl/rccl.h>\n#else\n#include <nccl.h>\n#endif\n",
    needs=("nccl", "nvtx", "nvtool", "nvml", "cupti"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f, ctx))


def _all(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from include_hits(f, r"(nccl|nccl_net|nvml)\.h$|cupti\w*\.h$|(nvtx3/)?nv[tT]o?o?l?s?(x3|Ext)?\w*\.(h|hpp)$")
    for arm, name in macro_tests(f, r"\w*(HAS|HAVE|USE|WITH|ENABLE)_?(CUPTI|NVML|NVTX|NCCL)\w*", ctx.project.macros):
        yield line_hit(arm.line + f.offset, name=arm.text[:80] or name, guard_free=True)
    for name, line, column in f.idents_like(r"(nvml|cupti|nvtx)[A-Z]\w*|CUPTI_[A-Z]\w+|NVML_[A-Z]\w+"):
        yield line_hit(line, column, name=name, group="names")
