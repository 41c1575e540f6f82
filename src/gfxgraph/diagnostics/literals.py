"""Find thousands of fixed texts in a block of bytes at once.

Aho-Corasick visits each byte once, whatever the number of texts. A small automaton takes 4 ms to build and a
large one, twice as fast, 60 ms; so the first kilobytes of a stream are searched text by text, the next megabytes
by the small one. Searching text by text is also the fallback without an automaton (a platform without a wheel of
``ahocorasick-rs``): same answers, a hundred times slower on large inputs.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

_LEAST_BYTES = 1 << 12
"""An automaton is built for streams larger than this."""
_MANY_BYTES = 1 << 25
"""The large automaton is built for streams larger than this."""


class Finder:
    """Finds ``texts``, given in lower case, in lower-case blocks."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts
        self._automaton: Any = None
        self._is_large = False
        self._seen = 0

    def find(self, block: bytes) -> list[tuple[int, int, int]]:
        """Return (number of the text, start, end) of every occurrence, ordered by end."""
        self._seen += len(block)
        is_large = self._seen > _MANY_BYTES
        if self._seen > _LEAST_BYTES and (self._automaton is None or (is_large and not self._is_large)):
            self._automaton, self._is_large = _build(self.texts, is_large=is_large), is_large
        if self._automaton:
            found: list[tuple[int, int, int]] = self._automaton.find_matches_as_indexes(block, overlapping=True)
            return found
        return self._one_by_one(block)

    def _one_by_one(self, block: bytes) -> list[tuple[int, int, int]]:
        found = []
        for number, text in enumerate(self.texts):
            start = block.find(text)
            while start >= 0:
                found.append((number, start, start + len(text)))
                start = block.find(text, start + 1)
        return sorted(found, key=lambda hit: hit[2])


def _build(texts: Sequence[bytes], *, is_large: bool) -> Any:
    """Return an automaton, or False without the library."""
    if importlib.util.find_spec("ahocorasick_rs") is None:
        return False
    library = importlib.import_module("ahocorasick_rs")
    # The DFA takes half a megabyte per hundred texts.
    kind = library.Implementation.DFA if is_large else library.Implementation.ContiguousNFA
    return library.BytesAhoCorasick(texts, implementation=kind)
