"""Gates and activations as operations of torch. New in 2.0.

``torch.ops.gfxgraph_kernels.gate``. Computed in float32, rounded once: against float64 within 1e-5 (float32), 2e-3
(float16) or 1.6e-2 (bfloat16) of the result's size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gfxgraph.kernels import eager
from gfxgraph.kernels.launching import flat_rows, launch, target, why_not
from gfxgraph.kernels.shapes import power_of_two

BLOCK = 1024


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up.

    Args:
        gate: [..., n], float32, float16 or bfloat16, any strides: halves of one tensor are fine.
        up: of gate's shape and dtype.

    Returns:
        The same shape, gate's dtype, contiguous.

    Raises:
        TypeError: another dtype.
        ValueError: the shapes differ.
    """
    return gated(gate, up, "silu")


def geglu(gate: Tensor, up: Tensor, *, is_tanh: bool = True) -> Tensor:
    """gelu(gate) * up.

    Args:
        gate: [..., n], float32, float16 or bfloat16, any strides.
        up: of gate's shape and dtype.
        is_tanh: GELU's approximation by tanh (Gemma's); else the exact one, by erf.

    Returns:
        The same shape, gate's dtype, contiguous.

    Raises:
        TypeError: another dtype.
        ValueError: the shapes differ.
    """
    return gated(gate, up, "gelu_tanh" if is_tanh else "gelu")


def activation(x: Tensor, kind: str) -> Tensor:
    """An activation of every element.

    Args:
        x: [..., n], float32, float16 or bfloat16, any strides.
        kind: ``silu``, ``gelu`` or ``gelu_tanh``.

    Returns:
        The same shape and dtype, contiguous.

    Raises:
        TypeError: another dtype.
        ValueError: there is no such activation.
    """
    return gated(x, None, kind)


@torch.library.custom_op("gfxgraph_kernels::gate", mutates_args=())
def gated(gate: Tensor, up: Tensor | None, kind: str) -> Tensor:
    """The operation that implements the functions here."""
    if kind not in eager.ACTIVATIONS:
        raise ValueError(f"unknown activation {kind!r}; known: {', '.join(eager.ACTIVATIONS)}")
    if up is not None and up.shape != gate.shape:
        raise ValueError(f"gate is {tuple(gate.shape)}, up {tuple(up.shape)}: they must have the same shape")
    if why_not("gate", gate, up):
        return eager.gate(gate, up, kind).contiguous()
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if gate.numel():
        # lazily: Triton need not be there
        from gfxgraph.kernels._gate_kernels import gate_forward

        flat = flat_rows(gate if gate.dim() else gate[None])
        other = flat if up is None else flat_rows(up if up.dim() else up[None])
        m, n = flat.shape
        block = min(BLOCK, max(power_of_two(n), target(gate.device).wavefront))
        launch(gate_forward, (m, -(-n // block)),
            flat, other, y, n, flat.stride(0), other.stride(0), KIND=kind, HAS_UP=up is not None, BLOCK=block,
            num_warps=4 if block == BLOCK else 1,
        )  # fmt: skip
    return y


@gated.register_fake
def _(gate: Tensor, up: object, kind: str) -> Tensor:
    return gate.new_empty(gate.shape)
