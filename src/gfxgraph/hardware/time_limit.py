"""A call that may hang in the kernel, made by a thread that nobody waits for longer than a limit."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

Answer = TypeVar("Answer")
LAST_S = 5.0
"""How long a process waits, as it ends, for a file that it writes: a path may hang."""


class Aside:
    """A thread for one call that may hang in the kernel: a read from a wedged GPU, a write to a dead mount.

    It cannot be ended, but this process goes on and ends without it. Made early where the call comes as the process
    ends: from Python 3.12 on no thread can be started then.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[object, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="gfxgraph aside").start()

    def _run(self) -> None:
        try:
            self._answers.put((self._asked.get()(), None))
        except Exception as error:  # noqa: BLE001 - raised again by the one who waits
            self._answers.put((None, error))

    def within(self, limit_s: float, work: Callable[[], Answer]) -> Answer:
        """Return what ``work`` returns, or raise what it raises.

        Raises:
            TimeoutError: it did neither within ``limit_s``.
        """
        self._asked.put(work)
        try:
            answer, error = self._answers.get(timeout=limit_s)
        except queue.Empty:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {limit_s:g} s") from None
        if error is not None:
            raise error
        return cast("Answer", answer)
