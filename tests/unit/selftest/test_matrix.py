"""Self-test reports as one table: what is merged, what is left out, and what the command's status says."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gfxgraph.errors import CommandError
from gfxgraph.selftest.matrix import matrix, row_of

ROOT = Path(__file__).parents[3]
OF_AN_H100 = ROOT / "benchmarks/results/selftest_h100.json"
PLACE = ROOT / "reports"
FORM = ROOT / ".github/ISSUE_TEMPLATE/selftest_report.yml"
MADE = {
    "kind": "gfxgraph self-test",
    "schema": 1,
    "gfxgraph": "2.0.0",
    "made_at": "2026-11-20T10:00:00+00:00",
    "where": "AMD Radeon RX 6700 XT",
    "is_simulated": False,
    "verdict": {"outcome": "pass", "counts": {"pass": 47, "fail": 0, "skip": 2}, "not_passed": [], "skipped": {}},
    "environment": {"platform": "hip", "rocm": "7.2.4", "torch": "2.11.0"},
    "device": {"name": "AMD Radeon RX 6700 XT", "arch": "gfx1031:xnack-", "torch": "2.11.0+rocm7.2", "hip": "7.2.2"},
}


@pytest.fixture
def report(tmp_path):
    """``report(name, **changes)`` writes a report and returns its path."""

    def write(name, **changes):
        path = tmp_path / name
        path.write_text(json.dumps(copy.deepcopy(MADE) | changes))
        return path

    return write


def verdict(outcome, *not_passed, n=40):
    return {"outcome": outcome, "counts": {"pass": n, "fail": len(not_passed)}, "not_passed": list(not_passed)}


def doctor(*arguments, lang="en"):
    command = [sys.executable, "-m", "gfxgraph", "doctor", "--matrix", *map(str, arguments)]
    environ = os.environ | {"GFXGRAPH_LANG": lang}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)


def test_a_real_report_makes_a_row():
    """The one of the H100 that is kept here."""
    row = matrix([OF_AN_H100]).rows[0]
    assert (row.runtime, row.torch, row.outcome, row.passed, row.total) == ("CUDA 13.0", "2.11.0", "pass", 48, 48)
    assert row.gpu == "NVIDIA H100 80GB HBM3"


def test_reports_of_one_place_are_one_row(report):
    """What failed in one stays told; the figures are the newest's; other places are other rows, in order."""
    older = report("older.json", verdict=verdict("fail", "wrong_replays"), gfxgraph="2.0.0.dev0")
    newer = report("newer.json", made_at="2026-11-21T10:00:00+00:00")
    other = report("other.json", environment={"rocm": "6.4.3"}, device={"arch": "gfx1100", "torch": "2.9.1"})
    found = matrix([newer, older, other])
    assert [(row.runtime, row.arch, row.torch) for row in found.rows] == [
        ("ROCm 6.4.3", "gfx1100", "2.9.1"),
        ("ROCm 7.2.4", "gfx1031", "2.11.0"),
    ]
    row = found.rows[1]
    assert (row.outcome, row.passed, row.total, row.n_reports) == ("fail", 47, 47, 2)
    assert (row.not_passed, row.gfxgraph) == (["wrong_replays"], ["2.0.0", "2.0.0.dev0"])
    assert not found.is_passed


def test_the_simulator_is_no_evidence(report):
    """Its reports are left out, by name, with the reason."""
    path = report("simulated.json", is_simulated=True, where="the simulator, profile hip")
    found = matrix([path])
    assert found.rows == () and found.left_out == (("simulated.json", "made in the simulator, profile hip"),)


def test_what_a_report_does_not_say_is_a_question_mark():
    """Anybody may have written it."""
    row = row_of({"verdict": {"outcome": "splendid", "counts": ["x"], "not_passed": 7}, "device": 3})
    assert (row.runtime, row.arch, row.torch, row.gpu) == ("?", "?", "?", "?")
    assert (row.outcome, row.passed, row.total, row.not_passed) == ("unfinished", 0, 0, [])


@pytest.mark.parametrize(
    "text", ['{"kind": "other"}', "[]", "no JSON", "[" * 99999, '{"kind": "gfxgraph self-test"}']
)
def test_other_files_are_refused(tmp_path, text):
    """With what is wrong with them."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(CommandError) as caught:
        matrix([path])
    assert caught.value.code == "file_unusable"


def test_the_command_prints_a_table(report):
    """Markdown, for documents and issues; status 1 where a report did not pass."""
    good, bad = (
        report("good.json"),
        report("bad.json", verdict=verdict("fail", "tokens"), environment={"rocm": "7.14"}),
    )
    done = doctor(good, bad)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == [
        "| runtime | arch | torch | gfxgraph | result | reports | newest | not passed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| ROCm 7.14 | gfx1031 | 2.11.0 | 2.0.0 | fail, 40 of 41 | 1 | 2026-11-20 | tokens |",
        "| ROCm 7.2.4 | gfx1031 | 2.11.0 | 2.0.0 | pass, 47 of 47 | 1 | 2026-11-20 | - |",
    ]
    assert doctor(good).returncode == 0
    assert "运行时" in doctor(good, lang="zh").stdout


def test_the_command_gives_json(report):
    """The rows as plain data, and what was left out."""
    done = doctor("--json", report("good.json"), report("sim.json", is_simulated=True))
    told = json.loads(done.stdout)
    assert (done.returncode, told["kind"], len(told["rows"])) == (0, "gfxgraph matrix", 1)
    assert told["rows"][0]["arch"] == "gfx1031" and told["left_out"][0]["file"] == "sim.json"


def test_a_report_steers_no_terminal(report):
    """Control characters and bars in it are written out."""
    path = report("evil.json", device={"arch": "gfx1030\x1b[2J|x", "torch": "2.11"})
    assert "\x1b" not in doctor(path).stdout and len(doctor(path).stdout.splitlines()[2].split("|")) == 10


def test_reports_have_a_place_and_a_form():
    """The folder's page shows the table of what is in it; the form asks for the file."""
    text = (PLACE / "README.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- table -->\n")[2].partition("<!-- end -->")[0].strip()
    reports = sorted(PLACE.glob("*.json"))
    made = doctor(*reports).stdout.strip() if reports else "None yet."
    assert shown == made
    form = FORM.read_text(encoding="utf-8")
    assert "gfxgraph doctor --selftest" in form and "reports/" in form and "type: textarea" in form
