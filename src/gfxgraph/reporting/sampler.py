"""Coverage's sampling: windows opened from another thread, rarely enough to cost less than 1 % of the time."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from gfxgraph.process import process

WINDOW_S = 0.05
SHARE_OF_TIME = 0.01
"""The allowed share of watching: it determines the pause after a window."""
LEAST_PAUSE_S = 0.5


class Windowed(Protocol):
    """What the sampler opens and closes in the main thread (watch.py)."""

    is_held: bool

    @property
    def cost_s(self) -> float: ...
    @property
    def has_seen(self) -> bool: ...
    def open(self) -> None: ...
    def close(self) -> None: ...


class Sampler:
    """Opens and closes windows in the main thread, from a thread of its own."""

    def __init__(self, watch: Windowed) -> None:
        self.watch = watch
        self.ended = threading.Event()
        self._calls = [
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call(do)) for do in (watch.open, watch.close)
        ]
        self._thread = threading.Thread(target=self._run, name="gfxgraph-coverage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Open no more windows; the caller closes an open one in its own thread."""
        self.ended.set()

    def _call(self, do: Callable[[], None]) -> Callable[[Any], int]:
        def pending(_: Any) -> int:
            if not (self.ended.is_set() or self.watch.is_held or sys.is_finalizing()):
                try:
                    do()
                except RuntimeError as error:  # raised here it would surface in an arbitrary line of the program
                    process.log.warning("coverage is no longer counted: %s", error)
                    self.ended.set()
            return 0

        return pending

    def _run(self) -> None:
        schedule = ctypes.pythonapi.Py_AddPendingCall
        while not self.ended.is_set():
            before = self.watch.cost_s
            schedule(self._calls[0], None)
            self.ended.wait(WINDOW_S)
            if not self.watch.has_seen:  # the first window lasts until something happens: the program may be short
                continue
            schedule(self._calls[1], None)
            pause = max(LEAST_PAUSE_S, (self.watch.cost_s - before) / SHARE_OF_TIME)
            # At irregular times: a program's steps may have the same period.
            self.ended.wait(pause * random.uniform(0.8, 1.2))
