"""What the widened rules catch, and what they leave alone."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from gfxgraph.cli.port import command
from gfxgraph.port import render
from gfxgraph.port.audit import Audit
from gfxgraph.port.plan import as_markdown, made_of
from gfxgraph.port.project import discover
from tests.unit.port.conftest import Run, write


def lines(report: Audit, rule: str) -> list[int]:
    return sorted({n for f in report.findings if f.rule == rule for n in (f.lines or (f.line,))})


@pytest.mark.parametrize(
    "name",
    ["cuDoubleComplex", "make_cuFloatComplex", "cuCmulf", "CUdeviceptr", "cuOccupancyMaxPotentialBlockSize",
     "CU_STREAM_NON_BLOCKING", "CUDA_ERROR_INVALID_VALUE", "cudaMemcpyAsync", "__nv_bfloat16", "cusparseSpMM"],
)  # fmt: skip
def test_every_family_of_names_is_known(run: Run, name: str) -> None:
    """A name from any family of HIPIFY's tables is reported where no hipify step runs."""
    report = run({"a.cpp": f"void f() {{\n  use({name});\n}}\n"})
    assert lines(report, "GFX201") == [2]


def test_own_names_are_no_names_of_cuda(run: Run) -> None:
    """What the project itself declares as cudaSomething is left alone, also in its other files."""
    files = {
        "own.h": (
            "int cudaNum = 3;\nAllocator& cudaHostAllocator = get();\nT* cudaCalloc(size_t n) { return 0; }\n"
            "#define cudaErrcheck(e) check(e)\n"
        ),
        "use.cpp": "void f() {\n  g(cudaNum, cudaHostAllocator, cudaCalloc(3));\n  cudaErrcheck(1);\n}\n",
    }
    assert not lines(run(files), "GFX201")


def test_declarations_of_cudas_names_do_not_hide_them(run: Run) -> None:
    """A stub, a comment or a typedef of a CUDA name does not make it the project's own."""
    files = {
        "stub.h": (
            "typedef struct CUstream_st* cudaStream_t;\ncudaError_t cudaMalloc(void** p, size_t n);\n"
            "/* the\n   wrapper cudaFree(p) of */\n"
        ),
        "use.cpp": "void f(cudaStream_t s) {\n  cudaMalloc(&p, 3);\n  return cudaFree(p);\n}\n",
    }
    report = run(files)
    assert [f.lines for f in report.findings if f.path == "use.cpp" and f.rule == "GFX201"] == [(1, 2, 3)]


def test_each_use_of_libcudacxx_counts(run: Run) -> None:
    """libcu++ names are reported where they are used, a project's own namespace cuda is not."""
    body = "int a = cuda::std::max(1, 2);\nauto b = cuda::atomic_ref<int>{x};\nauto c = mine::cuda::run();\n"
    report = run({"a.cu": body + "auto d = cg::labeled_partition(w, 1);\nauto e = cg::tiled_partition<4>(b);\n"})
    assert lines(report, "GFX205") == [1, 2, 4]


def test_cmake_that_knows_only_cuda_line_by_line(run: Run) -> None:
    """In a build without HIP every line that names something of CUDA's counts; messages do not."""
    text = (
        "project(x)\n"
        "set(MY_CUDA ON)\n"
        "add_library(k\n  a.cpp\n  b.cu\n  cuda_utils.cpp)\n"
        'message(STATUS "no CUDA here")\n'
        'add_definitions("-D WITH_MY_CUDA")\n'
        "target_link_libraries(k cudart)\n"
    )
    assert lines(run({"CMakeLists.txt": text}), "GFX405") == [2, 5, 6, 8, 9]
    hip = run({"CMakeLists.txt": text + "if(USE_ROCM)\n  enable_language(HIP)\nendif()\n"})
    assert not lines(hip, "GFX405")


def test_makefile_lines(run: Run) -> None:
    """A Makefile's nvcc, .cu sources and CUDA libraries count, what it echoes does not."""
    text = "NVCC ?= nvcc\nSRC := a.cu\nLIBS += -lcudart\nall:\n\t@echo building with CUDA\n\t$(CXX) -c b.cpp\n"
    assert lines(run({"Makefile": text}), "GFX405") == [1, 2, 3]


def test_warp_size_in_other_dress(run: Run) -> None:
    """A warp size bounded by 32, or returned by a function, is a warp size of 32."""
    text = (
        "constexpr int kWarpSize = std::min(kThreads, 32);\nint threads_per_warp() { return 32u; }\n"
        "int size() { return 32; }\n"
    )
    assert lines(run({"w.cuh": text}), "GFX301") == [1, 2]


def test_mask_members_and_narrow_masks(run: Run) -> None:
    """A mask kept in a 32-bit member is one, however it is reached; a 64-bit one is not."""
    text = (
        "struct R {\n  unsigned key_mask;\n  uint64_t wide;\n};\n"
        "__device__ int f(R run, int w) {\n  return __any_sync(run.key_mask, w) + __any_sync(run.wide, w);\n}\n"
    )
    assert len(lines(run({"r.cu": text}), "GFX303")) == 1


def test_long_paths_keep_their_line(run: Run) -> None:
    """A narrow terminal shows path and line in full, and the words below."""
    path = "a_long_folder/with_another_below/and_a_file_of_a_long_name_indeed.cu"
    report = run({path: '__global__ void f() {\n  asm volatile("mov.u32 %0, %laneid;" : "=r"(x));\n}\n'})
    out = io.StringIO()
    render.show(report, Console(file=out, width=60), lang="en", guarded=False, limit=0)
    text = "".join(part.strip() for part in out.getvalue().splitlines())
    assert f"{path}:2" in text


def test_plan_starts_with_one_place_a_rule(run: Run, tmp_path: Path) -> None:
    """The plan names the worst rules of a phase once each, with their counts."""
    asm = '__global__ void f() {\n  asm volatile("mov.u32 %0, %laneid;" : "=r"(x));\n}\n'
    report = run({"k.cu": asm + "#if __CUDA_ARCH__ >= 800\nint a;\n#endif\n", "l.cu": asm})
    text = as_markdown(made_of(report, discover(str(tmp_path / "repo")), "en"), lang="en")
    assert text.count("Inline PTX assembly (2): k.cu:2") == 1


def test_verify_says_what_the_model_does_not_take(tmp_path: Path) -> None:
    """A shape the model refuses is said in a line, with what to do, and status 2."""
    write(tmp_path, {"m.py": "from torch import nn\n\n\ndef build():\n    return nn.Linear(512, 4)\n"})
    pytest.importorskip("torch")
    arguments = ["verify", "record", f"{tmp_path}/m.py:build", "--out", str(tmp_path / "g.pt"), "--device", "cpu"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2 and "4x128x2048" in done.output and "--shape" in done.output


def test_scripts_that_build(run: Run) -> None:
    """A build script's own CUDA libraries count where no other platform is built."""
    text = 'LIBS="tool tool_cuda"\ng++ a.cpp -ltool_cuda\necho built tool_cuda\n'
    assert lines(run({"build.sh": text}), "GFX405") == [1, 2]
    assert not lines(run({"build.sh": text, "hip.sh": "hipcc a.cpp\n"}), "GFX405")


def test_a_lock_counts_once(run: Run) -> None:
    """The NVIDIA wheels of a lock file are one finding; of a requirement list, one each."""
    lock = "".join(f'[[package]]\nname = "nvidia-{n}-cu12"\nversion = "1"\n\n' for n in ("cublas", "cufft", "nccl"))
    report = run({"poetry.lock": lock, "requirements.txt": "nvidia-cublas-cu12\nnvidia-cufft-cu12\n"})
    assert [f.path for f in report.findings if f.rule == "GFX003"].count("poetry.lock") == 1
    assert [f.lines for f in report.findings if f.rule == "GFX003" and f.path == "requirements.txt"] == [(1, 2)]


def test_many_bindings_of_one_name_are_quick(run: Run) -> None:
    """A function that binds one name again and again under its own conditions takes no time to judge."""
    step = '    if key == "a{n}" and flag != key:\n        key = key.replace("a{n}", flag)\n'
    body = "".join(step.replace("{n}", str(n)) for n in range(40))
    text = f'import torch\n\n\ndef f(key, flag):\n{body}    return torch.compile(g, mode="reduce-overhead")\n'
    started = time.process_time()
    assert lines(run({"convert.py": text}, "gfx942"), "GFX601") == [85]
    assert time.process_time() - started < 5
