"""Ops that CPU kernels refuse in the form CUDA programs use them.

Enters: what autocast and mixed precision make of a program.
Stays out: recurrent cells (rnn_kernels.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gfxgraph.runtime.simulator.kernels import Kernels


def cuda_only_kernels(kernels: Kernels) -> dict[str, Callable[..., Any]]:
    """Kernels by op name."""
    bodies: dict[str, Callable[..., Any]] = {
        "_softmax": _to_float_first(torch.ops.aten._softmax.default),
        "_log_softmax": _to_float_first(torch.ops.aten._log_softmax.default),
        "_softmax_backward_data": _from_float_last(torch.ops.aten._softmax_backward_data.default),
        "_log_softmax_backward_data": _from_float_last(torch.ops.aten._log_softmax_backward_data.default),
    }
    return {name: kernels.build_from(name, body) for name, body in bodies.items()}


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
