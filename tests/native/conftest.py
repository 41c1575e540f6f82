"""Runs programs under the preload library, in builds with and without sanitizers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import native_builds


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


def _ready(variant: str) -> Path:
    lacking = native_builds.missing(variant)
    if lacking:
        pytest.skip(f"needs {lacking}")
    return native_builds.build(variant)


@pytest.fixture(scope="session")
def checked() -> Path:
    """A build under the address and undefined-behaviour sanitizers."""
    return _ready("checked")


@pytest.fixture(scope="session")
def plain() -> Path:
    """A build as it is shipped."""
    return _ready("plain")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """``run(build, scenario, way="linked", preload=True, **environment)``: a HIP program.

    ``way``: linked, dlsym or procaddress; with `` in deepbind`` or `` in namespace`` behind it, a library so opened.
    """

    def go(build: Path, scenario: str, way: str = "linked", preload: bool = True, **environment: str) -> Ran:
        how, _, opened = way.partition(" in ")
        name = "linked" if how == "linked" else "opened"
        program = [build / "tests" / f"app_{name}"]
        if opened:
            program = [build / "tests" / "opener", opened, build / "tests" / f"libmodule_{name}.so"]
        command = [*map(str, program), how, str(build / "fake" / "libamdhip64.so.6"), scenario]
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
        preloaded.insert(0, str(native_builds.sanitizer_library()))
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
