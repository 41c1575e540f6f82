"""Finds catalogued conditions in a stream of log lines, as fast as the pipe and in fixed memory.

Every expression of the catalogue is searched for at once (``index``): first in a whole block, then, only if something
was found there, line by line. A long line is searched in overlapping windows. A line that was found counts only if it
is a failure and not text about failures (``mentions``), which its neighbours show too. The context of a
failure (which GPU, which program, which cause) is read from the head of the stream, its end, and around the
first occurrence of each failure.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gfxgraph.diagnostics import mentions
from gfxgraph.diagnostics.expression_index import DIGIT, DIGITS, Index, load, names
from gfxgraph.diagnostics.kinds import Item

# Colours and cursor movements may separate the words of a message.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_ARCH = re.compile(r"gfx[0-9][0-9a-f]{2,3}\b")
_HEAD = 200  # lines
_NEAR = 40  # lines
_END = 300  # lines
_PIECE = 1 << 17  # bytes searched at once
_LONGEST_NOTED = 2000  # characters of a line
_LONG = 4096  # a longer line is searched in windows of this size
_OVERLAP = 600  # bytes from window to window
_LONGEST_TAIL = 1 << 16  # a line without end is searched in pieces of this size, which overlap like windows
_MOST_FORMS = 8192  # when there are more, all are forgotten: memory stays fixed
_COUNTED_BLINDLY = 64  # hits of a code, after which a line is no longer judged by its context

_STRENGTH = {"own": 3, "strong": 2, "status": 1, "weak": 0, "number": 0}
_DENIABLE = ("strong", "number")  # by an expression of the kind "unless" in the same line
_WITH_VALUES = ("number", "own")  # a value in the text decides on the code


@dataclass(slots=True)
class CodeHit:
    """What was found for one code.

    ``strength``: 3 own, 2 strong or a whole combination, 1 status, 0 weak.
    """

    code: str
    text: str
    line: int
    count: int = 0
    strength: int = 0


class Scanner:
    """Takes bytes and reports what was found. One per stream."""

    def __init__(self, index: Index | None = None) -> None:
        self.index = index or load()
        self.hits: dict[str, CodeHit] = {}
        self.causes: dict[tuple[str, int], list[int]] = {}  # lines that show a cause, by code and number
        self.refuted: set[str] = set()  # codes that other lines of the text contradict
        self.told: set[str] = set()  # codes that the text explains itself
        self.archs: dict[str, int] = {}
        self.context: dict[int, str] = {}  # lines at the ends of the stream and round failures, by number
        self._finding, self._adding = self.index.finding, self.index.adding
        self._head: list[bytes] = []
        self._end: deque[bytes] = deque(maxlen=_END)
        self._parts: dict[tuple[str, int], tuple[str, int]] = {}
        # What counts in a line, by its form, the line without digits: logs repeat with other numbers.
        self._judged: dict[bytes, list[CodeHit]] = {}
        self._tail = b""
        self._n_lines = 0
        self._noted_to = 0

    def feed(self, data: bytes) -> None:
        """Process the next piece of the stream."""
        for begin in range(0, len(data), _PIECE):
            block, newline, tail = (self._tail + data[begin : begin + _PIECE]).rpartition(b"\n")
            if newline:
                self._block(block)
                self._n_lines += block.count(b"\n") + 1
            # A line without end (a binary, a progress bar) must not grow forever.
            if len(tail) > _LONGEST_TAIL:
                self._block(tail)
                tail = tail[-_OVERLAP:]
            self._tail = tail

    def finish(self) -> None:
        """Process what came after the last newline, read the context of failures, and complete combinations."""
        if self._tail:
            self._block(self._tail)
            self._n_lines += 1
            self._tail = b""
        self._note([*enumerate(self._head, 1), *enumerate(self._end, self._n_lines - len(self._end) + 1)])
        self._combine()

    def _block(self, block: bytes) -> None:
        """Search whole lines, or a part of one that is too long to wait for its end."""
        if b"\x1b[" in block or b"\x1b]" in block:
            block = _ESCAPES.sub(b"", block)
        if len(self._judged) > _MOST_FORMS:
            self._judged.clear()
        first = self._n_lines + 1
        if self._noted_to >= first or self._finding.may_match(block):
            self._search_lines(block.split(b"\n"), first)
        if len(self._head) < _HEAD:
            wanted = _HEAD - len(self._head)
            self._head += [text[:_LONGEST_NOTED] for text in block.split(b"\n", wanted)[:wanted]]
        self._end.extend(text[:_LONGEST_NOTED] for text in block.rsplit(b"\n", _END)[-_END:])

    def _search_lines(self, lines: list[bytes], first: int) -> None:
        """Search each line; the first one has this number."""
        before = list(self._end)[-mentions.LONGEST_SECTION :]
        stream = [*before, *lines]
        for place, raw in enumerate(lines, len(before)):
            for window in _windows(raw):
                if (judged := self._judged.get(window.translate(None, DIGITS))) is not None:
                    for hit in judged:
                        hit.count += 1
                elif found := self._finding.search(window):
                    self._line(window, found, stream, place, first + place - len(before))
        if self._noted_to >= first:
            self._note(enumerate(lines[: self._noted_to - first + 1], first))

    def _line(self, raw: bytes, numbers: tuple[int, ...], stream: Sequence[bytes], place: int, number: int) -> None:
        """Process a line, or a window of one, in which these items match; it is ``stream[place]``."""
        form = raw.translate(None, DIGITS)
        found = [self._finding.items[n] for n in numbers]
        text = _text(raw)
        self.told.update(_group(item.regex, text) for item in found if item.kind == "own")
        seen = self._meaning(text, found)
        if not seen:
            return
        # Of a window in a long line only the middle: the form of its ends means nothing.
        if mentions.is_said(text if len(raw) < _LONG else text[_OVERLAP : 2 * _OVERLAP]):
            self._judged[form] = []
            return
        is_frequent = all(code in self.hits and self.hits[code].count > _COUNTED_BLINDLY for code in seen)
        if not is_frequent and self._only_said(stream, place):
            return
        is_new = not seen.keys() <= self.hits.keys()
        for code, strength in seen.items():
            self._hit(code, text, number, strength)
        if not any(item.kind in _WITH_VALUES or DIGIT.search(item.regex) for item in found):
            self._judged[form] = [self.hits[code] for code in seen]
        if is_new:
            # The context of a failure's first occurrence shows which program it is.
            self._note(enumerate(stream[max(0, place - _NEAR) : place], number - min(place, _NEAR)))
            self._noted_to = number + _NEAR

    def _meaning(self, text: str, found: Iterable[Item]) -> dict[str, int]:
        """The codes that this text indicates, each with the strength of the match."""
        seen: dict[str, int] = {}
        denied = {item.code for item in found if item.kind == "unless"}
        for item in found:
            code, strength = item.code, _STRENGTH.get(item.kind)
            if strength is None or (code in denied and item.kind in _DENIABLE):
                continue
            if item.kind in _WITH_VALUES:
                value = _group(item.regex, text)
                code = self.index.numbers.get(value, "") if item.kind == "number" else value
            if code in names().ranks:
                seen[code] = max(seen.get(code, strength), strength)
        return seen

    def _only_said(self, stream: Sequence[bytes], place: int) -> bool:
        """Whether what is round this line shows that it mentions failures without being one."""
        first = max(0, place - mentions.LONGEST_SECTION)
        near = [_text(other[:_LONGEST_NOTED]) for other in stream[first : place + mentions.LONGEST_BLOCK]]
        at = place - first
        return mentions.in_own_block(near, at) or mentions.in_prose(near, at)

    def _hit(self, code: str, text: str, number: int, strength: int) -> None:
        """Count a hit; of several lines the one that describes it best is shown."""
        hit = self.hits.setdefault(code, CodeHit(code, text.strip(), number, 0, strength))
        hit.count += 1
        if strength > hit.strength:
            hit.text, hit.line, hit.strength = text.strip(), number, strength

    def _note(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Read additions to a finding: causes, parts of combinations, names of GPUs."""
        for number, raw in lines:
            if number in self.context:
                continue
            line = self.context[number] = _text(raw[:_LONGEST_NOTED])
            for found in self._adding.search(raw[:_LONGEST_NOTED]):
                item = self._adding.items[found]
                if item.kind == "refuted":
                    self.refuted.add(item.code)
                elif item.kind == "cause":
                    self.causes.setdefault((item.code, item.number), []).append(number)
                elif not mentions.is_said(line):
                    self._parts.setdefault((item.code, item.number), (line, number))
            # A line that names many targets is a list of supported ones.
            named = dict.fromkeys(_ARCH.findall(line.lower()))
            if len(named) <= 2:
                for arch in named:
                    self.archs[arch] = self.archs.get(arch, 0) + 1

    def _combine(self) -> None:
        numbers = sorted(self.context)
        texts = [self.context[number] for number in numbers]
        ours = {number for at, number in enumerate(numbers) if mentions.in_own_block(texts, at)}
        self._parts = {key: part for key, part in self._parts.items() if part[1] not in ours}
        for code, sizes in self.index.n_combos.items():
            for combo, size in enumerate(sizes):
                parts = [self._parts.get((code, combo * 100 + part)) for part in range(size)]
                if parts[0] and all(parts):
                    hit = self.hits.setdefault(code, CodeHit(code, parts[0][0].strip(), parts[0][1], 1))
                    hit.strength = max(hit.strength, _STRENGTH["strong"])


def _windows(raw: bytes) -> Iterable[bytes]:
    """The line, or overlapping parts of a long one."""
    if len(raw) <= _LONG:
        return (raw,)
    return (raw[begin : begin + _LONG] for begin in range(0, len(raw) - _OVERLAP, _LONG - _OVERLAP))


@lru_cache(maxsize=16)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.IGNORECASE)


def _group(regex: str, text: str) -> str:
    match = _compiled(regex).search(text)
    return match[1] if match else ""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").rstrip("\r")
