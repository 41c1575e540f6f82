"""Attributes that were replaced, with the originals, so that all of them can be put back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

ABSENT = object()


class Replaced:
    """What was replaced, in order; as a context manager it is undone at the end of the block.

    A step is listed before what it undoes is done, and may run again: an interrupt may strike between any two lines.
    """

    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []
        self.names: list[str] = []
        """The attributes, as ``torch.cuda.device_count``."""

    def replace(self, owner: object, name: str, new: object) -> None:
        """Set an attribute until ``undo``; one that was inherited is removed then."""
        self.steps.append(partial(restore_attribute, owner, name, vars(owner).get(name, ABSENT)))
        self.names.append(f"{getattr(owner, '__name__', owner)}.{name}")
        setattr(owner, name, new)

    def add(self, step: Callable[[], object]) -> None:
        self.steps.append(step)

    def undo(self) -> None:
        """Undo everything, last first; does nothing the second time."""
        while self.steps:
            self.steps.pop()()

    def __enter__(self) -> Replaced:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def restore_attribute(owner: object, name: str, old: object) -> None:
    """Restore what ``vars(owner)`` had under a name; ``ABSENT``: nothing."""
    if old is not ABSENT:
        setattr(owner, name, old)
    elif name in vars(owner):
        delattr(owner, name)
