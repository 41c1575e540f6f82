"""tools/make_evidence.py: a figure that its result file does not hold is refused; the page is what the rows say."""

import importlib.util
import json
import sys
import tomllib
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "tools" / "make_evidence.py"
spec = importlib.util.spec_from_file_location("make_evidence", FILE)
evidence = importlib.util.module_from_spec(spec)
sys.modules["make_evidence"] = evidence
spec.loader.exec_module(evidence)


@pytest.mark.parametrize(
    ("figure", "missing"),
    [
        ("0.99 (0.95 to 1.04)", []),
        ("0.98", ["0.98"]),
        ("2,765 passed", []),
        ("2,766 passed", ["2,766"]),
        ("3 of 3", []),
        ("44 %", []),
        ("44", ["44"]),
    ],
)
def test_a_figure_is_what_the_file_holds(figure, missing):
    """Numbers to the digits shown; lengths of lists; shares as per cent."""
    result = {"ratio": [0.9861, 0.9512, 1.0449], "text": "2765 passed", "share": 0.4442}
    assert evidence.not_held(figure, set(evidence.numbers_in(result))) == missing


def row(**changes):
    plain = {"group": "g", "claim": "c", "figure": "1", "target": "", "verdict": "met", "where": "CPU"}
    return plain | {"result": "x.json"} | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"result": "none.json"}, "there is no"),
        ({"figure": "7"}, "does not hold 7"),
        ({"claim": "c" * 121}, "121"),
        ({"verdict": "missed", "why": "it is slow"}, "no page does not say 1"),
        ({"verdict": "missed", "told": "LICENSE"}, "there is no why"),
    ],
)
def test_a_row_that_cannot_be_proved_is_refused(monkeypatch, tmp_path, changes, said):
    """A file that is not there, a figure that it does not hold, a cell that is too long."""
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    (tmp_path / "x.json").write_text(json.dumps({"commit": "0123456789", "n": 1}))
    assert not list(evidence.problems(row()))
    assert any(said in problem for problem in evidence.problems(row(**changes)))
    line = evidence.line(row(), {"environment": {"commit": "0123456789"}})
    assert "[01234567](../benchmarks/results/x.json)" in line


def test_the_page_is_what_the_rows_say():
    """docs/evidence.md is made from docs/evidence.toml, and each row is proved."""
    text, wrong = evidence.page(tomllib.loads(evidence.ROWS.read_text(encoding="utf-8")))
    assert not wrong
    assert evidence.PAGE.read_text(encoding="utf-8") == text


def test_a_page_has_its_groups_commits_and_no_more_rows_than_a_reader_takes(monkeypatch, tmp_path):
    """Groups by what a user asks, a title over each verdict; a row without a commit and a 46th row are refused."""
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    (tmp_path / "x.json").write_text(json.dumps({"n": 1}))
    text, wrong = evidence.page({"before": "", "after": "", "row": [row()]})
    assert "## g" in text and "| Verdict |" in text and wrong == ["c: no commit"]
    _, wrong = evidence.page({"before": "", "after": "", "row": [row(commit="1")] * 46})
    assert wrong == ["46 rows, and 45 is the most"]
