"""The header that gives CUDA's names HIP's meaning, for projects that no hipify step translates.

Only names that the sources use are in it. It is included where a HIP build would include CUDA's headers; NVIDIA's
build never sees it.

Source: the naming rules of HIP and its libraries (``cudaX`` is ``hipX``, ``cublasX`` is ``hipblasX``), with the
exceptions below from the tables of HIPIFY 6.x.
"""

from __future__ import annotations

import re

from gfxgraph.port.project import Project, UnreadableError

_FAMILIES = (
    ("cublasLt", "hipblasLt"), ("cublas", "hipblas"), ("CUBLAS_", "HIPBLAS_"), ("cufft", "hipfft"),
    ("CUFFT_", "HIPFFT_"), ("curand", "hiprand"), ("CURAND_", "HIPRAND_"), ("cusparse", "hipsparse"),
    ("CUSPARSE_", "HIPSPARSE_"), ("cusolver", "hipsolver"), ("CUSOLVER_", "HIPSOLVER_"), ("nvrtc", "hiprtc"),
    ("NVRTC_", "HIPRTC_"), ("cuda", "hip"),
)  # fmt: skip
_HEADERS = {"hipblasLt": "hipblaslt/hipblaslt.h", "hipblas": "hipblas/hipblas.h", "hipfft": "hipfft/hipfft.h",
            "hiprand": "hiprand/hiprand.h", "hipsparse": "hipsparse/hipsparse.h",
            "hipsolver": "hipsolver/hipsolver.h", "hiprtc": "hip/hiprtc.h"}  # fmt: skip
_OTHERWISE = {
    "cudaMallocHost": "hipHostMalloc", "cudaHostAlloc": "hipHostMalloc", "cudaFreeHost": "hipHostFree",
    "cudaDeviceProp": "hipDeviceProp_t", "cudaThreadSynchronize": "hipDeviceSynchronize",
    "cudaThreadExit": "hipDeviceReset",
    "cudaDevAttrMaxSharedMemoryPerBlockOptin": "hipDeviceAttributeMaxSharedMemoryPerBlock",
    "cudaDevAttrMultiProcessorCount": "hipDeviceAttributeMultiprocessorCount",
    "cudaDevAttrMaxSharedMemoryPerMultiprocessor": "hipDeviceAttributeMaxSharedMemoryPerMultiprocessor",
    "cudaTextureObject_t": "hipTextureObject_t", "cudaSurfaceObject_t": "hipSurfaceObject_t",
    "cudaErrorCudartUnloading": "hipErrorDeinitialized", "cudaHostAllocDefault": "hipHostMallocDefault",
    "cudaHostAllocMapped": "hipHostMallocMapped", "cudaHostAllocPortable": "hipHostMallocPortable",
    "cudaHostAllocWriteCombined": "hipHostMallocWriteCombined", "cudaArray_t": "hipArray_t",
}  # fmt: skip
_NAME = re.compile(
    r"\b(?:cuda[A-Z]\w{2,60}|cu(?:blas|blasLt|fft|rand|sparse|solver)[A-Z]\w{1,60}|"
    r"CU(?:BLAS|FFT|RAND|SPARSE|SOLVER)_[A-Z]\w{1,60}|nvrtc[A-Z]\w{2,60}|cufft(?:Real|Complex|Handle|DoubleReal|DoubleComplex|Result))\b"
)
_SYMBOLS = re.compile(r"cuda(?:Memcpy(?:To|From)Symbol(?:Async)?|GetSymbol(?:Address|Size))$")


def header(project: Project) -> str:
    """The header's text; "" where no source uses a name that it could map."""
    names: set[str] = set()
    for path in project.paths("cpp"):
        if project.is_translated(path):
            continue
        try:
            names |= set(_NAME.findall(project.read(path)[0]))
        except (OSError, UnreadableError):
            continue
    names -= project.own_names
    lines = [f"#define {name} {target(name)}" for name in sorted(names) if not _SYMBOLS.match(name)]
    for name in sorted(n for n in names if _SYMBOLS.match(n)):
        lines.append(f"#define {name}(symbol, ...) {target(name)}(HIP_SYMBOL(symbol), __VA_ARGS__)")
    if not lines:
        return ""
    text = "\n".join(lines)
    wanted = [place for prefix, place in _HEADERS.items() if re.search(rf" {prefix}[A-Z]", text)]
    includes = "".join(f"#include <{name}>\n" for name in ("hip/hip_runtime.h", *wanted))
    return (
        "// CUDA's names as HIP's, for builds with USE_HIP. Written by gfxgraph port fix; names that HIP lacks\n"
        f"// fail to compile where they are used: that is left to port.\n#pragma once\n{includes}\n{text}\n"
    )


def target(name: str) -> str:
    """HIP's name for one of CUDA's."""
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    if name.startswith("cudaDevAttr"):
        return f"hipDeviceAttribute{name.removeprefix('cudaDevAttr')}"
    for cuda, hip in _FAMILIES:
        if name.startswith(cuda):
            return hip + name.removeprefix(cuda)
    return name
