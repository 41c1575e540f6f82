"""A small repository through the real compiler: what compiles before, after hipify and after the loop."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gfxgraph.cli.port import command
from gfxgraph_port import hipify
from gfxgraph_port.build.compiler import find_compiler
from gfxgraph_port.fix import compat

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="neither hipcc nor clang++ with HIP is on the PATH")

FILES = {
    "include/warp.cuh": """#pragma once
#ifdef __CUDACC__
#define BOTH __host__ __device__
#else
#define BOTH
#endif
template <class T> struct add { BOTH T operator()(T a, T b) const { return a + b; } };
""",
    "src/sum.cu": """#include <warp.cuh>
#include <cuda_runtime.h>
template <class R> __global__ void sum(float* x, R r) {
  x[threadIdx.x] = r(x[threadIdx.x], __shfl_down_sync(0xffffffff, x[threadIdx.x], 16));
  __syncwarp();
}
void run(float* x) { cudaMemset(x, 0, 128); sum<<<1, 32>>>(x, add<float>()); }
""",
    "src/traits.cu": """#include <cuda_fp16.h>
template <class Traits> __global__ void k(void* p) { auto* q = reinterpret_cast<Traits::Storage*>(p); (void)q; }
struct One { using Storage = __half; };
void launch(void* p) { k<One><<<1, 1>>>(p); }
""",
    "src/symbols.cu": """#include <cuda_runtime.h>
#include <math_constants.h>
__constant__ float table[4];
template <class A, class B> __global__ void k(A* a, B*) { *a = CUDART_INF_F; }
void f(float* h) {
  cudaFuncAttributes found;
  (void)cudaMemcpyToSymbol(table, h, 16);
  (void)cudaMemcpyFromSymbol(h, table, 16);
  (void)cudaFuncSetAttribute(k<float, int>, cudaFuncAttributeMaxDynamicSharedMemorySize, 4);
  (void)cudaFuncGetAttributes(&found, k<float, int>);
}
""",
    "src/lanes.cu": """#include <cuda_runtime.h>
__global__ void k(unsigned* x, int* y, float* z) {
  unsigned all = 0xffffffff, voted = __ballot_sync(all, x[0] > 1);
  x[0] = __vsubss4(__vaddus2(x[0], x[1]), __vcmpgtu4(x[2], x[3])) + __reduce_add_sync(all, x[4]) + voted;
  y[0] = __dp4a(y[0], y[1], y[2]) + __match_any_sync(all, y[3]) + __all_sync(all, y[4]) + __any_sync(all, y[5]);
  z[0] = __shfl_xor_sync(all, __ldcg(z), 16, 32);
  __stcs(z + 1, 1.0f);
  atomicAdd_block(y, 1);
  if (__activemask() == 0) __trap();
}
void lanes(unsigned* x, int* y, float* z) { k<<<1, 32>>>(x, y, z); }
""",
    "CMakeLists.txt": "project(demo LANGUAGES CXX CUDA)\nadd_library(demo src/sum.cu src/traits.cu)\n",
}


def write(root: Path) -> None:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_repository_gets_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of four units compiles before, hipify alone gives one, the loop all, on wave 32 and wave 64."""
    hipify.load()
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    write(tmp_path / "r")
    done = CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--loop", "--apply", "--json"])
    units = json.loads(done.stdout)["units"]
    assert [units[k]["compile"] for k in ("before", "hipify", "after")] == [0, 1, 4], done.output
    built = CliRunner().invoke(command, ["build", str(tmp_path / "r"), "--json"])
    data = json.loads(built.stdout)
    assert built.exit_code == 0 and data["targets"] == ["gfx1030", "gfx942"]
    assert [(f["kind"], f["path"], f["line"]) for f in data["findings"]] == [("unchecked", "src/sum.cu", 7)]


def test_the_warp_kernels_compile_for_both_wavefronts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty kernels that think in 32 lanes, unchanged; tests/unit/gfxgraph_port runs their lanes on the CPU."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    warp = Path(__file__).parent / "warp"
    write_files = {name: (warp / name).read_text() for name in ("main.cu", "kernels.cu", "reference.h")}
    build = "main: main.cu\n\tnvcc -std=c++17 -o $@ main.cu\n"
    for name, text in {**write_files, "Makefile": build}.items():
        (tmp_path / "r").mkdir(exist_ok=True)
        (tmp_path / "r" / name).write_text(text)
    assert CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--apply"]).exit_code == 0
    built = CliRunner().invoke(command, ["build", str(tmp_path / "r"), "--json", "--real"])
    data = json.loads(built.stdout)
    assert built.exit_code == 0 and data["real"]["made"] == ["main"] and data["compile"] == data["units"], (
        built.stdout
    )


def test_cublas_calls_arrive_at_hipblas(tmp_path: Path) -> None:
    """Through the stand-in, with functions in hipBLAS's place that say what they were given; no GPU computes."""
    blas = Path(__file__).parent / "blas"
    words = hipify.WORD.findall((blas / "use.cpp").read_text())
    for name, text in compat.headers(words, ["cublas_v2.h", "cuda_fp16.h"], hipify.load()).items():
        (tmp_path / name).write_text(text)
    compiler = find_compiler()
    assert compiler is not None
    command = [
        compiler.command[0],
        "--offload-arch=gfx1030",
        "-std=c++17",
        "-w",
        "-D__HIP_PLATFORM_AMD__",
        f"-I{tmp_path}",
    ]
    sources = [str(blas / "use.cpp"), str(blas / "hipblas.cpp")]
    subprocess.run([*command, *sources, "-o", str(tmp_path / "use")], check=True, timeout=300)
    said = subprocess.run([tmp_path / "use"], capture_output=True, text=True, check=True, timeout=60).stdout
    f16, f32, f64, bf16, i8, i32 = 2, 0, 1, 14, 3, 10  # hipDataType, as CUDA numbers them
    as16, as32, as64, asi = 0, 2, 7, 9  # hipblasComputeType_t
    assert said.splitlines() == [
        f"one 01 345 {f16}.3 {f16}.4 {f32}.6 {as32}",
        f"one 10 345 {i8}.5 {i8}.5 {i32}.3 {asi}",
        f"one 00 345 {f64}.3 {f64}.5 {f64}.3 {as64}",
        f"many 7 {f16}.3 {f16}.5 {f16}.3 {as16}",
        f"strided 7 {bf16}.3.15 {bf16}.5.20 {bf16}.3.12 {as32}",
        "half 1 3 5 3",
    ]
