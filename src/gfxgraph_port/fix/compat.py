"""A folder of headers that lets a HIP compiler read CUDA sources as they stand.

Problem: a port must not change NVIDIA's build, and a copy of every source is a second project to keep. Idea: a HIP
build looks into this folder first. ``cuda_runtime.h``, ``cublas_v2.h``, ``cub/cub.cuh`` are found there and bring
HIP's header and, by ``cuda_to_hip.h``, HIP's meaning for CUDA's names. No source changes, so NVIDIA's build cannot.

The names come from hipify's tables, and only those that the sources use are written. What stands below is what no
table of names can say: that a symbol is passed by address, that a warp has 32 lanes (``toolkit/cuda_warp.h``), and
which of CUDA's headers hold nothing that HIP's runtime header does not.

Enters: identifiers and header names of a repository.
Stays out: files of the repository, builds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources

from gfxgraph_port.hipify import Hipify
from gfxgraph_port.project import HOME

FOLDER = f"{HOME}/include"
MAIN = "cuda_to_hip.h"
FUNCTIONS = "cuda_functions.h"
LAUNCHES = "cuda_launch.h"
LACKING = re.compile(
    r"__v(?:add|sub|cmpeq|cmpne|seteq|setne|abs|neg|(?:add|sub)[su]s|(?:max|min|absdiff|avg|(?:cmp|set)[gl][te])[su])[24]|__dp4a|"
    r"__ld(?:cg|ca|cs|lu)|__st(?:cg|cs|wb|wt)|__reduce_(?:add|min|max|and|or|xor)_sync|__floats2bfloat162_rn|__nanosleep|"
    r"__trap|__pipeline_(?:memcpy_async|commit|wait_prior)|__activemask|__syncwarp|"
    r"__(?:shfl|shfl_up|shfl_down|shfl_xor|ballot|any|all|match_any|match_all)_sync"
)
# Names that HIP has with its own width: only where nothing but CUDA's meaning can be meant.
_OF_WARPS = re.compile(r"__(?:shfl|shfl_up|shfl_down|shfl_xor|ballot|any|all)|coalesced_threads")
_OTHERWISE = {"cublasGetStatusString": "hipblasStatusToString", "cublasGetStatusName": "hipblasStatusToString",
              "__grid_constant__": "", "cudaSharedmemCarveoutDefault": "-1", "cudaSharedmemCarveoutMaxShared": "100",
              "cudaSharedmemCarveoutMaxL1": "0"}  # fmt: skip
_TABLES_MISS = {"cuEventCreate": "hipEventCreateWithFlags"}  # the driver's takes flags
_IN_RUNTIME = frozenset(
    "device_launch_parameters.h builtin_types.h vector_functions.h vector_types.h driver_types.h host_defines.h "
    "cuda_device_runtime_api.h device_functions.h device_atomic_functions.h device_types.h crt/host_defines.h "
    "texture_fetch_functions.h texture_types.h surface_functions.h sm_20_intrinsics.h sm_30_intrinsics.h "
    "sm_35_intrinsics.h sm_60_atomic_functions.h math_functions.h channel_descriptor.h cuda_profiler_api.h "
    "cuda_surface_types.h cuda_texture_types.h vector_functions.hpp cuda_runtime_api.h cuda_runtime.h cuda.h "
    "cuda_awbarrier.h cuda_pipeline.h device_double_functions.h driver_functions.h vector_types.hpp cuda_occupancy.h "
    "math_functions.hpp common_functions.h crt/common_functions.h crt/device_functions.h crt/math_functions.h "
    "crt/device_runtime.h crt/host_runtime.h crt/host_config.h host_config.h cudart_platform.h cuda_stdint.h "
    "device_functions.hpp device_atomic_functions.hpp sm_20_atomic_functions.h sm_32_atomic_functions.h "
    "sm_32_intrinsics.h sm_61_intrinsics.h sm_70_rt.h surface_indirect_functions.h texture_indirect_functions.h "
    "common_types.h cudaProfiler.h".split()
)
_BESIDE = {
    "math_constants.h": "hip/hip_math_constants.h", "nvtx3/nvToolsExt.h": "roctracer/roctx.h",
    "library_types.h": "hip/library_types.h", "nvrtc.h": "hip/hiprtc.h", "cuda_gl_interop.h": "hip/hip_gl_interop.h",
    "cuda_fp16.hpp": "hip/hip_fp16.h", "cuda_bf16.h": "hip/hip_bf16.h", "cuda_bf16.hpp": "hip/hip_bf16.h",
    "cuda_fp8.h": "hip/hip_fp8.h", "cublas.h": "hipblas/hipblas.h", "cublas_api.h": "hipblas/hipblas.h",
    "cufftXt.h": "hipfft/hipfftXt.h", "cusparse_v2.h": "hipsparse/hipsparse.h",
    "cusolver_common.h": "hipsolver/hipsolver.h",
}  # fmt: skip
WRITTEN = {
    "cooperative_groups/reduce.h": "cooperative_reduce.h",
    "cuda/barrier": "cuda_barrier.h",
}  # headers that HIP lacks, and ours
_AS_ONE = {
    "hipcub/hipcub.hpp": "cub_to_hip.h",
    "hipblas/hipblas.h": "cublas_to_hip.h",
}  # HIP's headers, told CUDA's ways
_ALWAYS = ("cuda_warp.h", "cuda_calls.h")
_OWNED = re.compile(r"(?:cu|CU|nv|NV|__nv|nccl)")  # the tables also know names that ROCm's own headers use
STANDING_IN = _IN_RUNTIME | _BESIDE.keys()
_THRUST = (
    "namespace thrust {",
    "namespace cuda = hip;",
    "namespace cuda_cub = hip_rocprim;",
    "namespace system { namespace cuda = hip; }",
    "}  // namespace thrust",
)
# HIP takes a kernel as an untyped pointer, and in the second place where it asks.
_OF_KERNELS = {
    "hipFuncSetAttribute": "Kernel kernel, Rest... rest",
    "hipFuncSetCacheConfig": "Kernel kernel, Rest... rest",
    "hipFuncSetSharedMemConfig": "Kernel kernel, Rest... rest",
    "hipFuncGetAttributes": "hipFuncAttributes* found, Kernel kernel, Rest... rest",
}
_TOLD = frozenset({"hipGetDeviceProperties", "hipDeviceGetAttribute"})  # cuda_calls.h: a device's warps


_NAMES = re.compile(
    r"(?P<make>(?:make_)?)(?P<cu>cu|CU)(?:(?:da|DA)(?=[A-Z_]))?(?P<rest>(?:blas|sparse|fft|rand|solver)?[A-Z_]\w*)"
)
FOUND = "// HIP's spelling where the tables have no name, kept because it compiles."


def spelt(name: str) -> str:
    """A name of CUDA's as HIP spells its own, which need not exist; "" for a name that is not CUDA's."""
    made = _NAMES.fullmatch(name)
    return f"{made['make']}{'hip' if made['cu'] == 'cu' else 'HIP'}{made['rest']}" if made else ""


def respelt(text: str, unknown: set[str]) -> str:
    """The main header with HIP's spelling for names that a compiler does not know; what HIP lacks too is noted."""
    head, _, tail = text.partition(f"{FOUND}\n")
    known = dict(re.findall(r"#define (\w+) (\w+)", tail))
    lacking = {*re.findall(r"// HIP lacks (\w+)", tail), *(cuda for cuda, hip in known.items() if hip in unknown)}
    known |= {n: hip for n in unknown if (hip := spelt(n)) and f"#define {n} " not in head}
    rows = [
        f"// HIP lacks {n}" if n in lacking else f"#define {n} {known[n]}" for n in sorted(known.keys() | lacking)
    ]
    return "\n".join([head.rstrip(), "", FOUND, *rows, ""]) if rows else text


def is_cuda_header(name: str, hipify: Hipify) -> bool:
    """Whether a header comes with CUDA and the folder can stand in for it."""
    return name in STANDING_IN or name in WRITTEN or bool(hipify.headers([name]))


def headers(words: Iterable[str], includes: Iterable[str], hipify: Hipify) -> dict[str, str]:
    """The folder's files by their path in it."""
    words, includes = set(words), set(includes)
    names = hipify.names(words)
    names |= {cuda: hip for cuda, hip in _TABLES_MISS.items() if cuda in names}
    names = {cuda: hip for cuda, hip in names.items() if cuda not in _by_name()}
    wanted = hipify.headers(includes)
    used = sorted(w for w in words if LACKING.fullmatch(w) or _OF_WARPS.fullmatch(w))
    files = {name: _packaged(name) for name in _ALWAYS}
    for name in sorted(includes):
        hip = wanted.get(name) or _BESIDE.get(name, "")
        if name in _IN_RUNTIME or hip.startswith("hip/hip_runtime"):
            files[name] = _file([f'#include "{up(name)}{MAIN}"'])
        elif one := _AS_ONE.get(hip):
            files[name], files[one] = _file([f'#include "{up(name)}{one}"']), _packaged(one)
        elif hip or name.startswith("thrust/"):
            meant = f"#include <{hip}>" if hip else f"#include_next <{name}>"
            first, off, on = (f'#include "{up(name)}{ours}"' for ours in (MAIN, _OFF, _ON))
            files[name] = _file([first, off, meant, on])
    # HIP's libraries call functions by the names that CUDA's are given here.
    files[_OFF] = "".join(f'#pragma push_macro("{w}")\n#undef {w}\n' for w in used) or "// no names\n"
    files[_ON] = "".join(f'#pragma pop_macro("{w}")\n' for w in used) or "// no names\n"
    files |= written(includes)
    if used:
        files[FUNCTIONS] = "\n".join([_packaged(FUNCTIONS), _defines(used)])
    if has_launches := not _by_name().isdisjoint(words):
        files[LAUNCHES] = _packaged(LAUNCHES)
    files[MAIN] = _main(words, names, [FUNCTIONS] * bool(used) + [LAUNCHES] * has_launches)
    return files


@lru_cache(maxsize=1)
def _by_name() -> frozenset[str]:
    """Calls of the driver's that HIP lacks, which ``cuda_launch.h`` has by CUDA's names."""
    return frozenset(re.findall(r"inline hipError_t (cu[A-Z]\w+)\(", _packaged(LAUNCHES)))


_OFF, _ON = "cuda_names_off.h", "cuda_names_on.h"


def written(includes: Iterable[str]) -> dict[str, str]:
    """The headers of ours among those that are included."""
    return {name: _packaged(WRITTEN[name]) for name in includes if name in WRITTEN}


def functions(words: Iterable[str]) -> dict[str, str]:
    """The headers of what HIP lacks, with the names that are used; none where no name is."""
    used = sorted({w for w in words if LACKING.fullmatch(w)})
    if not used:
        return {}
    return {FUNCTIONS: "\n".join([_packaged(FUNCTIONS), _defines(used)]), "cuda_warp.h": _packaged("cuda_warp.h")}


def _defines(used: Iterable[str]) -> str:
    rows = "".join(f"#define {w} cuda_to_hip{'' if w.startswith('_') else '_'}{w}\n" for w in used)
    return f"#if defined(__HIPCC__)\n{rows}#endif\n"


def _packaged(name: str) -> str:
    return (resources.files("gfxgraph_port.fix") / "toolkit" / name).read_text("utf-8")


def up(name: str) -> str:
    return "../" * name.count("/")


def _file(lines: list[str]) -> str:
    return "\n".join(["#pragma once", *lines, ""])


def _main(words: set[str], names: dict[str, str], more: list[str]) -> str:
    lines = [
        "// CUDA's names as HIP's. A HIP build looks into this folder first; NVIDIA's build never sees it.",
        "// Written by gfxgraph port fix from hipify's tables. A name that HIP lacks stays, and does not compile.",
        "#pragma once",
        "#ifndef __HIP_PLATFORM_AMD__",
        "#define __HIP_PLATFORM_AMD__ 1",
        "#endif",
        "#ifdef __cplusplus",
        '#include "cuda_warp.h"',
        "#endif",
        '#include "cuda_calls.h"',
        "",
    ]
    if more:
        lines += ["#ifdef __cplusplus", *(f'#include "{name}"' for name in more), "#endif"]
    kernels, made = {(w, w) for w in words & _OF_KERNELS.keys()}, set()
    for name, hip in sorted(names.items() | kernels):
        if parameters := _OF_KERNELS.get(hip):
            found = "found, " if parameters.startswith("hip") else ""
            body = [
                "template <class Kernel, class... Rest>",
                f"inline hipError_t cuda_to_{hip}({parameters}) {{",
                f"  return {hip}({found}reinterpret_cast<const void*>(kernel), rest...);",
                "}",
            ]
            lines += [
                "#ifdef __cplusplus",
                *(body if hip not in made else ()),
                f"#define {name} cuda_to_{hip}",
                "#endif",
            ]
            made.add(hip)
        elif hip in _TOLD:
            lines.append(f"#define {name} cuda_to_{hip}")
        elif hip != name and _OWNED.match(name):
            lines.append(f"#define {name} {hip}")
    lines += [f"#define {w} {_OTHERWISE[w]}".rstrip() for w in sorted(words & _OTHERWISE.keys() - names.keys())]
    lines += [f"#define {w} {w[:-6]}" for w in sorted(words) if re.fullmatch(r"atomic[A-Z]\w+_block", w)]  # no weaker
    constants = sorted(
        w for w in words if re.fullmatch(r"CUDART_(?!VERSION)[A-Z0-9_]+_[FDH]|CUDART_(?:INF|NAN|PI)", w)
    )
    if constants:
        lines += ["#include <hip/hip_math_constants.h>", *(f"#define {w} HIP_{w[7:]}" for w in constants)]
    if "cuda_category" in words:
        lines.append("#define cuda_category hip_category")
    if "CUDA_VERSION" in words or "CUDART_VERSION" in words:
        lines += ["", "// The toolkit whose names HIP has; what it lacks does not compile."]
        lines += [f"#ifndef {n}\n#define {n} 12000\n#endif" for n in ("CUDA_VERSION", "CUDART_VERSION") if n in words]
    if any(w.startswith("thrust::") for w in words):
        lines += ["", "#ifdef __cplusplus", "#include <thrust/execution_policy.h>", *_THRUST, "#endif"]
    return "\n".join([*lines, ""])
