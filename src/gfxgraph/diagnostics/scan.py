"""Find catalogued conditions in a stream of log lines, at the speed of the pipe and in fixed memory.

Problem: nine hundred expressions, a hundred megabytes a second, one core, no extension module.

Idea: a log of a gigabyte holds few different lines and few different words; most repeat with other
numbers and addresses. So hexadecimal digits are taken out of a whole block at once, and

1. only forms of lines not met before are looked at;
2. of those, only forms with a word that contains an anchor (a word of some expression's literal
   text); words are judged once each, by block;
3. of those, only forms that hold the literal's own form. These are live.

What differs only in numbers may differ in meaning (a status), so the lines of a live form are
searched whole, up to a limit a form, and counted after that. Hints about the program and the GPU are
looked for in the head of the stream and round the first sight of each failure.

Invariant: taking out characters keeps "contains", so a line with a literal always gets through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gfxgraph.diagnostics import patterns
from gfxgraph.diagnostics.index import Index, load

_HEX = patterns.HEX.encode()
_ARCH = re.compile(r"gfx[0-9][0-9a-f]{2,3}\b")
_HEAD = 200  # lines
_NEAR = 40  # lines
# A list of changes speaks of failures that are no more: "- Fixed: bf16 was not supported (#123)".
# A list of options speaks of failures that may be: "  --flash-attn  (not supported on all GPUs)".
_CHANGELOG = re.compile(
    r"^\s*[-*+\u2022]\s+(?:\[?\w+\]?:? )?"
    r"(?:fix|add|remove|improve|update|drop|support|document|warn|allow|change|deprecate|resolve|enable)(?:e?d|e?s|)\b"
    r"|^\s*[-*+\u2022]\s.*\(#\d+\)\s*$"
    r"|^\s+(?:-\w,? +)?--[a-z][\w-]+(?: [A-Z<\[]\S*)?  +\S",
    re.IGNORECASE,
)
# A program's own narration of its search, below its level of warnings.
_NARRATION = re.compile(
    r"\bMIOpen\(\w+\): (?:Info2?|Trace|Function|Command) \[|\blevel=(?:TRACE|DEBUG)\b"
    r"|\bINFO\b.{0,60}Unable to initialize backend"
)
_BULLET = re.compile(r"^\s*[-*+\u2022] ")
_AROUND = 3  # lines between which a bullet belongs to the same list
# Under such a heading stands prose, until something that programs print.
_HEADING = re.compile(
    rb"^#{1,4} .{0,40}(?:changelog|release notes|known issues|resolved issues|what.s (?:new|changed)|bug fixes"
    rb"|compatibility|deprecat|limitations|added|fixed|changed|removed)\b",
    re.IGNORECASE,
)
_PRINTED = re.compile(
    r"^\s*(?:\[|\(?\w+Core|\d|\S*(?:error|exception|abort)\w*\b|traceback|:\d|E  |kernel:|file \")", re.IGNORECASE
)
_LONGEST_SECTION = 60  # lines
# Memory stays fixed: when a limit is reached, all are forgotten and met anew.
_MOST_FORMS = 200_000
_MOST_WORDS = 200_000
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
    """One live form: the items that may match it, the lines of it seen so far and what they mean."""

    items: tuple[int, ...]
    lines: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    codes: tuple[str, ...] = ()

    def is_full(self) -> bool:
        return len(self.lines) >= _MOST_LINES_OF_A_FORM


def _text(raw: bytes) -> str:
    return raw[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")


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
        self._words: set[bytes] = set()
        self._hot: dict[bytes, list[bytes]] = {}
        self._tail = b""
        self._n_lines = 0
        self._prose_until = 0
        self._last: list[bytes] = []

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
        if len(self._live) > _MOST_LIVE:
            self._live.clear()
        if len(self._boring) > _MOST_FORMS:
            self._boring.clear()
        live = forms & self._live.keys()
        boring = self._boring
        new = [form for form in forms - live if hash(form) not in boring]
        if new:
            for form, items in self._judge_forms(new):
                self._live[form] = _Form(items)
                live.add(form)
            if self._n_lines < _HEAD:
                for number, line in enumerate(block.split(b"\n", _HEAD)[:_HEAD], self._n_lines + 1):
                    self._add(line, number)
            boring.update(map(hash, new))
        # Of a form seen often enough, lines are only counted.
        for form in [form for form in live if self._live[form].is_full()]:
            live.remove(form)
            if codes := self._live[form].codes:
                n_seen = stripped.count(form)
                for code in codes:
                    self.hits[code].count += n_seen
        headed = block.startswith(b"#") or b"\n#" in block
        if live or headed:
            lines = block.split(b"\n")
            for number, form in enumerate(stripped):
                if headed and lines[number].startswith(b"#") and _HEADING.match(lines[number]):
                    self._prose_until = self._n_lines + number + _LONGEST_SECTION
                if form in live and self._line(lines, number, self._live[form]):
                    # What stands round the first sight of a failure tells which program it is.
                    for place in range(max(0, number - _NEAR), min(len(lines), number + _NEAR)):
                        self._add(lines[place], self._n_lines + place + 1)
        self._n_lines += len(stripped)
        self._last = block.rsplit(b"\n", _AROUND)[-_AROUND:]

    def _is_prose(self, lines: list[bytes], number: int) -> bool:
        """Whether this line tells of failures without being one: release notes, lists of changes and options."""
        line = _text(lines[number])
        if _CHANGELOG.search(line) or _NARRATION.search(line):
            return True
        if self._n_lines + number < self._prose_until and not _PRINTED.match(line):
            return True
        near = lines[max(0, number - _AROUND) : number + _AROUND + 1] + (self._last if number < _AROUND else [])
        return bool(_BULLET.match(line)) and any(_CHANGELOG.search(_text(other)) for other in near)

    def _judge_forms(self, forms: list[bytes]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Yield the forms worth searching, each with the items whose literals' forms it holds."""
        by_form = self.index.by_form
        joined = b"\n".join(forms).lower()
        words = set(joined.split())
        self._judge_words(words - self._words)
        # First for all forms together: most texts stand nowhere, though a word of theirs does.
        every = {text for word in words & self._hot.keys() for text in self._hot[word]}
        present = {text for text in every if text in joined}
        hot = {word: kept for word in words & self._hot.keys() if (kept := present.intersection(self._hot[word]))}
        for form, lower in zip(forms, joined.split(b"\n")):
            here = hot.keys() & lower.split() if hot else ()
            texts = {text for word in here for text in hot[word] if text in lower}
            items = tuple(sorted({number for text in texts for number in by_form[text]}))
            if items:
                yield form, items

    def _judge_words(self, words: set[bytes]) -> None:
        """Note which of these new words contain an anchor."""
        if len(self._words) > _MOST_WORDS:
            self._words.clear()
            self._hot.clear()
        self._words |= words
        joined = b"\n".join(words)
        present = [anchor for anchor in self.index.anchors if anchor in joined]
        if present:
            for word in words:
                texts = [t for anchor in present if anchor in word for t in self.index.anchors[anchor]]
                if texts:
                    self._hot[word] = texts

    def _line(self, lines: list[bytes], number: int, form: _Form) -> bool:
        """Take a line of a live form; return whether it says something that was not said before."""
        raw, is_news = lines[number], False
        codes = form.lines.get(raw)
        if codes is None:
            if form.is_full():
                codes = form.codes
            else:
                seen = self._search(raw, form.items)
                if seen and self._is_prose(lines, number):
                    return False
                before = len(self.hits)
                for code, strength in seen.items():
                    self._hit(code, _text(raw), self._n_lines + number + 1, strength)
                codes = form.lines[raw] = form.codes = tuple(seen)
                is_news = len(self.hits) > before
        for code in codes:
            self.hits[code].count += 1
        return is_news

    def _search(self, raw: bytes, items: tuple[int, ...]) -> dict[str, int]:
        """Return the codes that this line stands for, each with the strength of the match."""
        line = _text(raw)
        lower = line.lower()
        seen: dict[str, int] = {}
        for item in (self.index.items[place] for place in items):
            match = item.search(line, lower)
            if match is None:
                continue
            if item.kind == "number":
                if code := self.index.numbers.get(match[1]):
                    seen.setdefault(code, _STRENGTH["weak"])
            elif item.kind != "own":
                seen[item.code] = max(seen.get(item.code, -1), _STRENGTH[item.kind])
            elif match[1] in self.index.ranks:
                seen[match[1]] = _STRENGTH["own"]
        return seen

    def _add(self, raw: bytes, number: int) -> None:
        """Look for what adds to a finding: hints, parts of combinations, names of GPUs."""
        line = _text(raw)
        lower = line.lower()
        for text, places in self.index.adding.items():
            if text not in lower:
                continue
            for item in (self.index.items[place] for place in places):
                if item.search(line, lower) is None:
                    continue
                if item.kind == "hint":
                    self.hints.add((item.code, item.number))
                else:
                    self._parts.setdefault((item.code, item.number), (line, number))
        self._note_archs(lower)

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
