"""Explanations where errors surface: uncaught exceptions, threads, asyncio, a block of code.

Nothing is replaced: the exception gets its explanation as a note, which whoever prints the traceback prints below it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from gfxgraph import config
from gfxgraph.diagnostics.explainer import explain as plainly
from gfxgraph.diagnostics.explanation import Explanation

explain: Callable[[BaseException], Explanation] = plainly
"""Filled in by the hardware room, whose explanations know this machine."""
_lock = threading.Lock()
_undo: list[Callable[[], None]] = []
_NEVER = (KeyboardInterrupt, SystemExit, GeneratorExit)


def install_diagnostics() -> Callable[[], None]:
    """Explain uncaught ROCm errors from now on, in threads and asyncio too; a second call changes nothing.

    Covers ``sys.excepthook``, ``threading.excepthook`` and exceptions that asyncio logs because no
    one awaited them. GFXGRAPH_DIAG=0 makes it do nothing.

    Returns:
        What puts the hooks of before back.
    """
    with _lock:
        if not _undo and config.load().diag:
            _undo[:] = (_hook(sys), _hook(threading), _watch_asyncio())
    return uninstall_diagnostics


def uninstall_diagnostics() -> None:
    """Undo ``install_diagnostics``."""
    with _lock:
        while _undo:
            _undo.pop()()


def report(error: BaseException, file: TextIO | None = None) -> Explanation:
    """Write the explanation of an error, where there is one.

    An exception that already carries its explanation as a note is not explained twice.

    Args:
        error: what was raised.
        file: where to write; stderr where None.

    Returns:
        The explanation; its ``code`` is None where nothing is known.
    """
    if isinstance(error, _NEVER) or not config.load().diag:
        return Explanation()
    found = explain(error)
    text = _text(error, found)
    if text and text not in getattr(error, "__notes__", ()) and text not in str(error):
        (file or sys.stderr).write(f"\n{text}\n")
    return found


@contextmanager
def diagnose(label: str = "") -> Iterator[None]:
    """Explain what goes wrong in a ``with`` block: the exception gets the explanation as a note.

    Args:
        label: what the block does; the note begins with it.

    Returns:
        The context manager. The exception leaves the block unchanged but for the note.
    """
    try:
        yield
    except Exception as error:
        _note(error, f"[{label}] " if label else "")
        raise


def _text(error: BaseException, found: Explanation) -> str:
    """What to say of ``error``: our own errors contain all this themselves, with their values."""
    return found.format() if found and not hasattr(error, "fields") else ""


def _note(error: BaseException, label: str = "") -> None:
    if config.load().diag and (text := _text(error, explain(error))) and text not in getattr(error, "__notes__", ()):
        error.add_note(label + text)


def _hook(module: Any) -> Callable[[], None]:
    before = module.excepthook

    def hook(*given: Any) -> None:
        _quietly(given[1] if module is sys else given[0].exc_value)
        before(*given)

    module.excepthook = hook

    def undo() -> None:
        # Another hook may wrap ours by now: restoring would drop it.
        if module.excepthook is hook:
            module.excepthook = before

    return undo


def _watch_asyncio() -> Callable[[], None]:
    # The logger, not the event loop: it also serves other implementations of loops (uvloop).
    def see(record: logging.LogRecord) -> bool:
        _quietly(record.exc_info[1] if record.exc_info else None)
        return True

    logger = logging.getLogger("asyncio")
    logger.addFilter(see)
    return lambda: logger.removeFilter(see)


def _quietly(error: BaseException | None) -> None:
    """Explain without ever adding a second failure to the first."""
    try:
        if error is not None and not isinstance(error, _NEVER):
            _note(error)
    except (OSError, ValueError, RuntimeError) as problem:
        logging.getLogger("gfxgraph").debug("could not explain %r: %s", error, problem)
