"""Fuzz target: what anybody may pipe into gfxgraph explain.

Seeds are made of the literals of every expression: repeated, nested in each other, and cut one
character short of a match. Whatever the bytes, explaining ends within a second per 100 KB and raises nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from gfxgraph.diagnostics.explainer import conclude
from gfxgraph.diagnostics.expression_index import load, rows
from gfxgraph.diagnostics.scan import Scanner

_LITERAL = re.compile(r"(?<![\\\[{(?*+.|])[A-Za-z_][A-Za-z_ ]{3,}")
_NBYTES = 20_000
_SECONDS, _LEAST = 1e-5, 1.0
"""Processor time allowed a byte, and for any input: a second for a line of 100 KB."""


def seeds() -> Iterator[bytes]:
    """Of each expression its literals alone, repeated, nested in each other, and nearly complete."""
    load()  # compiling the catalogue is no part of explaining
    for item in rows():
        words = _LITERAL.findall(item.regex)
        if not words:
            continue
        joined = " ".join(words)
        yield joined.encode()
        for unit in (joined, joined[:-1], words[0] + " ", f"{words[0]} {words[-1]}"[:-1], joined + "\n"):
            yield (unit * (_NBYTES // len(unit) + 1))[:_NBYTES].encode()
        yield (words[0] * 40 + joined[:-1] + words[-1] * 40).encode()


def run(data: bytes) -> None:
    """Explain ``data`` as a stream, in pieces as a pipe gives them."""
    started = time.process_time()
    scanner = Scanner()
    for begin in range(0, len(data), 4096):
        scanner.feed(data[begin : begin + 4096])
    found = conclude(scanner, lang="en")
    if found:
        assert found.format("en") and found.format("zh") and found.as_dict()["text"]
    took = time.process_time() - started
    assert took <= max(_LEAST, _SECONDS * len(data)), f"{took:.1f} s for {len(data)} bytes"
