"""What torch's dispatcher, autocast and Dynamo keep of a thread, read and put back.

Problem: a trace of Dynamo's enters some dozens of blocks that change the thread: dispatch keys, the Python
dispatcher, functorch's levels, the callback for frames. Those that are classes in Python, or end in several steps,
stay half left where an interrupt strikes inside. Then every later operation of the process fails ("Hit
PythonDispatcher dispatch key"), or every later frame is traced.

Idea: not the blocks are known but the state, which torch lets one read and set. A call that fails leaves
it as it found it.

Source: torch 2.9 to 2.13, c10/core/impl/LocalDispatchKeySet.h, PythonDispatcherTLS.cpp; docs/decisions/0213.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch._C import _functorch

_frames = torch._C._dynamo.eval_frame
_for_good: list[object] = []


def enter_for_good(guard: AbstractContextManager[object]) -> None:
    """Enter a guard of torch's that is the only way to set what it sets; left, it would undo that."""
    _for_good.append(guard)
    guard.__enter__()


class DispatchState:
    """One thread's state, as it is now."""

    def __init__(self) -> None:
        self._keys = _keys()
        self._functions = torch._C._get_torch_function_state()
        self._depth = _functorch.get_dynamic_layer_stack_depth()
        self._callback = _frames.get_eval_frame_callback()
        self._autocast = _Autocast()
        self._tracing = dict(vars(torch._guards._TLS))
        self._lifts_host_tensors = torch._C._only_lift_cpu_tensors()

    def put_back(self) -> None:
        """Make it so again."""
        tracing = vars(torch._guards._TLS)
        if tracing != self._tracing:
            tracing.clear()
            tracing.update(self._tracing)
        torch._C._set_only_lift_cpu_tensors(self._lifts_host_tensors)
        if _frames.get_eval_frame_callback() is not self._callback:
            _frames.set_eval_frame(self._callback)
        if _functorch.get_dynamic_layer_stack_depth() > self._depth:
            _functorch.pop_dynamic_layer_stack_and_undo_to_depth(self._depth)
        self._autocast.put_back()
        torch._C._set_torch_function_state(self._functions)
        included, excluded = self._keys
        # These say that there is a mode, and one that was there may have gone for good.
        has_modes = torch._C._len_torch_dispatch_stack() > 0
        for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot):
            included = included.add(key) if has_modes else included.remove(key)
        if _keys() != (included, excluded):
            # The interpreter that the Python dispatcher's key asks for is kept beside the keys.
            is_python = included.has(torch._C.DispatchKey.PythonDispatcher)
            enter_for_good(torch._C._EnablePythonDispatcher() if is_python else torch._C._DisablePythonDispatcher())
            enter_for_good(torch._C._ForceDispatchKeyGuard(included, excluded))


def _keys() -> tuple[torch._C.DispatchKeySet, torch._C.DispatchKeySet]:
    return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


class _Autocast:
    """Of the two devices that a program of ours has."""

    def __init__(self) -> None:
        self._devices = [_of_device(name) for name in ("cuda", "cpu")]
        self._does_cache = torch.is_autocast_cache_enabled()
        self._depth = _depth()

    def put_back(self) -> None:
        for was in self._devices:
            name, is_on, dtype = was
            if _of_device(name) != was:
                torch.set_autocast_enabled(name, is_on)
                torch.set_autocast_dtype(name, dtype)
        torch.set_autocast_cache_enabled(self._does_cache)
        while _depth() > self._depth:
            if not torch.autocast_decrement_nesting():
                torch.clear_autocast_cache()


def _of_device(name: str) -> tuple[str, bool, torch.dtype]:
    return name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)


def _depth() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())
