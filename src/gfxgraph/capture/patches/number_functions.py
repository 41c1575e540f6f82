"""Replacements, while a capture runs, for C functions that would read a tracked number.

Python's functions of numbers (``min``, ``max``, ``math.sqrt``) keep the expression. Dynamo puts guards on them: once
it has compiled anything they are left alone, and the number is pinned. torch's functions that take sizes accept
nothing but an int, so the call is repeated as a whole with the fresh number (dynamic_shapes.py); they are replaced
only once a capture has tracked numbers.
"""

from __future__ import annotations

import builtins
import functools
import json
import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import BuiltinFunctionType, FrameType
from typing import Any

import torch
from torch import Tensor

from gfxgraph.capture.record.tracked_numbers import TrackedNumber, holds_numbers, is_number, plain
from gfxgraph.process import process

Targets = dict[str, tuple[Any, str, Any]]
"""Short name -> (owner, attribute, replacement)."""

# Functions whose schema has ``int[N]``, and those whose Python form takes ``*sizes``.
_REDUCING = "amax amin logsumexp mean nanmean nansum norm roll std sum var"
_BOTH = (
    f"{_REDUCING} narrow select topk chunk split tile flip repeat_interleave unflatten cumsum tril triu index_fill "
    "broadcast_to kthvalue"
)
METHODS = f"view reshape expand repeat permute new_zeros new_ones new_empty resize_ {_BOTH}"
FUNCTIONS = f"zeros ones empty rand randn arange linspace eye std_mean var_mean {_BOTH}"
LAYERS = (
    "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d "
    "adaptive_max_pool2d interpolate pad"
)


@functools.cache
def number_targets() -> Targets:
    """Replacements for functions of numbers."""
    found: Targets = {f"builtins.{name}": (builtins, name, _least_or_most(name)) for name in ("min", "max")}
    found["builtins.pow"] = builtins, "pow", _of_numbers("pow", pow)
    for name, func in vars(math).items():
        if isinstance(func, BuiltinFunctionType) and name not in _OTHERS:
            found[f"math.{name}"] = (math, name, _of_numbers(f"math.{name}", func))
    found["json_default"] = (json.JSONEncoder, "default", _json_default(json.JSONEncoder.default))
    found["json_iterencode"] = (json.JSONEncoder, "iterencode", _json_iterencode(json.JSONEncoder.iterencode))
    return found


# Predicates are replaced in intercept.py; the others take one sequence.
_OTHERS = frozenset({"isnan", "isfinite", "isinf", "fsum", "prod", "dist", "sumprod"})


@functools.cache
def waiting_targets(stock: Callable[[str], Any]) -> Targets:
    """Replacements for functions that wait for a given time, for which C accepts only a real ``float``, or for
    another thread; and for those by which another thread is told something.

    Args:
        stock: gives the original function by its short name.
    """
    waits = (
        (time, "sleep"), (threading.Condition, "wait"), (threading.Thread, "join"), (threading.Event, "wait"),
        (queue.Queue, "get"), (Future, "result"),
    )  # fmt: skip
    found = {name: (*place, _waiting(stock, name)) for place in waits if (name := _short(*place))}
    for place in ((threading.Condition, "notify"), (ThreadPoolExecutor, "submit")):
        found[_short(*place)] = (*place, _telling(stock, _short(*place)))
    return found


def _short(owner: object, name: str) -> str:
    return f"waiting.{name}" if owner is time else f"waiting.{getattr(owner, '__name__', '')}.{name}"


def _waiting(stock: Callable[[str], Any], short: str) -> object:
    def function(*args: object, **kwargs: object) -> object:
        got = stock(short)(*plain(args, "a waiting time"), **plain(kwargs, "a waiting time"))
        session = process.active_session()
        if session is not None:
            session.values.take_back()
        return got

    function.__name__ = function.__qualname__ = short.rpartition(".")[2]
    return function


def _telling(stock: Callable[[str], Any], short: str) -> object:
    def function(*args: object, **kwargs: object) -> object:
        session = process.active_session()
        if session is not None and threading.active_count() > 1 and not _tells_nothing(sys._getframe(1)):
            session.values.share()
        return stock(short)(*args, **kwargs)

    function.__name__ = function.__qualname__ = short.rpartition(".")[2]
    return function


def _tells_nothing(frame: FrameType | None) -> bool:
    """True where a queue tells that it has room again, or a log takes a record."""
    if frame is not None and frame.f_globals.get("__name__") == "queue" and frame.f_code.co_name != "put":
        return True
    for _ in range(4):
        if frame is None or str(frame.f_globals.get("__name__")).startswith("logging"):
            return frame is not None
        frame = frame.f_back
    return False


def _of_numbers(name: str, func: Any) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if type(arg) is TrackedNumber:
                if not kwargs and all(map(is_number, args)):
                    return arg._keeper.computed(name, func, args)
                break
        return func(*args, **kwargs)

    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    return function


def _least_or_most(name: str) -> Any:
    """Replacement for ``min`` or ``max``; with a key, the comparisons themselves are recorded."""
    func = getattr(builtins, name)
    chosen = _of_numbers(name, func)

    def function(*args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 1:
            return func(*args, **kwargs) if kwargs else chosen(*args)
        items = args[0]
        if type(items) is not list and type(items) is not tuple:
            if isinstance(items, (str, bytes, dict, set, frozenset, range, Tensor)):
                return func(items)
            items = list(items)
        if not any(type(item) is TrackedNumber for item in items):
            return func(items)
        return chosen(*items) if len(items) > 1 else items[0]

    function.__name__ = function.__qualname__ = name
    return function


def _json_default(original: Any) -> Any:
    def default(self: Any, item: Any) -> Any:
        return plain(item, "JSON") if type(item) is TrackedNumber else original(self, item)

    return default


def _json_iterencode(original: Any) -> Any:
    def iterencode(self: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
        # Keys and indented numbers bypass ``default``.
        return original(self, plain(item, "JSON"), *args, **kwargs)

    return iterencode


def by_number(func: Any, args: Any, kwargs: Any) -> Any:
    """Call ``func`` with a tracked index or size."""
    session: Any = process.active_session()
    if session is None:
        return func(*plain(args, "a size"), **plain(kwargs, "a size"))
    return session.moving.by_number(func, args, kwargs)


def launching_targets(stock: Callable[[str], Callable[..., object]]) -> Targets:
    """Replacements for Triton's launches, once it is loaded: it knows an argument by its exact type."""
    places = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
    owners = {name: getattr(sys.modules.get(module), name, None) for module, name in places}
    return {
        f"launching.{name}": (owner, "run", _launching(stock, f"launching.{name}"))
        for name, owner in owners.items()
        if owner is not None
    }


@functools.cache  # one for all captures: it is known by identity
def _launching(stock: Callable[[str], Callable[..., object]], short: str) -> Callable[..., object]:
    use = "a Triton kernel"

    def run(kernel: object, *args: object, grid: object, **kwargs: object) -> object:
        sizes = (lambda meta: plain(grid(meta), use)) if callable(grid) else plain(grid, use)
        return stock(short)(kernel, *plain(args, use), grid=sizes, **plain(kwargs, use))

    return run


@functools.cache
def sized_targets(stock: Callable[[str], Any]) -> Targets:
    """Replacements for functions that take ints in a row, or one int for a list.

    Args:
        stock: gives torch's own function by its short name.
    """
    rooms = ((Tensor, METHODS), (torch, FUNCTIONS), (torch.nn.functional, LAYERS))
    names = [(room, name, f"sized.{room.__name__}.{name}") for room, names in rooms for name in names.split()]
    return {short: (room, name, _sized(stock, short)) for room, name, short in names}


def _sized(stock: Callable[[str], Any], short: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        func = stock(short)
        return by_number(func, args, kwargs) if holds_numbers((args, kwargs)) else func(*args, **kwargs)

    function.__name__ = function.__qualname__ = short.rpartition(".")[2]
    return function
