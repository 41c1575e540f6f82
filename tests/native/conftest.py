"""Builds the native package's tests once, with sanitizers, and runs programs under the preload library."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NATIVE = Path(__file__).parent.parent.parent / "native"
SANITIZERS = "address,undefined"


@dataclass
class Ran:
    """What a program printed, and what the preload library reported about it."""

    code: int
    seen: dict[str, list[int]]
    failed: list[tuple[str, int]]
    stderr: str
    report: dict[str, Any] = field(default_factory=dict)
    n_calls: int = 0  # into the runtime, ours included

    def last(self, name: str) -> int:
        return self.seen[name][-1]


def _sanitizer_library() -> Path:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    # Prints the bare name back where there is none.
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True)
    return Path(found.stdout.strip()).resolve()


def _build(factory: pytest.TempPathFactory, name: str, *options: str) -> Path:
    """Build once a run: xdist's workers share what the first of them made."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _configure(shared / name, *options)


def _configure(folder: Path, *options: str) -> Path:
    for tool in ("cmake", "g++"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    for command in (
        [
            "cmake",
            "-S",
            str(NATIVE),
            "-B",
            str(folder),
            f"-DPython3_EXECUTABLE={sys.executable}",
            *generator,
            *options,
        ],
        ["cmake", "--build", str(folder), "--parallel", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build under the address and undefined-behaviour sanitizers."""
    if not _sanitizer_library().exists():
        pytest.skip("needs the compiler's sanitizer libraries (libasan, libubsan)")
    return _build(tmp_path_factory, "native_checked", f"-DGFX_SANITIZE={SANITIZERS}")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build as it is shipped."""
    return _build(tmp_path_factory, "native_plain")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """``run(build, scenario, way="linked", preload=True, **environment)``: a HIP program."""

    def go(build: Path, scenario: str, way: str = "linked", preload: bool = True, **environment: str) -> Ran:
        program = build / "tests" / ("app_linked" if way == "linked" else "app_opened")
        command = [str(program), way, str(build / "fake" / "libamdhip64.so.6"), scenario]
        return _run(build, command, tmp_path / "report.json", preload, environment)

    return go


CUDA_PROGRAMS = {
    "linked": ("cuda_linked", "linked"),
    "dlsym": ("cuda_opened", "dlsym"),
    "procaddress": ("cuda_opened", "procaddress"),
    "shared runtime": ("cuda_runtime", "runtime"),
    "static runtime": ("cuda_static", "runtime"),
}


@pytest.fixture
def run_cuda(tmp_path: Path) -> Callable[..., Ran]:
    """The same for a CUDA program; the runtime ways know the scenario ``runtime`` alone."""

    def go(build: Path, scenario: str, way: str = "procaddress", preload: bool = True, **environment: str) -> Ran:
        name, word = CUDA_PROGRAMS[way]
        environment = {"LD_LIBRARY_PATH": str(build / "fake"), **environment}
        command = [str(build / "tests" / name), word, scenario]
        return _run(build, command, tmp_path / "report.json", preload, environment)

    return go


def _run(build: Path, command: list[str], report: Path, preload: bool, environment: Mapping[str, str]) -> Ran:
    report.unlink(missing_ok=True)
    preloaded = [str(build / "libgfxgraph_preload.so")] if preload else []
    if "address" in (build / "CMakeCache.txt").read_text().split("GFX_SANITIZE:STRING=")[1].split("\n")[0]:
        # The sanitizer insists on being first.
        preloaded.insert(0, str(_sanitizer_library()))
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GFX")},
        "LD_PRELOAD": ":".join(preloaded),
        "GFXGRAPH_PRELOAD_REPORT": str(report),
        # Streams and the fake's own world live as long as the process.
        "ASAN_OPTIONS": "detect_leaks=0",
        **environment,
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)
    seen: dict[str, list[int]] = {}
    failed: list[tuple[str, int]] = []
    for line in done.stdout.splitlines():
        name, *values = line.split()
        if name == "failed":
            failed.append((values[0], int(values[1])))
        elif values:
            seen.setdefault(name, []).append(int(float(values[0])))
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    told = json.loads(report.read_text()) if report.exists() else {}
    n_calls = seen.pop("calls", [0])[-1]
    return Ran(done.returncode, seen, failed, done.stderr, told, n_calls)
