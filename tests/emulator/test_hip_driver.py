"""The driver room's HIP half against AMD's own libamdhip64, on AMD's emulator (rocjitsu).

Each scenario is a process of its own, since a wrong step there is a crash and not an exception.
Skipped where ``rocjitsu`` is not on the PATH or has no description of a gfx1030. What this can show
and what it cannot: faults, timing and concurrency are the emulator's own, not AMD hardware's.

GFXGRAPH_EMULATOR_ARCH     of the emulated GPU, gfx1030 by default
GFXGRAPH_EMULATOR_CONFIG   description of the GPU, instead of the installed one of that architecture
GFXGRAPH_EMULATOR_RESULTS  folder for the result files (results.py)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import results

from gfxgraph.selftest.native import scenarios

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
ARCH = os.environ.get("GFXGRAPH_EMULATOR_ARCH", "gfx1030")
TIMEOUT_S = 240
ONE_JOB = str(HERE / "one_job.py")
ATTEMPTS = 2


pytestmark = [pytest.mark.emulator, pytest.mark.timeout(TIMEOUT_S + 30)]

_outcomes: dict[str, Any] = {}


@pytest.fixture(scope="session")
def emulator() -> list[str]:
    """The command that runs what follows it on an emulated gfx1030."""
    rocjitsu = shutil.which("rocjitsu")
    if rocjitsu is None:
        pytest.skip("needs AMD's emulator: rocjitsu is not on the PATH")
    config = os.environ.get("GFXGRAPH_EMULATOR_CONFIG")
    if not config:
        shared = Path(rocjitsu).resolve().parent.parent / "share" / "rocjitsu" / "configs"
        found = sorted(shared.glob(f"{ARCH}*.json"))
        if not found:
            pytest.skip(f"the emulator has no {ARCH}*.json in {shared}")
        config = str(found[0].resolve())
    return [rocjitsu, "--config", config, "--"]


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A library that launches by host stub, and a code object to load as a module."""
    hipcc = shutil.which("hipcc")
    if hipcc is None:
        pytest.skip("needs hipcc to compile kernels for gfx1030")
    folder = tmp_path_factory.mktemp("kernels")
    library, code_object = folder / "libkernels.so", folder / "kernels.hsaco"
    # A copy, because the compiler may be confined to what it can see of this checkout.
    source = folder / "kernels.hip"
    shutil.copyfile(HERE / "kernels.hip", source)
    common = [hipcc, f"--offload-arch={ARCH}", "-O2"]
    for flags, out in ((["-shared", "-fPIC"], library), (["--genco"], code_object)):
        done = subprocess.run([*common, *flags, str(source), "-o", str(out)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return str(library), str(code_object)


@pytest.fixture(scope="session", autouse=True)
def summary() -> Iterator[None]:
    """Write what was run and seen, where asked to."""
    yield
    identity = _outcomes.get("identity", {}).get("facts") or {}
    results.keep("hip_driver", "driver room against libamdhip64", identity.get("hip", "unknown"), _outcomes)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries as they are shipped."""
    if shutil.which("cmake") is None or shutil.which("g++") is None:
        pytest.skip("needs cmake and g++ to build the native libraries")
    folder = tmp_path_factory.mktemp("native")
    for command in (
        ["cmake", "-S", str(HERE.parent.parent / "native"), "-B", str(folder), "-DGFX_TESTS=OFF"],
        ["cmake", "--build", str(folder), "--parallel", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def started(command: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script; once more where the emulated GPU was not there at its start, as happens on a loaded machine."""
    for _ in range(ATTEMPTS):
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environ)
        if "returned 100, not 0" not in done.stderr:
            break
    return done


def run(emulator: list[str], *command: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    return started([*emulator, sys.executable, *command], environ)


@pytest.mark.parametrize("name", sorted(scenarios.SCENARIOS))
def test_on_real_hip(name: str, emulator: list[str], request: pytest.FixtureRequest) -> None:
    """The scenario's own docstring states the fact."""
    files = request.getfixturevalue("kernels") if name in scenarios.NEED_KERNELS else ()
    _outcomes[name] = {"passed": False, "facts": None}
    done = run(emulator, ONE_JOB, "scenario", name, *files)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
    assert done.returncode == 0 and len(lines) == 1, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    _outcomes[name] = {"passed": True, "facts": json.loads(lines[0])["facts"]}


SYMBOLS = """
import json, sys
from gfxgraph.driver import locate
driver = locate("hip")
print(json.dumps([name for name in sys.argv[1:] if not hasattr(driver.table.found.handle, name)]))
"""


def test_a_genuine_library_has_what_the_native_package_must_have(emulator: list[str]) -> None:
    """native/api.inc: every function that it calls REQUIRED is in AMD's own libamdhip64, and most of the others."""
    listed = (HERE.parent.parent / "native" / "api.inc").read_text(encoding="utf-8")
    rows = re.findall(r"^GFX_(?:GRAPH|WORK|CALL)\((\w+), (REQUIRED|OPTIONAL)", listed, re.MULTILINE)
    assert len(rows) > 130
    _outcomes["symbols"] = {"passed": False, "facts": None}
    done = run(emulator, "-c", SYMBOLS, *(name for name, _ in rows))
    assert done.returncode == 0, done.stderr
    absent = set(json.loads(done.stdout.splitlines()[-1]))
    assert not absent & {name for name, need in rows if need == "REQUIRED"} and len(absent) < len(rows) / 4
    _outcomes["symbols"] = {"passed": True, "facts": {"listed": len(rows), "absent": sorted(absent)}}
