"""A CUDA header that has no counterpart of the same role."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX226",
    code="cuda-header-unmapped",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "A CUDA header that hipify does not rename",
        "{name}",
        "torch's hipify has no entry for it (the table of torch 2.13), so the line stays as it is and hipcc does not find the file.",
        "hip/hip_runtime.h brings vector types and math; guard the include otherwise.",
    ),
    zh=Text(
        "hipify 不会改名的 CUDA 头文件",
        "{name}",
        "torch 的 hipify 没有它的条目（以 torch 2.13 的表为准），该行原样保留，hipcc 找不到文件。",
        "hip/hip_runtime.h 已含向量类型与数学函数；否则给 include 加条件。",
    ),
    path="vec.cuh",
    bad="#include <vector_functions.h>\n",
    good="#ifndef USE_ROCM\n#include <vector_functions.h>\n#endif\n",
    needs=("include",),
)
_HEADERS = frozenset(
    "vector_functions.h vector_functions.hpp math_constants.h device_launch_parameters.h sm_20_intrinsics.h "
    "sm_30_intrinsics.h sm_32_intrinsics.h sm_35_intrinsics.h sm_60_atomic_functions.h sm_61_intrinsics.h "
    "cuda_pipeline.h cuda_pipeline_primitives.h cuda_fp8.h cuda_fp4.h cuda_fp6.h cuda_awbarrier.h math_functions.h "
    "cuda_occupancy.h nv/target surface_functions.h texture_fetch_functions.h cuda_gl_interop.h cudaGL.h "
    "common_functions.h host_defines.h builtin_types.h device_atomic_functions.h device_double_functions.h "
    "cudaProfiler.h driver_functions.h crt/host_defines.h cuda_egl_interop.h cudaTypedefs.h surface_types.h "
    "texture_types.h cuda_surface_types.h cufile.h nvJitLink.h cuda_device_runtime_api.h".split()
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    own = (
        {p.rpartition("/")[2] for p in ctx.project.paths("cpp")}
        if any(h in _HEADERS for h, _ in f.includes())
        else ()
    )
    for header, line in f.includes():
        if header in _HEADERS and header.rpartition("/")[2] not in own:
            yield line_hit(line, name=header)
