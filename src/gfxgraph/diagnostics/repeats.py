"""Skips lines that differ only in numbers from many lines searched before.

Logs repeat: one line in a million variations. Searching costs most if each of them contains words of a message
without being one, or is one. A form (a line without the characters of numbers) of which enough lines have
been searched is settled: its meaning is counted for each further line, and the line is not searched. Forms
are used only while blocks contain many texts, and not for a while if too little repeats.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Container
from itertools import accumulate

Seen = tuple[tuple[str, int], ...]
Found = list[tuple[int, int, int]]

_NUMBERS = b"0123456789abcdefABCDEF"
_MANY_TEXTS = 1200  # in a block: with fewer, searching is faster than computing forms
_SETTLED = 64  # lines; a long one counts as several
_LONG = 512  # bytes
_MOST_FORMS = 1 << 16  # beyond that all are forgotten
_MOST_UNLIKE = 4  # blocks in which little repeats
_PAUSE = 16  # blocks


class Fresh:
    """The lines of a block that still have to be searched, joined."""

    def __init__(self, block: bytes, forms: list[int], lines: list[int]) -> None:
        parts = block.split(b"\n")
        self._forms, self._lines = forms, lines
        self._parts = parts
        self._starts = _starts(parts)
        chosen = [parts[line] for line in lines]
        self._starts_in_text = _starts(chosen)
        self.text = b"\n".join(chosen)

    def placed(self, found: Found) -> Found:
        """Map positions of texts found in ``text`` to positions in the whole block."""
        placed = []
        for number, start, end in found:
            place = bisect_right(self._starts_in_text, start) - 1
            shift = self._starts[self._lines[place]] - self._starts_in_text[place]
            placed.append((number, start + shift, end + shift))
        return placed

    def form_at(self, start: int) -> int:
        """Return the form of the line at this position of the block."""
        return self._forms[bisect_right(self._starts, start) - 1]

    def forms(self) -> list[tuple[int, int]]:
        """Return the form and length of each line to be searched."""
        return [(self._forms[line], len(self._parts[line])) for line in self._lines]


class Repeats:
    """The forms seen in a stream."""

    def __init__(self) -> None:
        self._n_lines: dict[int, int] = {}
        self._meanings: dict[int, Seen] = {}
        self._is_worth_it = False
        self._n_unlike = self._pause = 0

    def noted(self, n_texts: int) -> None:
        """Use forms from the next block on if this one contained many texts."""
        self._is_worth_it = n_texts > _MANY_TEXTS

    def fresh(self, block: bytes, known: Container[str]) -> tuple[Fresh, dict[Seen, int]] | None:
        """Return the lines to be searched, and the number of settled lines by meaning.

        None if the whole block must be searched. A form is searched again if not all of its codes are
        ``known`` (any more).
        """
        if self._pause or not self._is_worth_it:
            self._pause -= self._pause > 0
            return None
        if len(self._n_lines) > _MOST_FORMS:
            self._n_lines.clear()
            self._meanings.clear()
        forms = [*map(hash, block.translate(None, _NUMBERS).split(b"\n"))]
        n_lines = self._n_lines.get
        settled = {form for form in set(forms) if n_lines(form, 0) >= _SETTLED}
        counted: dict[Seen, int] = {}
        for form in settled & self._meanings.keys():
            meaning = self._meanings[form]
            if all(code in known for code, _ in meaning):
                counted[meaning] = counted.get(meaning, 0) + forms.count(form)
            else:
                settled.discard(form)
        lines = [line for line, form in enumerate(forms) if form not in settled]
        self._is_worth_it = len(lines) * 2 < len(forms)
        self._n_unlike = 0 if self._is_worth_it else self._n_unlike + 1
        if self._n_unlike > _MOST_UNLIKE:
            self._pause, self._n_unlike = _PAUSE, _MOST_UNLIKE
        return Fresh(block, forms, lines), counted

    def learn(self, fresh: Fresh, meanings: Collection[tuple[int, Seen | None]], n_texts: int) -> None:
        """Record the meaning of the searched lines: position in the block and codes, None for lines that are never
        settled.
        """
        n_lines = self._n_lines
        for form, nbytes in fresh.forms():
            n_lines[form] = n_lines.get(form, 0) + 1 + nbytes // _LONG
        for start, meaning in meanings:
            form = fresh.form_at(start)
            if meaning is None:
                n_lines[form] = -1 << 60
            else:
                self._meanings[form] = meaning
        self._is_worth_it |= n_texts > _MANY_TEXTS


def _starts(lines: list[bytes]) -> list[int]:
    return [0, *accumulate([len(line) + 1 for line in lines])][:-1]
