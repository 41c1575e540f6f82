"""Verdicts kept on disk: what the file holds is not to be relied on."""

from __future__ import annotations

import json

import pytest

from gfxgraph.kernels.timed_choice import VERSION
from gfxgraph.process.measurements import Kept

ROW = {"ours_us": 1.0, "theirs_us": 2.0}


@pytest.mark.parametrize("at", [None, True, -1, 10**400, float("inf"), "soon", [], {}])
def test_a_row_of_any_time_is_sorted(tmp_path, monkeypatch, at):
    """A time that no clock shows, one beyond floats included, keeps no verdict from being written."""
    rows = {"other": {"ours_us": 10**400, "theirs_us": [], "about": None, "at": at}}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "gfxgraph").mkdir()
    (tmp_path / "gfxgraph/kernels.json").write_text(json.dumps({"version": VERSION, "rows": rows}))
    store = Kept("kernels", "verdicts", VERSION, 9)
    store.put("x", ROW)
    assert ROW.items() <= store.get("x").items()


def test_a_folder_that_cannot_be(monkeypatch):
    """A name that no file system takes keeps nothing, and raises nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    store = Kept("kernels", "verdicts", VERSION, 9)
    store.put("x", ROW)
    assert not Kept("kernels", "verdicts", VERSION, 9).get("x")
