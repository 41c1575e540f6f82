"""Suggested edits: what each writes, its precondition, and what it leaves to a person."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gfxgraph.cli.port import command
from gfxgraph_port.fix import gate, run
from gfxgraph_port.model import Fix
from gfxgraph_port.project import ANSWERED_BY_HOME
from gfxgraph_port.registry import load
from tests.unit.gfxgraph_port.conftest import write

GATE = "import torch\n\ncap = torch.cuda.get_device_capability()\n"


def fixed(root: Path, files: dict[str, str]) -> dict[str, run.FileFix]:
    write(root, files)
    return {f.path: f for f in run.fix(str(root), unsafe=True)}


def only(root: Path, name: str, text: str) -> run.FileFix:
    return fixed(root, {name: text, "demo.cu": "__global__ void k() {}\n"})[name]


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("assert cap >= (8, 0)", "assert (torch.version.hip is not None or cap >= (8, 0))"),
        ("assert cap >= (9, 0)", "assert (torch.version.hip is not None or cap >= (9, 0))"),
        ("if not cap >= (8, 0):\n    raise ValueError", "if not (torch.version.hip is not None or cap >= (8, 0)):"),
        ("if cap < (8, 0):\n    raise ValueError", "if (torch.version.hip is None and cap < (8, 0)):"),
        ("tma = cap >= (9, 0)", "tma = (torch.version.hip is None and cap >= (9, 0))"),
        ("bf16 = cap >= (8, 0)", ""),
    ],
)
def test_capability_gates_never_shut_amd_out(tmp_path: Path, line: str, becomes: str) -> None:
    """A demand stays met on AMD, Hopper's features stay NVIDIA's, and what AMD has too is a decision."""
    made = only(tmp_path, "m.py", f"{GATE}{line}\n")
    if becomes:
        assert becomes in made.new
        for hip in (None, "6.4"):  # what runs: on AMD the program passes, on NVIDIA it is as it was
            scope = {"torch": _Torch(hip), "ValueError": _StoppedError}
            code = made.new.replace("import torch\n", "")
            if hip:
                exec(compile(code, "m.py", "exec"), scope)  # noqa: S102
    else:
        assert made.new == made.old and "decision" in made.refused[0].reason


class _StoppedError(Exception):
    pass


class _Torch:
    """torch on an AMD GPU that answers (9, 4), or none."""

    class cuda:  # noqa: N801
        @staticmethod
        def get_device_capability() -> tuple[int, int]:
            return (9, 4)

    def __init__(self, hip: str | None) -> None:
        self.version = type("version", (), {"hip": hip, "cuda": None if hip else "12.4"})


PTX = '__global__ void k(int* o) { asm("trap;"); }\n'


SETUP = """from setuptools import setup
from torch.utils.cpp_extension import CUDAExtension

flags = ["-O3", "--use_fast_math"]
flags.extend(["-gencode=arch=compute_80,code=sm_80", "-DX"])
"""


def test_flags_are_chosen_by_platform(tmp_path: Path) -> None:
    """Flags with a name of clang's are renamed, lists of architectures are left to torch, torch is imported."""
    made = only(tmp_path, "setup.py", SETUP)
    assert "import torch\nfrom torch.utils" in made.new
    assert '["-O3", ("-ffast-math" if torch.version.hip else "--use_fast_math")]' in made.new
    assert 'extend((["-DX"] if torch.version.hip else ["-gencode' in made.new


def test_guards_of_cpp(tmp_path: Path) -> None:
    """Conditions gain HIP's name; a version stays a decision."""
    files = {
        "a.cuh": "#ifdef __CUDA_ARCH__\nint d;\n#endif\n#if __CUDA_ARCH__ < 700\nint e;\n#endif\n",
        "b.cpp": "#ifndef __CUDACC__\nint run();\n#endif\n",
    }
    made = fixed(tmp_path, files)
    assert "#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)" in made["a.cuh"].new
    assert "#if __CUDA_ARCH__ < 700" in made["a.cuh"].new and made["a.cuh"].refused
    assert made["b.cpp"].new.startswith("#if !defined(__CUDACC__) && !defined(__HIPCC__)\n")


CMAKE = """cmake_minimum_required(VERSION 3.18)
project(demo LANGUAGES CXX CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_FLAGS "-Xptxas -v")
add_library(demo demo.cu)
target_link_libraries(demo PRIVATE CUDA::cublas fmt)
"""


def test_cmake_gets_an_option(tmp_path: Path) -> None:
    """Every CUDA command keeps its text under NOT USE_HIP; HIP's stand beside; off, nothing changes."""
    made = only(tmp_path, "CMakeLists.txt", CMAKE)
    assert gate.check("CMakeLists.txt", CMAKE, made.new).passes
    assert made.new.count("option(USE_HIP") == 1
    for text in ("  project(demo LANGUAGES CXX HIP)", "hip_compat/hip.cmake"):
        assert text in made.new


def test_the_folder_that_stands_in_for_the_toolkit(tmp_path: Path) -> None:
    """It has each header that sources include and the names they use, and no source changes."""
    source = "#include <cuda_runtime.h>\n#include <cub/cub.cuh>\n"
    source += "void f() { cudaMallocHost(&p, 3); cudaMemcpyToSymbol(s, p, 3); }\n"
    make = "NVCC = /usr/local/cuda/bin/nvcc\nCUDA = /usr/local/cuda\n"
    files = {"src/a.cpp": source, "CMakeLists.txt": CMAKE, "Makefile": make}
    made = fixed(tmp_path, files)
    header = made["hip_compat/include/cuda_to_hip.h"].new
    assert "#define cudaMallocHost hipHostMalloc\n" in header and "cudaFree" not in header
    assert "#define cudaMemcpyToSymbol hipMemcpyToSymbol\n" in header
    assert '#include "cuda_to_hip.h"' in made["hip_compat/include/cuda_runtime.h"].new
    assert '#include "../cub_to_hip.h"' in made["hip_compat/include/cub/cub.cuh"].new
    assert "src/a.cpp" not in made
    assert "ifdef USE_HIP\nNVCC := $(CURDIR)/hip_compat/bin/nvcc\nendif" in made["Makefile"].new
    assert "CUDA := $(CURDIR)/hip_compat\n" in made["Makefile"].new
    run.write_all(str(tmp_path), list(made.values()))
    assert os.access(tmp_path / "hip_compat/bin/nvcc", os.X_OK)
    assert not [f for f in run.fix(str(tmp_path)) if f.new != f.old]


def test_nvcc_of_the_folder_speaks_hipcc(tmp_path: Path) -> None:
    """Options that hipcc refuses are dropped or translated; sources are HIP; the rest passes."""
    fake = tmp_path / "hipcc"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    script = Path(run.__file__).parent / "toolkit" / "nvcc"
    given = "-gencode arch=compute_70,code=sm_70 -Xcompiler -fPIC,-O2 --use_fast_math -arch=sm_80 -c".split()
    given += ["a b.cu", *"-o x.o -ccbin g++ -x cu -lcublas --expt-relaxed-constexpr".split()]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HIP_ARCHITECTURES": "gfx1030,gfx942"}
    done = subprocess.run(["sh", script, *given], env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.split("\n")
    assert words[:2] == ["--offload-arch=gfx1030", "--offload-arch=gfx942"]
    rest = words[words.index("-include") + 2 :]
    assert " ".join(rest[:14]) == "-fPIC -O2 -ffast-math -c -x hip a b.cu -x none -o x.o -x hip -L"
    assert words[-2] == "-lcublas"


def test_suggested_means_that_a_diff_can_be_had() -> None:
    """A rule says that its fix is suggested only where something proposes one."""
    for loaded in load():
        if loaded.rule.fix is Fix.SUGGEST:
            assert loaded.edits or loaded.rule.code in ANSWERED_BY_HOME, loaded.rule.code


def test_fix_says_what_it_refuses(tmp_path: Path) -> None:
    """Every edit that was not made is named with its reason, every precondition with its rule."""
    files = {"k.cu": PTX, "m.py": f"{GATE}bf16 = cap >= (8, 0)\n", "CMakeLists.txt": CMAKE}
    write(tmp_path, files)
    output = (
        CliRunner().invoke(command, ["fix", str(tmp_path), "--unsafe", "--output", str(tmp_path / "p.patch")]).output
    )
    assert re.search(r"check build \(1\): CMake 3.21", output)
    assert re.search(r"refused m.py:\d+ GFX101: .*a decision", output)
    assert re.search(r"refused k.cu:\d+ GFX202: PTX that no function of the stand-in", output)


def test_lanes_and_their_masks_come_from_the_toolkit(tmp_path: Path) -> None:
    """A lane's number and masks are read by the toolkit's functions on AMD; other PTX and a value of nvcc's stay."""
    text = (
        "__device__ unsigned f() {\n  unsigned x;\n"
        '  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(x));\n  return x;\n}\n'
        "#ifdef __CUDA_ARCH__\nint a = __CUDA_ARCH__;\n#endif\n"
    )
    made = only(tmp_path, "k.cu", text + PTX)
    assert "#if defined(__HIP_PLATFORM_AMD__)\n  x = cuda_lanemask_lt();\n#else\n  asm volatile" in made.new
    assert gate.check("k.cu", made.old, made.new).passes and "__HIP_DEVICE_COMPILE__" not in made.new
    assert {r.reason.partition(":")[0] for r in made.refused} == {
        "PTX that no function of the stand-in toolkit replaces", "its value is used",
    }  # fmt: skip


LOADS = """__device__ uint4 load(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ void stores(float* p, float v) {
  asm volatile("st.global.cs.f32 [%0], %1;" :: "l"(p + 1), "f"(v) : "memory");
  asm volatile("st.global.release.gpu.f32 [%0], %1;" :: "l"(p), "f"(v) : "memory");
}
"""


def test_loads_and_stores_in_ptx_become_cpp_for_amd(tmp_path: Path) -> None:
    """Hints to a cache have no meaning of their own; an order of memory has, and is a person's."""
    write(tmp_path, {"k.cu": LOADS, "CMakeLists.txt": "\ufeffproject(x LANGUAGES CXX CUDA)\n"})
    done = CliRunner().invoke(command, ["fix", str(tmp_path), "--apply"])
    text = (tmp_path / "k.cu").read_text()
    assert text.count("#if defined(__HIP_PLATFORM_AMD__)") == 2 and text.count("asm volatile") == 3
    assert "v.x = cuda_at[0]; v.y = cuda_at[1]; v.z = cuda_at[2]; v.w = cuda_at[3];" in text
    assert "{ auto cuda_at = (float*)(p + 1); cuda_at[0] = v; }" in text
    assert "k.cu:9" in done.output and "st.global.release" in text
    cmake = (tmp_path / "CMakeLists.txt").read_text()  # a byte order mark stays, and the build is edited
    assert cmake.startswith("\ufeff") and "USE_HIP" in cmake


def test_old_launches_and_probes_of_builds_have_names(tmp_path: Path) -> None:
    """cuParamSetv is written, for who uses it; what a build's own test programs name is there, whoever uses it."""
    made = {"a.cpp": "#include <cuda.h>\nvoid f(CUfunction k) { cuLaunchGrid(k, 1, 1); }\n"}
    made |= {"configure.ac": "AC_TRY_LINK([], [cudaDriverGetVersion(0)])\n", "Makefile": "all:\n\tnvcc a.cpp\n"}
    write(tmp_path, made)
    assert CliRunner().invoke(command, ["fix", str(tmp_path), "--apply"]).exit_code == 0
    main = (tmp_path / "hip_compat/include/cuda_to_hip.h").read_text()
    assert '#include "cuda_launch.h"' in main and "cuLaunchGrid hip" not in main
    assert "#define cudaDeviceProp hipDeviceProp_t" in main and "#define cudaDriverGetVersion " in main
    write(tmp_path / "r", {"a.cu": "__global__ void k() {}\n", "Makefile": "all:\n\tnvcc a.cu\n"})
    assert CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--apply"]).exit_code == 0
    assert not (tmp_path / "r/hip_compat/include/cuda_launch.h").exists()
