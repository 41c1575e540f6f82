"""Whatever decisions.json holds, a callable's store reads it or says that it cannot."""

from __future__ import annotations

import json
import os

import pytest

from gfxgraph.callables.adaptive import VERSION, Store
from gfxgraph.core.choice import Decision, Way

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


@pytest.mark.parametrize("content", HOSTILE)
def test_any_content(tmp_path, content):
    """Nothing is raised, nothing is believed, and what is decided afterwards is kept."""
    (tmp_path / "decisions.json").write_text(content, encoding="utf-8")
    assert Store(str(tmp_path)).get("k") is None
    store = Store(str(tmp_path))
    decision = a_decision()
    store.put("mine", decision, {})
    assert Store(str(tmp_path)).get("mine") == decision


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_a_pipe(tmp_path):
    """A FIFO in the file's place is neither read nor replaced, and nobody waits."""
    os.mkfifo(tmp_path / "decisions.json")
    store = Store(str(tmp_path))
    assert store.get("k") is None
    store.put("k", a_decision(), {})
    assert store.get("k") is not None  # in this process


def test_a_folder_that_cannot_be(tmp_path):
    """A state folder below a file: nothing is kept, nothing is raised."""
    (tmp_path / "home").write_text("")
    store = Store(str(tmp_path / "home" / "state"))
    assert store.get("k") is None
    store.put("k", a_decision(), {})


def a_decision() -> Decision:
    return Decision(Way.GRAPH, "measured", 2.0, 1.5, 2.5, 20, 10.0, 5.0)
