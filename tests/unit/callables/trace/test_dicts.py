"""callables/trace/dicts.py at the interpreter's end."""

from __future__ import annotations

from gfxgraph.callables.trace import dicts


def test_watchers_that_outlive_this_modules_names_go_in_silence(monkeypatch):
    """A finalizer that runs while modules are taken apart finds nothing to tell; an error there is printed."""
    monkeypatch.setattr(dicts, "_api", None)
    dicts._let_go([{}])
