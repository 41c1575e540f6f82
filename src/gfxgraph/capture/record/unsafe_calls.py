"""Which calls of a listed operation are unsafe: the table's ``When``, evaluated on actual arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gfxgraph.core.unsafe import When


def always(args: Any, kwargs: Any) -> bool:
    # Reading a tensor that is on the host needs no device.
    first = args[0] if args else None
    if isinstance(first, Tensor):
        return first.is_cuda
    return True


def never(args: Any, kwargs: Any) -> bool:
    return False


def crosses_device(args: Any, kwargs: Any) -> bool:
    """copy_(dst, src, non_blocking) and _to_copy(x, device=, non_blocking=) between host and device."""
    first = args[0]
    if len(args) > 1 and isinstance(args[1], Tensor):
        dst, src = first, args[1]
        if dst.is_cuda == src.is_cuda:
            return False
        non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        host = src if dst.is_cuda else dst
        return not (non_blocking and host.is_pinned())
    device = kwargs.get("device")
    if device is None:
        return False
    to_device = torch.device(device).type != "cpu"
    if to_device == first.is_cuda:
        return False
    # For a non-blocking copy to the host, torch allocates pinned memory itself.
    return not (kwargs.get("non_blocking") and (first.is_cuda or first.is_pinned()))


def host_or_mask_index(args: Any, kwargs: Any) -> bool:
    target, indices = args[0], args[1]
    if not target.is_cuda:
        return any(isinstance(i, Tensor) and i.is_cuda for i in indices)
    values = args[2] if len(args) > 2 and isinstance(args[2], Tensor) else kwargs.get("values")
    masks = others = hosts = 0
    for index in indices:
        if isinstance(index, Tensor):
            if index.dtype in (torch.bool, torch.uint8):
                masks += 1
            else:
                others += 1
            hosts += not index.is_cuda
    if hosts:
        return True
    if values is not None and not values.is_cuda:
        # torch turns this one into masked_fill, which can be captured.
        accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
        return not (values.numel() == 1 and masks and not others and not accumulate)
    return masks > 0


def no_output_size(args: Any, kwargs: Any) -> bool:
    return kwargs.get("output_size") is None and always(args, kwargs)


def tensor_std(args: Any, kwargs: Any) -> bool:
    std = args[1] if len(args) > 1 else kwargs.get("std")
    return isinstance(std, Tensor) and std.is_cuda


def different_tensors(args: Any, kwargs: Any) -> bool:
    return args[0].is_cuda and args[0] is not args[1]


CONDITIONS: dict[When, Callable[[Any, Any], bool]] = {
    When.ALWAYS: always,
    When.CROSSES_DEVICE: crosses_device,
    When.HOST_OR_MASK_INDEX: host_or_mask_index,
    When.NO_OUTPUT_SIZE: no_output_size,
    When.TENSOR_STD: tensor_std,
    When.DIFFERENT_TENSORS: different_tensors,
    When.FOREIGN_GENERATOR: never,  # checked through the operation's schema
    When.RECORDED_NOTHING: never,  # checked after the operation has run
}
