"""``linear`` recorded whole: one row of the tape, where its parts would be four.

Problem: every operation that comes to a dispatch mode costs as much as launching its kernel, and torch makes
four of one ``linear``: a transpose, a view, the product, a view. They are a third of a language model's step.
Idea: while a capture runs, ``torch.nn.functional.linear`` hands its arguments to the recorder itself, which
calls the original with dispatch modes off and notes ``aten::linear``.

Where the parts matter, or could be others, it goes the usual way: gradients or forward-mode AD, autocast,
functorch, another mode on torch's stack, subclasses, arguments that are not on the device, guarded memory.

Dynamo guards compiled code on the very function: put in its place for a moment, all of it would be compiled
anew inside the capture (seen on torch 2.11 to 2.15). So nothing is put there once Dynamo has compiled anything.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gfxgraph.runtime import process
from gfxgraph.runtime.overloads import OpInfo, known_as

_linear = torch._C._nn.linear
_n_modes = torch._C._len_torch_dispatch_stack
_has_function_mode = torch._C._is_torch_function_mode_enabled
_interpreter = torch._C._functorch.peek_interpreter_stack
_has_grad = torch.is_grad_enabled
_has_autocast = torch.is_autocast_enabled
_TYPES = frozenset({Tensor, torch.nn.Parameter})


def may_replace() -> bool:
    """True where no compiled code can be guarded on the function."""
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    return torch.nn.functional.linear is _linear and (frames is None or frames.FRAME_COUNTER == 0)


def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """Stands in for ``torch.nn.functional.linear`` while a capture runs in some thread."""
    if torch.compiler.is_compiling():
        return _linear(input, weight, bias)
    session = process.active_session()
    if (
        session is None
        or session.recorder.paused
        or session.recorder.is_wary
        or _has_grad()
        or _n_modes() != 1  # the recorder
        or type(input) not in _TYPES
        or type(weight) not in _TYPES
        or not input.is_cuda
        or not weight.is_cuda
        or input.is_nested
        or (bias is not None and not (type(bias) in _TYPES and bias.is_cuda))
        or _has_autocast("cuda")
        or _has_function_mode()
        or _interpreter() is not None
        or forward_ad._current_level >= 0
    ):
        return _linear(input, weight, bias)
    args = (input, weight) if bias is None else (input, weight, bias)
    return session.recorder.__torch_dispatch__(_LINEAR, (), args)  # type: ignore[no-any-return]


def _without_modes(*args: Any) -> Tensor:
    with torch._C._DisableTorchDispatch():
        return _linear(*args)


def _whole_linear() -> object:
    info = OpInfo(torch.ops.aten.linear.default)
    info.is_composite = info.is_watched = False
    info.call = info.binding = _without_modes
    return known_as(info)


_LINEAR = _whole_linear()
"""Given to the recorder in place of the overload."""
