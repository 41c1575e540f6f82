"""CUDA headers or calls in a target without a hipify step."""

import posixpath

from gfxgraph.port.rule_api import *

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
    needs=("cu", "nv_bfloat16", "nv_fp8", "nvrtc"),
)
_HEADER = r"cuda_runtime\w*\.h|cuda\.h|cuda_(fp16|bf16|fp8|profiler_api|texture_types|device_runtime_api)\.h|cublas\w*\.h|cufft\w*\.h|curand\w*\.h|cusparse\w*\.h|cusolver\w*\.h|device_launch_parameters\.h|nvrtc\.h|channel_descriptor\.h|library_types\.h|driver_types\.h|vector_types\.h|helper_(cuda|math)\.h|device_functions\.h|(?:[\w.-]+/)*cub/.*|math_constants\.h|cuComplex\.h|sm_\d+_intrinsics\.h"
# By the families of the tables that HIPIFY and torch.utils.hipify translate from: the runtime, the libraries, the
# driver (calls, handle types, constants), complex numbers and bfloat16.
_API = (
    r"cu(da|blas|blasLt|fft|rand|sparse|solver|solverDn)[A-Z]\w*|CU(BLAS|FFT|RAND|SPARSE|SOLVER)_[A-Z_]+|"
    r"cu(?:Mem|Module|Launch|Ctx|Device|Stream|Event|Init|Func|Get|Link|Array|Driver|Graph|Ipc|Mipmapped|Occupancy|Param|"
    r"Pointer|Profiler|Surf|Tex|Kernel|Library)[A-Z]?\w*|"
    r"CU(?:result|device|deviceptr|context|module|function|stream|event|array|texref|surfref|graph|graphExec|graphNode|"
    r"jit_option|limit|link(?:State)?|mem[A-Z]\w*|ipc\w+|texObject|surfObject|stream_flags|\w+_attribute|uuid|kernel|library)|"
    r"CU_(?:MEM|CTX|STREAM|EVENT|DEVICE|FUNC|JIT|LIMIT|POINTER|IPC|LAUNCH|LIBRARY|AD_FORMAT|TR|GET_PROC)_\w+|"
    r"CUDA_(?:SUCCESS|ERROR_[A-Z_]+|KERNEL_NODE_PARAMS\w*|MEMCPY[23]D\w*|ARRAY3?D?_DESCRIPTOR\w*|LAUNCH_PARAMS\w*)|"
    r"nvrtc[A-Z]\w*|NVRTC_[A-Z_]+|CU(?:stream|event|graph|graphExec|graphNode|ctx|mod|func|array)_st|CUDA_[RC]_(?:4|8|16|32|64)(?:U|I|F|BF)\w*|"
    r"(?:make_)?cu(?:Double|Float)?Complex|cuC(?:add|sub|mul|div|abs|fma|real|imag)f?|cu(?:Conj|Creal|Cimag)f?|"
    r"(?:__)?nv_bfloat16[2]?|__nv_fp8_\w+"
)


_MAY = re.compile(r"(?<![A-Za-z])(?:cu[A-Zdbfrs]|CU[A-Z_a-z]|nvrtc|NVRTC|nv_|make_cu)|_nv_")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    guarded = "torch's hipify translates this source during the build" if ctx.project.is_translated(f.path) else ""
    yield from include_hits(f, rf"(?:{_HEADER})$", guarded_by=guarded, group="names")
    if not _MAY.search(f.code):
        return  # before every identifier is listed
    known = ctx.project.macros.known
    hits = [
        line_hit(line, column, name=name, guarded_by=guarded, group="names")
        for name, line, column in f.idents_like(_API)
        if known.get(name) != (True, False) and name not in ctx.project.own_names
    ]
    yield from once_a_line(hits)


_PLACE = {
    "cublas": "hipblas/hipblas.h", "cufft": "hipfft/hipfft.h", "curand_kernel": "hiprand/hiprand_kernel.h",
    "curand": "hiprand/hiprand.h", "cusparse": "hipsparse/hipsparse.h", "cusolver": "hipsolver/hipsolver.h",
    "cuda_fp16": "hip/hip_fp16.h", "cuda_bf16": "hip/hip_bf16.h", "cuComplex": "hip/hip_complex.h",
    "cub/": "hipcub/hipcub.hpp", "nvrtc": "hip/hiprtc.h",
}  # fmt: skip


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal | None:
    """A run of CUDA's headers gets an arm with HIP's; names come from the compatibility header."""
    here = {line for header, line in f.includes() if re.fullmatch(_HEADER, header)}
    if hit.line not in here or hit.line - 1 in here:
        return None  # a name, or within a run: the first line is edited
    last = hit.line
    while last + 1 in here:
        last += 1
    old = [f.line_text(n) for n in range(hit.line, last + 1)]
    wanted = [place for row in old for key, place in _PLACE.items() if key in row]
    new = [f"#include <{name}>" for name in dict.fromkeys(wanted)]
    if ctx.project.compat:
        near = posixpath.relpath(ctx.project.compat, posixpath.dirname(f.path) or ".")
        new = [f'#include "{near}"', *[n for n in new if "hipcub" in n or "_kernel" in n]]
    else:
        new = ["#include <hip/hip_runtime.h>", *new]
    text = "\n".join(["#if defined(USE_HIP)", *new, "#else", *old, "#endif"])
    return Edit(hit.line, 0, text, last_line=last, needs="the HIP build defines USE_HIP", absent="USE_HIP")
