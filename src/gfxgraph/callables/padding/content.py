"""The content of padding, and how it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.inputs import dense_strides, dim_order, pad
from gfxgraph.errors import ConfigError


class Pad(StrEnum):
    """What replays write beyond the real rows."""

    ZERO = "zero"
    LAST = "last"
    """The last real row, repeated."""


Content = Pad | float
"""A number is a promise by the caller that the function ignores rows that hold it."""


def parse_pads(given: Any) -> dict[str, Content | None]:
    """``pad=`` by argument path; "" for all others.

    Raises:
        ConfigError: `bad_setting`.
    """
    if isinstance(given, Mapping):
        return {name: _parse(each) for name, each in given.items()}
    return {"": _parse(given)}


def _parse(given: Any) -> Content | None:
    if given is None or given == "auto":
        return None
    if isinstance(given, str):
        try:
            return Pad(given)
        except ValueError:
            allowed = "zero | last | auto | a number"
            raise ConfigError("bad_setting", variable="pad", value=given, allowed=allowed) from None
    return given  # type: ignore[no-any-return]


def dense_copy(tensor: Tensor, size: Sequence[int]) -> Tensor:
    """A dense tensor of ``size`` whose front is ``tensor``, with dims in the same order; the rest is zeros."""
    with torch.no_grad():
        given = tensor.detach()
        strides = dense_strides(size, dim_order(given))
        made = torch.empty_strided(tuple(size), strides, dtype=given.dtype, device=given.device).zero_()
        front(made, given.size()).copy_(given)
    return made.requires_grad_(tensor.requires_grad)


def front(tensor: Tensor, size: Sequence[int]) -> Tensor:
    """The part of ``tensor`` that holds the real rows."""
    for dim, n in enumerate(size):
        tensor = tensor.narrow(dim, 0, n)
    return tensor


def pad_copy(tensor: Tensor, size: Sequence[int], content: Content) -> None:
    """Write ``content`` everywhere beyond ``size``."""
    pad(tensor, size, 0 if isinstance(content, Pad) else content)
    if content is Pad.LAST:
        with torch.no_grad():
            repeat_last(tensor.detach(), size)


def repeat_last(tensor: Tensor, size: Sequence[int]) -> None:
    """Copy the last real row of each padded dim to all of its padding."""
    for _, padding, last in last_rows(tensor, size):
        padding.copy_(last)


def last_rows(tensor: Tensor, size: Sequence[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each padded dim: the dim, its padding, and the last real row expanded to the same size.

    In this order each dim's padding covers the padded extent of earlier dims, so corners are filled too.
    """
    for dim, n in enumerate(size):
        if 0 < n < tensor.size(dim):
            padding = tensor.narrow(dim, n, tensor.size(dim) - n)
            yield dim, padding, tensor.narrow(dim, n - 1, 1).expand_as(padding)
