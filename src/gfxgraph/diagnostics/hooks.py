"""Explanations where errors surface: uncaught exceptions, threads, asyncio, a block of code.

Nothing is replaced. The original traceback is printed first, by its usual handler,
and the explanation follows on stderr; ``diagnose`` adds it to the exception as a note and re-raises that same
exception.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from gfxgraph import config
from gfxgraph.diagnostics.explain import explain
from gfxgraph.diagnostics.explanation import Explanation

Explain = Callable[[BaseException], Explanation]

_lock = threading.Lock()
_undo: list[Callable[[], None]] = []
_NEVER = (KeyboardInterrupt, SystemExit, GeneratorExit)


def install_diagnostics(how: Explain = explain) -> Callable[[], None]:
    """Explain uncaught ROCm errors from now on; a second call changes nothing.

    Covers ``sys.excepthook``, ``threading.excepthook`` and exceptions that asyncio logs because no
    one awaited them. GFXGRAPH_DIAG=0 makes it do nothing.

    Args:
        how: turns an exception into an explanation; the public name also knows this GPU.

    Returns:
        A function that undoes everything.
    """
    with _lock:
        if not _undo and config.load().diag:
            _undo[:] = (_hook(sys, how), _hook(threading, how), _hook_asyncio(how))
    return uninstall_diagnostics


def uninstall_diagnostics() -> None:
    """Undo ``install_diagnostics``."""
    with _lock:
        while _undo:
            _undo.pop()()


def report(error: BaseException, file: TextIO | None = None, how: Explain = explain) -> Explanation:
    """Write the explanation of ``error``, if there is one, to stderr (or ``file``); return it.

    An exception that already carries its explanation as a note is not explained twice.
    """
    if isinstance(error, _NEVER) or not config.load().diag:
        return Explanation()
    found = how(error)
    text = _text(error, found)
    if text and text not in getattr(error, "__notes__", ()) and text not in str(error):
        (file or sys.stderr).write(f"\n{text}\n")
    return found


@contextmanager
def diagnose(label: str = "", how: Explain = explain) -> Iterator[None]:
    """Explain errors in the block: the exception gets the explanation as a note.

    Args:
        label: what the block does; the note names it.
    """
    try:
        yield
    except Exception as error:
        if config.load().diag and (text := _text(error, how(error))):
            error.add_note(f"[{label}] {text}" if label else text)
        raise


def _text(error: BaseException, found: Explanation) -> str:
    """What to say of ``error``: our own errors contain all this themselves, with their values."""
    return found.format() if found and not hasattr(error, "fields") else ""


def _hook(module: Any, how: Explain) -> Callable[[], None]:
    before = module.excepthook

    def hook(*given: Any) -> None:
        before(*given)
        error = given[1] if module is sys else given[0].exc_value
        if error is not None:
            _quietly(error, how)

    module.excepthook = hook

    def undo() -> None:
        # Another hook may wrap ours by now: restoring would drop it.
        if module.excepthook is hook:
            module.excepthook = before

    return undo


class _AsyncioHandler(logging.Handler):
    """Sees what asyncio logs, and makes sure that it is still shown as before."""

    def __init__(self, how: Explain) -> None:
        super().__init__(logging.ERROR)
        self.how = how

    def emit(self, record: logging.LogRecord) -> None:
        logger = logging.getLogger("asyncio")
        others = [handler for handler in logger.handlers if handler is not self]
        # Without any handler Python shows errors through its last resort, which ours would switch off.
        if not others and not (logger.propagate and logging.getLogger().handlers) and logging.lastResort:
            logging.lastResort.handle(record)
        if record.exc_info and record.exc_info[1] is not None:
            _quietly(record.exc_info[1], self.how)


def _hook_asyncio(how: Explain) -> Callable[[], None]:
    # The logger, not the event loop: it also serves other implementations of loops (uvloop).
    handler = _AsyncioHandler(how)
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    return lambda: logger.removeHandler(handler)


def _quietly(error: BaseException, how: Explain) -> None:
    """Explain without ever adding a second failure to the first."""
    try:
        report(error, how=how)
    except (OSError, ValueError, RuntimeError) as problem:
        logging.getLogger("gfxgraph").debug("could not explain %r: %s", error, problem)
