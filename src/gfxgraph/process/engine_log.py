"""Counts, as events of this process, log lines in which other libraries say that they do not use graphs.

Problem: engines and compilers give up graphs on their own (a backend that does not support them, an input on the
CPU, a size above the largest), say so in one log line, and run several times slower. Idea: a handler on
their loggers keeps those lines, with the reason in the library's own words, whatever its version.

Invariants: a line is read after the library has written it and is not changed; nothing is raised into the
library that logs.
"""

from __future__ import annotations

import functools
import logging
import re
import sys

from gfxgraph.process import bridge, imports, process

LOGGERS = {"torch._inductor": "Inductor", "transformers": "transformers", "vllm": "vLLM", "sglang": "SGLang"}
"""The loggers to listen to; their child loggers propagate to them."""
_CLEARED_BY = {"vllm": "vllm.logger"}
"""Modules that reset a logger's handlers when they are imported."""

MOST_LETTERS = 300
_SENTENCE = re.compile(r"[.;:]\s|\n")
_GRAPHS = re.compile(r"(?:cuda|hip)[ _-]?graph(?!s? (?:memory|pool))|graph capture failed", re.I)
_LEFT_OFF = re.compile(
    r"disabl|n[o']t (?:yet )?(?:support|enabled)|(?:only |un)support|skip|overrid|incompatib|not compatib|eager"
    r"|fall(?:s|ing)? ?back|turn(?:ing|ed) off|setting cudagraph_mode|unavailable|cannot|can't|neither|failed",
    re.I,
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def graphs_left_off(text: str) -> str:
    """The line in which ``text`` says that graphs are not used; "" if it does not."""
    for sentence in _SENTENCE.split(text):
        if _GRAPHS.search(sentence) and _LEFT_OFF.search(sentence):
            return " ".join(text.split("Found from")[0].split()).rstrip(" .")[:MOST_LETTERS]
    return ""


class _Ear(logging.Handler):
    def __init__(self, who: str) -> None:
        super().__init__(logging.INFO)
        self.who = who

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            return  # arguments do not fit the text: the library's own handlers report it
        state = process.current()
        line = graphs_left_off(text)
        if not line or state is None:
            return
        frames = _FRAME.findall(text)
        where = ":".join(frames[-1]) if frames else ""
        state.report("engine_eager", f"{self.who} says: {line}", "", where, logging.DEBUG)


def listen(torch: object, state: object) -> None:
    """Keep such lines until the bridge is switched off."""
    for name, who in LOGGERS.items():
        log, ear = logging.getLogger(name), _Ear(who)
        bridge.undo.append(functools.partial(log.removeHandler, ear))
        log.addHandler(ear)
        module = _CLEARED_BY.get(log.name)
        if module is not None and module not in sys.modules:
            imports.watch(module, functools.partial(log.addHandler, ear))
