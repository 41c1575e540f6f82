"""Tensors that a function can reach without being given them, and whether a run changed them.

torch's dispatcher sees most writes before they happen. A kernel of Triton or of compiled code it does
not see; such a write shows afterwards, in the tensor's version counter (compiled code raises it) or in
its contents. The next run knows, and copies the tensor first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

_DEPTH = 3


def reachable(fn: Any) -> list[Tensor]:
    """Tensors on the device in a module's state, a function's closure and globals, a method's object."""
    found: dict[int, Tensor] = {}
    for tensor in _walk(fn, _DEPTH, set()):
        if tensor.is_cuda and tensor.layout is torch.strided:
            found[id(tensor)] = tensor
    return list(found.values())


def _walk(value: Any, depth: int, seen: set[int]) -> Iterator[Tensor]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
        if depth:
            plain = {k: v for k, v in vars(value).items() if k not in ("_parameters", "_buffers", "_modules")}
            for item in plain.values():
                yield from _walk(item, depth - 1, seen)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _walk(item, depth, seen)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _walk(item, depth, seen)
    elif depth:
        for part in _parts(value):
            yield from _walk(part, depth - 1, seen)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if callable(value) and hasattr(value, "__self__") and hasattr(value, "__func__"):
        return [value.__self__, value.__func__]
    code = getattr(value, "__code__", None)
    if code is not None:
        cells = [found for cell in getattr(value, "__closure__", None) or () for found in _content(cell)]
        names = getattr(value, "__globals__", {})
        inside = [names[name] for name in code.co_names if name in names and not isinstance(names[name], type(torch))]
        return [*cells, *inside, getattr(value, "_torchdynamo_orig_callable", None)]
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return []
    return list(vars(value).values())


def _content(cell: Any) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not set yet
        return []


def marks(tensors: Iterable[Tensor]) -> list[tuple[Tensor, Any]]:
    """What tells later whether a tensor was written to."""
    return [(tensor, _mark(tensor)) for tensor in tensors]


def changed(before: Iterable[tuple[Tensor, Any]]) -> list[Tensor]:
    """Those that were written to since."""
    return [tensor for tensor, mark in before if _mark(tensor) != mark]


def _mark(tensor: Tensor) -> Any:
    version = None if tensor.is_inference() else tensor._version
    if isinstance(tensor, torch.nn.Parameter) or tensor.numel() == 0:
        return version
    with torch.no_grad():
        data = tensor.detach()
        if data.is_contiguous():
            return version, data.untyped_storage().nbytes(), int(_bytes(data).sum(dtype=torch.int64))
    return version


def _bytes(data: Tensor) -> Tensor:
    flat = data.reshape(-1)
    return flat.to(torch.uint8) if data.dtype is torch.bool else flat.view(torch.uint8)


Outside = Callable[[], list[Tensor]]
