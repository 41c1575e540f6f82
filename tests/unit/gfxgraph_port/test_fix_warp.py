"""A CUDA warp is 32 lanes in the stand-in toolkit: its own text, run on wavefronts of 32 and 64 lanes on the CPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="hipify's tables come with torch")

from gfxgraph_port import hipify
from gfxgraph_port.fix import compat

WARP = Path(__file__).parents[2] / "port_build" / "warp"
MEASURED = WARP / "values_nvidia.txt"  # what values.sh printed there
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH")


def stand_in(folder: Path) -> Path:
    """The headers that `port fix` writes for the kernels, in a folder."""
    text = "".join((WARP / n).read_text() for n in ("kernels.cu", "main.cu", "functions.cu", "emulated/main.cpp"))
    words = set(hipify.WORD.findall(text))
    words |= {f"{word}{end}" for word in words if word.startswith("__v") for end in "2 4 s2 u2 s4 u4".split()}
    made = compat.headers(words, ["cooperative_groups.h", "cuda/barrier", "cuda_runtime.h"], hipify.load())
    for name, body in made.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(body)
    return folder


def run(folder: Path, *more: str, program: str = "emulated/main.cpp") -> list[list[str]]:
    """The emulated program's rows."""
    command = ["g++", "-std=c++17", "-O0", "-fno-omit-frame-pointer", "-w", f"-I{WARP}/emulated", f"-I{folder}"]
    binary = folder / "program"
    subprocess.run(
        [*command, *more, "-include", "cuda_to_hip.h", "-x", "c++", str(WARP / program), "-o", str(binary)],
        check=True, timeout=300,
    )  # fmt: skip
    said = subprocess.run([binary], check=True, timeout=300, capture_output=True, text=True).stdout
    return [line.split() for line in said.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in(tmp_path_factory.mktemp("stand_in"))


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[list[str]]:
    """Of the kernels, compiled once."""
    return run(folder)


def test_twenty_kernels_get_cudas_values_on_both_wavefronts(folder: Path, rows: list[list[str]]) -> None:
    """Blocks of 32, 64, 96 and 1,024 threads; the host is told 32 too; the device's width only on request."""
    assert len({row[0] for row in rows[:-1]}) == 20 and len(rows) == 20 * 2 * 4 + 1
    assert [row for row in rows[:-1] if row[3] != "0"] == []
    assert rows[-1] == ["host", "32", "32", "32"]
    native = run(folder, "-DGFXGRAPH_NATIVE_WARP")
    wrong = {row[0] for row in native[:-1] if row[1] == "64" and row[3] != "0"}
    assert {"broadcast_first", "any_all", "sum_of_warp_size"} <= wrong and native[-1] == ["host", "64", "64", "64"]


@pytest.mark.skipif(not MEASURED.is_file(), reason="values.sh has not run on an NVIDIA GPU")
def test_values_are_those_of_an_nvidia_gpu(folder: Path, rows: list[list[str]]) -> None:
    """Every thread of every kernel, and lanes of 8 and 16 bits and dot products on edges and drawn values."""
    measured = {tuple(row.split()) for row in MEASURED.read_text().splitlines() if not row.startswith("barrier")}
    kernels = {(row[0], *row[2:]) for row in rows[:-1]}
    functions = {tuple(row) for row in run(folder, program="functions.cu")}
    assert kernels | functions == measured


def test_libraries_see_their_own_names(tmp_path: Path) -> None:
    """HIP's libraries call `__ballot` and `__shfl` themselves: a name redefined for CUDA is hidden from them."""
    words = ["__shfl", "__ballot", "cudaFree"]
    made = compat.headers(words, ["thrust/sort.h", "cub/cub.cuh", "curand_kernel.h"], hipify.load())
    for name in ("thrust/sort.h", "curand_kernel.h", "cub_to_hip.h"):
        text = made[name]
        off, on = text.index("cuda_names_off.h"), text.index("cuda_names_on.h")
        assert off < text.index("<", off) < on
    assert "#include_next <thrust/sort.h>" in made["thrust/sort.h"]
    for name in ("__shfl", "__ballot"):
        assert f'push_macro("{name}")\n#undef {name}\n' in made["cuda_names_off.h"]
        assert f'pop_macro("{name}")' in made["cuda_names_on.h"]
    assert "cudaFree" not in made["cuda_names_off.h"]
