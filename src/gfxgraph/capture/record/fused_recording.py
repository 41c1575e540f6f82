"""Records ``linear`` and ``scaled_dot_product_attention`` as single tape entries.

Problem: every operation that reaches a dispatch mode costs as much as launching its kernel, and torch turns one
``linear`` into four (a transpose, a view, the product, a view) and one attention with a mask into five or more. That
is a third of a language model's step. Idea: while a capture runs, these two functions of ``torch.nn.functional`` pass
their arguments directly to the recorder, which calls the original with dispatch modes off and records
``aten::linear``.

If the parts matter, or could be different ones, the usual path is taken: gradients or forward-mode AD, autocast,
functorch, another mode on torch's stack, subclasses, arguments that are not on the device, guarded memory,
dropout. Which attention kernel torch picks depends on process-wide switches; the tape runs the operation under the
switches that held at capture (``AsCaptured``).

Dynamo puts guards on these very functions: replacing them even briefly would recompile all compiled code inside the
capture (seen on torch 2.11 to 2.15). So nothing is replaced once Dynamo has compiled anything.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gfxgraph.capture.patches.deferred_calls import quiet
from gfxgraph.capture.patches.torch_functions import Targets
from gfxgraph.capture.record.overloads import OpInfo, known_as
from gfxgraph.process import process
from gfxgraph.process.process import OngoingRecording

_linear = torch._C._nn.linear
_attention = torch._C._nn.scaled_dot_product_attention
_n_modes = torch._C._len_torch_dispatch_stack
_has_function_mode = torch._C._is_torch_function_mode_enabled
_interpreter = torch._C._functorch.peek_interpreter_stack
_Excluded = torch._C._ExcludeDispatchKeyGuard
_Key, _Keys = torch._C.DispatchKey, torch._C.DispatchKeySet
_MODES = _Keys(_Key.Python) | _Keys(_Key.PythonTLSSnapshot) | _Keys(_Key.PreDispatch)
_modes_off: list[AbstractContextManager[None]] = []
"""Guards to enter again, none of them entered now: one that is made for a call costs as much as the call.

``torch._C._DisableTorchDispatch`` does the same, but can be entered only once.
"""
_has_grad = torch.is_grad_enabled
_has_autocast = torch.is_autocast_enabled
_TYPES = frozenset({Tensor, torch.nn.Parameter})
_PLAIN = frozenset({bool, int, float, type(None)})
# The switches by which torch chooses attention's kernel; not every version of torch has all of them.
_SWITCHES: list[tuple[Any, Any]] = [
    (getattr(torch._C, f"_get_{get}"), getattr(torch._C, f"_set_{put}"))
    for get, put in (
        ("flash_sdp_enabled", "sdp_use_flash"),
        ("mem_efficient_sdp_enabled", "sdp_use_mem_efficient"),
        ("math_sdp_enabled", "sdp_use_math"),
        ("cudnn_sdp_enabled", "sdp_use_cudnn"),
        ("overrideable_sdp_enabled", "sdp_use_overrideable"),
        ("fa3_sdp_enabled", "sdp_use_fa3"),
        ("math_sdp_allow_fp16_bf16_reduction", "math_sdp_allow_fp16_bf16_reduction"),
        ("sdp_priority_order", "sdp_priority_order"),
    )
    if hasattr(torch._C, f"_get_{get}") and hasattr(torch._C, f"_set_{put}")
]


def has_compiled_nothing() -> bool:
    """True as long as no compiled code can have a guard on a function that a capture would replace."""
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    return frames is None or bool(frames.FRAME_COUNTER == 0)


def targets() -> Targets:
    functional = torch.nn.functional
    found = {"linear": ("linear", linear), "attention": ("scaled_dot_product_attention", attention)}
    return {
        short: (functional, name, instead)
        for short, (name, instead) in found.items()
        if getattr(functional, name) in (getattr(torch._C._nn, name), instead)
    }


def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """Replaces ``torch.nn.functional.linear`` while any thread captures."""
    recorder = None if torch.compiler.is_compiling() else _recorder()
    if (
        recorder is None
        or not _is_plain(input)
        or not _is_plain(weight)
        or not (bias is None or _is_plain(bias))
    ):  # fmt: skip
        return _linear(input, weight, bias)
    args = (input, weight) if bias is None else (input, weight, bias)
    return recorder.__torch_dispatch__(_LINEAR, (), args)  # type: ignore[no-any-return]


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    **named: Any,
) -> Tensor:
    """Replaces ``torch.nn.functional.scaled_dot_product_attention`` while any thread captures."""
    recorder = None if torch.compiler.is_compiling() else _recorder()
    if (
        recorder is None
        or not (_is_plain(query) and _is_plain(key) and _is_plain(value))
        or not (attn_mask is None or _is_plain(attn_mask))
        or type(dropout_p) not in _PLAIN
        or dropout_p != 0
        or type(is_causal) is not bool
        or not all(type(each) in _PLAIN for each in named.values())
    ):
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, **named)
    args = (query, key, value, attn_mask, 0.0, is_causal)
    return recorder.__torch_dispatch__(_attention_now(), (), args, named)  # type: ignore[no-any-return]


def _recorder() -> OngoingRecording | None:
    """The recorder of this thread's capture if it can record operations whole now, else None."""
    session = process.active_session()
    if session is None:
        return None
    recorder = session.recorder
    if (
        recorder.paused
        or recorder.is_wary
        or _has_grad()
        or _n_modes() != 1  # the recorder
        or _has_autocast()  # of the GPU; naming it costs more than all else here
        or _has_function_mode()
        or _interpreter() is not None
        or forward_ad._current_level >= 0
    ):
        return None
    return recorder


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in _TYPES and tensor.is_cuda and not tensor.is_nested


class AsCaptured:
    """Calls an overload under the switches that held when it was captured; otherwise behaves like the overload."""

    def __init__(self, func: Any, switches: tuple[Any, ...]) -> None:
        self._func = func
        self._switches = switches

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        now = _switches()
        if now == self._switches:
            return self._func(*args, **kwargs)
        _switch(self._switches)
        try:
            return self._func(*args, **kwargs)
        finally:
            _switch(now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._func, name)

    def __str__(self) -> str:
        return str(self._func)


def _switches() -> tuple[Any, ...]:
    return tuple([tuple(now) if type(now := get()) is list else now for get, _ in _SWITCHES])


def _switch(settings: tuple[Any, ...]) -> None:
    for (_, put), setting in zip(_SWITCHES, settings):
        put(list(setting) if type(setting) is tuple else setting)


def _whole(overload: Any, original: Any, func: Any) -> object:
    """Make the object that the recorder receives as the overload; ``func`` is what the tape will call."""

    def call(*args: Any, **kwargs: Any) -> Tensor:
        try:
            off = _modes_off.pop()
        except IndexError:
            off = _Excluded(_MODES)
        with off:
            out: Tensor = original(*args, **kwargs)
        _modes_off.append(off)
        return out

    info = OpInfo(overload)
    info.func = func
    info.is_composite = info.is_watched = False
    info.draws = False  # attention is recorded whole only without dropout
    info.has_effects = bool(info.mutates)
    info.call = info.binding = quiet(info.name, call)
    return known_as(info)


def _attention_now() -> object:
    """The attention overload, bound to the current switches."""
    switches = _switches()
    found = _ATTENTION.get(switches)
    if found is None:
        overload = torch.ops.aten.scaled_dot_product_attention.default
        found = _ATTENTION[switches] = _whole(overload, _attention, AsCaptured(overload, switches))
    return found


_LINEAR = _whole(torch.ops.aten.linear.default, _linear, torch.ops.aten.linear.default)
_ATTENTION: dict[tuple[Any, ...], object] = {}
