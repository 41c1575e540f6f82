"""CUDA headers or calls in a target without a hipify step."""

from __future__ import annotations

from collections.abc import Iterator

from gfxgraph.port.engine import Context
from gfxgraph.port.model import Fix, Hit, Rule, Severity, Text
from gfxgraph.port.readers.cpp import CppFile
from gfxgraph.port.rules._common import (
    include_hits,
    line_hit,
    once_a_line,
)

RULE = Rule(
    id="GFX201",
    code="untranslated-cuda",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "CUDA headers or calls in a target without a hipify step",
        "{name}",
        "hipcc does not know CUDA's headers and names.",
        "Built by torch's CUDAExtension or load: nothing, hipify runs during the build and out of place. Otherwise a HIP branch in the build and one compatibility header.",
    ),
    zh=Text(
        "目标中含有 CUDA 头文件或调用，却没有 hipify 步骤",
        "{name}",
        "hipcc 不认识 CUDA 的头文件与名称。",
        "由 torch 的 CUDAExtension 或 load 构建则无需处理，构建时会在别处自动 hipify；否则在构建中加入 HIP 分支和一个兼容头文件。",
    ),
    path="alloc.cpp",
    bad="#include <cuda_runtime.h>\nvoid* get(size_t n) { void* p; cudaMalloc(&p, n); return p; }\n",
    good="#ifdef USE_ROCM\n#include <hip/hip_runtime.h>\n#else\n#include <cuda_runtime.h>\n#endif\n",
    needs=("cu",),
)
_HEADER = r"cuda_runtime\w*\.h|cuda\.h|cuda_(fp16|bf16|fp8|profiler_api|texture_types|device_runtime_api)\.h|cublas\w*\.h|cufft\w*\.h|curand\w*\.h|cusparse\w*\.h|cusolver\w*\.h|device_launch_parameters\.h|nvrtc\.h|driver_types\.h|vector_types\.h|helper_(cuda|math)\.h|device_functions\.h|cub/.*|math_constants\.h|cuComplex\.h|sm_\d+_intrinsics\.h"
_API = r"cu(da|blas|blasLt|fft|rand|sparse|solver|solverDn)[A-Z]\w*|CU(BLAS|FFT|RAND|SPARSE|SOLVER)_[A-Z_]+|cu(Mem|Module|Launch|Ctx|Device|Stream|Event|Init|Func|Get|Link)[A-Z]?\w*|nvrtc[A-Z]\w*|CUDA_[RC]_(?:4|8|16|32|64)(?:U|I|F|BF)\w*"


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    name = f.path.rpartition("/")[2]
    translated = name in ctx.project.extension_sources or (
        ctx.project.has_torch_extension and f.path.endswith((".cu", ".cuh"))
    )
    guarded = "torch's hipify translates this source during the build" if translated else ""
    yield from include_hits(f, rf"(?:{_HEADER})$", guarded_by=guarded)
    known = ctx.project.macros.known
    hits = [
        line_hit(line, column, name=name, guarded_by=guarded)
        for name, line, column in f.idents_like(_API)
        if known.get(name) != (True, False)
    ]
    yield from once_a_line(hits)
