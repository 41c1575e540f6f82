"""Verdicts kept on disk: what the file holds is not to be relied on."""

from __future__ import annotations

import json
import os

import pytest

from gfxgraph.kernels.timed_choice import VERSION
from gfxgraph.process.measurements import Kept

HOSTILE = [
    "[" * 200_000,
    "Infinity",
    json.dumps({"version": VERSION, "rows": [1]}),
    json.dumps({"version": VERSION, "rows": {"k": 3}}),
    json.dumps({"version": 99, "rows": {}}),
    json.dumps({"version": VERSION, "rows": {"k": {"at": {}}}}),
    "\0" * 100,
    "",
]
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


@pytest.mark.parametrize("content", HOSTILE)
def test_any_content(tmp_path, monkeypatch, content):
    """Nothing is raised, nothing is believed, and what is decided afterwards is kept, by other processes too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "gfxgraph").mkdir()
    (tmp_path / "gfxgraph/kernels.json").write_text(content)
    stores = [Kept("kernels", "verdicts", VERSION, 9) for _ in range(2)]
    for store, key in zip(stores, "ab"):
        assert "ours_us" not in store.get("k")
        store.put(key, ROW)
    assert all(ROW.items() <= Kept("kernels", "verdicts", VERSION, 9).get(key).items() for key in "ab")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_a_pipe(tmp_path, monkeypatch):
    """A FIFO in the file's place is neither read nor replaced, and nobody waits."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "gfxgraph").mkdir()
    os.mkfifo(tmp_path / "gfxgraph/kernels.json")
    store = Kept("kernels", "verdicts", VERSION, 9)
    assert not store.get("k")
    store.put("k", ROW)
    assert store.get("k")  # in this process
