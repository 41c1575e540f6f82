"""Entering torch's stack of dispatch modes, and leaving it from the middle.

Problem: torch keeps a stack of modes for each thread, and its blocks leave in reverse order. Recorders do not: a
capture may begin under one mode and end under another. Idea: this file takes a recorder out wherever it is.

Beside the stack torch keeps process-wide flags that say "some mode is active". They choose how code is compiled, and
a recorder leaves that as it is (``ignore_compile_internals``): it is put on the stack without setting them.

Source: torch/utils/_python_dispatch.py of torch 2.11 to 2.15, TorchDispatchMode.__enter__ and __exit__.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.utils import _python_dispatch as dispatch
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from gfxgraph.process import process

_COMPILED = "_is_in_any_mode_without_ignore_compile_internals"
_FLAGS: dict[str, Callable[[Any], bool]] = {
    "_is_in_torch_dispatch_mode": lambda mode: True,
    "_is_in_non_infra_torch_dispatch_mode": lambda mode: not mode.is_infra_mode(),
    _COMPILED: lambda mode: not mode.ignore_compile_internals(),
}
"""torch's flags, and which modes set them."""


def leave_modes() -> None:
    """Take the modes of finished sessions off the stacks, wherever they are.

    Modes pushed after them stay. One whose session ended while it handled an operation is off
    the stack at that moment and comes back when the operation returns; it stays on the list, passes
    everything through, and is removed by the next call.
    """
    over = process.leftover_modes()
    if not over:
        return
    _take_out(over)
    entered = _entered()
    staying = [mode for mode in entered if mode not in over]
    if len(staying) < len(entered):
        _arrange(staying)
        over[:] = [mode for mode in over if mode not in entered]


def put_back(there: list[Any]) -> None:
    """Leave every mode that has come since, and bring back those that have gone; one of ours that went is over.

    No mode's own exit is run: one that was struck inside would raise, or leave another one's place empty.

    Args:
        there: what ``standing`` gave.
    """
    now = standing()
    there = [
        mode
        for mode in there
        if any(mode is each for each in now) or not type(mode).__module__.startswith("gfxgraph.")
    ]
    if list(map(id, now)) != list(map(id, there)):
        while dispatch._len_torch_dispatch_stack():
            _pop_mode()
        for mode in there:
            _push_mode(mode)
    correct_flags()


def correct_flags() -> None:
    """Set torch's flags by this thread's modes, where an interrupt has struck one that was coming or going."""
    others = [mode for mode in standing() if not type(mode).__module__.startswith("gfxgraph.capture")]
    for name, sets in _FLAGS.items():
        if hasattr(dispatch, name):
            setattr(dispatch, name, any(map(sets, others)))
    if hasattr(dispatch, _COMPILED):
        dispatch.set_is_in_mode_without_ignore_compile_internals(getattr(dispatch, _COMPILED))


def standing() -> list[Any]:
    """The modes on this thread's stack, the lowest first."""
    return [dispatch._get_dispatch_stack_at(i) for i in range(dispatch._len_torch_dispatch_stack())]


def _take_out(over: list[Any]) -> None:
    above: list[Any] = []
    left = list(over)
    while (
        any(isinstance(mode, dispatch.TorchDispatchMode) for mode in left)
        and (top := _get_current_dispatch_mode()) is not None
    ):
        mode = _pop_mode()
        if top in left:
            left.remove(top)
        else:
            above.append(mode)
    for mode in reversed(above):
        _push_mode(mode)
    over[:] = left


# -- modes that see calls of torch's functions -----------------------------------------------------------


def put_below(mode: object) -> None:
    """Enter a mode below all others, so that each ``with`` block still pops the mode it pushed."""
    _arrange([mode, *_entered()])


def take_off(mode: object) -> None:
    """Leave a mode, wherever it is. One that torch is calling comes back later: ``leave_modes`` removes it."""
    process.leftover_modes().append(mode)
    leave_modes()


def is_entered(mode: object) -> bool:
    """Whether calls made now reach the mode: in its own handler none does."""
    return any(each is mode for each in _entered())


def _entered() -> list[object]:
    """All modes, the lowest first."""
    return [_get_function_stack_at(i) for i in range(_len_torch_function_stack())]


def _arrange(modes: list[object]) -> None:
    try:
        _stack(modes)
    except BaseException:  # an interrupt half-way must not lose the program's own modes
        _stack(modes)
        raise


def _stack(modes: list[object]) -> None:
    while _len_torch_function_stack():
        _pop_torch_function_stack()
    for each in modes:
        _push_on_torch_function_stack(each)


# -- autocast, asked from inside a handler -----------------------------------------------------------------

_AUTOCAST = {"cuda": torch._C.DispatchKey.AutocastCUDA, "cpu": torch._C.DispatchKey.AutocastCPU}


def as_outside() -> Any:
    """Context manager for the parts of a composite operation, in a mode's handler: autocast as it is outside.

    Inference mode hands such an operation whole to the mode. Torch has switched everything above the mode off in its
    handler, autocast too: the parts of ``square`` would give bfloat16 where eager gives float32.
    """
    with torch._C._RestorePythonTLSSnapshot():  # as it was at the dispatcher's entry
        keys = [key for kind, key in _AUTOCAST.items() if torch.is_autocast_enabled(kind)]
    if not keys:
        return nullcontext()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in keys:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def as_now(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``func`` so that it runs under the autocast settings of now, wherever it is called."""
    if not torch.is_autocast_enabled("cuda"):
        return func
    dtype = torch.get_autocast_dtype("cuda")

    def called(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cuda", dtype, cache_enabled=False):
            return func(*args, **kwargs)

    return called
