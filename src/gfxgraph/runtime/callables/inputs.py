"""Static inputs: buffers whose address never changes, and how a call's tensors get into them.

A buffer has its argument's dtype and layout, so that the captured function meets what it would meet
eagerly. Where a dim is dynamic the buffer is as large as the bucket and contiguous; a call fills the
front of it and the rest is padding.

Copies are one call: torch's fused copy for several tensors, the driver's own for one or two small
ones, where that is cheaper than torch's dispatcher (docs/decisions/0007).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def is_dense(tensor: Tensor) -> bool:
    """True where every element has its own place and there are no gaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size())):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def span(tensor: Tensor) -> int:
    """Elements from the first to past the last."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride()))


@dataclass(slots=True)
class StaticInput:
    """One argument's buffer.

    Args:
        tensor: what the captured function sees.
        span: its memory as one dimension, where the layout has gaps or repeats; else None.
    """

    tensor: Tensor
    span: Tensor | None = None

    @classmethod
    def like(cls, example: Tensor, size: Sequence[int] | None = None) -> StaticInput:
        """A buffer for tensors like ``example``; of another ``size`` it is contiguous."""
        with torch.inference_mode(False):
            if size is not None and tuple(size) != tuple(example.size()):
                made = torch.zeros(tuple(size), dtype=example.dtype, device=example.device)
                return cls(made.requires_grad_(example.requires_grad))
            if is_dense(example):
                made = torch.empty_strided(
                    example.size(), example.stride(), dtype=example.dtype, device=example.device
                )
                return cls(made.requires_grad_(example.requires_grad))
            flat = torch.empty(span(example), dtype=example.dtype, device=example.device)
            made = flat.as_strided(example.size(), example.stride())
            return cls(made, flat)

    @property
    def nbytes(self) -> int:
        holder = self.tensor if self.span is None else self.span
        return holder.numel() * holder.element_size()

    def target(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """Where to copy and what, for a call's tensor: both of the same size."""
        if self.span is not None:
            return self.span, given.as_strided(self.span.size(), (1,), given.storage_offset())
        static = self.tensor.detach()
        for dim, size in enumerate(given.size()):
            if static.size(dim) != size:
                static = static.narrow(dim, 0, size)
        return static, given.detach()


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """One fused copy."""
    with torch.no_grad():
        if len(targets) == 1:
            targets[0].copy_(sources[0], non_blocking=True)
        elif targets:
            torch._foreach_copy_(targets, sources, non_blocking=True)


def pad(static: Tensor, size: Sequence[int], value: float) -> None:
    """Fill everything of ``static`` beyond ``size`` with ``value``."""
    with torch.no_grad():
        rest = static.detach()
        for dim, n in enumerate(size):
            if n < rest.size(dim):
                rest.narrow(dim, n, rest.size(dim) - n).fill_(value)
                rest = rest.narrow(dim, 0, n)


def device_copier(driver: Any) -> Callable[[int, int, int, int], int] | None:
    """The driver's copy, ``copy(to, from, nbytes, stream)``; None where it has none."""
    if driver is None or "device_copier" in driver.missing:
        return None
    return driver.device_copier()  # type: ignore[no-any-return]
