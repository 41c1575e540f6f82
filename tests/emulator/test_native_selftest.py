"""The native self-test's parts on AMD's own libamdhip64, on AMD's emulator: cells and random programs of streams.

GFXGRAPH_STREAM_SEEDS   how many random programs, 20 by default
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import results
from test_hip_driver import HERE, SOURCE, TIMEOUT_S, build, emulator  # noqa: F401

from gfxgraph.selftest.native import native_suite

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(3600)]
SEEDS = int(os.environ.get("GFXGRAPH_STREAM_SEEDS", "20"))
PROGRAM = """
import json, sys
from pathlib import Path
from gfxgraph.selftest.native import native_suite
run = native_suite.NativeSuite(limit_s=3500, programs=range(int(sys.argv[1])))
run.preload = Path(sys.argv[2])
for _ in run.run(): pass
print(json.dumps([run.report(), run.results]))
"""


@pytest.fixture(scope="module")
def report(emulator: list[str], build: Path) -> dict[str, object]:  # noqa: F811
    """One run of everything."""
    command = [*emulator, sys.executable, "-c", PROGRAM, str(SEEDS), str(build / "libgfxgraph_preload.so")]
    # The emulator has no virtual memory management, without which HIP replays no allocation.
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "HIP_MEM_POOL_USE_VM": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    report, told = json.loads(done.stdout.splitlines()[-1])
    outcomes = {
        f"{each['kind']}, seed {int(each['name']):03}": {
            "passed": each["outcome"] == "right",
            "seen": each["outcome"],
        }
        for each in told
        if each["kind"].startswith("streams")
    }
    what = "random programs of three to five streams (selftest/native/stream_programs.py), four replays, one update"
    variables = report["variables"]
    results.keep("streams", what, report["device"]["hip"], outcomes, seeds=f"0 to {SEEDS - 1}", variables=variables)
    return report


def test_every_cell_is_the_committed_tables(report: dict) -> None:
    """Of the HIP versions measured: the capture table of this run is the one that the profile is made from."""
    assert report["differs"] == []
    cells = json.loads(
        (Path(native_suite.__file__).parent / "tables" / f"{report['compared_with']}.json").read_text()
    )
    assert report["cells"] == cells["cells"]


def test_random_streams_end_no_process(report: dict) -> None:
    """Under the preload library and through the driver: each program is right, or refused by name."""
    streams = [each for each in report["not_right"] if each["kind"].startswith("streams")]
    assert streams == [] and not any(report["not_run"].values())


def test_nothing_else_is_wrong(report: dict) -> None:
    """Scenarios of the driver room, experiments under the preload library."""
    assert [each for each in report["not_right"] if each["kind"] in ("scenario", "experiment")] == []
