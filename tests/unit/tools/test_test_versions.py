"""``tools/test_versions.py``: which pairs are asked for, what a run's report says, and the rows of the page."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "tools" / "test_versions.py"


@pytest.fixture
def tool(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("test_versions", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "ROWS", tmp_path / "versions.json")
    monkeypatch.setattr(module, "PAGE", tmp_path / "versions.md")
    return module


def row(torch, python, **more):
    about = {"what": "torch", "version": torch, "torch": f"{torch}+cpu", "python": python, "tests": "all"}
    return {**about, "passed": 3, "skipped": 1, "failed": [], "commit": "1234abcd", "date": "2026-11-28", **more}


def test_the_first_numbers_of_a_version_name_it_and_no_other(tool):
    assert [each for each in tool.TORCHES if tool._is_asked(each, ["2.11"])] == ["2.11.0"]
    assert [each for each in ("2.1.0", "2.11.0", "2.11.1") if tool._is_asked(each, ["2.1"])] == ["2.1.0"]
    assert all(tool._is_asked(each, None) for each in tool.TORCHES)


def test_a_row_takes_the_place_of_the_same_pair_alone(tool):
    tool._write(row("2.11.0", "3.12.1", failed=["test_x::test_y"]))
    tool._write(row("2.9.1", "3.12.1"))
    tool._write(row("2.11.0", "3.13.0"))
    assert "- torch 2.11.0, Python 3.12.1, all: `test_x::test_y`" in tool.PAGE.read_text()
    tool._write(row("2.11.0", "3.12.2", commit="5678abcd"))
    pairs = [(each["version"], each["python"]) for each in json.loads(tool.ROWS.read_text())]
    assert pairs == [("2.9.1", "3.12.1"), ("2.11.0", "3.12.2"), ("2.11.0", "3.13.0")]
    page = tool.PAGE.read_text()
    assert "| torch | 2.11.0 | 2.11.0+cpu | 3.12.2 | all | 3 | 0 | 1 | - | 5678abcd | 2026-11-28 |" in page
    assert "test_x" not in page


def test_a_report_without_an_end_is_a_failure(tool, tmp_path):
    assert tool._counted(tmp_path / "none.xml")["failed"] == ["no test ran to its end"]
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.unit.test_a" name="one"/>'
        '<testcase classname="tests.unit.test_a" name="two"><failure message="no"/></testcase>'
        '<testcase classname="tests.unit.test_a" name="three"><skipped message="no GPU"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert tool._counted(report) == {"passed": 1, "skipped": 1, "failed": ["test_a::two"]}


def test_a_module_that_is_wrong_or_raises_is_a_failure_and_a_dear_one_is_counted(tool, tmp_path):
    figures = [("linear", True), ("lstm", False), ("gru", None)]
    found = {
        "figures": [{"module": m, "mode": "eval", "peers": {"graphed": {"is_right": right}}} for m, right in figures],
        "counted": {"eval": {"modules": 3, "above eager": 1}},
    }
    written = tmp_path / "modules.json"
    assert tool._modules(sys.executable, written, {}) == ("-", ["bench_modules: it did not end"])
    (tmp_path / "benchmarks").mkdir()
    program = f"import sys; open(sys.argv[-1], 'w').write({json.dumps(found)!r})"
    (tmp_path / "benchmarks" / "bench_modules.py").write_text(program)
    bad = ["bench_modules::lstm-eval", "bench_modules::gru-eval"]
    assert tool._modules(sys.executable, written, {}) == ("1 of 3", bad)


def test_room_is_made_from_what_was_used_longest_ago(tool, monkeypatch, tmp_path):
    for age, name in enumerate(("torch-c", "torch-b", "torch-a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".made").touch()
        os.utime(tmp_path / name / ".made", (1000 - age, 1000 - age))
    free = iter([1e9, 20e9])
    monkeypatch.setattr(tool.shutil, "disk_usage", lambda folder: type("usage", (), {"free": next(free)}))
    tool._make_room(tmp_path, tmp_path / "torch-new")
    assert sorted(each.name for each in tmp_path.glob("torch-*")) == ["torch-b", "torch-c"]
