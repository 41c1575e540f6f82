"""Blocks that an interrupt has left half entered or half left, ended at once.

Problem: a ``with`` statement leaves only what it has entered, and an interrupt may strike inside a manager's
``__enter__`` or ``__exit__`` where these are Python: ``torch.inference_mode`` holds a guard of C++ by then,
``@contextmanager`` a generator that waits in its ``try``. Only the traceback still knows it. When that goes, after
all else was put back, the guard makes the thread's autograd and dispatch keys what they were when it came, those of
a capture that is long over.

Idea: whoever cleans up looks through the traceback first and ends what stands in it. That holds for the program's own
blocks and for torch's as for ours.

Source: tests/property/faults.py, ``signals``; docs/decisions/0201.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

import torch


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
"""Functions that enter or leave a block: the variable that holds its manager, and what ends it, if it is entered."""


def end_half_entered(error: BaseException | None) -> bool:
    """End the blocks in whose entry or exit ``error``, or one that was handled when it came, has struck.

    Returns:
        Whether there was one.
    """
    found = False
    for frame in _frames(error):
        if frame.f_code in ENDS:
            name, end = ENDS[frame.f_code]
            found |= end(frame.f_locals[name])
    return found


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    """Of the oldest error first, the innermost first: blocks end in the opposite order of their beginning."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__context__
    for each in reversed(chain):
        frames = []
        traceback = each.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        yield from reversed(frames)
