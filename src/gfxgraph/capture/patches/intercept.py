"""The captures underway in this process, of all threads: how one begins and ends, and what waits until all have.

While there is one, torch's functions are replaced (replaced.py), and a graph that dies is kept until the last one
ends.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from gfxgraph.capture import capture_lock
from gfxgraph.capture.capture_lock import holders, keep_until_captures_end
from gfxgraph.capture.patches import deferred_calls, replaced
from gfxgraph.capture.undo import BASELINE, Undo
from gfxgraph.process import process

_DRAWN_WITHIN_S = 0.001
"""A draw that another thread has begun before its function was replaced has asked for its numbers by then."""


def enter(holder: object, where: object) -> None:
    """Begin a capture in this thread; wait until those of other threads are over.

    Args:
        where: the line that begins it, for reports.
    """
    deferred_calls.prepare(torch.cuda.current_device())
    turn = capture_lock.Turn(where=where)
    with capture_lock.lock:
        holders[id(holder)] = turn  # noted before it is taken: an interrupt may strike at any line
    capture_lock.take(turn)
    with capture_lock.lock:
        if not replaced.NAMES:
            replaced.install()
    if replaced.guards_draws():
        time.sleep(_DRAWN_WITHIN_S)


@contextmanager
def entered(holder: object, where: object) -> Iterator[None]:
    """A block that is a capture of this thread; see ``enter``."""
    undo = Undo([functools.partial(leave, holder)])
    try:
        enter(holder, where)
        yield
    finally:
        undo.take_back()


def leave(holder: object) -> None:
    """End a capture of any thread. May be called more than once."""
    _leave([id(holder)])


def holders_here() -> frozenset[int]:
    """The holders of this thread's captures."""
    me = threading.get_ident()
    return frozenset(holder for holder, turn in list(holders.items()) if turn.thread == me)


def leave_others(known: frozenset[int]) -> None:
    """End this thread's captures, except those in ``known``, and what an interrupt has left of an end."""
    _leave(holders_here() - known)


BASELINE.append((holders_here, leave_others))


def _leave(gone: Iterable[int]) -> None:
    with capture_lock.lock:
        for holder in gone:
            if holder in holders:
                capture_lock.give(holders[holder])
                holders.pop(holder, None)
        if holders or not replaced.NAMES:
            return
        replaced.NAMES.take_back()
        dead = capture_lock.kept()
    if dead:
        _bury(dead)


def _bury(dead: list[object]) -> None:
    """Free graphs while no other thread can begin a capture; if one has begun, when its capture ends."""
    with capture_lock.held_unless(lambda: keep_until_captures_end(tuple(dead))) as is_time, capture_lock.unnoticed():
        if is_time:
            dead.clear()


def end_in_child() -> None:
    """In a forked child: put back what the captures had replaced, and destroy no graph: they are the parent's."""
    for each in capture_lock.kept():
        process.never_destroy(each)
    capture_lock.forget_all()
    _leave(list(holders))


@functools.cache
def own_class(base: type) -> type:
    """The class, over torch's, of graphs that no program holds: those of segments and pools."""

    class OwnGraph(base):  # type: ignore[misc]
        def __del__(self) -> None:
            above = getattr(super(), "__del__", None)
            if above is not None:
                above()
            if holders:  # the destructor follows at once: a call in between could let another thread begin
                keep_until_captures_end(self)

    return OwnGraph
