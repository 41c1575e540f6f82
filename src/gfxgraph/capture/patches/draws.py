"""Make other threads' random draws wait while a capture uses the default generator.

Problem: torch registers the default generator with every capture, and until the capture ends a draw in any other
thread is an error ("Offset increment outside graph capture encountered unexpectedly"). Idea: while captures run and
other threads exist, torch's drawing functions wait until no other thread's capture uses the generator, and a capture
waits for draws in progress.

Functions that compiled code has guards on are left alone, because Dynamo would recompile that code. They, and draws
below Python (autograd, compiled code), keep torch's error.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import gfxgraph
from gfxgraph.capture import capture_lock

_FUNCTIONS = (
    "rand randn randint rand_like randn_like randint_like randperm normal bernoulli multinomial poisson dropout "
    "dropout_ feature_dropout alpha_dropout feature_alpha_dropout rrelu"
).split()
_METHODS = (
    "normal_ uniform_ bernoulli_ bernoulli exponential_ random_ cauchy_ geometric_ log_normal_ multinomial"
).split()

_NAMES = frozenset((*_FUNCTIONS, *_METHODS))
_OURS = os.path.dirname(gfxgraph.__file__) + os.sep
_DRAWN_WITHIN_S = 0.001
"""A draw that another thread has begun has asked for its numbers by then, if that thread runs."""
_WAITS_S = 0.05
"""For a thread that does not get to run, or is in another call in code that also draws."""

_CHECKED = re.compile(r"___check_obj_id\(.*?, (\d+)\)").findall
_found: dict[str, Any] = {}


def targets() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(owner, attribute, replacement) for every function that may be replaced now."""
    guarded = _guarded()
    if guarded is None:
        return
    for owner, names in ((torch, _FUNCTIONS), (torch._VF, _FUNCTIONS), (Tensor, _METHODS)):
        for name in names:
            original = getattr(owner, name, None)
            if original is not None and guarded.isdisjoint((id(original), id(getattr(original, "__code__", None)))):
                yield owner, name, _waiting(original)


def wait_for_begun(sleep: Callable[[float], object], at_least_once: bool) -> None:
    """Wait for draws of other threads that began before torch's functions were replaced.

    Args:
        at_least_once: sleep once even if no thread is seen in such code; it may have the function under another name.
    """
    begun, deadline = _may_draw(), monotonic() + _WAITS_S
    if at_least_once:
        sleep(_DRAWN_WITHIN_S)
    while (begun := begun & _may_draw()) and monotonic() < deadline:
        sleep(_DRAWN_WITHIN_S)


def _may_draw() -> set[tuple[int, int, int]]:
    """Where other threads are in a call, from code that names a function that draws; no call twice."""
    found = set()
    frames: dict[int, FrameType | None] = {**sys._current_frames()}
    del frames[threading.get_ident()]  # this frame would make a cycle, and keep what its callers hold
    for thread, frame in frames.items():
        while frame is not None and frame.f_code.co_filename.startswith(_OURS):
            frame = frame.f_back
        if frame is not None and not _NAMES.isdisjoint(frame.f_code.co_names):
            found.add((thread, id(frame), frame.f_lasti))
    return found


def _guarded() -> frozenset[int] | None:
    """The ``id`` of everything that compiled code has guards on; None if this version of Dynamo does not tell."""
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    if frames is None or not frames.FRAME_COUNTER:
        return frozenset()
    seen = getattr(getattr(frames, "input_codes", None), "seen", None)
    newest = seen[-1] if seen else None  # the counter begins again where Dynamo is reset
    if _found.get("at") != frames.FRAME_COUNTER or _found["newest"] is not newest:
        _found.update(at=frames.FRAME_COUNTER, newest=newest, ids=_identities(seen))
    return _found["ids"]


def _identities(seen: list[Any] | None) -> frozenset[int] | None:
    entries_of = getattr(torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list", None)
    if entries_of is None or seen is None:
        return None
    entries = [entry for ref in list(seen) if (code := ref()) is not None for entry in entries_of(code)]
    parts = [part for entry in entries for part in getattr(entry.guard_manager, "code_parts", ())]
    if entries and not parts:
        return None
    return frozenset(int(number) for part in parts for number in _CHECKED(part))


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        # While Dynamo traces this function, only the plain call at the end counts.
        if not torch.compiler.is_compiling() and _is_on_device(args, kwargs):
            with capture_lock.held(only_drawing=True):
                return original(*args, **kwargs)
        return original(*args, **kwargs)

    # Not a file of this room: Dynamo is told to skip those, and must be able to trace this function.
    draw.__code__ = draw.__code__.replace(co_filename="<gfxgraph>")
    return functools.update_wrapper(draw, original)


def _is_on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    if device is not None:
        return torch.device(device).type == "cuda"
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if tensors:
        return any(tensor.is_cuda for tensor in tensors)
    return torch.get_default_device().type == "cuda"
