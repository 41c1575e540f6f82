"""Golden vectors and the runtime half."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gfxgraph.cli.port import command
from gfxgraph_port.commands.verify import verify_command as verify_run
from tests.unit.gfxgraph_port.conftest import write

TARGET = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))

def broken():
    net = build()
    with torch.no_grad():
        net[2].weight[0, 0] += 1.0
    return net
"""


def test_golden_vectors(tmp_path: Path) -> None:
    """Recorded vectors pass on the same model, and name the layer where another model differs."""
    torch = pytest.importorskip("torch")
    assert torch
    (tmp_path / "t.py").write_text(TARGET)
    write(tmp_path, {"repo/m.py": "x = 1\n"})
    cli, golden = CliRunner(), str(tmp_path / "g.pt")
    spec = f"{tmp_path}/t.py"
    shapes = ["--shape", "1x4x8", "--shape", "2x3x8"]
    done = cli.invoke(command, ["verify", "record", f"{spec}:build", "--out", golden, "--device", "cpu", *shapes])
    assert done.exit_code == 0, done.output
    base = ["verify", "run", "--golden", golden, "--device", "cpu", "--iterations", "3"]
    done = cli.invoke(command, [*base, "--target", f"{spec}:build"])
    assert done.exit_code == 0 and "passed   numerics 1x4x8" in done.output
    out = tmp_path / "r.json"
    done = cli.invoke(command, [*base, "--target", f"{spec}:broken", "--json", str(out)])
    data = json.loads(out.read_text())
    assert done.exit_code == 1 and not data["passed"]
    assert "2" in {row["first_layer"] for row in data["numerics"]["cases"]}


def test_unstable_outputs_are_counted() -> None:
    """Stability runs as often as asked, 100 times by default, and counts runs whose bits or NaNs differ."""
    torch = pytest.importorskip("torch")
    from gfxgraph_port.rocm import golden

    calls = []

    def model(x: object) -> object:
        calls.append(x)
        return torch.full((2,), float("nan")) if len(calls) % 4 == 0 else torch.ones(2) * (len(calls) % 2)

    counted = golden._stability(model, (torch.ones(1),), "cpu", 100)
    assert len(calls) == 101 and counted == {"iterations": 100, "n_changed": 50, "n_nan": 25}
    run = verify_run.params
    assert next(p.default for p in run if p.name == "iterations") == 100
