"""Reports of the native libraries: what is not one is refused, and ends nobody's run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from gfxgraph import native
from gfxgraph.cli import _preload

TARGET = Path(__file__).parents[1] / "fuzz" / "report_files.py"
spec = importlib.util.spec_from_file_location("report_files", TARGET)
report_files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report_files)


def test_every_seed_is_an_answer_or_a_refusal():
    """Each key missing, each value of another kind: 62 of these 220 files ended in a traceback."""
    for data in report_files.seeds():
        report_files.run(data)


def test_a_report_is_read_and_a_broken_one_beside_it_is_left_out(tmp_path):
    """As after a process that died while writing."""
    whole = report_files._PRELOAD
    (tmp_path / "r-1.json").write_text(json.dumps(whole))
    (tmp_path / "r-2.json").write_text(json.dumps(whole)[:80])
    (seen,) = _preload.reports(tmp_path / "r-%p.json")
    assert (seen.pid, seen.version, seen.deepbind_kept, seen.namespaces) == (1, (7, 2, 26015), ("b.so",), ())
    assert any("2 nodes run one by one" in line for line in seen.lines())
    with pytest.raises(ValueError, match="Expecting|Unterminated|delimiter"):
        native.read_report(tmp_path / "r-2.json")
