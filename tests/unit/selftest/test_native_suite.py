"""The native self-test without HIP: with a planted worker, and with nothing at all."""

from __future__ import annotations

import functools
import json
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gfxgraph.cli import _selftest, doctor
from gfxgraph.driver import library
from gfxgraph.errors import DriverError
from gfxgraph.selftest.native import native_suite


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(library, "find", lambda backend: None)
    monkeypatch.setattr(native_suite, "WORKER", "planted_native_worker")
    monkeypatch.setattr(native_suite, "JOB_LIMIT_S", 1)
    monkeypatch.setattr(native_suite.native, "library_path", lambda: None)
    return monkeypatch


def test_whatever_ends_a_job_the_report_tells(planted, tmp_path, capsys):
    """A signal, an error and a hang are outcomes of one job each; a cell that differs is told with what it means."""
    planted.setattr(native_suite, "NativeSuite", functools.partial(native_suite.NativeSuite, programs=range(3)))
    path = tmp_path / "report.json"
    assert _selftest.run_native(path) == 1
    report, shown = json.loads(path.read_text()), capsys.readouterr().out
    assert (report["verdict"], report["compared_with"]) == ("fail", "7.2.4")
    assert report["counts"]["streams through the driver"] == {"right": 2, "died": 1}
    assert {(each["name"], each["outcome"]) for each in report["not_right"]} == {
        ("legacy_stream", "died"),
        ("child_graphs", "failed"),
        ("1", "died"),
    }
    assert [(each["call"], each["mode"]) for each in report["differs"]] == [("launch", "relaxed")]
    assert not any(report["not_run"].values())
    assert "legacy_stream: SIGSEGV" in shown and "did not end within 1 s" in shown
    assert "no_device" in shown and "may fail here" in shown and str(path) in shown
    assert str(Path.home()) not in path.read_text()


def test_the_end_of_the_time_is_the_end(planted, tmp_path, capsys):
    """Where jobs hang, the report comes in time and says what did not run: that is no pass."""
    planted.setattr(native_suite, "JOB_LIMIT_S", 60)
    limited = functools.partial(native_suite.NativeSuite, limit_s=4, programs=[1, 1, 1, 1, 1, 1, 1, 1, 1])
    planted.setattr(native_suite, "NativeSuite", limited)
    planted.setattr(native_suite, "SCENARIOS", {"joined_graph": None})
    begun = time.monotonic()
    assert _selftest.run_native(tmp_path / "report.json") == 1
    assert time.monotonic() - begun < 10
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "unfinished" and report["not_run"]["streams through the driver"] == 9
    shown = capsys.readouterr().out
    assert "streams through the driver: 9 not run" in shown and "STOPPED before its end" in shown
    assert report["counts"]["cell"] == {"measured": 141}


def test_without_a_gpu_there_is_a_sentence_and_no_report(planted, tmp_path):
    """HIP is there and sees none: that is said as HIP said it."""
    planted.setenv("PLANTED_NO_GPU", "1")
    with pytest.raises(DriverError, match="hipGetDeviceCount returned 100") as caught:
        _selftest.run_native(tmp_path / "report.json")
    assert caught.value.code == "no_device" and not list(tmp_path.iterdir())


def test_without_hip_there_is_a_sentence_and_no_report(planted, tmp_path, monkeypatch):
    """No runtime: its error, before any process is started."""

    def find(backend: str) -> None:
        raise DriverError("driver_library_not_found", library="libamdhip64.so", tried=[])

    monkeypatch.setattr(library, "find", find)
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(DriverError, match="libamdhip64"):
        _selftest.run_native(tmp_path / "report.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--allow-cuda", "--simulate=hip-7.2", "--only=child_graphs"])
def test_what_is_torchs_is_refused(option, tmp_path):
    """The native part runs below torch on the GPU that is there: an option of the other is no half-heard wish."""
    path = tmp_path / "report.json"
    done = CliRunner().invoke(doctor.command, ["--selftest", "--native", option, "-o", str(path)])
    assert done.exit_code == 2 and "does not go with --native" in done.stderr and not path.exists()
