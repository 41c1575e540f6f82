"""Operations that CPU kernels refuse, or cannot foresee, in the form in which CUDA programs use them.

Enters: operations as autocast, mixed precision and recurrent layers produce them.
Stays out: what CPU kernels compute (kernels.py).

torch's own decompositions compute what its CPU kernels refuse. A recurrent cell, fused on CUDA, is composed above
autograd, which so needs no fused backward; gates are in the order of aten/src/ATen/native/cuda/RNN.cu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from gfxgraph import torch_names

if TYPE_CHECKING:
    from gfxgraph_simulator.kernels import Kernels

_DECOMPOSED: Final = (
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",  # half to float
    "_fused_rms_norm", "_fused_rms_norm_backward",
)  # fmt: skip


def cuda_only_kernels(kernels: Kernels) -> dict[str, Callable[..., object]]:
    """Kernels by op name."""
    bodies: dict[str, Callable[..., object]] = {"_padded_dense_to_jagged_forward": _to_jagged}
    # _fused_rms_norm is new in torch 2.9
    bodies |= {name: _or_decomposed(name) for name in _DECOMPOSED if hasattr(torch.ops.aten, name)}
    return {name: kernels.build_from(name, body) for name, body in bodies.items()}


def _or_decomposed(name: str) -> Callable[..., object]:
    op = getattr(torch.ops.aten, name).default

    def compute(*args: object, **kwargs: object) -> object:
        try:
            return op(*args, **kwargs)
        except RuntimeError:
            return torch_names.decomposition_table[op](*args, **kwargs)

    return compute


def _to_jagged(dense: Tensor, offsets: list[Tensor], total_L: int | None = None) -> Tensor:
    """As torch's own, whose result can be told without the offsets' values: a dry run has none."""
    (bounds,) = offsets
    at = torch.arange(int(bounds[-1]) if total_L is None else total_L)
    row = torch.bucketize(at, bounds[1:], right=True).clamp(max=dense.size(0) - 1)
    column = at - bounds[row]
    is_inside = (column >= 0) & (column < dense.size(1))
    rows = dense[row, column.clamp(0, dense.size(1) - 1)]
    return torch.where(is_inside.view(-1, *[1] * (dense.dim() - 2)), rows, rows.new_zeros(()))


def _added(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _lstm(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    gates = _added(input_gates, input_bias) + _added(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    cy = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    return o.sigmoid() * cy.tanh(), cy, gates.new_empty(0)


def _gru(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    ir, ii, in_ = _added(input_gates, input_bias).chunk(3, 1)
    hr, hi, hn = _added(hidden_gates, hidden_bias).chunk(3, 1)
    new = (in_ + (ir + hr).sigmoid() * hn).tanh()
    return new + (ii + hi).sigmoid() * (hx - new), new.new_empty(0)


COMPOSED: Final[dict[str, Callable[..., object]]] = {"_thnn_fused_lstm_cell": _lstm, "_thnn_fused_gru_cell": _gru}
"""Composed of other operations, above autograd and, where that is off, at the device."""
