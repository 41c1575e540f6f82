"""A bound on the processor time that one file may take.

Problem: no list of limits foresees every input that makes a parser, an expression or a loop quadratic. Idea: a
timer on the process's own processor time interrupts whatever runs, and the file is reported instead.

Processor time, not the clock: a busy machine is no reason to leave a file out. Signals reach Python's main thread
only, so elsewhere (and where the platform has no such timer) there is no bound.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

FILE_SECONDS = 10.0


class OutOfTimeError(BaseException):
    """The bound is reached. Not an ``Exception``: no check may swallow it."""


@contextlib.contextmanager
def processor_time(seconds: float = FILE_SECONDS) -> Iterator[None]:
    """Raise `OutOfTimeError` in the block once the process has computed for ``seconds``."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    running = True

    def stop(_number: int, _frame: FrameType | None) -> None:
        if running:
            raise OutOfTimeError

    before = signal.signal(signal.SIGVTALRM, stop)
    # Once more every second: cleanup code that catches everything would otherwise go on without a bound.
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)
    try:
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, before)
