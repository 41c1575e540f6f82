"""What the tests of the native libraries need of CUDA: a GPU, nvcc, a shared libcudart, and our libraries."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"
Missing = pytest.skip.Exception  # raised where something is not there
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@lru_cache
def device() -> tuple[str, str]:
    """The first GPU's name and what nvcc calls its architecture; skips where there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("needs CUDA's driver, libcuda.so.1")
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), 0):
        pytest.skip("needs an NVIDIA GPU")
    driver.cuDeviceGetName(name, len(name), handle)
    numbers = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        assert driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle) == 0
        numbers.append(str(value.value))
    return name.value.decode(), "sm_" + "".join(numbers)


def nvcc() -> Path:
    """The compiler; skips where there is none."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders = os.pathsep.join(f"{home}/bin" for home in [*homes, "/usr/local/cuda"])
    found = shutil.which("nvcc") or shutil.which("nvcc", path=folders)
    if found is None:
        pytest.skip("needs nvcc")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return Path(found)


def library_folders() -> list[Path]:
    """Where a toolkit and Python's packages of it have their libraries."""
    roots = [path.parent.parent for path in (nvcc(), nvcc().resolve())]
    package = importlib.util.find_spec("nvidia")
    for place in (package.submodule_search_locations if package else None) or []:
        roots += sorted(Path(place).glob("cu*"))
    names = ("lib64", "lib", "targets/x86_64-linux/lib")
    return [root / name for root in roots for name in names if (root / name).is_dir()]


def cudart() -> Path:
    """A shared libcudart; skips where there is none."""
    for folder in library_folders():
        for path in sorted(folder.glob("libcudart.so.1*")):
            return path.resolve()
    pytest.skip(f"needs a shared libcudart; none in {', '.join(map(str, library_folders()))}")


def compile_cuda(source: Path, out: Path, runtime: str, *options: str) -> Path:
    """Compile with the runtime ``shared`` (by its path) or ``static`` (linked in)."""
    chosen = ["-cudart", "static"]
    if runtime == "shared":
        folder, name = cudart().parent, cudart().name
        chosen = ["-cudart", "none", f"-L{folder}", f"-l:{name}", f"-Xlinker=-rpath,{folder}"]
    # Libraries after what needs them: many compilers drop the others.
    command = [
        str(nvcc()),
        "-std=c++17",
        "-O2",
        f"-arch={device()[1]}",
        str(source),
        "-o",
        str(out),
        *options,
        *chosen,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return out


def commit() -> str:
    """Of this checkout; where it was copied without its history, what BENCH_COMMIT says."""
    said = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return said.stdout.strip() or os.environ.get("BENCH_COMMIT", "")


def build_library(name: str, folder: Path) -> Path:
    """``preload`` or ``bridge``, by g++ alone."""
    command = [sys.executable, str(NATIVE / "tools/build_by_hand.py"), name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip())
