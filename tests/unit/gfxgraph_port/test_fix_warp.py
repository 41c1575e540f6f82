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
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH")


def stand_in(folder: Path) -> Path:
    """The headers that `port fix` writes for the kernels, in a folder."""
    text = "".join((WARP / name).read_text() for name in ("kernels.cu", "main.cu", "emulated/main.cpp"))
    made = compat.headers(hipify.WORD.findall(text), ["cooperative_groups.h", "cuda_runtime.h"], hipify.load())
    for name, body in made.items():
        (folder / name).write_text(body)
    return folder


def run(folder: Path, *more: str) -> list[list[str]]:
    """The emulated program's rows."""
    command = ["g++", "-std=c++17", "-O0", "-fno-omit-frame-pointer", "-w", f"-I{WARP}/emulated", f"-I{folder}"]
    binary = folder / "program"
    subprocess.run(
        [*command, *more, "-include", "cuda_to_hip.h", str(WARP / "emulated/main.cpp"), "-o", str(binary)],
        check=True, timeout=300,
    )  # fmt: skip
    said = subprocess.run([binary], check=True, timeout=300, capture_output=True, text=True).stdout
    return [line.split() for line in said.splitlines()]


def test_twenty_kernels_get_cudas_values_on_both_wavefronts(tmp_path: Path) -> None:
    """Blocks of 32, 64, 96 and 1,024 threads; the host is told 32 too; the device's width only on request."""
    rows = run(stand_in(tmp_path))
    assert len({row[0] for row in rows[:-1]}) == 20 and len(rows) == 20 * 2 * 4 + 1
    assert [row for row in rows[:-1] if row[-1] != "0"] == []
    assert rows[-1] == ["host", "32", "32", "32"]
    native = run(tmp_path, "-DGFXGRAPH_NATIVE_WARP")
    wrong = {row[0] for row in native[:-1] if row[1] == "64" and row[-1] != "0"}
    assert {"broadcast_first", "any_all", "sum_of_warp_size"} <= wrong and native[-1] == ["host", "64", "64", "64"]


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
