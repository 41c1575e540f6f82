"""AMD's own graph unit tests on the real libamdhip64: under the preload library they say what they say without it.

GFXGRAPH_HIP_TESTS         the programs that ``hip_tests.py build`` made, separated by colons
GFXGRAPH_HIP_TESTS_LIMIT   seconds after which no further test is begun; all of them take about an hour
"""

from __future__ import annotations

import os
from pathlib import Path

import hip_tests
import pytest
from test_hip_driver import build, emulator  # noqa: F401
from test_hip_preload import preload  # noqa: F401

LIMIT_S = float(os.environ.get("GFXGRAPH_HIP_TESTS_LIMIT", "600"))

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(LIMIT_S + 600)]


def test_amds_graph_tests_say_the_same(emulator: list[str], preload: Path, tmp_path: Path) -> None:  # noqa: F811
    """Verdict and number of assertions, test by test."""
    programs = os.environ.get("GFXGRAPH_HIP_TESTS")
    if not programs:
        pytest.skip("needs AMD's graph tests: GFXGRAPH_HIP_TESTS names what `hip_tests.py build` made")
    where = os.environ.get("GFXGRAPH_EMULATOR_RESULTS")
    out = Path(where) / "emulator_hip_tests.json" if where else tmp_path / "hip_tests.json"
    figures = hip_tests.write(programs.split(os.pathsep), preload, out, LIMIT_S)
    assert figures["decided"] > 0, figures
    assert figures["differ"] == {}
