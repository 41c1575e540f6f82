"""Progress on stderr for anything that takes longer than two seconds."""

from __future__ import annotations

import sys
import time

QUIET_S = 2.0
"""Commands that take longer report their progress."""
_STEP_S = 10.0


class Progress:
    """Reports a long command's progress on stderr: one updated line on a terminal, else an occasional line."""

    def __init__(self, what: str, *, quiet_s: float | None = None, step_s: float = _STEP_S) -> None:
        quiet_s = QUIET_S if quiet_s is None else quiet_s
        self.what = what
        self.is_live = sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began + quiet_s
        self._step_s = 0.5 if self.is_live else step_s
        self._is_shown = False

    def update(self, done: int, total: int, parts: str = "files") -> None:
        """Report that ``done`` of ``total`` parts are done."""
        self.say(f"{done:,} of {total:,} {parts} ({100 * done // max(1, total)}%)")

    def say(self, how_far: str = "") -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._step_s
        line = f"{self.what}: {how_far or f'{now - self._began:.0f} s so far'}"
        sys.stderr.write(f"\r{line}\x1b[K" if self.is_live else f"{line}\n")
        sys.stderr.flush()
        self._is_shown = True

    def close(self) -> None:
        if self.is_live and self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
