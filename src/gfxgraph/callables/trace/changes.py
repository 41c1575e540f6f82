"""What a trace changes of the process, undone at its end whatever strikes meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Self


class Changes:
    """Changes that hold for a block.

    Each is noted before it is made, and each is undone once more where something strikes while they are undone.
    Struck before its first instruction, the exit is run by whoever cleans up (capture/half_entered.py).
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        return self

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
        for undo in reversed(self._undo):
            undo()


def _put(owner: object, name: str, value: object) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)
