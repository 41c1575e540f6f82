"""Finds catalogued conditions in a stream of log lines, as fast as the pipe and in fixed memory.

Problem: more than a thousand expressions, fifty megabytes a second whatever the text, one core.

Idea: no expression matches without some fixed text, so

1. all fixed texts are searched for at once, in whole blocks (``literals``); most lines contain none;
2. a line that contains one is looked up by its form, the line without digits: logs repeat with other numbers;
3. on lines of a form not settled yet, the expressions that need the text are tried, after a check
   that everything else they need is there too.

A long line is searched around the texts that it contains, so that its cost is proportional to its size. Lines that
differ only in numbers may differ in meaning (a status), so the lines of a form are searched whole, up to a
limit per form, and counted after that; while blocks are full of texts, settled forms are skipped beforehand
(``repeats``). The context of a failure (which GPU, which program, hints) is read from the head of the stream,
its end, and around the first occurrence of each failure.

Invariant: no line that an expression matches is missed, with two exceptions. In a stream full of near misses an
expression that was often tried in vain rests for a while (``n_rested`` counts that), except in the last lines
of the stream. And lines are skipped after many lines of one form.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Set

from gfxgraph.diagnostics import gates, ownwords
from gfxgraph.diagnostics.index import Index, load
from gfxgraph.diagnostics.literals import Finder
from gfxgraph.diagnostics.repeats import Repeats, Seen

_DIGITS = b"0123456789"
# Colours and cursor movements may separate the words of a message.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_ARCH = re.compile(r"gfx[0-9][0-9a-f]{2,3}\b")
_HEAD = 200  # lines
_NEAR = 40  # lines
_END = 300  # lines
_PIECE = 1 << 17  # bytes searched at once
_FEW_ITEMS = 8  # so few are checked before a line is looked up
_FEW = 100  # texts found in a piece, which are not worth checking together
_LONGEST_NOTED = 600  # characters of a line
_LONG = 2048  # a longer line is searched in windows
_OVERLAP = 600  # bytes from window to window, and half the length of each
_LONGEST_TAIL = 1 << 16  # a line without end is searched in pieces of this size, which overlap like windows
# Memory stays fixed: when a limit is reached, everything is forgotten and starts again.
_MOST_LINES_OF_A_FORM = 64
_MOST_FORMS = 8192
# Futile searches after which expressions rest that were tried this often. A part is forgotten with each piece,
# so that futile searches cost a fixed share of the time, however long near misses continue.
_MOST_IN_VAIN = 1000
_RESTS_AFTER = 60
_KEPT_IN_VAIN = 0.95
_WINDOW_PART = 400  # bytes of a long line that count as one more search
_END_BYTES = 1 << 16  # searched once more if something rests
_MOST_SEARCHES = 1 << 20  # in vain, of these
_COUNTED_BLINDLY = 64  # hits of a code, after which a line is no longer judged by its context

_STRENGTH = {"own": 3, "strong": 2, "status": 1, "weak": 0}


class CodeHit:
    """What was found for one code. ``strength``: 3 own, 2 strong or a whole combination, 1 status, 0 weak."""

    __slots__ = ("code", "text", "line", "count", "strength")

    def __init__(self, code: str, text: str, line: int, count: int = 0, strength: int = 0) -> None:
        self.code, self.text, self.line, self.count, self.strength = code, text, line, count, strength

    def copy(self) -> CodeHit:
        """Return a copy."""
        return CodeHit(self.code, self.text, self.line, self.count, self.strength)


class _Form:
    """The lines seen of one form, and their meanings."""

    __slots__ = ("lines", "last")

    def __init__(self) -> None:
        self.lines: dict[bytes, Seen] = {}
        self.last: Seen = ()


class Scanner:
    """Takes bytes and reports what was found. One per stream."""

    def __init__(self, index: Index | None = None) -> None:
        self.index = index or load()
        self.hits: dict[str, CodeHit] = {}
        self.hints: set[tuple[str, int]] = set()
        self.archs: dict[str, int] = {}
        self.n_rested = 0
        self._head: list[bytes] = []
        self._end: deque[bytes] = deque(maxlen=_END)
        marks = (gates.TEST_BEGINS, gates.TEST_PASSED, gates.TEST_FAILED)
        self._first_mark = len(self.index.texts)
        self._marks = frozenset(range(self._first_mark, self._first_mark + len(marks)))
        self._finder = Finder([text.encode() for text in (*self.index.texts, *marks)])
        self._items_of = [*self.index.items_of, [], [], []]
        self._parts: dict[tuple[str, int], tuple[str, int]] = {}
        self._forms: dict[bytes, _Form] = {}
        self._rest: set[int] = set()
        self._repeats = Repeats()
        self._meant: list[tuple[int, Seen | None]] = []
        self._items_for: dict[frozenset[int], tuple[int, ...]] = {}
        self._in_vain: dict[int, float] = {}
        self._n_in_vain: float = 0
        self._tail = b""
        self._n_lines = 0
        self.context: dict[int, str] = {}  # lines at the ends of the stream and round failures, by number
        self._prose_until = 0
        self._before_test: dict[str, CodeHit] | None = None
        self._new: list[str] = []

    def feed(self, data: bytes) -> list[CodeHit]:
        """Process the next piece of the stream; return what was found for the first time."""
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
        return self._news()

    def finish(self) -> list[CodeHit]:
        """Process what came after the last newline, read the context of failures, and complete combinations."""
        if self._tail:
            self._block(self._tail)
            self._n_lines += 1
            self._tail = b""
        if self._rest:
            self._end_again()
        self._note(self.surroundings())
        self._combine()
        return self._news()

    def surroundings(self) -> list[tuple[int, bytes]]:
        """The first and the last lines of the stream with their numbers, each once."""
        first = self._n_lines - len(self._end) + 1
        return [
            *enumerate(self._head, 1),
            *((number, line) for number, line in enumerate(self._end, first) if number > len(self._head)),
        ]

    def _news(self) -> list[CodeHit]:
        found = [self.hits[code] for code in self._new if code in self.hits]
        self._new.clear()
        return found

    def _block(self, block: bytes) -> None:
        """Search whole lines, or a part of one that is too long to wait for its end."""
        if b"\x1b[" in block or b"\x1b]" in block:
            block = _ESCAPES.sub(b"", block)
        if len(self._forms) > _MOST_FORMS:
            self._forms.clear()
        self._wake()
        self._lines_of(block, block.lower())
        if len(self._head) < _HEAD:
            wanted = _HEAD - len(self._head)
            self._head += [text[:_LONG] for text in block.split(b"\n", wanted)[:wanted]]
        self._end.extend(text[:_LONG] for text in block.rsplit(b"\n", _END)[-_END:])

    def _lines_of(self, block: bytes, lower: bytes) -> None:
        """Search the lines of a block, without those of settled forms."""
        parts = self._repeats.fresh(block, self.hits)
        fresh, counted = parts or (None, {})
        for meaning, n_lines in counted.items():
            for code, _ in meaning:
                self.hits[code].count += n_lines
        found = self._finder.find(fresh.text.lower() if fresh else lower)
        n_texts = len(found)
        if n_texts > _FEW:
            leading = self._leading({hit[0] for hit in found})
            found = [hit for hit in found if hit[0] in leading]
        if fresh:
            found = fresh.placed(found)
        self._meant.clear()
        self._search_lines(_LineBlock(block, lower, self._n_lines + 1), found)
        if fresh:
            self._repeats.learn(fresh, self._meant, n_texts)
        else:
            self._repeats.noted(n_texts)

    def _search_lines(self, block: _LineBlock, found: list[tuple[int, int, int]]) -> None:
        """Search the lines that contain the texts found."""
        raw = block.raw
        place = begin = 0
        while place < len(found):
            first = place
            start = found[place][1]
            stop = raw.find(b"\n", start)
            if stop < 0:
                stop = len(raw)
            if stop - start > _LONG:
                place = bisect_left(found, stop, place, key=_start_of)
            else:
                while place < len(found) and found[place][1] < stop:
                    place += 1
            texts = frozenset([hit[0] for hit in found[first:place]])
            items = self._items(texts)
            if items or not self._marks.isdisjoint(texts):
                begin = raw.rfind(b"\n", begin, start) + 1 or begin
                if stop - begin > _LONG:
                    self._windows(block, begin, stop, found[first:place])
                else:
                    self._text(block, begin, stop, texts, items)

    def _leading(self, present: Set[int]) -> set[int]:
        """The texts in a block whose expressions have all their rare texts there."""
        leading = set(present & self._marks)
        for number in {number for text in present for number in self._items_of[text]}:
            found_by = self.index.items[number].found_by
            if number not in self._rest and not any(map(present.isdisjoint, found_by)):
                leading.update(text for texts in found_by for text in texts)
        return leading

    def _items(self, texts: frozenset[int]) -> tuple[int, ...]:
        """The expressions that can match a line with exactly these texts."""
        known = self._items_for.get(texts)
        if known is None:
            if len(self._items_for) > _MOST_FORMS:
                self._items_for.clear()
            numbers = {number for text in texts for number in self._items_of[text]}
            known = self._items_for[texts] = tuple(
                number
                for number in sorted(numbers)
                if all(not texts.isdisjoint(found_by) for found_by in self.index.items[number].found_by)
            )
        return known

    def _windows(self, block: _LineBlock, begin: int, stop: int, found: list[tuple[int, int, int]]) -> None:
        """Search a long line with these texts, for each expression around the texts that lead to it."""
        possible = set(self._items(frozenset([hit[0] for hit in found])))
        searched_to: dict[int, int] = {}
        for text, start, _ in found:
            items = [n for n in self._items_of[text] if n in possible and searched_to.get(n, 0) <= start]
            if items:
                searched_to.update(dict.fromkeys(items, start + _OVERLAP))
                first, last = max(begin, start - _OVERLAP), min(stop, start + 2 * _OVERLAP)
                self._text(block, first, last, frozenset(), tuple(items))

    def _wake(self) -> None:
        """Forget a part of the futile searches: an expression rests only as long as near misses continue."""
        if not self._in_vain:
            return
        self._in_vain = {n: count * _KEPT_IN_VAIN for n, count in self._in_vain.items() if count > 1}
        self._n_in_vain *= _KEPT_IN_VAIN
        if self._n_in_vain < _MOST_IN_VAIN:
            self._rest.clear()
        else:
            self._rest = {number for number, count in self._in_vain.items() if count > _RESTS_AFTER}

    def _end_again(self) -> None:
        """Search the last lines with the resting expressions: what ended a program is at the end."""
        counts = {code: hit.count for code, hit in self.hits.items()}
        self._rest.clear()
        self._in_vain.clear()
        self._n_in_vain = -_MOST_SEARCHES
        self._forms.clear()
        self._before_test = None
        block = b"\n".join(self._end)[-_END_BYTES:].partition(b"\n")[2]
        lower = block.lower()
        first = self._n_lines - block.count(b"\n")
        self._search_lines(_LineBlock(block, lower, first), self._finder.find(lower))
        for code in counts.keys() & self.hits.keys():
            self.hits[code].count = counts[code]

    def _test(self, mark: int) -> None:
        """A failure that a test provoked and expected does not count: forget it if the test passed."""
        if mark == 0:
            self._before_test = {code: hit.copy() for code, hit in self.hits.items()}
        elif mark == 1 and self._before_test is not None:
            self.hits, self._before_test = self._before_test, None
        else:
            self._before_test = None

    def _text(self, block: _LineBlock, begin: int, stop: int, texts: frozenset[int], items: tuple[int, ...]) -> None:
        """Process a line, or a window of one, that contains texts needed by these expressions."""
        if not self._marks.isdisjoint(texts):
            self._test(min(self._marks & texts) - self._first_mark)
            self._meant.append((begin, None))
            return
        may_match = None
        if len(items) <= _FEW_ITEMS and not (may_match := self._may_match(block, begin, stop, items)):
            return
        raw = block.raw[begin:stop]
        key = raw.translate(None, _DIGITS)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = _Form()
        seen = form.last if len(form.lines) >= _MOST_LINES_OF_A_FORM else form.lines.get(raw)
        if seen is None:
            if may_match is None:
                may_match = self._may_match(block, begin, stop, items)
            seen = self._search(raw, may_match)
            if seen and not self._is_known(seen) and self._is_said(_Line(block, begin, stop)):
                seen = ()
            form.lines[raw] = form.last = seen
        if not seen:
            return
        self._meant.append((begin, seen))
        is_news = False
        line = _Line(block, begin, stop)
        for code, strength in seen:
            is_news = self._hit(code, raw, line.number, strength) or is_news
        if is_news:
            # The context of a failure's first occurrence shows which program it is.
            self._note(line.around(_NEAR))

    def _may_match(self, block: _LineBlock, begin: int, stop: int, items: tuple[int, ...]) -> list[int]:
        """Those of ``items`` that have everything they need in the line, and that are not resting."""
        lower = block.lower[begin:stop]
        found = self.index.items
        return [number for number in items if number not in self._rest and found[number].may_match(lower)]

    def _search(self, raw: bytes, numbers: list[int]) -> Seen:
        """Return the codes that this text indicates, each with the strength of the match."""
        text = _text(raw)
        lower = text.lower()
        seen: dict[str, int] = {}
        is_long = len(raw) > 2 * _OVERLAP
        for number in numbers:
            item = self.index.items[number]
            match = item.search(text, lower)
            if match is None or (is_long and self._is_known(((item.code, 0),))):
                self._tried_in_vain(number, 1 + len(raw) // _WINDOW_PART)
            if match is None:
                continue
            if item.kind == "number":
                if code := self.index.numbers.get(match[1]):
                    seen.setdefault(code, _STRENGTH["weak"])
            elif item.kind != "own":
                seen[item.code] = max(seen.get(item.code, -1), _STRENGTH[item.kind])
            elif match[1] in self.index.ranks:
                seen[match[1]] = _STRENGTH["own"]
        return tuple(seen.items())

    def _tried_in_vain(self, number: int, cost: int) -> None:
        """Count a search that found nothing new, and let the expression rest after many of them."""
        self._n_in_vain += cost
        count = self._in_vain[number] = self._in_vain.get(number, 0) + cost
        if count > _RESTS_AFTER and self._n_in_vain > _MOST_IN_VAIN and number not in self._rest:
            self._rest.add(number)
            self.n_rested += 1

    def _is_said(self, line: _Line) -> bool:
        """Whether this line mentions failures without being one: release notes, lists of changes, source code."""
        raw = line.raw
        # For a window in a long line only the middle: the form of its ends means nothing.
        text = _text(raw if len(raw) <= 2 * _OVERLAP else raw[_OVERLAP - 100 : _OVERLAP + 300])
        if gates.is_said(text):
            return True
        nearest = line.around(ownwords.REACH)
        at = next((place for place, (number, _) in enumerate(nearest) if number == line.number), 0)
        if not ownwords.is_evidence([_text(raw) for _, raw in nearest], at, self.index.ranks):
            return True
        for number, heading in line.headings():
            self._prose_until = max(self._prose_until, gates.section_end(heading, number))
        if line.number < self._prose_until and not gates.is_printed(text):
            return True
        if raw.startswith(b"    ") and self._is_in_commit(line):
            return True
        near = [*list(self._end)[-gates.AROUND :], *(near for _, near in line.around(gates.AROUND))]
        return gates.in_list(text, [_text(other) for other in near[-2 * gates.AROUND - 1 :]])

    def _is_in_commit(self, line: _Line) -> bool:
        """Whether ``line`` belongs to an indented text below the header that git prints above a commit's message."""
        before = [near for number, near in line.around(gates.LONGEST_SECTION) if number < line.number]
        for near in reversed([*self._end, *before]):
            if near.strip() and not near.startswith(b"    "):
                return gates.is_head_of_commit(_text(near))
        return False

    def _is_known(self, seen: Seen) -> bool:
        """Whether these codes were seen so often that this line adds nothing but a number."""
        hits = (self.hits.get(code) for code, _ in seen)
        return all(hit is not None and hit.count > _COUNTED_BLINDLY for hit in hits)

    def _hit(self, code: str, raw: bytes, number: int, strength: int) -> bool:
        """Count a hit; return whether it is the first of its code."""
        known = self.hits.get(code)
        if known is None:
            self.hits[code] = CodeHit(code, _text(raw).strip(), number, 1, strength)
            self._new.append(code)
            return True
        known.count += 1
        if strength > known.strength:
            # Show the line that describes it best.
            known.text, known.line, known.strength = _text(raw).strip(), number, strength
        return False

    def _note(self, lines: list[tuple[int, bytes]]) -> None:
        """Read additions to a finding: hints, parts of combinations, names of GPUs."""
        fresh = {number: _text(raw[:_LONGEST_NOTED]) for number, raw in lines if number not in self.context}
        self.context |= fresh
        everything = "\n".join(fresh.values()).lower()
        adding = [(text, items) for text, items in self.index.adding.items() if text in everything]
        for number, line in fresh.items():
            lower = line.lower()
            for item in (self.index.items[place] for text, places in adding if text in lower for place in places):
                if item.search(line, lower) is None:
                    continue
                if item.kind == "hint":
                    self.hints.add((item.code, item.number))
                elif not gates.is_said(line):
                    self._parts.setdefault((item.code, item.number), (line, number))
            if "gfx" in lower:
                # A line that names many targets is a list of supported ones.
                named = set(_ARCH.findall(lower))
                if len(named) <= 2:
                    for arch in named:
                        self.archs[arch] = self.archs.get(arch, 0) + 1

    def _combine(self) -> None:
        for code, sizes in self.index.n_combos.items():
            for combo, size in enumerate(sizes):
                parts = [self._parts.get((code, combo * 100 + part)) for part in range(size)]
                if all(parts):
                    line, number = parts[0] or ("", 0)
                    if code not in self.hits:
                        self._hit(code, line.encode(), number, _STRENGTH["strong"])
                    self.hits[code].strength = max(self.hits[code].strength, _STRENGTH["strong"])


class _LineBlock:
    """Bytes that start with the line of this number, also in lower case."""

    __slots__ = ("raw", "lower", "_place", "_number")

    def __init__(self, raw: bytes, lower: bytes, number: int) -> None:
        self.raw, self.lower, self._place, self._number = raw, lower, 0, number

    def number_at(self, place: int) -> int:
        """The number of the line that contains ``place``; call it with ascending places."""
        self._number += self.raw.count(b"\n", self._place, place)
        self._place = max(self._place, place)
        return self._number


class _Line:
    """One line of a block, or a window of it."""

    __slots__ = ("block", "begin", "stop", "number")

    def __init__(self, block: _LineBlock, begin: int, stop: int) -> None:
        self.block, self.begin, self.stop, self.number = block.raw, begin, stop, block.number_at(begin)

    @property
    def raw(self) -> bytes:
        return self.block[self.begin : self.stop]

    def around(self, n_lines: int) -> list[tuple[int, bytes]]:
        """This line and this many lines before and after it, within the block."""
        reach = n_lines * 400
        before = self.block[max(0, self.begin - reach) : self.begin].split(b"\n")[:-1][-n_lines:]
        rest = self.block[self.stop + 1 : self.stop + reach]
        after = rest.split(b"\n")[:n_lines] if rest else []
        return list(enumerate([*before, self.raw, *after], self.number - len(before)))

    def headings(self) -> list[tuple[int, bytes]]:
        """The lines before this one that start with #, as far back as a section of prose may reach."""
        return [(number, near) for number, near in self.around(gates.LONGEST_SECTION) if near.startswith(b"#")]


def _start_of(hit: tuple[int, int, int]) -> int:
    return hit[1]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").rstrip("\r")
