"""Layer norm and RMS norm as an operation of torch. New in 2.0.

``torch.ops.gfxgraph_kernels.norm``. Sums are float32, results rounded once: against float64 a result is within 1e-5
(float32), 2e-3 (float16) or 1.6e-2 (bfloat16) of its size, for rows of any length (tests/unit/gfxgraph_kernels/).
There is no backward: torch raises if one is attempted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gfxgraph_kernels import eager
from gfxgraph_kernels.launching import dense, flat_rows, launch, target, why_not
from gfxgraph_kernels.shapes import LARGEST_ROW, rows


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, offset: float = 0.0) -> Tensor:
    """Divide each row by the root of its mean square.

    Args:
        x: [..., n], float32, float16 or bfloat16, any strides.
        weight: [n], multiplies.
        eps: added to the mean square.
        offset: added to the weight (Gemma's 1).

    Returns:
        [..., n] of x's dtype, contiguous.

    Raises:
        TypeError: another dtype.
        ValueError: shapes that do not fit.
    """
    return norm(x, weight, None, eps, offset, True)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Subtract the mean of each row and divide by its standard deviation.

    Args:
        x: [..., n], float32, float16 or bfloat16, any strides.
        weight: [n], multiplies.
        bias: [n], added last.
        eps: added to the variance.

    Returns:
        [..., n] of x's dtype, contiguous.

    Raises:
        TypeError: another dtype.
        ValueError: shapes that do not fit.
    """
    return norm(x, weight, bias, eps, 0.0, False)


@torch.library.custom_op("gfxgraph_kernels::norm", mutates_args=())
def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, is_rms: bool) -> Tensor:
    """The operation that implements `rms_norm` and `layer_norm`."""
    if x.dim() == 0:
        raise ValueError("a norm is over the last dimension, and x has none")
    for tensor in (weight, bias):
        if tensor is not None and tensor.shape != x.shape[-1:]:
            raise ValueError(f"weight and bias must be [{x.shape[-1]}], like x's last dim, not {tuple(tensor.shape)}")
    n = x.shape[-1]
    if why_not("norm", x, weight, bias, reason=f"a row of more than {LARGEST_ROW}" if n > LARGEST_ROW else ""):
        return eager.norm(x, weight, bias, eps, offset, is_rms).contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        # lazily: Triton need not be there
        from gfxgraph_kernels._norm_kernels import norm_forward

        flat = flat_rows(x)
        weight, bias = dense((weight, bias))
        block, num_warps = rows(n, target(x.device))
        launch(norm_forward, (flat.shape[0],),
            flat, flat if weight is None else weight, flat if bias is None else bias, y, n, flat.stride(0), eps,
            offset, IS_RMS=is_rms, HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
            BLOCK=block, num_warps=num_warps,
        )  # fmt: skip
    return y


@norm.register_fake
def _(x: Tensor, weight: object, bias: object, eps: float, offset: float, is_rms: bool) -> Tensor:
    return x.new_empty(x.shape)
