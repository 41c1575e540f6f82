"""Operations that CPU kernels refuse, or cannot foresee, in the form in which CUDA programs use them.

Enters: operations as autocast and mixed precision produce them.
Stays out: recurrent cells (rnn_kernels.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gfxgraph.simulator.kernels import Kernels


def cuda_only_kernels(kernels: Kernels) -> dict[str, Callable[..., Any]]:
    """Kernels by op name."""
    bodies: dict[str, Callable[..., Any]] = {
        "_softmax": _to_float_first(torch.ops.aten._softmax.default),
        "_log_softmax": _to_float_first(torch.ops.aten._log_softmax.default),
        "_softmax_backward_data": _from_float_last(torch.ops.aten._softmax_backward_data.default),
        "_log_softmax_backward_data": _from_float_last(torch.ops.aten._log_softmax_backward_data.default),
        "_padded_dense_to_jagged_forward": _to_jagged,
    }
    if hasattr(torch.ops.aten, "_fused_rms_norm"):  # torch 2.9 and later
        bodies["_fused_rms_norm"] = _rms_norm
        bodies["_fused_rms_norm_backward"] = _rms_norm_backward
    return {name: kernels.build_from(name, body) for name, body in bodies.items()}


def _rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    dims = tuple(range(-len(normalized_shape), 0))
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    rstd = torch.rsqrt(wide.square().mean(dims, keepdim=True) + least)
    made = (wide * rstd).to(input.dtype)
    return (made if weight is None else made * weight), rstd


def _rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor, Tensor]:
    dims = tuple(range(-len(normalized_shape), 0))
    scaled = (input * rstd).to(rstd.dtype)
    grad = grad_out if weight is None else grad_out * weight
    grad_input = rstd * (grad - scaled * (grad * scaled).mean(dims, keepdim=True))
    if weight is None:
        return grad_input.to(input.dtype), grad_out.new_zeros(0)
    leading = input.dim() - len(normalized_shape)
    grad_weight = (grad_out * scaled).sum(tuple(range(leading))) if leading else grad_out * scaled
    return grad_input.to(input.dtype), grad_weight.to(weight.dtype)


def _to_jagged(dense: Tensor, offsets: list[Tensor], total_L: int | None = None) -> Tensor:
    """As torch's own, whose result can be told without the offsets' values: a dry run has none."""
    (bounds,) = offsets
    at = torch.arange(int(bounds[-1]) if total_L is None else total_L)
    row = torch.bucketize(at, bounds[1:], right=True).clamp(max=dense.size(0) - 1)
    column = at - bounds[row]
    is_inside = (column >= 0) & (column < dense.size(1))
    rows = dense[row, column.clamp(0, dense.size(1) - 1)]
    return torch.where(is_inside.view(-1, *[1] * (dense.dim() - 2)), rows, rows.new_zeros(()))


def _to_float_first(op: Any) -> Callable[[Tensor, int, bool], Tensor]:
    def softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
        value: Tensor = op(self.float() if half_to_float else self, dim, False)
        return value

    return softmax


def _from_float_last(op: Any) -> Callable[[Tensor, Tensor, int, torch.dtype], Tensor]:
    def backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
        value: Tensor = op(grad_output, output, dim, grad_output.dtype)
        return value.to(input_dtype)

    return backward
