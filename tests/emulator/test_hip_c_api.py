"""The C API and the compat library on the real libamdhip64, on AMD's emulator.

With another HIP first in LD_LIBRARY_PATH the same tests run against that one.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import c_api_scenarios
import pytest
from test_hip_driver import ARCH, HERE, TIMEOUT_S, build, emulator, kernels, run  # noqa: F401

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(TIMEOUT_S + 30)]

_outcomes: dict[str, Any] = {}
_versions: set[int] = set()


@pytest.fixture(scope="session", autouse=True)
def c_api_summary() -> Iterator[None]:
    """Write what was run and seen, next to the driver room's file, where asked to."""
    yield
    where = os.environ.get("GFXGRAPH_EMULATOR_RESULTS")
    if not where or not _outcomes:
        return
    commit = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    path = Path(where).with_name("emulator_c_api.json")
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else {}
    runs[",".join(map(str, sorted(_versions)))] = {
        "commit": commit,
        "passed": sum(outcome["passed"] for outcome in _outcomes.values()),
        "failed": sorted(name for name, outcome in _outcomes.items() if not outcome["passed"]),
        "scenarios": {name: outcome["facts"] for name, outcome in sorted(_outcomes.items())},
    }
    report = {
        "what": "C API and CUDA compat library on libamdhip64, by its version number",
        "device": f"{ARCH} emulated",
        "runs": dict(sorted(runs.items())),
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", sorted(c_api_scenarios.SCENARIOS))
def test_c_api_on_real_hip(
    name: str,
    emulator: list[str],  # noqa: F811
    kernels: tuple[str, str],  # noqa: F811
    build: Path,  # noqa: F811
) -> None:
    """The scenario's own docstring states the fact."""
    _outcomes[name] = {"passed": False, "facts": None}
    done = run(emulator, str(HERE / "c_api_scenarios.py"), name, str(build), *kernels)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
    assert done.returncode == 0 and len(lines) == 1, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    told = json.loads(lines[0])
    _versions.add(told["hip"])
    _outcomes[name] = {"passed": True, "facts": told["facts"]}
