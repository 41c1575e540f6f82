"""Python's own state round a function: attributes, containers and variables that its runs may rebind.

A proof runs a function several times. What that does to tensors is undone elsewhere (witness.py); a
counter in a module, a tensor kept in an attribute or appended to a list is undone here, so that the
function has run once as far as anybody can tell.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Iterator
from typing import Any

import torch

from gfxgraph.capture.places import is_library_code

_DEPTH = 3
_OWN = ("torch", "gfxgraph", "numpy", "threading", "logging", "builtins")


class PythonState:
    """What a function's module, object, closure and globals hold; taken when made.

    Args:
        fn: a function, method or module.
    """

    def __init__(self, fn: Any) -> None:
        self._holders = list(_holders(fn, _DEPTH, set()))
        self._kept = [_copy(holder) for holder in self._holders]
        self._random = random.getstate()

    def again(self) -> PythonState:
        """The same holders as they are now."""
        made = object.__new__(PythonState)
        made._holders = self._holders
        made._kept = [_copy(holder) for holder in self._holders]
        made._random = random.getstate()
        return made

    def put_back(self) -> None:
        """Make everything what it was when this was taken."""
        random.setstate(self._random)
        for holder, kept in zip(self._holders, self._kept):
            _restore(holder, kept)


def _holders(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Dicts, lists, sets and cells that code reached from ``value`` may write to."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (dict, list, set)):
        yield value
        for item in list(value.values() if isinstance(value, dict) else value):
            yield from _holders(item, depth, seen)
    elif isinstance(value, torch.nn.Module):
        for module in value.modules():
            if id(module) not in seen or module is value:
                seen.add(id(module))
                yield from _holders(vars(module), max(depth - 1, 0), seen)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield from _holders(part, depth, seen)
    elif isinstance(value, types.MethodType):
        yield from _holders(value.__self__, depth, seen)
        yield from _holders(value.__func__, depth, seen)
    elif isinstance(value, types.FunctionType):
        yield from _holders(getattr(value, "_torchdynamo_orig_callable", None), depth, seen)
        if not depth or is_library_code(value.__code__):  # torch's own state is not ours to undo
            return
        for cell in value.__closure__ or ():
            yield cell
            for content in _copy(cell):
                yield from _holders(content, depth - 1, seen)
        names = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
        yield (value.__globals__, tuple(names))
        for content in names.values():
            yield from _holders(content, depth - 1, seen)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType, torch.Tensor)):
        if type(value).__module__.split(".")[0] not in _OWN:
            yield from _holders(vars(value), depth - 1, seen)


def _copy(holder: Any) -> Any:
    if isinstance(holder, (dict, list, set)):
        return holder.copy()
    if isinstance(holder, tuple):
        namespace, names = holder
        return {name: namespace[name] for name in names if name in namespace}
    try:
        return [holder.cell_contents]
    except ValueError:  # not set yet
        return []


def _restore(holder: Any, kept: Any) -> None:
    if isinstance(holder, list):
        if len(holder) != len(kept) or any(a is not b for a, b in zip(holder, kept)):
            holder[:] = kept
    elif isinstance(holder, set):
        if holder != kept:
            holder.clear()
            holder.update(kept)
    elif isinstance(holder, dict):
        if len(holder) != len(kept) or any(k not in holder or holder[k] is not v for k, v in kept.items()):
            holder.clear()
            holder.update(kept)
    elif isinstance(holder, tuple):
        for name, value in kept.items():
            if holder[0].get(name) is not value:
                holder[0][name] = value
    elif kept:
        if _copy(holder) and holder.cell_contents is not kept[0]:
            holder.cell_contents = kept[0]
