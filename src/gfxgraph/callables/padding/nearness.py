"""How near two runs must be: bit by bit for the same shapes, by dtype for different ones.

Two runs of one shape take the same kernels, so what does not depend on the padding has the same
bits. A run of another shape may take another algorithm, whose rounding grows with the size of the
terms: the allowance is a share of the largest magnitude, in the row where that is large enough, so
that one giant row does not hide what is wrong in the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gfxgraph.capture.validate import RELATIVE

_ROW_FLOOR = 0.125
"""A row counts as at least this share of the tensor's largest magnitude: its terms may have cancelled."""


def is_near(one: Tensor, other: Tensor, exact: bool) -> bool:
    """True where two tensors of one size agree; NaN agrees with NaN, an infinity with itself."""
    if one.dtype != other.dtype or one.size() != other.size():
        return False
    if one.numel() == 0:
        return True
    with torch.no_grad():
        if one.is_complex():
            one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
        same = one == other
        if one.is_floating_point():
            same = same | (one.isnan() & other.isnan())
        if bool(same.all()):
            return True
        if exact or one.dtype not in RELATIVE:
            return False
        a, b = one.double(), other.double()
        if bool((~same & ~(a.isfinite() & b.isfinite())).any()):
            return False
        gap = torch.where(same, 0.0, (a - b).abs())
        magnitude = torch.where(b.isfinite(), b.abs(), 0.0)
        scale = magnitude.max() * _ROW_FLOOR
        if b.dim():
            scale = torch.maximum(magnitude.amax(-1, keepdim=True), scale)
        floor = torch.finfo(one.dtype).tiny * 16
        return bool((gap <= RELATIVE[one.dtype] * scale.clamp(min=floor)).all())
