"""Signals that land while Dynamo traces, or sizes are symbols, are handled when that is over.

Problem: Python runs a signal's handler between any two of its instructions. Dynamo's own blocks stay half left then,
and where C++ that may not throw has called Python, the process aborts ("terminate called after throwing an instance
of 'pybind11::error_already_set'", seen with torch 2.13). Where it asks a symbol for its size, it takes the
KeyboardInterrupt for an argument of the wrong type ("Expected a value of type 'List[int]'", 2.11 and 2.13).

Idea: as long as a trace of ours runs, Python's handlers are put aside, and what has come is raised anew at its end.
SIGINT is the first to be put aside and the last to be put back, so no KeyboardInterrupt leaves the block half
entered. A second signal of the same kind does not wait: a trace takes seconds, and somebody means it.

Source: tests/property/faults_mixed.py; docs/decisions/0213.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Self

Handler = Callable[[int, FrameType | None], object]


class Waiting:
    """A block at whose end the signals that came meanwhile are handled, where they are: in the main thread."""

    def __init__(self) -> None:
        self._came: set[int] = set()
        self._handlers = ExitStack()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in sorted(signal.valid_signals(), key=lambda number: number != signal.SIGINT):
                handler = signal.getsignal(number)
                if callable(handler) and not isinstance(handler, signal.Handlers):
                    held = functools.partial(self._hold, handler)
                    self._handlers.callback(_exchange, number, held, handler)
                    signal.signal(number, held)
        return self

    def _hold(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        if number in self._came:
            handler(number, frame)
        self._came.add(number)

    def __exit__(self, *_: object) -> None:
        self._handlers.close()
        while self._came:
            signal.raise_signal(self._came.pop())


def _exchange(number: int, held: object, handler: Handler) -> None:
    """Put the handler back, unless somebody else has set one."""
    if signal.getsignal(number) is held:
        signal.signal(number, handler)
