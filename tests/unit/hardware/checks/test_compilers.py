"""doctor asks the installed Triton whether it compiles for the GPUs that are here; a stand-in answers."""

from __future__ import annotations

import pytest

from gfxgraph.hardware.checks import ALL, CheckState, Site, compilers, run
from tests.unit.hardware.trees import LAPTOP, build, machine, write

COMPILER = """
class ASTSource:
    def __init__(self, fn, signature, constexprs):
        pass
"""
TRITON = """
import sys
def jit(fn):
    return fn
def compile(source, target):
    if target.arch in ("gfx1030", "gfx1035"):
        sys.stderr.write("kernel.py:7:1: error: unsupported target: " + repr(target.arch) + chr(10))
        raise RuntimeError("PassManager::run failed")
"""
TARGET = "import collections\nGPUTarget = collections.namedtuple('GPUTarget', 'kind arch width')\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A laptop with an AMD GPU, and a Triton 3.9."""
    build(tmp_path, LAPTOP)
    for name, text in {
        "triton/__init__.py": TRITON,
        "triton/language.py": "constexpr = int\n",
        "triton/compiler.py": COMPILER,
        "triton/backends/__init__.py": "",
        "triton/backends/compiler.py": TARGET,
    }.items():
        write(tmp_path, f"/site/{name}", text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setattr(compilers, "distribution_versions", lambda names: {"triton": "3.9.0"})
    return Site(machine(tmp_path), search=[])


def test_a_triton_that_refuses_the_gpu_is_amber(site, monkeypatch):
    """Each architecture that it refuses, with the compiler's own words."""
    monkeypatch.setattr(compilers, "override_for", lambda gpu, machine: "gfx1030")
    (finding,) = run([compilers.triton], site)
    assert (
        finding.state is CheckState.AMBER and "3.9.0" in finding.en and "unsupported target: 'gfx1030'" in finding.en
    )
    assert compilers.triton in ALL


def test_a_triton_that_compiles_is_green(site, monkeypatch):
    """And where there is none, nothing is said and nothing started."""
    monkeypatch.setattr(compilers, "override_for", lambda gpu, machine: "gfx1100")
    (finding,) = run([compilers.triton], site)
    assert finding.state is CheckState.GREEN and "gfx1100" in finding.en
    monkeypatch.setattr(compilers, "distribution_versions", lambda names: {})
    monkeypatch.setattr(compilers.subprocess, "run", None)
    assert run([compilers.triton], site) == []
