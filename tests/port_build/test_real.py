"""The project's own build: fifteen everyday ways to build CUDA link for both wavefronts, and what fails is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.port_build.idioms import HOST, IDIOMS, KERNEL
from tests.unit.port.conftest import write

from gfxgraph.cli.port import command
from gfxgraph.port.build.compiler import find_compiler

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
