"""The C API and the compat library on the real libamdhip64, on AMD's emulator.

With another HIP first in LD_LIBRARY_PATH the same tests run against that one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import c_api_scenarios
import pytest
import results
from test_hip_driver import ARCH, HERE, TIMEOUT_S, build, emulator, kernels, run  # noqa: F401

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(TIMEOUT_S + 30)]

_outcomes: dict[str, Any] = {}
_versions: set[int] = set()


@pytest.fixture(scope="session", autouse=True)
def c_api_summary() -> Iterator[None]:
    """Write what was run and seen, where asked to."""
    yield
    what = "C API and CUDA compat library on libamdhip64, by its version number"
    results.keep("c_api", what, " ".join(map(str, sorted(_versions))), _outcomes)


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
