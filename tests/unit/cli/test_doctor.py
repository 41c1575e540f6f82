"""cli.doctor and cli.device: what they print, and their exit status."""

import json
import os
import subprocess
import sys

import pytest

RECORDED = {"platform": "hip", "hip": "7.2.26015", "torch": "2.11.0", "archs": ["gfx942"]}


def gfxgraph(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "gfxgraph", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"GFXGRAPH_LANG": "en"} | environ,
    )


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "environment.json"
    path.write_text(json.dumps(RECORDED))
    return str(path)


def test_why_names_rows_reasons_and_totals(recorded):
    """Each row with its source and what it changed; each decision with the rows behind it."""
    text = gfxgraph("doctor", "--why", GFXGRAPH_ENVIRONMENT=recorded).stdout
    assert "wrong-replays-one-process-in-five  (fixed; rocm >=7.2,<7.2.4, gfx94*)" in text
    assert "-> validate_replays = 8" in text and "clr#279" in text
    assert "drain_watchdog = True  <- watchdog-query-kills-capture" in text or "drain_watchdog = true" in text
    assert "hip, ROCm 7.2, torch 2.11.0, gfx942" in text


@pytest.fixture
def no_torch(tmp_path):
    """A PYTHONPATH on which there is none: with it, ``doctor --why`` also imports Inductor, for seconds."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('not here', name='torch')\n")
    return path_with(tmp_path)


def test_why_speaks_chinese(recorded, no_torch):
    """Symptoms and headings follow the language; ids and values do not."""
    environ = {"GFXGRAPH_ENVIRONMENT": recorded, "GFXGRAPH_LANG": "zh", "PYTHONPATH": no_torch}
    text = gfxgraph("doctor", "--why", **environ).stdout
    assert "约五分之一的进程中重放输出随机错误" in text and "最终决定" in text
    assert "clr#279" in text


def test_gfxgraph_arch_changes_the_rows(recorded, no_torch):
    """The same recording, planned for another GPU."""
    environ = {"GFXGRAPH_ENVIRONMENT": recorded, "GFXGRAPH_ARCH": "gfx1031", "PYTHONPATH": no_torch}
    text = gfxgraph("doctor", "--why", **environ).stdout
    assert "crash-at-exit" in text and "wrong-replays-one-process-in-five" not in text


def test_json_is_a_recording_that_doctor_takes_back(recorded, tmp_path):
    """What --json prints can be given to GFXGRAPH_ENVIRONMENT on another machine."""
    first = gfxgraph("doctor", "--json", GFXGRAPH_ENVIRONMENT=recorded).stdout
    path = tmp_path / "report.json"
    path.write_text(first)
    second = gfxgraph("doctor", "--json", GFXGRAPH_ENVIRONMENT=str(path)).stdout
    assert json.loads(first)["decisions"] == json.loads(second)["decisions"]
    assert json.loads(first)["decisions"]["validate_replays"]["value"] == 8


def test_a_bad_setting_is_red_with_its_mend():
    """Exit status 1 and the command that mends it."""
    found = gfxgraph("doctor", GFXGRAPH_GUARD="9")
    assert found.returncode == 1
    assert "FAIL  settings       GFXGRAPH_GUARD=9" in found.stdout and "unset GFXGRAPH_GUARD" in found.stdout


def test_an_unreadable_recording_is_an_error_in_our_form(tmp_path):
    """what, why, do; exit status 2."""
    found = gfxgraph("doctor", GFXGRAPH_ENVIRONMENT=str(tmp_path / "none.json"))
    assert found.returncode == 2
    assert found.stderr.startswith("environment_unreadable:") and "  do:   " in found.stderr


def test_device_follows_gfxgraph_arch():
    """A GPU that is not here can be planned for; without one the exit status is 1."""
    found = gfxgraph("device", GFXGRAPH_ARCH="gfx1151")
    assert found.returncode == 0
    assert "gfx1151 (RDNA3.5), from GFXGRAPH_ARCH" in found.stdout and "wmma" in found.stdout
    described = json.loads(gfxgraph("device", "--json", GFXGRAPH_ARCH="gfx942").stdout)["device"]
    assert described["fp8"] == "fnuz" and described["wavefront"] == 64


def test_device_speaks_chinese():
    """Labels follow the language; names and values do not."""
    found = gfxgraph("device", GFXGRAPH_ARCH="gfx1151", GFXGRAPH_LANG="zh").stdout
    assert "计算单元" in found and "gfx1151 (RDNA3.5)" in found


def test_doctor_does_not_wait_for_a_machine_that_hangs(monkeypatch):
    """What the machine does not tell within the limit becomes one line; doctor goes on and ends."""
    import threading

    from click.testing import CliRunner

    from gfxgraph.cli import doctor
    from gfxgraph.hardware import findings

    def ends(status):
        raise SystemExit(status)

    never = threading.Event()
    monkeypatch.setattr(doctor, "detect", never.wait)
    monkeypatch.setattr(doctor.os, "_exit", ends)
    monkeypatch.setattr(findings, "LIMIT_S", 0.5)
    found = CliRunner().invoke(doctor.command, [])
    never.set()
    assert "did not answer within" in found.output and "engines" in found.output


def test_another_projects_gfxgraph_is_noticed(tmp_path):
    """PyPI's 1.1.0 beside this one is an amber finding with its folder; ours is none."""
    from gfxgraph.hardware import facts, findings

    def found(version):
        info = tmp_path / f"gfxgraph-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gfxgraph\nVersion: {version}\n")
        known = facts.software_facts(facts.Site(search=[str(tmp_path)]))
        return [one for one in findings.of(known) if one.name == "gfxgraph"]

    assert found("2.0.0") == []
    (finding,) = found("1.1.0")
    assert finding.state.value == "amber" and "1.1.0" in finding.en and str(tmp_path) in finding.zh


def test_what_is_missing_has_its_fix_and_no_decision_is_said(tmp_path, no_torch):
    """Without torch and without an AMD GPU: what helps, the simulator among it; --why ends whole."""
    plain = tmp_path / "none.json"
    plain.write_text(json.dumps({"platform": "cuda", "torch": "2.13.0", "archs": []}))
    done = gfxgraph("doctor", "--why", GFXGRAPH_ENVIRONMENT=str(plain), PYTHONPATH=no_torch)
    lines = done.stdout.splitlines()
    missing = {"PyTorch is not installed": "pip install torch"}
    if not os.path.exists("/dev/kfd"):
        missing["no AMD GPU found"] = "gfxgraph run --simulate"
    for said, fix in missing.items():
        at = next((n for n, line in enumerate(lines) if said in line), None)
        assert at is not None and fix in lines[at + 1], done.stdout
    assert lines[-1].strip() and not lines[-1].startswith("decisions")


def test_a_name_that_needs_torch_says_so(tmp_path):
    """``gfxgraph.graphed`` without torch is our refusal, with what to install for a GPU and for none."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    code = "import gfxgraph\ntry:\n    gfxgraph.graphed\nexcept gfxgraph.ActivationError as e:\n    print(e)\n"
    environment = os.environ | {"PYTHONPATH": path_with(tmp_path), "GFXGRAPH_LANG": "en"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("no_torch: ") and "whl/rocm" in done.stdout and "whl/cpu" in done.stdout, (
        done.stderr
    )


def test_status_tells_a_setting_that_cannot_be():
    """It judges nothing else; a simulator profile that does not exist, and a value out of range, are status 1."""
    done = gfxgraph("status", GFXGRAPH_SIMULATE="nothing", GFXGRAPH_VRAM_CAP="7")
    assert done.returncode == 1 and "gfxgraph environment report:" in done.stdout
    assert "GFXGRAPH_SIMULATE=nothing, allowed: " in done.stderr and "GFXGRAPH_VRAM_CAP=7" in done.stderr
    done = gfxgraph("status", "--json", GFXGRAPH_SIMULATE="hip")
    assert done.returncode == 0 and "PyTorch  PyTorch" not in done.stdout and json.loads(done.stdout)["python"]


def path_with(folder):
    """PYTHONPATH with ``folder`` before this gfxgraph."""
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", ""), *sys.path[1:]])
