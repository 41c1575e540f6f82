"""Watched dicts at the interpreter's end, and struck by an interrupt."""

from __future__ import annotations

import gc
import weakref

import pytest

from gfxgraph.watching import watch


def test_watchers_that_outlive_this_modules_names_go_in_silence(monkeypatch):
    """A finalizer that runs while modules are taken apart finds nothing to tell; an error there is printed."""
    monkeypatch.setattr(watch, "_api", None)
    watch._forget([id({})])


def test_a_change_that_an_interrupt_strikes_is_noted(monkeypatch):
    """CPython ignores what a watcher raises, and makes the change."""
    watchers = watch.Watchers()

    def changed(address, key):
        raise KeyboardInterrupt

    monkeypatch.setattr(watchers, "changed", changed)
    monkeypatch.setitem(watch._watchers, 1, weakref.WeakSet([watchers]))
    with pytest.raises(KeyboardInterrupt):
        watch._on_event(0, 1, None, None)
    assert watchers.has_changed


@pytest.mark.skipif(watch.HAS_TAGS, reason="CPython 3.11 watches no dicts")
def test_a_dict_that_dies_before_its_object():
    """An object that gets another dict has changed; nothing is touched of the dead one, nor of a later one."""

    class Owner:
        pass

    watched, owner = watch.Watchers(lambda: "here"), Owner()
    owner.__dict__ = {"a": 1}
    watched.add(vars(owner), {"a"}, owner)
    address = id(vars(owner))
    owner.__dict__ = {"a": 2}
    assert watched.has_changed and address not in watch._watchers and not watched._alive
    with pytest.raises(ValueError, match="non-dictionary"):
        watched.add([], {"a"})
    assert not watched._alive
    del owner, watched
    gc.collect()
