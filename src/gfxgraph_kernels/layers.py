"""Linear layers of few rows as torch operations that include what comes before and after. New in 2.0.

``torch.ops.gfxgraph_kernels.linear`` and ``.linear_three``. Sums are float32, results rounded once; the norm, the
activation and the residual use the unrounded sums. Against float64 a result is within 1e-5 (float32), 2e-3
(float16) or 1.6e-2 (bfloat16) of the sum of its products' sizes. There is no backward: torch raises if one is
attempted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gfxgraph_kernels import eager
from gfxgraph_kernels.launching import dense, flat_rows, launch, target, why_not
from gfxgraph_kernels.norms import norm
from gfxgraph_kernels.shapes import Linear, Target
from gfxgraph_kernels.shapes import linear as how_to

FINISH_BLOCK = 256


@torch.library.custom_op("gfxgraph_kernels::linear", mutates_args=())
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    up: Tensor | None = None,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_eps: float | None = None,
    norm_offset: float = 0.0,
    is_early: bool = False,
) -> Tensor:
    """activation(norm(x) @ weight.T + bias) * (norm(x) @ up.T) + residual, for few rows.

    Args:
        x: [..., k] float32, float16 or bfloat16; best for 1 to 32 rows in all, right for any.
        weight: [n, k], x's dtype.
        bias: [n].
        activation: "none", "silu", "gelu" or "gelu_tanh".
        up: [n, k]; the other half of a gate.
        residual: [..., n]; added last.
        norm_weight: [k], of an RMS norm before.
        norm_eps: of that norm; None where there is none.
        norm_offset: added to the norm's weight.
        is_early: ``weight`` and ``up`` are read before the kernel before has ended (sm_90 and later). Only after a
            `linear_three`, if nothing wrote them since.

    Returns:
        [..., n], x's dtype, contiguous.

    Raises:
        TypeError: another dtype, or several.
        ValueError: shapes that do not fit, an activation that is not there.
    """
    n, k = _check_weight(x, weight)
    for what, tensor, shape in (
        ("up", up, (n, k)), ("bias", bias, (n,)), ("residual", residual, (*x.shape[:-1], n)),
        ("norm_weight", norm_weight, (k,)),
    ):  # fmt: skip
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{what} is {tuple(tensor.shape)} and should be {shape}")
    if norm_weight is not None and norm_eps is None:
        raise ValueError("norm_weight and norm_eps go together: pass both for a norm, neither for none")
    if activation not in eager.ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}; known: {', '.join(eager.ACTIVATIONS)}")
    _check_dtypes(x, weight, up)
    if why_not("linear", x, weight, bias, up, residual, norm_weight):
        return eager.linear(
            x, weight, bias, up, residual, activation, norm_weight, norm_eps, norm_offset
        ).contiguous()
    out = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    _launch(x, weight, bias, activation, up, residual, norm_weight, norm_eps, norm_offset, is_early, out)
    return out


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, up: Tensor | None, residual: Tensor | None,
    norm_weight: Tensor | None, norm_eps: float | None, norm_offset: float, is_early: bool, out: Tensor,
) -> None:  # fmt: skip
    (n, k), m, at = weight.shape, x.shape[:-1].numel(), target(x.device)
    how = how_to(m, n, k, at, is_pair=up is not None, is_half=x.itemsize == 2)
    if norm_eps is not None and not (how.is_vector and k):
        x, norm_weight, norm_eps = norm(x, norm_weight, None, norm_eps, norm_offset, True), None, None
    # lazily: Triton need not be there
    from gfxgraph_kernels import _linear_kernels as kernels

    flat, weight, other = flat_rows(x), flat_rows(weight), None if up is None else flat_rows(up)
    added = None if residual is None else flat_rows(residual)
    bias, norm_weight = dense((bias, norm_weight))
    parts = squares = out
    if how.splits > 1:
        parts = torch.empty((how.splits, 1 if up is None else 2, m, n), dtype=torch.float32, device=x.device)
        squares = torch.empty((how.splits, m), dtype=torch.float32, device=x.device)
    flags: dict[str, Any] = {
        "KIND": activation, "HAS_UP": up is not None, "HAS_NORM": norm_eps is not None, "HAS_BIAS": bias is not None,
        "HAS_RESIDUAL": residual is not None, "SPLITS": how.splits,
    }  # fmt: skip
    more = {"IS_EARLY": is_early} if how.is_vector else {"AS_FLOAT32": _as_float32(x, at)}
    launch(kernels.linear_vector if how.is_vector else kernels.linear_tiled,
        (-(-n // how.block_n), how.splits, -(-m // how.block_m)),
        flat, weight, _or(other, weight), _or(bias, weight), _or(norm_weight, weight), _or(added, flat), out, parts,
        squares, m, n, k, flat.stride(0), weight.stride(0), _or(other, weight).stride(0),
        _or(added, flat).stride(0), norm_eps or 0.0, norm_offset, how.ahead,
        HAS_NORM_WEIGHT=norm_weight is not None, **flags, **more, **_tile(how),
    )  # fmt: skip
    if how.splits > 1:
        launch(kernels.linear_finish, (-(-n // FINISH_BLOCK), m),
            parts, squares, _or(bias, weight), _or(added, flat), out, m, n, k, _or(added, flat).stride(0),
            norm_eps or 0.0, **flags, BLOCK=FINISH_BLOCK, num_warps=2,
        )  # fmt: skip


@linear.register_fake
def _(x: Tensor, weight: Tensor, *rest: object, **more: object) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _tile(how: Linear) -> dict[str, int]:
    tile = {"BLOCK_M": how.block_m, "BLOCK_N": how.block_n, "BLOCK_K": how.block_k, "num_warps": how.num_warps}
    return {**tile, "num_stages": how.num_stages} if how.num_stages else tile


def linear_three(
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
    *,
    norm_weight: Tensor | None = None,
    norm_eps: float | None = None,
    norm_offset: float = 0.0,
    counter: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Three layers of the same rows, as query, key and value are: one launch, and one for the norm from 5 rows on.

    Args:
        x: [..., k], float32, float16 or bfloat16.
        weights: each [n, k], every n its own, x's dtype.
        biases: each [n]; all or none.
        norm_weight: [k], of an RMS norm before.
        norm_eps: of that norm; None where there is none.
        norm_offset: added to the norm's weight.
        counter: [1] int64, increased by 1: the position of a static cache, whose own step would be a launch.

    Returns:
        Three views, [..., n], of one tensor.

    Raises:
        TypeError: another dtype, or several.
        ValueError: shapes that do not fit.
    """
    if len(weights) != 3 or len(biases) != 3:
        raise ValueError(f"{len(weights)} weights and {len(biases)} biases, not three of each")
    if norm_weight is not None and (norm_eps is None or norm_weight.shape != x.shape[-1:]):
        raise ValueError(
            f"norm_weight is {tuple(norm_weight.shape)}, norm_eps {norm_eps}: they should be "
            f"{tuple(x.shape[-1:])} and a number"
        )
    for weight, bias in zip(weights, biases):
        n, _ = _check_weight(x, weight)
        if bias is not None and tuple(bias.shape) != (n,):
            raise ValueError(f"bias is {tuple(bias.shape)} and should be {(n,)}")
    if len({bias is None for bias in biases}) > 1:
        raise ValueError("either all three have a bias or none has")
    if counter is not None and (counter.shape != (1,) or counter.dtype is not torch.int64):
        raise ValueError(f"counter is {tuple(counter.shape)} {counter.dtype} and should be (1,) torch.int64")
    y = fused_three(x, *weights, *biases, norm_weight, norm_eps or 0.0, norm_offset, norm_eps is not None, counter)
    a, b, c = y.split([weight.shape[0] for weight in weights], -1)
    return a, b, c


def _check_weight(x: Tensor, weight: Tensor) -> tuple[int, int]:
    if x.dim() == 0 or weight.dim() != 2 or weight.shape[1] != x.shape[-1]:
        raise ValueError(
            f"x is {tuple(x.shape)}, weight {tuple(weight.shape)}: it should be [n, k] for x of [..., k]"
        )
    return weight.shape[0], weight.shape[1]


@torch.library.custom_op("gfxgraph_kernels::linear_three", mutates_args=("counter",))
def fused_three(
    x: Tensor, a: Tensor, b: Tensor, c: Tensor, bias_a: Tensor | None, bias_b: Tensor | None, bias_c: Tensor | None,
    norm_weight: Tensor | None, norm_eps: float, norm_offset: float, has_norm: bool, counter: Tensor | None,
) -> Tensor:  # fmt: skip
    """The operation that implements `linear_three`; the three results side by side."""
    _check_dtypes(x, a, b, c)
    m, k, sizes = x.shape[:-1].numel(), x.shape[-1], (a.shape[0], b.shape[0], c.shape[0])
    if not m or not k or why_not("linear_three", x, a, b, c, bias_a, norm_weight):
        if has_norm:
            x = norm(x, norm_weight, None, norm_eps, norm_offset, True)
        if counter is not None:
            counter.add_(1)
        each = [linear(x, weight, bias) for weight, bias in ((a, bias_a), (b, bias_b), (c, bias_c))]
        return torch.cat(each, -1)
    at = target(x.device)
    how = how_to(m, sum(sizes), k, at, is_half=x.itemsize == 2)
    if has_norm and not how.is_vector:
        x, has_norm = norm(x, norm_weight, None, norm_eps, norm_offset, True), False
    # lazily: Triton need not be there
    from gfxgraph_kernels._linear_kernels import linear_three as kernel

    out = torch.empty((*x.shape[:-1], sum(sizes)), dtype=x.dtype, device=x.device)
    flat, weights = flat_rows(x), [flat_rows(weight) for weight in (a, b, c)]
    biases = [_or(bias, flat) for bias in dense((bias_a, bias_b, bias_c))]
    (norm_weight,) = dense((norm_weight,))
    launch(kernel, (sum(-(-n // how.block_n) for n in sizes), -(-m // how.block_m)),
        flat, *weights, *biases, _or(norm_weight, flat), _or(counter, flat), out, m, *sizes, k, flat.stride(0),
        *(weight.stride(0) for weight in weights), norm_eps, norm_offset, how.ahead,
        HAS_NORM=has_norm, HAS_NORM_WEIGHT=norm_weight is not None, HAS_BIAS=bias_a is not None,
        HAS_COUNTER=counter is not None, IS_VECTOR=how.is_vector, AS_FLOAT32=_as_float32(x, at),
        **_tile(how),
    )  # fmt: skip
    return out


def _as_float32(x: Tensor, at: Target) -> bool:
    """Whether inputs are converted to float32 before multiplying."""
    return x.dtype is torch.bfloat16 and not at.has_bf16_dot


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A pointer for a kernel that may not read it."""
    return other if tensor is None else tensor


def _check_dtypes(x: Tensor, *weights: Tensor | None) -> None:
    for weight in weights:
        if weight is not None and weight.dtype is not x.dtype:
            raise TypeError(f"x is {x.dtype}, a weight {weight.dtype}: they must have the same dtype")


@fused_three.register_fake
def _(x: Tensor, a: Tensor, b: Tensor, c: Tensor, *rest: object) -> Tensor:
    return x.new_empty((*x.shape[:-1], a.shape[0] + b.shape[0] + c.shape[0]))
