"""What padding holds, and what is put there, or in place of the data, to see whether anybody notices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import torch
from torch import Tensor


class Pad(StrEnum):
    """What replays put beyond the real rows."""

    ZERO = "zero"
    LAST = "last"
    """The last real row, again and again."""


Content = Pad | float
"""A number is a sentinel: the caller knows that the function ignores it."""


class Exchange(StrEnum):
    """What a proof puts in place of something, to see whether a result changes."""

    HIGH = "high"
    """Floats beyond the largest real one, of both signs; integers of the last real row."""
    LOW = "low"
    """The opposite signs; integers of the first real row."""
    WITHIN = "within"
    """Values between the smallest and the largest real one."""
    CONTRAST = "contrast"
    """For data: floats of both signs in no order."""
    ABOVE = "above"
    BELOW = "below"
    """For data: floats all above zero, or all below: zeros beside them change a minimum, or a maximum."""
    NEGATIVE = "negative"
    COUNT = "count"
    """For data: integers below zero; small ones in turn. Only where every index is checked before it is used."""
    LAST_HIGH = "last high"
    LAST_LOW = "last low"
    """For data: the last real row above, or below, all others."""


def padded_copy(tensor: Tensor, size: Sequence[int], content: Content, exchange: Exchange | None) -> Tensor:
    """A contiguous tensor of ``size`` whose front is ``tensor``; the rest padding.

    Args:
        exchange: puts other values than the content's; None for what replays use.
    """
    with torch.no_grad():
        given = tensor.detach()
        made = torch.zeros(tuple(size), dtype=given.dtype, device=given.device)
        fill(made, given.size(), content)
        real = made
        for dim, n in enumerate(given.size()):
            real = real.narrow(dim, 0, n)
        if exchange is not None:
            made.copy_(_invented(given, tuple(size), exchange))
        real.copy_(given)
        if content is Pad.LAST and exchange is None:
            repeat_last(made, given.size())
    return made.requires_grad_(tensor.requires_grad)


def fill(tensor: Tensor, size: Sequence[int], content: Content) -> None:
    """Fill everything of ``tensor`` beyond ``size``; for ``Pad.LAST`` call ``repeat_last`` after the data is in."""
    value = 0 if isinstance(content, Pad) else content
    rest = tensor
    for dim, n in enumerate(size):
        if n < rest.size(dim):
            rest.narrow(dim, n, rest.size(dim) - n).fill_(value)
            rest = rest.narrow(dim, 0, n)


def repeat_last(tensor: Tensor, size: Sequence[int]) -> None:
    """Copy the last real row of each padded dim to all of its padding."""
    for _, padding, last in last_rows(tensor, size):
        padding.copy_(last)


def last_rows(tensor: Tensor, size: Sequence[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each padded dim: the dim, its padding, and the last real row as often.

    In this order: a dim's padding is whole in the dims before it, so corners are filled too.
    """
    for dim, n in enumerate(size):
        if 0 < n < tensor.size(dim):
            padding = tensor.narrow(dim, n, tensor.size(dim) - n)
            yield dim, padding, tensor.narrow(dim, n - 1, 1).expand_as(padding)


def is_uniform(tensor: Tensor) -> bool:
    """True where every element is the same."""
    data = tensor.detach()
    return data.numel() > 0 and bool((data == data.flatten()[0]).all())


def is_flat(tensor: Tensor) -> bool:
    """True for data without contrast: one value everywhere, or only 0 and 1."""
    if tensor.numel() == 0:
        return False
    data = tensor.detach()
    if data.dtype is torch.bool:
        return True
    return bool(((data == 0) | (data == 1)).all()) or is_uniform(tensor)


def contrast(tensor: Tensor, dims: Iterable[int], exchange: Exchange) -> Tensor:
    """Other real data of the same size; the tensor itself where nothing else is known to be valid.

    Floats get values of both signs. Bools and integers of only 0 and 1 are masks: all are set. Other
    integers stay unless asked for by name, since any other might be an index too far.
    """
    data = tensor.detach()
    if data.numel() == 0:
        return tensor
    if data.is_floating_point() or data.is_complex():
        of_both_signs = exchange in (Exchange.CONTRAST, Exchange.ABOVE, Exchange.BELOW)
        if of_both_signs and not is_flat(tensor):
            return tensor
        span = _span(data)
        made = _wave(data.size(), data, 1.0) if of_both_signs else data.clone()
        if of_both_signs:
            if exchange is not Exchange.CONTRAST:
                made = made.abs() + 0.5 if exchange is Exchange.ABOVE else -made.abs() - 0.5
        else:
            if is_flat(tensor):
                made = _wave(data.size(), data, max(span, 1.0))
            for dim in dims:
                last = made.narrow(dim, made.size(dim) - 1, 1)
                last.copy_(_wave(last.size(), data, span).abs() + span + 1)
                if exchange is Exchange.LAST_LOW:
                    last.neg_()
        return made.requires_grad_(tensor.requires_grad)
    if exchange is Exchange.NEGATIVE:
        return -data.abs() - 1 if data.dtype.is_signed else tensor
    if exchange is Exchange.COUNT:
        # Of what may be a mask or an index into two rows, no more than 0 and 1.
        n = 2 if bool(((data == 0) | (data == 1)).all()) else 3
        return (torch.arange(data.numel(), device=data.device) % 5 % n).reshape(data.size()).to(data.dtype)
    is_mask = data.dtype is torch.bool or bool(((data == 0) | (data == 1)).all())
    return torch.ones_like(data) if is_mask and not bool((data == 1).all()) else tensor


def _invented(given: Tensor, size: tuple[int, ...], exchange: Exchange) -> Tensor:
    """Values for a whole tensor of ``size``, of which only the padding will be used."""
    if given.numel() == 0:
        return torch.zeros(size, dtype=given.dtype, device=given.device)
    if given.is_floating_point() or given.is_complex():
        if exchange is Exchange.WITHIN:
            low, high = _limits(given)
            wave = _wave(size, given, 1.0)
            return (wave + 1) / 2 * (high - low) + low
        span = _span(given)
        wave = _wave(size, given, span)
        wave = wave + torch.where(wave >= 0, span + 1, -span - 1)
        return wave if exchange is Exchange.HIGH else -wave
    if given.dtype is torch.bool:
        return torch.full(size, exchange is Exchange.HIGH, dtype=given.dtype, device=given.device)
    made = torch.zeros(size, dtype=given.dtype, device=given.device)
    whole = given
    for dim, n in enumerate(size):
        if whole.size(dim) != n:
            at = whole.size(dim) - 1 if exchange is Exchange.HIGH else 0
            rest = whole.narrow(dim, at, 1).expand(*[n if d == dim else s for d, s in enumerate(whole.size())])
            whole = rest
    return made.copy_(whole)


def _wave(size: Sequence[int], like: Tensor, scale: float) -> Tensor:
    """Values in -scale..scale, of both signs in every few, alike in no two places nearby."""
    n = 1
    for part in size:
        n *= part
    steps = torch.arange(n, dtype=torch.float64, device=like.device)
    dtype = torch.float64 if like.is_complex() else like.dtype
    return (torch.sin(steps * 2.399963 + 0.7) * scale).reshape(tuple(size)).to(dtype).to(like.dtype)


def _limits(data: Tensor) -> tuple[float, float]:
    real = torch.view_as_real(data) if data.is_complex() else data
    real = real[real.isfinite()]
    return (float(real.min()), float(real.max())) if real.numel() else (0.0, 1.0)


def _span(data: Tensor) -> float:
    """The largest magnitude, kept small enough that squares of what is made from it stay finite."""
    low, high = _limits(data)
    return min(max(abs(low), abs(high)), 8.0 if data.dtype is torch.float16 else 1e3)
