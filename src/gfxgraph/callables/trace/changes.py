"""What a trace changes of the process, undone at its end whatever strikes meanwhile.

Struck before its first instruction, an exit is run by whoever cleans up (capture/half_entered.py). Where nobody does,
and where an entry was struck, the block is still noted as underway when its frame is over: the next block undoes what
it left, or the call that the interrupt leaves, or ``gfxgraph.disable()``. A block whose frame still runs, in any
thread, is left alone.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Self

from gfxgraph.core.locks import new_lock

_underway: list[Changes] = []
_lock = new_lock()


class Changes:
    """Changes that hold for a block.

    Each is noted before it is made, and each is undone once more where something strikes while they are undone.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._frame: FrameType | None = None
        """The one that the block is in."""

    def __enter__(self) -> Self:
        self._begin(sys._getframe(1))
        return self

    def _begin(self, frame: FrameType) -> None:
        put_back()
        self._frame = frame
        _underway.append(self)

    def note(self, undo: Callable[[], object]) -> None:
        """What undoes the change that is made next; it may run though that was not made, and twice."""
        self._undo.append(undo)

    def put(self, owner: object, name: str, value: object) -> None:
        """Have ``value`` as an attribute, or as an entry of a dict."""
        own = owner[name] if isinstance(owner, dict) else getattr(owner, name)
        self.note(functools.partial(_put, owner, name, own))
        _put(owner, name, value)

    def __exit__(self, *_: object) -> None:
        try:
            self._put_back()
        except BaseException:
            self._put_back()
            raise

    def _put_back(self) -> None:
        while self._undo:
            self._undo[-1]()
            self._undo.pop()
        self._frame = None
        with suppress(ValueError):
            _underway.remove(self)


def put_back() -> None:
    """Undo what blocks that are over have left."""
    if not _underway:
        return
    with _lock:
        running = _running()
        for each in reversed(_underway.copy()):
            if id(each._frame) not in running:
                with suppress(ValueError):  # handlers of signals: Python lets only the main thread set them
                    each.__exit__()


def _running() -> set[int]:
    """The ids of all threads' frames."""
    found: set[int] = set()
    tops = sys._current_frames()
    tops[threading.get_ident()] = sys._getframe(1)  # not this one, which would keep itself alive
    for top in tops.values():
        frame: FrameType | None = top
        while frame is not None:
            found.add(id(frame))
            frame = frame.f_back
    return found


def _put(owner: object, name: str, value: object) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)
