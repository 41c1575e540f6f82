"""Static inputs: buffers whose address never changes, and how a call's tensors are copied into them.

A buffer has its argument's dtype and layout, so that the captured function sees the same as in eager
execution. If a dim is dynamic the buffer is as large as the bucket, dense, with its dims in the argument's
order (``dim_order``); a call fills the front of it and the rest is padding.

Copies are one call: torch's fused copy for several tensors, the driver's own copy for one or two small
ones, where that is cheaper than torch's dispatcher (decision 0007).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names


def is_dense(tensor: Tensor) -> bool:
    """True if the elements fill the memory without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size())):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def dim_order(tensor: Tensor) -> tuple[int, ...]:
    """The dims from the outermost to the innermost: 0, 2, 3, 1 for channels last; in their own order if not dense."""
    dims = range(tensor.dim())
    if tensor.layout is not torch.strided or tensor.is_contiguous() or not is_dense(tensor):
        return tuple(dims)
    return tuple(sorted(dims, key=lambda dim: -tensor.stride(dim)))


def dense_strides(size: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor with its dims in ``order``."""
    strides, step = [0] * len(size), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(1, size[dim])
    return tuple(strides)


def is_one_copy(target: Tensor, source: Tensor) -> bool:
    """True if copying the bytes in order copies every element to its own position."""
    if target.size() != source.size() or target.dtype != source.dtype or not is_dense(source):
        return False
    return all(a == b for a, b, n in zip(target.stride(), source.stride(), target.size()) if n > 1)


def span(tensor: Tensor) -> int:
    """Number of elements from the first to the last, gaps included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride()))


class Buffers:
    """Memory of one callable's static inputs: one flat tensor per argument, as long as its largest use.

    Captures of different sizes share it, since only one of them runs at a time.
    """

    def __init__(self) -> None:
        self._flat: dict[tuple[Any, ...], Tensor] = {}
        self.filled_for: Any = None
        """The route whose padding the buffers hold: that of the last call."""

    def take(self, position: int, numel: int, example: Tensor) -> tuple[Tensor, int]:
        """``numel`` elements for an argument, and the number of bytes newly allocated for it."""
        key = (position, example.dtype, example.device)
        flat = self._flat.get(key)
        new = 0
        if flat is None or flat.numel() < numel:
            # Graphs captured with the shorter one keep it.
            flat = self._flat[key] = torch.zeros(numel, dtype=example.dtype, device=example.device)
            new = numel * flat.element_size()
        return flat[:numel], new

    def clear(self) -> None:
        """Release all memory; graphs captured over it keep theirs."""
        self._flat.clear()
        self.filled_for = None


@dataclass(slots=True)
class StaticInput:
    """One argument's buffer.

    Args:
        tensor: what the captured function sees.
        span: its memory as one flat dimension, if the layout has gaps or repeats; else None.
        new_nbytes: memory newly allocated for it.
    """

    tensor: Tensor
    span: Tensor | None = None
    new_nbytes: int = 0

    @classmethod
    def like(cls, example: Tensor, size: Sequence[int] | None, buffers: Buffers, position: int) -> StaticInput:
        """A buffer for tensors like ``example``; with a ``size``, for all whose dims are in the same order."""
        with torch.inference_mode(False), torch.no_grad():
            wanted = tuple(size) if size is not None else tuple(example.size())
            if size is not None or is_dense(example):
                strides = example.stride() if size is None else dense_strides(wanted, dim_order(example))
                flat, new = buffers.take(position, math.prod(wanted), example)
                made = flat.as_strided(wanted, strides)
                return cls(made.detach().requires_grad_(example.requires_grad), None, new)
            flat, new = buffers.take(position, span(example), example)
            made = flat.as_strided(wanted, example.stride()).detach()
            return cls(made.requires_grad_(example.requires_grad), flat, new)

    @property
    def nbytes(self) -> int:
        holder = self.tensor if self.span is None else self.span
        return holder.numel() * holder.element_size()

    def bits(self) -> Tensor:
        """Its memory as bytes."""
        held = self.tensor.detach() if self.span is None else self.span
        return held.as_strided((span(held),), (1,)).view(torch.uint8)

    def target(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """The target and the source of the copy for a call's tensor, both of the same size."""
        if self.span is not None:
            return self.span, given.as_strided(self.span.size(), (1,), given.storage_offset())
        static = self.tensor.detach()
        for dim, size in enumerate(given.size()):
            if static.size(dim) != size:
                static = static.narrow(dim, 0, size)
        return static, given.detach()


def copy_all(targets: list[Tensor], sources: list[Tensor], *, non_blocking: bool = True) -> None:
    """Copy all tensors, in one launch where torch can: it has no such kernel for complex halves."""
    with torch.no_grad():
        try:
            if len(targets) > 1:
                return torch_names._foreach_copy_(targets, sources, non_blocking=non_blocking)
        except NotImplementedError:
            pass
        for target, source in zip(targets, sources):
            target.copy_(source, non_blocking=non_blocking)


def front(tensor: Tensor, size: Sequence[int] | None) -> Tensor:
    """The part of ``tensor`` that holds the real rows; all of it if ``size`` is None."""
    for dim, n in enumerate(size or ()):
        tensor = tensor.narrow(dim, 0, n)
    return tensor


def dense_copy(tensor: Tensor, size: Sequence[int]) -> Tensor:
    """A dense tensor of ``size`` whose front is ``tensor``, with dims in the same order; the rest is zeros."""
    with torch.no_grad():
        given = tensor.detach()
        strides = dense_strides(size, dim_order(given))
        made = torch.empty_strided(tuple(size), strides, dtype=given.dtype, device=given.device).zero_()
        front(made, given.size()).copy_(given)
    return made.requires_grad_(tensor.requires_grad)


def resized(tensor: Tensor, size: Sequence[int] | None) -> Tensor:
    """A tensor of ``size`` that begins as ``tensor`` does and goes on with its last row; itself for None."""
    if size is None or tuple(size) == tuple(tensor.size()):
        return tensor
    kept = front(tensor, [min(n, wanted) for n, wanted in zip(tensor.size(), size)])
    made = dense_copy(kept, size)
    repeat_last(made, kept.size())
    return made


def pad(static: Tensor, size: Sequence[int]) -> None:
    """Fill everything of ``static`` beyond ``size`` with zeros."""
    with torch.no_grad():
        rest = static.detach()
        for dim, n in enumerate(size):
            if n < rest.size(dim):
                rest.narrow(dim, n, rest.size(dim) - n).zero_()
                rest = rest.narrow(dim, 0, n)


def repeat_last(static: Tensor, size: Sequence[int]) -> None:
    """Copy the last real row of each padded dim to all of its padding."""
    with torch.no_grad():
        for _, padding, last in last_rows(static.detach(), size):
            padding.copy_(last)


def last_rows(tensor: Tensor, size: Sequence[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each padded dim: the dim, its padding, and the last real row expanded to the same size.

    In this order each dim's padding covers the padded extent of earlier dims, so corners are filled too.
    """
    for dim, n in enumerate(size):
        if 0 < n < tensor.size(dim):
            padding = tensor.narrow(dim, n, tensor.size(dim) - n)
            yield dim, padding, tensor.narrow(dim, n - 1, 1).expand_as(padding)


def device_copier(driver: Any) -> Callable[[int, int, int, int], int] | None:
    """The driver's copy, ``copy(to, from, nbytes, stream)``; None if it has none."""
    if driver is None or "device_copier" in driver.missing:
        return None
    return driver.device_copier()  # type: ignore[no-any-return]


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in torch_names.tree_leaves(tree) if isinstance(leaf, Tensor)]
