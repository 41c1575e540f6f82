"""The project's own build: the everyday ways to build CUDA link for both wavefronts, and what fails is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.port_build.idioms import HOST, IDIOMS, KERNEL
from tests.unit.gfxgraph_port.conftest import write

from gfxgraph.cli.port import command
from gfxgraph_port.build.compiler import find_compiler

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="neither hipcc nor clang++ with HIP is on the PATH"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on the PATH"),
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not on the PATH"),
]


def build(root: Path, *more: str) -> tuple[int, dict[str, object]]:
    done = CliRunner().invoke(command, ["build", str(root), "--json", "--real", *more])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_links_after_fix_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`port fix`, no edit by hand, and the build makes a program with device code for gfx1030 and gfx942."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    write(tmp_path / "r", IDIOMS[name])
    fixed = CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--apply"])
    assert fixed.exit_code == 0, fixed.output
    status, data = build(tmp_path / "r")
    real = data["real"]
    assert isinstance(real, dict)
    assert (status, real["links"], real["units_not_built"]) == (0, True, []), json.dumps(data, indent=1)
    assert "a" in real["made"] and not (tmp_path / "r/a").exists()


def test_what_does_not_link_or_is_not_built_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing symbol with its unit; a build that leaves the GPU out is no success."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    cmake = "cmake_minimum_required(VERSION 3.18)\nproject(x LANGUAGES CXX CUDA)\nadd_executable(a a.cu b.cpp)\n"
    write(tmp_path / "r", {"CMakeLists.txt": cmake, "a.cu": KERNEL, "b.cpp": HOST.replace("go(", "went(")})
    CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--apply"])
    status, data = build(tmp_path / "r")
    found = [(f["kind"], f["units"]) for f in data["findings"] if f["kind"] != "unchecked"]  # type: ignore[attr-defined]
    assert status == 1 and found == [("does not link", ["b.cpp"])], data
    (tmp_path / "r/CMakeLists.txt").write_text(
        (tmp_path / "r/CMakeLists.txt").read_text().replace("a.cu b.cpp", "empty.cpp")
    )
    (tmp_path / "r/empty.cpp").write_text("int main() { return 0; }\n")
    status, data = build(tmp_path / "r")
    assert status == 1 and data["findings"][0]["kind"] == "not built", data  # type: ignore[index]


def test_what_no_build_names_is_built_by_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that the makefile beside it does not know, and one without a build, with what stands beside it."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    write(tmp_path / "r", {"b.cpp": HOST, "a.cu": KERNEL, "Makefile": "all:\n\techo no GPU\n"})
    for _ in ("Makefile", ""):
        CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--apply"])
        status, data = build(tmp_path / "r")
        assert (status, data["real"]["made"]) == (0, ["b"]), json.dumps(data, indent=1)  # type: ignore[index]
        (tmp_path / "r/Makefile").unlink(missing_ok=True)


MESON = """project('x', 'cpp', 'cuda', default_options: ['cpp_std=c++17'])
executable('a', 'a.cu', 'b.cpp', dependencies: dependency('cuda', modules: ['cublas']))
"""
SETUP = """from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(name="x", ext_modules=[CUDAExtension("a", ["a.cu"])], cmdclass={"build_ext": BuildExtension})
"""
EXTENSION = """#include <cuda_runtime.h>
__global__ void k(float* x) { x[threadIdx.x] = __shfl_sync(0xffffffff, x[threadIdx.x], 0); }
extern "C" void* PyInit_a() { k<<<1, 64>>>(nullptr); return nullptr; }
"""


OWN = """import subprocess
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
class CUDAExtension(Extension):
    pass
class Build(build_ext):
    def build_extension(self, ext):
        flags = ["-arch=sm_80", "-Xcompiler", "-fPIC", "--expt-relaxed-constexpr"]
        subprocess.check_call(["nvcc", *flags, "-c", "a.cu", "-o", "a.o"])
        ext.sources, ext.extra_objects = ["b.cpp"], ["a.o"]
        super().build_extension(ext)
cuda = CUDAExtension("a", ["a.cu"], libraries=["cudart"], library_dirs=["/usr/local/cuda/lib64"])
setup(name="x", ext_modules=[cuda], cmdclass={"build_ext": Build})
"""


def test_a_setup_that_calls_nvcc_itself_is_no_torch_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class may have the name of torch's; the compiler, the headers and the libraries are the folder's."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    write(
        tmp_path / "r",
        {"setup.py": OWN, "a.cu": KERNEL, "b.cpp": f'{HOST}extern "C" void* PyInit_a() {{ return 0; }}'},
    )
    CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--apply"])
    status, data = build(tmp_path / "r")
    assert status == 0 and not any(f["kind"].startswith("a rule") for f in data["findings"]), json.dumps(
        data, indent=1
    )  # type: ignore[attr-defined]


@pytest.mark.skipif(shutil.which("meson") is None, reason="meson is not on the PATH")
def test_a_meson_project_finds_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compiler check, its CUDA dependency and its link options are answered; what it refuses is a finding."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    write(tmp_path / "r", {"meson.build": MESON, "a.cu": KERNEL, "b.cpp": HOST})
    CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--apply"])
    status, data = build(tmp_path / "r")
    real = data["real"]
    assert isinstance(real, dict)
    assert status == 0 and real["links"] and "a" in real["made"], json.dumps(data, indent=1)
    (tmp_path / "r/meson.build").write_text(f"{MESON}dependency('no_such_thing')\n")
    status, data = build(tmp_path / "r")
    found = [(f["kind"], f["path"], f["line"]) for f in data["findings"]]  # type: ignore[attr-defined]
    assert status == 1 and ("does not configure", "meson.build", 3) in found, data


def test_a_torch_extension_is_built_by_its_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own build, also with a torch that is no ROCm build; what it says stands at the source, not a copy."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    write(tmp_path / "r", {"setup.py": SETUP, "a.cu": EXTENSION})
    CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--apply"])
    status, data = build(tmp_path / "r")
    real = data["real"]
    assert isinstance(real, dict)
    assert status == 0 and real["links"] and any(m.endswith(".so") for m in real["made"]), json.dumps(data, indent=1)
    (tmp_path / "r/a.cu").write_text(EXTENSION.replace("nullptr);", "nullptr) cudaFree(0);"))
    status, data = build(tmp_path / "r")
    found = [(f["kind"], f["path"], f["line"]) for f in data["findings"] if f["sides"]]  # type: ignore[attr-defined]
    assert status == 1 and ("does not compile", "a.cu", 3) in found, data
