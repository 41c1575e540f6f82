"""Ends ``with`` blocks that an interrupt has left half entered or half left.

Problem: a ``with`` statement only leaves what it has fully entered, and an interrupt may strike inside a manager's
``__enter__`` or ``__exit__`` if these are Python. By then ``torch.inference_mode`` holds a C++ guard, and
``@contextmanager`` a generator suspended in its ``try``. Only the traceback still refers to them. When the traceback
is
freed, after everything else was restored, the guard sets the thread's autograd state and dispatch keys to what they
were when the block was entered: the state of a capture that is long over.

Idea: clean-up code first searches the traceback for such blocks and ends them. This covers the program's own blocks,
torch's and ours. An ``__exit__`` of any class that was struck before its first instruction, which is where Python
checks for signals, has done nothing yet and is run.

Source: tests/property/faults.py, ``signals``; docs/decisions/0201.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

import torch

from gfxgraph.capture.record.user_lines import locals_of


def _close_generator(manager: contextlib._GeneratorContextManager[object]) -> bool:
    if inspect.getgeneratorstate(manager.gen) != inspect.GEN_SUSPENDED:  # over; or running, and the caller's
        return False
    manager.gen.close()
    return True


def _leave_inference_mode(manager: torch.inference_mode) -> bool:
    guard = getattr(manager, "_inference_mode_context", None)
    if guard is None:
        return False
    guard.__exit__(None, None, None)
    return True


def _end_any(manager: object) -> bool:
    if isinstance(manager, contextlib._GeneratorContextManager):
        return _close_generator(manager)
    return isinstance(manager, torch.inference_mode) and _leave_inference_mode(manager)


ENDS: dict[CodeType, tuple[str, Callable[..., bool]]] = {
    contextlib.ExitStack.enter_context.__code__: ("cm", _end_any),
    contextlib._GeneratorContextManager.__enter__.__code__: ("self", _close_generator),
    contextlib._GeneratorContextManager.__exit__.__code__: ("self", _close_generator),
    torch.inference_mode.__enter__.__code__: ("self", _leave_inference_mode),
    torch.inference_mode.__exit__.__code__: ("self", _leave_inference_mode),
}
"""Functions that enter or leave a block: the variable that holds its manager, and the function that ends an entered
one.
"""


def end_half_entered(error: BaseException | None) -> bool:
    """End blocks whose ``__enter__`` or ``__exit__`` was interrupted by ``error`` or by an earlier error in its
    context chain.

    Returns:
        Whether there was one.
    """
    found = False
    for frame, at in _frames(error):
        if frame.f_code in ENDS:
            name, end = ENDS[frame.f_code]
            found |= end(locals_of(frame)[name])
        elif frame.f_code.co_name == "__exit__" and dis.opname[frame.f_code.co_code[at]] == "RESUME":
            found |= _run_exit(frame)
    return found


def is_interrupt(error: BaseException) -> bool:
    """Whether it came between two instructions, from a signal's handler or a debugger, whatever its type.

    No call has failed then, so nothing may fall back because of it. Both are functions that are given a frame.
    """
    if not isinstance(error, Exception):
        return True
    traceback = error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if any(isinstance(each, FrameType) for each in _arguments(frame)):
            return True
    return False


def _run_exit(frame: FrameType) -> bool:
    """Run the ``__exit__`` that this frame was to run; a second time the frame is empty."""
    code, given = frame.f_code, _arguments(frame)
    own = (vars(kind).get("__exit__") for kind in type(given[0]).__mro__) if given else ()
    leave = next((each for each in own if getattr(each, "__code__", None) is code), None)
    if leave is None:
        return False
    frame.clear()
    leave(*given)
    return True


def _arguments(frame: FrameType) -> list[object]:
    """The positional arguments that a frame still has."""
    code = frame.f_code
    values = locals_of(frame) if code.co_argcount or code.co_flags & inspect.CO_VARARGS else {}
    given = [values[name] for name in code.co_varnames[: code.co_argcount] if name in values]
    if code.co_flags & inspect.CO_VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += rest if isinstance(rest, tuple) else ()
    return given


def _frames(error: BaseException | None) -> Iterator[tuple[FrameType, int]]:
    """With where each was struck. Of the oldest error first, the innermost first, as blocks end."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__context__
    for each in reversed(chain):
        frames = []
        traceback = each.__traceback__
        while traceback is not None:
            frames.append((traceback.tb_frame, traceback.tb_lasti))
            traceback = traceback.tb_next
        yield from reversed(frames)
