"""``torch.cuda.get_rng_state`` and ``set_rng_state`` while a capture runs, also from compiled code.

Problem: Dynamo guards the code object of the functions that compiled code calls. If they are replaced, the compiled
code is recompiled inside the capture: torch up to 2.13 then reads and sets the random state there itself, which CUDA
refuses, and from 2.14 it refuses to compile. Idea: the replacement *is* torch's own code object with different
globals: where it asks the device's generator for its state, it asks ours.

Dynamo itself saves the state before it traces and restores it afterwards (``convert_frame``, where it lives since
2.9). Tracing draws nothing, and neither is possible inside a capture, so both are skipped there.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gfxgraph.process import bridge

Handler = Callable[[Callable[[], Any]], Any]
"""Makes a torch call, or lets the capture make it."""


class _Generator:
    """Replaces the device's generator in torch's code."""

    def __init__(self, real: Any, handle: Handler) -> None:
        self._real = real
        self._handle = handle

    def get_state(self) -> Tensor:
        if asks_dynamo():
            return torch.zeros(16, dtype=torch.uint8)
        return self._handle(self._real.get_state)  # type: ignore[no-any-return]

    def set_state(self, state: Tensor) -> None:
        if not asks_dynamo():
            self._handle(lambda: self._real.set_state(state))


class _Cuda:
    """``torch.cuda`` with those generators."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle

    @property
    def default_generators(self) -> list[_Generator]:
        return [_Generator(real, self._handle) for real in torch.cuda.default_generators]

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class _Torch:
    """``torch`` with that ``cuda``."""

    def __init__(self, handle: Handler) -> None:
        self.cuda = _Cuda(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _at_once(call: Callable[[], Any], **kwargs: Any) -> None:
    # Up to 2.14 torch holds a lock here, for which a compilation inside the call would wait.
    call()


def in_the_place_of(stock: Any, handle: Handler) -> Any:
    """torch's function ``stock``, with its access to generators passed through ``handle``."""
    if not isinstance(stock, types.FunctionType):
        return stock
    names = {**stock.__globals__, "torch": _Torch(handle), "_lazy_call": _at_once}
    made = types.FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
    return functools.update_wrapper(made, stock)


def asks_dynamo() -> bool:
    """True if the first caller outside torch's functions for states is Dynamo and this thread is capturing."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _ON_THE_WAY:
        frame = frame.f_back
    caller = frame.f_globals.get("__name__", "") if frame is not None else ""
    return caller in _COMPILER and torch.cuda.is_current_stream_capturing()


_ON_THE_WAY = frozenset(
    {__name__, "gfxgraph.capture.patches.waits", "torch.cuda", "torch.cuda.random", "torch.random"}
)
_COMPILER = frozenset({"torch._dynamo.convert_frame", "torch._dynamo.utils"})


def shield_from_dynamo() -> None:
    """Keep Dynamo from compiling torch's functions that get and set the state, until the bridge is switched off.

    Compiled code calls them after a graph break, and Dynamo then compiles what they call. Up to torch 2.14 that is a
    function called under a lock, and Dynamo, restoring the state after tracing, waits for that lock forever.
    """
    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        return
    action = frames._FrameAction
    codes = [torch.cuda.random.get_rng_state.__code__, torch.cuda.random.set_rng_state.__code__]

    def set_all(wanted: Any) -> None:
        for code in codes:
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(wanted, wanted))

    bridge.undo.append(lambda: set_all(action.DEFAULT))
    set_all(action.SKIP)
