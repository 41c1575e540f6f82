"""Tolerances for comparing runs: bitwise for the same kernels, by dtype if another algorithm may have run.

A run with another shape, or of a nondeterministic operation, rounds differently, by more the larger its terms are.
So the tolerance is relative to the largest magnitude, in the whole tensor or by row. By row is stricter: one huge row
does not hide errors in the others. It is for runs that must give the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Relative to the largest magnitude: a few hundred units in the last place, as for sums of a thousand terms in
# another order.
RELATIVE = {
    torch.float64: 1e-10,
    torch.float32: 2e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
    torch.complex64: 2e-4,
    torch.complex128: 1e-10,
}
_ROW_FLOOR = 0.125
"""A row's magnitude counts as at least this share of the tensor's largest: its terms may have cancelled."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between two tensors, and the tolerance, in the dtype's own measure."""

    largest: float
    allowed: float

    @property
    def is_match(self) -> bool:
        return self.largest <= self.allowed


def compare(one: Tensor, other: Tensor, exact: bool, *, by_row: bool = False) -> Difference:
    """Compare two tensors of the same shape and dtype; NaN equals NaN, and an infinity equals itself.

    Args:
        exact: require the same bits (NaN payloads aside).
        by_row: measure each row by its own magnitude; return the difference that exceeds its tolerance most.
    """
    if one.numel() == 0:
        return Difference(0.0, 0.0)
    with torch.no_grad():
        if one.is_complex():
            one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
        same = one == other
        if one.is_floating_point():
            same = same | (one.isnan() & other.isnan())
        if bool(same.all()):
            return Difference(0.0, 0.0)
        if one.dtype not in RELATIVE:
            return Difference(1.0, 0.0)
        a, b = one.double(), other.double()
        gap = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
        if exact:
            return Difference(float(gap.max()), 0.0)
        magnitude = torch.where(b.isfinite(), b.abs(), 0.0)
        scale = magnitude.max()
        if by_row:
            scale = scale * _ROW_FLOOR
            if b.dim():
                scale = torch.maximum(magnitude.amax(-1, keepdim=True), scale)
        allowed = (RELATIVE[one.dtype] * scale.clamp(min=torch.finfo(one.dtype).tiny * 16)).expand_as(gap)
        worst = int((gap - allowed).argmax())
        return Difference(float(gap.flatten()[worst]), float(allowed.flatten()[worst]))


def is_near(one: Tensor, other: Tensor) -> bool:
    """True if two tensors have the same dtype and size and agree by row."""
    if one.dtype != other.dtype or one.size() != other.size():
        return False
    return compare(one, other, exact=False, by_row=True).is_match
