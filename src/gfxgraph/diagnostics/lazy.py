"""Regular expressions that are compiled on first use, so that they do not slow down the start."""

from __future__ import annotations

import re


class Expression:
    """Like ``re.compile(pattern, flags)``."""

    __slots__ = ("pattern", "flags", "_compiled")

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern, self.flags = pattern, flags
        self._compiled: re.Pattern[str] | None = None

    @property
    def compiled(self) -> re.Pattern[str]:
        if self._compiled is None:
            self._compiled = re.compile(self.pattern, self.flags)
        return self._compiled

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match in ``text``, or None."""
        return self.compiled.search(text)

    def match(self, text: str) -> re.Match[str] | None:
        """Return the match at the start of ``text``, or None."""
        return self.compiled.match(text)
