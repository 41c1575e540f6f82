"""Whatever decisions.json holds, a callable's store reads it or says that it cannot."""

from __future__ import annotations

import json
import os

import pytest

from gfxgraph.callables.adaptive import VERSION, kept_decision, store
from gfxgraph.core.eager_or_graph import Decision, Way

HOSTILE = [
    "[" * 200_000,
    "Infinity",
    json.dumps({"version": VERSION, "rows": [1]}),
    json.dumps({"version": VERSION, "rows": {"k": 3}}),
    json.dumps({"version": VERSION, "rows": {"k": {"decision": 5, "at": "never"}}}),
    json.dumps({"version": VERSION, "rows": {"k": {"decision": {"way": [], "eager_us": 1e999}, "at": {}}}}),
    json.dumps({"version": VERSION, "rows": {"k": {"decision": None, "at": None}}}),
    "\0" * 100,
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The state folder, of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "gfxgraph").mkdir()
    return tmp_path / "gfxgraph"


@pytest.mark.parametrize("content", HOSTILE)
def test_any_content(folder, content):
    """Nothing is raised, nothing is believed, and what is decided afterwards is kept."""
    (folder / "decisions.json").write_text(content, encoding="utf-8")
    assert kept_decision(store(), "k") is None
    decision = a_decision()
    store().put("mine", {"decision": decision.as_dict()})
    assert kept_decision(store(), "mine") == decision


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_a_pipe(folder):
    """A FIFO in the file's place is neither read nor replaced, and nobody waits."""
    os.mkfifo(folder / "decisions.json")
    kept = store()
    assert kept_decision(kept, "k") is None
    kept.put("k", {"decision": a_decision().as_dict()})
    assert kept_decision(kept, "k") is not None  # in this process


def test_a_folder_that_cannot_be(tmp_path, monkeypatch):
    """A state folder below a file: nothing is kept, nothing is raised."""
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "state"))
    kept = store()
    assert kept_decision(kept, "k") is None
    kept.put("k", {"decision": a_decision().as_dict()})


def a_decision() -> Decision:
    return Decision(Way.GRAPH, "measured", 2.0, 1.5, 2.5, 20, 10.0, 5.0)
