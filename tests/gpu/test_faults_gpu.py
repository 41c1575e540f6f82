"""Failing driver calls and real signals, on the device; see tests/property/faults.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(torch.version.hip is not None, reason="--cuda asks for an NVIDIA GPU"),
]


def test_the_process_stays_usable(tmp_path):
    """After a failure at any of the positions later captures, replays and eager work are right; 200 signals too."""
    told = tmp_path / "told.json"
    line = [sys.executable, "-m", "tests.property.faults", "--cuda", "--seconds", "90"]
    done = subprocess.run(
        [*line, "--signals", "200", "--out", str(told)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
    )
    found = json.loads(told.read_text(encoding="utf-8"))
    assert done.returncode == 0 and not found["broken"], done.stderr[-3000:]
    assert all(run["survived"] > 0 for run in found["signals"]) and found["signals"] and found["n_positions"] > 50
