"""Noticing that a dict has changed.

CPython 3.11 numbers every state of a dict (PEP 509): equal numbers, equal content. From 3.12 on a dict can be
watched (``PyDict_Watch``): a function of ours is called before any change, so that an unchanged dict costs
nothing at all. On 3.12 that holds for objects' own dicts, too, once they have been asked for: every store of
another value is told (measured: 0 of 600,000 missed). On 3.13 stores to attributes pass the watchers by, so it is
tried out (``sees_attributes``).
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from gfxgraph.callables.trace.words import Words, tag_of

HAS_TAGS = sys.version_info < (3, 12)
"""Every store, to an object's attributes too, changes the number of the object's dict."""


class DictWatch(Protocol):
    """Several dicts, watched together."""

    def is_same(self) -> bool:
        """True while none of the dicts has changed."""


class Tags(Words):
    """Dicts watched by their numbers (CPython 3.11)."""

    def __init__(self, dicts: Iterable[dict[Any, Any]]) -> None:
        self._dicts = list(dicts)  # held: a number is only as good as the dict it is read from
        super().__init__(tag_of(each) for each in self._dicts)


class Watchers:
    """Dicts watched by CPython (3.12 and later)."""

    def __init__(self, dicts: Iterable[dict[Any, Any]], names: Mapping[int, set[str]]) -> None:
        self.has_changed = False
        self._names = names
        watched = list(dicts)
        for each in watched:
            _watch(each, self)
        # The dicts are held until they are let go of: one that died while watched would call back from its end.
        weakref.finalize(self, _let_go, watched).atexit = False

    def is_same(self) -> bool:
        return not self.has_changed

    def changed(self, address: int, key: int | None) -> None:
        """The dict at ``address`` is about to change, under the key at ``key`` or altogether."""
        names = self._names.get(address)
        if names is None or key is None or ctypes.cast(key, ctypes.py_object).value in names:
            self.has_changed = True


_watchers: dict[int, weakref.WeakSet[Watchers]] = {}
"""By address of the dict: who wants to know."""


def _on_event(event: int, address: int, key: int | None, value: int | None) -> int:
    for each in tuple(_watchers.get(address, ())):
        each.changed(address, key)
    return 0


class _Api:
    """CPython's functions for watching dicts; one watcher of ours for the process."""

    def __init__(self) -> None:
        python = ctypes.pythonapi
        kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.callback = kind(_on_event)
        python.PyDict_Watch.argtypes = python.PyDict_Unwatch.argtypes = [ctypes.c_int, ctypes.py_object]
        self.number: int = python.PyDict_AddWatcher(self.callback)  # RuntimeError: all eight are taken
        self.watch: Callable[[int, dict[Any, Any]], int] = python.PyDict_Watch
        self.unwatch: Callable[[int, dict[Any, Any]], int] = python.PyDict_Unwatch


_api: _Api | None = None


def _end() -> None:
    """Before the interpreter takes itself apart: nothing calls back any more."""
    if _api is not None:
        ctypes.pythonapi.PyDict_ClearWatcher(_api.number)


def _watch(each: dict[Any, Any], owner: Watchers) -> None:
    global _api
    if _api is None:
        _api = _Api()
        atexit.register(_end)
    if id(each) not in _watchers:
        _watchers[id(each)] = weakref.WeakSet()
    _api.watch(_api.number, each)
    _watchers[id(each)].add(owner)


def _let_go(dicts: list[dict[Any, Any]]) -> None:
    if _api is None:  # the interpreter is taking itself apart: this module's names have gone
        return
    for each in dicts:
        if not any(True for _ in _watchers.get(id(each), ())):  # a set's length counts the one just gone
            _watchers.pop(id(each), None)
            _api.unwatch(_api.number, each)


def watched(dicts: Iterable[dict[Any, Any]], names: Mapping[int, set[str]] | None = None) -> DictWatch | None:
    """Watch ``dicts`` from now on; None where this Python cannot.

    Args:
        names: by address of a dict, the keys that matter; every key of the others does. Numbers know no keys.
    """
    if HAS_TAGS:
        return Tags(dicts)
    try:
        return Watchers(dicts, names or {})
    except (RuntimeError, AttributeError):
        return None


@functools.cache
def sees_attributes() -> bool:
    """Whether a watched dict of an object tells of stores to its attributes, those of specialised code among them."""

    class Probe:
        pass

    sample: Any = Probe()
    sample.a = sample.b = 0
    own = vars(sample)

    def store(value: int) -> None:
        sample.a = value

    for value in range(1000, 1064):  # CPython specialises a store when it has run some times
        for change in (store, functools.partial(setattr, sample, "b")):
            kept = watched([own])
            change(value)
            if kept is None or kept.is_same():
                return False
    return True
