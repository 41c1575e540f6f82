"""What padding holds, and what is put there, or in place of the data, to see whether anybody notices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum

import torch
from torch import Tensor

from gfxgraph.callables.inputs import dense_strides, dim_order


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
    COUNT_UP = "count up"
    """For data: integers below zero; small ones in turn, from 0 and from 1. Only where every index is checked
    before it is used."""
    LARGE = "large"
    """For data: floats 4 or 16 times as large."""
    HOLES = "holes"
    """For masks: every second element off, the first stays on."""
    FLIPPED = "flipped"
    """For data that is not padded: flags the other way round, zeros and ones as floats of both signs."""
    LAST_HIGH = "last high"
    LAST_LOW = "last low"
    """For data: the last real row above, or below, all others."""


def padded_copy(
    tensor: Tensor, size: Sequence[int], content: Content, exchange: Exchange | None, like: Tensor | None = None
) -> Tensor:
    """A tensor of ``size`` without gaps whose front is ``tensor``, its dims in the same order; the rest padding.

    Args:
        exchange: puts other values than the content's; None for what replays use.
        like: what other values are made from; ``tensor`` where it is None.
    """
    with torch.no_grad():
        given = tensor.detach()
        strides = dense_strides(size, dim_order(given))
        made = torch.empty_strided(tuple(size), strides, dtype=given.dtype, device=given.device).zero_()
        fill(made, given.size(), content)
        real = made
        for dim, n in enumerate(given.size()):
            real = real.narrow(dim, 0, n)
        if exchange is not None:
            made.copy_(_invented(given if like is None else like.detach(), tuple(size), exchange))
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


def is_zeros_and_ones(tensor: Tensor) -> bool:
    """True where no element is anything else; for bools always."""
    data = tensor.detach()
    return data.dtype is torch.bool or bool(((data == 0) | (data == 1)).all())


def is_flat(tensor: Tensor) -> bool:
    """True for data without contrast: one value everywhere, or only 0 and 1."""
    return tensor.numel() > 0 and (is_zeros_and_ones(tensor) or is_uniform(tensor))


def contrast(tensor: Tensor, dims: Collection[int], exchange: Exchange) -> Tensor:
    """Other real data of the same size; the tensor itself where nothing else is known to be valid.

    Floats get values of both signs. Bools and integers of only 0 and 1 are masks: all are set. Other
    integers stay unless asked for by name, since any other might be an index too far.
    """
    data = tensor.detach()
    if data.numel() == 0:
        return tensor
    if exchange is Exchange.HOLES:
        is_mask = is_zeros_and_ones(data) and bool((data == 1).any())
        return _with_holes(data, max(dims)).requires_grad_(tensor.requires_grad) if is_mask and dims else tensor
    if data.is_floating_point() or data.is_complex():
        made = _other_floats(data, dims, exchange)
        return tensor if made is None else made.requires_grad_(tensor.requires_grad)
    if exchange is Exchange.NEGATIVE:
        if not data.dtype.is_signed:
            return tensor
        # From as far back as the indices at hand go forward, and from the end, in turn.
        most = max(int(data.max()) + 1, -int(data.min()))
        at = torch.arange(data.numel(), device=data.device)
        step = at // 2 % most
        return torch.where(at % 2 == 0, step - most, -1 - step).reshape(data.size()).to(data.dtype)
    if exchange in (Exchange.COUNT, Exchange.COUNT_UP):
        # Of what may be a mask or an index into two rows, no more than 0 and 1.
        n, least = (2, 0) if is_zeros_and_ones(data) else (3, int(exchange is Exchange.COUNT_UP))
        return (torch.arange(data.numel(), device=data.device) % 5 % n + least).reshape(data.size()).to(data.dtype)
    if exchange is Exchange.FLIPPED:
        return (data == 0).to(data.dtype) if is_zeros_and_ones(data) else tensor
    is_free = exchange is not Exchange.LARGE and is_zeros_and_ones(data) and not bool((data == 1).all())
    return torch.ones_like(data) if is_free else tensor


def _other_floats(data: Tensor, dims: Collection[int], exchange: Exchange) -> Tensor | None:
    if exchange is Exchange.LARGE:
        return None if is_flat(data) else torch.where(_wave(data.size(), data, 1.0).real > 0, data * 16, data * 4)
    if exchange is Exchange.FLIPPED:
        return _wave(data.size(), data, 1.0) if is_zeros_and_ones(data) else None
    of_both_signs = exchange in (Exchange.CONTRAST, Exchange.ABOVE, Exchange.BELOW)
    if of_both_signs and not is_flat(data):
        return None
    span = _span(data)
    made = _wave(data.size(), data, 1.0) if of_both_signs else data.clone()
    if of_both_signs:
        if exchange is not Exchange.CONTRAST:
            made = made.abs() + 0.5 if exchange is Exchange.ABOVE else -made.abs() - 0.5
        return made
    if is_flat(data):
        made = _wave(data.size(), data, max(span, 1.0))
    for dim in dims:
        last = made.narrow(dim, made.size(dim) - 1, 1)
        last.copy_(_wave(last.size(), data, span).abs() + span + 1)
        if exchange is Exchange.LAST_LOW:
            last.neg_()
    return made


def _with_holes(data: Tensor, dim: int) -> Tensor:
    # From the second on: with a causal mask beside it, the first row sees nothing but the first.
    made = data.clone()
    made[(slice(None),) * dim + (slice(1, None, 2),)] = 0
    return made


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
