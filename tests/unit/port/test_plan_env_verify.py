"""Plan, environment, pip guard, verification and the runtime half."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gfxgraph.cli._port_verify import verify_command as verify_run
from gfxgraph.cli.port import command
from gfxgraph.hardware import checks
from gfxgraph.port import pip_guard, verify
from gfxgraph.port.audit import audit
from tests.unit.port.conftest import write


def test_plan_is_a_work_list(tmp_path: Path) -> None:
    """Each item says what, where, why, what to do and which command proves it; what no tool can do is named."""
    files = {"k.cu": '__device__ void f() { asm("ld.global.nc %0;"); }\n', "m.py": "import torch\n"}
    write(tmp_path, {**files, "n.py": 'import torch\nf = torch.compile(g, mode="reduce-overhead")\n'})
    data = json.loads(CliRunner().invoke(command, ["plan", str(tmp_path), "--json"]).output)
    first = data["work"][0]
    assert (first["item"], first["code"], first["path"], first["line"]) == (1, "inline-ptx", "k.cu", 1)
    assert first["why"] and first["do"] and first["prove"][0] == "gfxgraph port build . --json"
    assert [w["prove"][0] for w in data["work"] if w["path"] == "n.py"][0].startswith("gfxgraph port audit . --rule")
    assert sum(s["findings"] for s in data["order"]) == len(data["work"])
    assert any(row["rule"] == "inline-ptx" and row["count"] == 1 for row in data["by_hand"])
    assert "移植计划" in CliRunner().invoke(command, ["plan", str(tmp_path), "--lang", "zh"]).output


def test_env_command_is_joined_with_doctor(tmp_path: Path) -> None:
    """The environment audit runs doctor's checks, and reads the images and requirements of a folder."""
    write(tmp_path, {"Dockerfile": "FROM nvidia/cuda:12.4.0-devel-ubuntu22.04\n", "k.cu": "#include <cuda.h>\n"})
    done = CliRunner().invoke(command, ["env", str(tmp_path), "--json"])
    data = json.loads(done.output)
    assert done.exit_code == 1
    assert {row["name"] for row in data["doctor"]} >= {f.name for f in checks.run(checks.ALL, checks.Site())}
    assert [row["rule"] for row in data["recipes"]] == ["GFX009"]  # the kernel is no part of the environment
    shown = CliRunner().invoke(command, ["env", str(tmp_path), "--lang", "zh"]).output
    assert "GFX009" in shown and "PyTorch" in shown
    assert CliRunner().invoke(command, ["env", str(tmp_path / "none")]).exit_code == 2


@pytest.mark.parametrize(("version", "rows", "refused"), [
    ("2.9.1+rocm6.4", [("torch", "2.9.1", "https://files.example/torch.whl")], True),
    ("2.9.1+rocm6.4", [("torch", "2.9.1+rocm6.4", "https://x/whl/rocm6.4/torch.whl")], False),
    ("2.9.1+rocm6.4", [("numpy", "2.0", "https://x/numpy.whl")], False),
    ("2.9.1+cu126", [("torch", "2.9.1", "https://files.example/torch.whl")], False),
])  # fmt: skip
def test_pip_guard(version: str, rows: list[tuple[str, str, str]], refused: bool) -> None:
    """Only an install that would replace a ROCm torch by another build is refused."""
    report = {"install": [{"metadata": {"name": n, "version": v}, "download_info": {"url": u}} for n, v, u in rows]}
    build = "rocm" if "rocm" in version else "cuda"
    judged = pip_guard.Judgement(version, build, tuple(pip_guard.changes_in(report)))
    assert judged.refused is refused


def test_pip_guard_takes_install_only() -> None:
    with pytest.raises(pip_guard.PipGuardError, match="install"):
        pip_guard.judge(["uninstall", "torch"])


def test_torch_build_is_read_without_importing(tmp_path: Path) -> None:
    """The build comes from version.py: ROCm wheels need not carry a label."""
    version = "__version__ = '2.9.1'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4.43'\n"
    write(tmp_path, {"torch/__init__.py": "raise SystemExit('imported')\n", "torch/version.py": version})
    assert pip_guard.torch_build([str(tmp_path)]) == ("2.9.1", "rocm")


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
    base = ["verify", "run", str(tmp_path / "repo"), "--golden", golden, "--device", "cpu", "--iterations", "3"]
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
    from gfxgraph.rocm import golden

    calls = []

    def model(x: object) -> object:
        calls.append(x)
        return torch.full((2,), float("nan")) if len(calls) % 4 == 0 else torch.ones(2) * (len(calls) % 2)

    counted = golden._stability(model, (torch.ones(1),), "cpu", 100)
    assert len(calls) == 101 and counted == {"iterations": 100, "n_changed": 50, "n_nan": 25}
    run = verify_run.params
    assert next(p.default for p in run if p.name == "iterations") == 100


def test_static_and_build_checks(tmp_path: Path) -> None:
    """A build that fails fails the report; one that was not asked for is skipped, never passed."""
    write(tmp_path, {"k.cu": '__device__ void f() { asm("ld.global.nc %0;"); }\n'})
    checks = verify.static_checks(audit(str(tmp_path), jobs=1))
    assert any(c.outcome == "failed" and "PTX" in c.name for c in checks)
    assert verify.build_check(None, ".").outcome == "skipped"
    assert verify.build_check("false", ".").outcome == "failed"
    assert not verify.report([verify.build_check(None, ".")], None)["complete"]
