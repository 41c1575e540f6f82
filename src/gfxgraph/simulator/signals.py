"""Defers signals that arrive while the simulator works until it has returned, as in torch's C++.

Problem: Python runs a signal's handler between any two of its instructions. torch's allocator is C++ and is never
interrupted half-way; the simulator's is Python, and a KeyboardInterrupt inside it leaked blocks. Idea:
handlers check where the signal arrived. Inside the simulator they trace the frame that called it, and run there at
its
next instruction.

Not covered: a program traced by a debugger, or handlers set below ``signal.signal``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_FOLDER = os.path.dirname(__file__) + os.sep
Handler = Callable[[int, FrameType | None], Any]


class Deferring:
    """Wraps a program's handler of one signal."""

    waiting: list[tuple[Deferring, int]] = []
    """Signals that arrived inside the simulator and are not handled yet, in order."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        caller = _caller_of_simulator(frame)
        if caller is None or (sys.gettrace() is not None and not self.waiting):
            self.handler(signum, frame)
            return
        if (self, signum) not in self.waiting:  # like the kernel, keep one pending signal of each kind
            self.waiting.append((self, signum))
        caller.f_trace_opcodes = True
        caller.f_trace = _returned
        sys.settrace(_no_other_frame)


def _caller_of_simulator(frame: FrameType | None) -> FrameType | None:
    """The frame that called the outermost running simulator function; None if there is none."""
    caller = None
    while frame is not None:
        if frame.f_code.co_filename.startswith(_FOLDER):
            caller = frame.f_back
        frame = frame.f_back
    return caller


def _no_other_frame(frame: FrameType, event: str, arg: object) -> None:
    return None


def _returned(frame: FrameType, event: str, arg: object) -> Any:
    """The simulator has returned to the frame: handle the pending signals."""
    sys.settrace(None)
    frame.f_trace = None
    frame.f_trace_opcodes = False
    while Deferring.waiting:
        deferred, signum = Deferring.waiting.pop(0)
        deferred.handler(signum, frame)


def install(undo: Any) -> None:
    """Wrap every handler that Python knows, and every later one, in a `Deferring`."""
    set_handler, get_handler = signal.signal, signal.getsignal
    undo.add(Deferring.waiting.clear)  # its handler may be another one by then

    def signal_(signalnum: Any, handler: Any) -> Any:
        deferring = Deferring(handler) if callable(handler) and not isinstance(handler, signal.Handlers) else handler
        return _own(set_handler(signalnum, deferring))

    undo.set(signal, "signal", signal_)
    undo.set(signal, "getsignal", lambda signalnum: _own(get_handler(signalnum)))
    for number in signal.valid_signals():
        found = get_handler(number)
        if callable(found) and not isinstance(found, signal.Handlers):
            _exchange(set_handler, number, Deferring(found))
            undo.add(lambda number=number: _put_back(set_handler, get_handler, number))


def _own(handler: Any) -> Any:
    return handler.handler if isinstance(handler, Deferring) else handler


def _put_back(set_handler: object, get_handler: Any, number: object) -> None:
    found = get_handler(number)
    if isinstance(found, Deferring):
        _exchange(set_handler, number, found.handler)


def _exchange(set_handler: Any, number: object, handler: object) -> None:
    try:
        set_handler(number, handler)
    except ValueError:  # Python allows this only in the main thread
        return
