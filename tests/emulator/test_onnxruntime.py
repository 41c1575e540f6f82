"""Our session over ONNX Runtime's ROCm provider, on the real libamdhip64 under AMD's emulator.

Needed: GFXGRAPH_CLIENT_ONNXRUNTIME, as in test_clients.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_clients import HIP_7, TIMEOUT_S, opens
from test_hip_driver import HERE, build, emulator  # noqa: F401
from test_hip_preload import preload  # noqa: F401

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(2 * TIMEOUT_S)]


def test_each_size_is_a_graph_of_the_provider(emulator: list[str], preload: Path, tmp_path: Path) -> None:  # noqa: F811
    """Every result right; two graphs, each launched once a call."""
    packages = os.environ.get("GFXGRAPH_CLIENT_ONNXRUNTIME")
    if not packages:
        pytest.skip("GFXGRAPH_CLIENT_ONNXRUNTIME names no folder with the packages of onnxruntime")
    if not opens(HIP_7):
        pytest.skip(f"onnxruntime-rocm is linked to {HIP_7}, which is not here")
    report = tmp_path / "report.json"
    source = str(HERE.parents[1] / "src")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((packages, source)), "GFXGRAPH_VALIDATE_REPLAYS": "1"}
    environ |= {"LD_PRELOAD": str(preload), "GFXGRAPH_PRELOAD_REPORT": str(report), "HOME": str(tmp_path)}
    python = os.environ.get("GFXGRAPH_CLIENT_ONNXRUNTIME_PYTHON") or sys.executable
    command = [*emulator, python, str(HERE / "clients/onnxruntime_adapter.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=TIMEOUT_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["provider"], told["why_no_graph"], told["worst"] < 1e-6) == ("ROCMExecutionProvider", "", True)
    assert told["shapes"] == {"[[4, 16]]": 4, "[[2, 16]]": 3} and told["fallback_count"] == 0
    seen = json.loads(report.read_text())
    assert sorted(made["launches"] for made in seen["execs"]) == [3, 4]
