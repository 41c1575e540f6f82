"""callables/trace/dicts.py at the interpreter's end, and struck by an interrupt."""

from __future__ import annotations

import weakref

import pytest

from gfxgraph.callables.trace import dicts


def test_watchers_that_outlive_this_modules_names_go_in_silence(monkeypatch):
    """A finalizer that runs while modules are taken apart finds nothing to tell; an error there is printed."""
    monkeypatch.setattr(dicts, "_api", None)
    dicts._let_go([{}])


def test_a_change_that_an_interrupt_strikes_is_noted(monkeypatch):
    """CPython ignores what a watcher raises, and makes the change."""
    watch = dicts.Watchers([], {})

    def changed(address, key):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "changed", changed)
    monkeypatch.setitem(dicts._watchers, 1, weakref.WeakSet([watch]))
    with pytest.raises(KeyboardInterrupt):
        dicts._on_event(0, 1, None, None)
    assert not watch.is_same()
