"""Detecting changes of dicts.

CPython 3.11 numbers every state of a dict (PEP 509): equal numbers mean equal content. From 3.12 on a dict can be
watched (``PyDict_Watch``): CPython calls a function of ours before any change, so that an unchanged dict costs
nothing at all. On 3.12 this includes objects' own dicts, once they have been accessed: every store of
another value is reported (measured: 0 of 600,000 missed). On 3.13 stores to attributes bypass the watchers, so this
is tested at run time (``sees_attributes``).
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from gfxgraph.callables.trace.memory_words import Words, tag_of

HAS_TAGS = sys.version_info < (3, 12)
"""Every store, also to an object's attributes, changes the version number of the object's dict."""


class DictWatch(Protocol):
    """Several dicts, watched together."""

    def is_same(self) -> bool:
        """True while none of the dicts has changed."""


class Tags(Words):
    """Dicts watched by their version numbers (CPython 3.11)."""

    def __init__(self, dicts: Iterable[dict[Any, Any]]) -> None:
        self._dicts = list(dicts)  # kept alive: a number is only valid while its dict exists
        super().__init__(tag_of(each) for each in self._dicts)


class Watchers:
    """Dicts watched by CPython (3.12 and later)."""

    def __init__(self, dicts: Iterable[dict[Any, Any]], names: Mapping[int, set[str]]) -> None:
        self.has_changed = False
        self._names = names
        watched = list(dicts)
        for each in watched:
            _watch(each, self)
        # The dicts are kept alive until they are unwatched: one that died while watched would call back.
        weakref.finalize(self, _let_go, watched).atexit = False

    def is_same(self) -> bool:
        return not self.has_changed

    def changed(self, address: int, key: int | None) -> None:
        """Called when the dict at ``address`` is about to change, at the key at ``key`` or as a whole."""
        names = self._names.get(address)
        if names is None or key is None or ctypes.cast(key, ctypes.py_object).value in names:
            self.has_changed = True


_watchers: dict[int, weakref.WeakSet[Watchers]] = {}
"""By address of the dict: the watchers to notify."""


def _on_event(event: int, address: int, key: int | None, value: int | None) -> int:
    try:
        for each in tuple(_watchers.get(address, ())):
            each.changed(address, key)
    except BaseException:  # an interrupt, which CPython ignores here: the change must not be missed
        for each in tuple(_watchers.get(address, ())):
            each.has_changed = True
        raise
    return 0


class _Api:
    """CPython's functions for watching dicts, with one watcher id for the process."""

    def __init__(self) -> None:
        python = ctypes.pythonapi
        kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.callback = kind(_on_event)
        python.PyDict_Watch.argtypes = python.PyDict_Unwatch.argtypes = [ctypes.c_int, ctypes.py_object]
        self.number: int = python.PyDict_AddWatcher(self.callback)  # raises RuntimeError if all eight are taken
        self.watch: Callable[[int, dict[Any, Any]], int] = python.PyDict_Watch
        self.unwatch: Callable[[int, dict[Any, Any]], int] = python.PyDict_Unwatch


_api: _Api | None = None


def _end() -> None:
    """Stop all callbacks before the interpreter shuts down."""
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
    if _api is None:  # the interpreter is shutting down and has cleared this module's names
        return
    for each in dicts:
        if not any(True for _ in _watchers.get(id(each), ())):  # a WeakSet's length still counts the one just freed
            _watchers.pop(id(each), None)
            _api.unwatch(_api.number, each)


def watched(dicts: Iterable[dict[Any, Any]], names: Mapping[int, set[str]] | None = None) -> DictWatch | None:
    """Watch ``dicts`` from now on; None if this Python cannot.

    Args:
        names: by address of a dict, the keys that matter; for other dicts every key does. Version numbers ignore
        this.
    """
    if HAS_TAGS:
        return Tags(dicts)
    try:
        return Watchers(dicts, names or {})
    except (RuntimeError, AttributeError):
        return None


@functools.cache
def sees_attributes() -> bool:
    """Whether watching an object's dict reports stores to its attributes, including those of specialized bytecode."""

    class Probe:
        pass

    sample: Any = Probe()
    sample.a = sample.b = 0
    own = vars(sample)

    def store(value: int) -> None:
        sample.a = value

    for value in range(1000, 1064):  # CPython specializes a store after some executions
        for change in (store, functools.partial(setattr, sample, "b")):
            kept = watched([own])
            change(value)
            if kept is None or kept.is_same():
                return False
    return True
