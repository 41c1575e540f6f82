"""Layer norm, RMS norm and softmax as operations of torch; the norms with gradients. New in 2.0.

The operations are ``torch.ops.gfxgraph_kernels.norm``, ``.add_norm``, ``.norm_backward`` and ``.softmax``. Sums are
float32, results rounded once: against float64 a result is within 1e-5 (float32), 2e-3 (float16) or 1.6e-2 (bfloat16)
of its size, for rows of any length (tests/unit/kernels/).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gfxgraph.kernels import eager
from gfxgraph.kernels.launching import dense, flat_rows, launch, target, why_not
from gfxgraph.kernels.shapes import PIECE, power_of_two, rows

MOST_PARTS = 64
"""Workgroups of a backward that keep separate sums for the weight."""


def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, residual: Tensor | None = None, offset: float = 0.0
) -> Any:
    """Divide each row by the root of its mean square.

    Args:
        x: [..., n], float32, float16 or bfloat16, any strides.
        weight: [n], multiplies.
        eps: added to the mean square.
        residual: [..., n]; added to x before.
        offset: added to the weight (Gemma's 1).

    Returns:
        [..., n] of x's dtype, contiguous; with a residual the pair of it and the sum.

    Raises:
        TypeError: another dtype.
        ValueError: shapes that do not fit.
    """
    _check(x, residual, weight)
    if residual is None:
        return norm(x, weight, None, eps, offset, True)
    return add_norm(x, residual, weight, None, eps, offset, True)


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
) -> Any:
    """Subtract the mean of each row and divide by its standard deviation.

    Args:
        x: [..., n], float32, float16 or bfloat16, any strides.
        weight: [n], multiplies.
        bias: [n], added last.
        eps: added to the variance.
        residual: [..., n]; added to x before.

    Returns:
        [..., n] of x's dtype, contiguous; with a residual the pair of it and the sum.

    Raises:
        TypeError: another dtype.
        ValueError: shapes that do not fit.
    """
    _check(x, residual, weight, bias)
    if residual is None:
        return norm(x, weight, bias, eps, 0.0, False)
    return add_norm(x, residual, weight, bias, eps, 0.0, False)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension.

    Args:
        x: [..., n], float32, float16 or bfloat16.

    Returns:
        The same shape and dtype, contiguous. As in torch, a row with NaN or plus infinity is NaN.

    Raises:
        TypeError: another dtype.
    """
    return softmax_rows(x)


def _check(x: Tensor, residual: Tensor | None, *of_columns: Tensor | None) -> None:
    if x.dim() == 0:
        raise ValueError("a norm is over the last dimension, and x has none")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"the residual is {tuple(residual.shape)}, x {tuple(x.shape)}: their shapes must match")
    if residual is not None and residual.dtype is not x.dtype:
        raise TypeError(f"the residual is {residual.dtype}, x {x.dtype}: their dtypes must match")
    for tensor in of_columns:
        if tensor is not None and tensor.shape != x.shape[-1:]:
            raise ValueError(f"weight and bias must be [{x.shape[-1]}], like x's last dim, not {tuple(tensor.shape)}")


@torch.library.custom_op("gfxgraph_kernels::norm", mutates_args=())
def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, is_rms: bool) -> Tensor:
    """The operation that implements `rms_norm` and `layer_norm`."""
    if why_not("norm", x, weight, bias):
        return eager.norm(x, weight, bias, eps, offset, is_rms).contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _forward(x, None, weight, bias, y, y, eps, offset, is_rms)
    return y


@torch.library.custom_op("gfxgraph_kernels::add_norm", mutates_args=())
def add_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    is_rms: bool,
) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum."""
    if why_not("add_norm", x, residual, weight, bias):
        total = (x + residual).contiguous()
        return eager.norm(total, weight, bias, eps, offset, is_rms), total
    y, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _forward(x, residual, weight, bias, y, total, eps, offset, is_rms)
    return y, total


def _forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, y: Tensor, total: Tensor,
    eps: float, offset: float, is_rms: bool,
) -> None:  # fmt: skip
    if not x.numel():
        return
    # lazily: Triton need not be there
    from gfxgraph.kernels._norm_kernels import norm_forward

    n, flat = x.shape[-1], flat_rows(x)
    added = flat if residual is None else flat_rows(residual)
    weight, bias = dense((weight, bias))
    how = rows(n, target(x.device))
    launch(norm_forward, (flat.shape[0],),
        flat, added, flat if weight is None else weight, flat if bias is None else bias, y, total,
        n, flat.stride(0), added.stride(0), eps, offset,
        IS_RMS=is_rms, HAS_RESIDUAL=residual is not None, HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
        BLOCK=how.block, IS_ONE=how.is_one, num_warps=how.num_warps,
    )  # fmt: skip


@torch.library.custom_op("gfxgraph_kernels::norm_backward", mutates_args=())
def norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, offset: float, is_rms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dx as x; dw and db, [n] float32."""
    if why_not("norm_backward", dy, x, weight):
        return eager.norm_backward(dy, x, weight, eps, offset, is_rms)
    n = x.shape[-1]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return dx, x.new_zeros(n, dtype=torch.float32), x.new_zeros(n, dtype=torch.float32)
    # lazily: Triton need not be there
    from gfxgraph.kernels._norm_kernels import norm_backward as kernel

    flat, flat_dy = flat_rows(x), flat_rows(dy)
    (weight,) = dense((weight,))
    parts = min(flat.shape[0], MOST_PARTS)
    dw, db = x.new_zeros((2, parts, n), dtype=torch.float32).unbind(0)
    at = target(x.device)
    launch(kernel, (parts,),
        flat_dy, flat, flat if weight is None else weight, dx, dw, db, flat.shape[0], n, flat_dy.stride(0),
        flat.stride(0), eps, offset,
        IS_RMS=is_rms, HAS_WEIGHT=weight is not None, HAS_BIAS=not is_rms,
        BLOCK=max(min(power_of_two(n), PIECE), at.wavefront), num_warps=256 // at.wavefront,
    )  # fmt: skip
    return dx, dw.sum(0), db.sum(0)


@torch.library.custom_op("gfxgraph_kernels::softmax", mutates_args=())
def softmax_rows(x: Tensor) -> Tensor:
    """The operation that implements `softmax`."""
    if why_not("softmax", x):
        return eager.softmax(x).contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        # lazily: Triton need not be there
        from gfxgraph.kernels._norm_kernels import softmax_forward

        n, flat = x.shape[-1] if x.dim() else 1, flat_rows(x if x.dim() else x[None])
        how = rows(n, target(x.device))
        launch(
            softmax_forward,
            (flat.shape[0],),
            flat,
            y,
            n,
            flat.stride(0),
            BLOCK=how.block,
            IS_ONE=how.is_one,
            num_warps=how.num_warps,
        )
    return y


# -- registrations for torch.compile, export and autograd ----------------------------------------------


def _like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@norm.register_fake
def _(x: Tensor, weight: object, bias: object, eps: float, offset: float, is_rms: bool) -> Tensor:
    return _like(x)


@add_norm.register_fake
def _(
    x: Tensor, residual: Tensor, weight: object, bias: object, eps: float, offset: float, is_rms: bool
) -> tuple[Tensor, Tensor]:
    return _like(x), _like(x)


@norm_backward.register_fake
def _(
    dy: Tensor, x: Tensor, weight: object, eps: float, offset: float, is_rms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    n = x.shape[-1]
    return _like(x), x.new_empty(n, dtype=torch.float32), x.new_empty(n, dtype=torch.float32)


@softmax_rows.register_fake
def _(x: Tensor) -> Tensor:
    return _like(x)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, ctx.eps, ctx.offset, ctx.is_rms = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    dx, dw, db = norm_backward(dy, x, weight, ctx.eps, ctx.offset, ctx.is_rms)
    dw = None if weight is None else dw.to(weight.dtype)
    db = None if ctx.bias_dtype is None else db.to(ctx.bias_dtype)
    return dx, dw, db, None, None, None


def _save_sum(ctx: Any, inputs: Any, output: Any) -> None:
    _, _, weight, bias, ctx.eps, ctx.offset, ctx.is_rms = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(output[1], weight)


def _sum_gradients(ctx: object, dy: Tensor, dtotal: Tensor) -> tuple[Any, ...]:
    dx, dw, db, *_ = _gradients(ctx, dy)
    dx = dx + dtotal
    return dx, dx, dw, db, None, None, None


norm.register_autograd(_gradients, setup_context=_save)
add_norm.register_autograd(_sum_gradients, setup_context=_save_sum)
