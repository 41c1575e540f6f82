"""Find catalogued conditions in a stream of log lines, at the speed of the pipe and in fixed memory.

A log of a gigabyte holds few different lines: most repeat with other numbers and addresses. So
hexadecimal digits are taken out of each block at once, and only forms of lines not met before are
looked at. Of those, a line is searched only where its form holds one of some short triggers, and
an expression is tried only where its own literal is there. What differs only in numbers may
differ in meaning (a status), so lines of a form with a trigger are compared whole, up to a limit
a form. The head of a stream is searched without triggers: hints about the program stand there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gfxgraph.diagnostics import patterns
from gfxgraph.diagnostics.index import Index, Item, load

_HEX = patterns.HEX.encode()
_ARCH = re.compile(r"gfx[0-9][0-9a-f]{2,3}\b")
_HEAD = 256 << 10
_MOST_FORMS = 200_000  # memory stays fixed: when reached, all are forgotten and met anew
_MOST_LINES_OF_A_FORM = 64
_MOST_LIVE = 4096
_LONGEST_LINE = 8192


@dataclass(slots=True)
class Hit:
    """What was found for one code."""

    code: str
    text: str
    line: int
    count: int = 0
    strength: int = 0  # 3 own, 2 strong or complete combination, 1 status, 0 weak


@dataclass(slots=True)
class _Form:
    """One form of line that holds a trigger: the lines of it seen so far and what they mean."""

    lines: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    codes: tuple[str, ...] = ()


_STRENGTH = {"own": 3, "strong": 2, "status": 1, "weak": 0}


class Scanner:
    """Feed it bytes; ask it what was found. One stream each."""

    def __init__(self, index: Index | None = None) -> None:
        self.index = index or load()
        self.hits: dict[str, Hit] = {}
        self.hints: set[tuple[str, int]] = set()
        self.archs: dict[str, int] = {}
        self._parts: dict[tuple[str, int], tuple[str, int]] = {}
        self._boring: set[int] = set()
        self._live: dict[bytes, _Form] = {}
        self._tail = b""
        self._n_lines = 0
        self._n_bytes = 0

    def feed(self, data: bytes) -> list[Hit]:
        """Take the next piece of the stream; return what was found for the first time."""
        before = len(self.hits)
        block, newline, tail = (self._tail + data).rpartition(b"\n")
        # A line without end (a binary, a progress bar) must not grow without end.
        self._tail = tail[-_LONGEST_LINE:] if len(tail) > _LONGEST_LINE else tail
        if newline:
            self._block(block)
        return list(self.hits.values())[before:]

    def finish(self) -> list[Hit]:
        """Take what came after the last newline, and complete combinations."""
        before = len(self.hits)
        if self._tail:
            self._block(self._tail)
            self._tail = b""
        self._combine()
        return list(self.hits.values())[before:]

    def _block(self, block: bytes) -> None:
        stripped = block.translate(None, _HEX).split(b"\n")
        forms = set(stripped)
        live = forms & self._live.keys()
        boring = self._boring
        new = [form for form in forms - live if hash(form) not in boring]
        if new:
            interesting = set(new) if self._n_bytes < _HEAD else self._with_trigger(new)
            if len(boring) > _MOST_FORMS:
                boring.clear()
            boring.update(map(hash, new))
            if len(self._live) > _MOST_LIVE:
                self._live.clear()
            for form in interesting:
                self._live[form] = _Form()
            live |= interesting
        if live:
            lines = block.split(b"\n")
            for number, form in enumerate(stripped):
                if form in live:
                    self._line(lines[number], self._live[form], self._n_lines + number + 1)
        self._n_lines += len(stripped)
        self._n_bytes += len(block)

    def _with_trigger(self, forms: list[bytes]) -> set[bytes]:
        joined = b"\n".join(forms).lower()
        found = [trigger for trigger in self.index.triggers if trigger in joined]
        if not found:
            return set()
        return {form for form in forms if any(trigger in form.lower() for trigger in found)}

    def _line(self, raw: bytes, form: _Form, number: int) -> None:
        codes = form.lines.get(raw)
        if codes is None:
            if len(form.lines) < _MOST_LINES_OF_A_FORM:
                codes = form.lines[raw] = form.codes = tuple(self._search(raw, number))
            else:
                codes = form.codes
        for code in codes:
            self.hits[code].count += 1

    def _search(self, raw: bytes, number: int) -> Iterator[str]:
        line = raw[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
        lower = line.lower()
        seen: dict[str, int] = {}
        for item in self._candidates(lower):
            match = item.search(line)
            if match is None:
                continue
            if item.kind == "own":
                if match[1] in self.index.ranks:
                    seen[match[1]] = _STRENGTH["own"]
            elif item.kind == "hint":
                self.hints.add((item.code, item.number))
            elif item.kind == "combo":
                self._parts.setdefault((item.code, item.number), (line, number))
            else:
                seen[item.code] = max(seen.get(item.code, -1), _STRENGTH[item.kind])
        self._note_archs(lower)
        for code, strength in seen.items():
            self._hit(code, line, number, strength)
            yield code

    def _candidates(self, lower: str) -> Iterable[Item]:
        wanted: set[int] = set()
        for text, numbers in self.index.by_literal.items():
            if text in lower:
                wanted.update(numbers)
        return (self.index.items[number] for number in sorted(wanted))

    def _hit(self, code: str, line: str, number: int, strength: int) -> None:
        known = self.hits.get(code)
        if known is None:
            self.hits[code] = Hit(code, line.strip(), number, 0, strength)
        elif strength > known.strength:
            # The line that says it best is the one shown.
            known.text, known.line, known.strength = line.strip(), number, strength

    def _combine(self) -> None:
        for code, sizes in self.index.n_combos.items():
            for combo, size in enumerate(sizes):
                parts = [self._parts.get((code, combo * 100 + part)) for part in range(size)]
                if all(parts):
                    line, number = parts[0] or ("", 0)
                    self._hit(code, line, number, _STRENGTH["strong"])
                    self.hits[code].count = max(self.hits[code].count, 1)

    def _note_archs(self, lower: str) -> None:
        """Count the gfx targets that lines speak of; a line that lists many is a list of what is supported."""
        if "gfx" in lower:
            named = set(_ARCH.findall(lower))
            if len(named) <= 2:
                for arch in named:
                    self.archs[arch] = self.archs.get(arch, 0) + 1
