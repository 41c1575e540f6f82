"""What is found beyond a rule's own example, and what looks like it but is not reported."""

from __future__ import annotations

import pytest

pytest.importorskip("tree_sitter_cuda", reason="the port extra is not installed: pip install '.[port]'")

from tests.unit.port.conftest import Run, codes


def lines(run: Run, files: dict[str, str], code: str) -> list[int]:
    found = [f for f in run(files).findings if f.code == code]
    return sorted({n for f in found for n in (f.lines or (f.line,))})


def test_plain_names_are_one_finding_a_file(run: Run) -> None:
    """Renames are one finding with every line and a count; JSON has both."""
    text = "#include <cuda_runtime.h>\nvoid f() {\n  cudaMalloc(&p, 3);\n\n  cudaFree(p);\n}\n"
    (found,) = run({"a.cpp": text, "b.cpp": "int x;\n"}).findings
    data = found.as_json()
    assert (data["line"], data["lines"], data["count"]) == (1, [1, 3, 5], 3)


def test_a_build_file_is_one_finding(run: Run) -> None:
    """Packages, sources and commands of CUDA's in one build file are one finding with all of their lines."""
    text = "find_package(CUBLAS)\nset(SRC\n  a.cu\n  b.cu\n  c.cu)\ncuda_add_library(x ${SRC})\n"
    (found,) = run({"CMakeLists.txt": text}).findings
    assert found.code == "cmake-cuda-language" and found.lines == (1, 3, 4, 5, 6)


def test_names_that_hipify_rewrites_are_not_reported(run: Run) -> None:
    """In a torch extension the runtime's names are no findings."""
    setup = "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('m', ['k.cu'])\n"
    kernel = "#include <cub/cub.cuh>\nvoid f() { cudaMalloc(&p, 3);\n  cub::DeviceReduce::Sum(t, n, a, b, 10); }\n"
    assert "untranslated-cuda" not in codes(run({"setup.py": setup, "k.cu": kernel}))
    assert "untranslated-cuda" in codes(run({"k.cu": kernel}))


TILE = (
    "__global__ void t(float* o) {{\n  __shared__ float s[32][33];\n"
    "  int x = threadIdx.x % 32, y = threadIdx.x / 32;\n  {}\n}}\n"
)


def test_lane_arithmetic_needs_lanes_that_exchange(run: Run) -> None:
    """A 32 that cuts a tile is no warp; the same line beside a shuffle is."""
    assert lines(run, {"t.cu": TILE.format("o[y] = s[x][y];")}, "lane-arithmetic") == []
    assert lines(run, {"t.cu": TILE.format("o[y] = __shfl_down(s[x][y], 1);")}, "lane-arithmetic") == [3]


def test_a_projects_own_texture_function_is_not_cudas(run: Run) -> None:
    """A function called tex1D that the project defines is reported nowhere it is called."""
    header = "inline float tex1D(const Lut& l, float x) { return l.at(x); }\n"
    own = {"lut.h": header, "u.cpp": "float y = tex1D(l, 1);\n"}
    assert "texture-surface" not in codes(run(own))
    assert "texture-surface" in codes(run({"u.cu": "__device__ float y = tex1D<float>(t, 1);\n"}))


def test_tails_of_reductions(run: Run) -> None:
    """Both loops of a tail, and the test of a warp's first lanes, beside a fence of the warp."""
    text = (
        "__global__ void k(float* s) {\n  int tid = threadIdx.x;\n"
        "  for (int o = blockDim.x >> 1; o > 32; o >>= 1) { __syncthreads(); }\n"
        "  for (int o = 32; o > 0; o >>= 1) { s[tid] += s[tid + o]; __syncwarp(); }\n"
        "  if (tid < 32) s[tid] = 0;\n  for (int i = 0; i < 32; i++) {}\n}\n"
        "__global__ void plain(float* s) {\n  for (int o = 32; o > 0; o >>= 1) { __syncthreads(); }\n}\n"
    )
    assert lines(run, {"k.cu": text}, "warp-tail") == [3, 4, 5]


def test_the_width_of_warp_collectives(run: Run) -> None:
    """Default widths are reported at storage, call and alias; a named width is not."""
    text = (
        "__shared__ typename cub::WarpReduce<scalar_t>::TempStorage s;\n"
        "float a = cub::WarpReduce<scalar_t>(s).Sum(x);\nusing W = cub::WarpScan<float>;\nW(t).ExclusiveSum(x, y);\n"
        "cub::WarpReduce<float, 32>(s).Sum(x);\n"
    )
    assert lines(run, {"k.cu": text}, "cub-warp-width") == [1, 2, 3, 4]


def test_masks_kept_in_variables(run: Run) -> None:
    """The definition of a mask that a shuffle takes counts, not only the shuffle."""
    text = "__device__ float f(float v) {\n  unsigned m = 0xFFFFFFFFU;\n  return __shfl_xor_sync(m, v, 1);\n}\n"
    assert lines(run, {"k.cu": text}, "sync-mask-32") == [2, 3]


def test_flags_on_every_line(run: Run) -> None:
    """Flags are found on each line of a command, quoted ones without the word nvcc too."""
    text = (
        'string(PREPEND FLAGS "-Xcompiler ")\nset(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS}\n'
        '  -arch=compute_${CC} -code=sm_${CC}\n  -use_fast_math")\nmessage("-Xcompiler is passed on")\n'
    )
    assert lines(run, {"CMakeLists.txt": text}, "nvcc-flags") == [1, 4]
    assert lines(run, {"CMakeLists.txt": text}, "sm-arch-flags") == [3]


def test_the_rest_of_a_cuda_image(run: Run) -> None:
    """What a Dockerfile on NVIDIA's image installs and sets for CUDA is one finding."""
    text = (
        "FROM nvidia/cuda:12.4.1-devel\nRUN apt-get install -y cuda-toolkit-12-4\n"
        "ENV CUDA_HOME=/usr/local/cuda\nRUN ls\n"
    )
    found = [f for f in run({"Dockerfile": text}).findings if f.code == "docker-cuda-base"]
    assert sorted(f.lines or (f.line,) for f in found) == [(1,), (2, 3)]


def test_lock_files_are_one_finding_a_rule(run: Run) -> None:
    """A lock, or a list compiled from another, is made anew as a whole; lists for other platforms are not AMD's."""
    head = "# This file was autogenerated by uv via the following command:\n"
    wheels = "nvidia-cublas-cu12==12.1\nnvidia-nccl-cu12==2.21\n"
    (found,) = run({"requirements.txt": head + wheels}).findings
    assert found.severity.label == "low"
    assert not run({"requirements-cpu.txt": wheels, "requirements-no-gpu.txt": wheels}).findings


def test_one_line_is_said_once(run: Run) -> None:
    """What a specific rule says of a line, a broad one does not say again."""
    flags = "LDFLAGS += -L/usr/local/cuda/lib64 -lcudart\n"
    report = run({"Makefile": flags, "k.cpp": "int f = cudaArrayLayered;\n"})
    assert sorted(codes(report)) == ["cmake-cuda-language", "texture-surface"]


def test_modules_that_need_cuda_are_nvidias(run: Run) -> None:
    """In a module that imports CUTLASS only the import is a finding."""
    text = "import cutlass\nimport torch\n\nok = torch.cuda.get_device_capability() >= (9, 0)\n"
    assert codes(run({"a.py": text})) == ["cutlass"]


def test_prose_is_not_code(run: Run) -> None:
    """Here-documents, messages and help say what they like; a document that a shell reads is code."""
    body = "The build calls nvcc, and -lcudart is linked: CUDA_HOME=/usr/local/cuda.\n"
    files = {
        "build.sh": f"cat > README <<EOF\n{body}EOF\necho set CUDA_HOME and run nvcc\necho nvcc >&2\n",
        "CMakeLists.txt": 'message(FATAL_ERROR\n  "nvcc of CUDA::cudart in /usr/local/cuda")\n',
        "a.cpp": 'void f() { log("cub::DeviceReduce and thrust::cuda"); }\n#error "needs cuda::std::optional"\n',
        "m.py": 'raise RuntimeError("set CUDA_HOME to /usr/local/cuda, -arch=sm_80")\nprint("--use_fast_math")\n',
    }
    assert run(files).findings == []
    assert run({"build.sh": f"bash <<EOF\nnvcc -c a.cu\nEOF\n{files['build.sh']}"}).findings
    assert run({"build.sh": "echo export CUDA_HOME=/usr/local/cuda >> ~/.bashrc\n"}).findings


def test_where_the_hip_way_stands_nothing_is_found(run: Run) -> None:
    """A condition that names ROCm's library or HIP beside CUDA, in itself or in another arm, is answered."""
    answered = ("#if HAVE_ROCSPARSE || HAVE_CUDA", "#ifdef USE_CUDA\n#elif defined(WITH_HIPBLAS)")
    for condition in answered:
        assert run({"a.cpp": f"{condition}\nint a;\n#endif\n"}).findings == []
    assert codes(run({"a.cpp": "#if HAVE_CUDA\nint a;\n#endif\n"})) == ["with-cuda-dispatch"]


def test_one_place_is_one_finding(run: Run) -> None:
    """Of several rules on a line the one that does most harm speaks."""
    text = "__global__ void k(int* o) {\n  unsigned m = __ballot_sync(0xffffffff, o[0]); o[1] = m;\n}\n"
    assert len({f.line for f in run({"k.cu": text}).findings}) == len(run({"k.cu": text}).findings)


def test_random_state_read_in_a_capture(run: Run) -> None:
    """Reading the generator's state inside a capture is a host read."""
    text = (
        "import gfxgraph\nimport torch\n\ng = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g):\n"
        "    s = torch.cuda.get_rng_state()\n"
    )
    assert lines(run, {"a.py": text}, "sync-in-capture") == [6]
