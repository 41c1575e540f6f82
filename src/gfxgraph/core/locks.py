"""Locks that a forked child does not inherit held: the thread that held one is not there."""

from __future__ import annotations

import threading
import weakref
from typing import Any

every: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.RLock:
    """A reentrant lock that is free in a forked child, unless the thread that forked holds it."""
    made = threading.RLock()
    every.add(made)
    return made


def free_in_child() -> None:
    """Call in a forked child, before anything takes a lock."""
    for lock in list(every):
        if not lock._is_owned():
            lock._at_fork_reinit()
