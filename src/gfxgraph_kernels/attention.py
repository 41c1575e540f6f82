"""Rotary embedding, write to the cache and attention of a token, in one operation of torch. New in 2.0.

``torch.ops.gfxgraph_kernels.rotary_angles`` and ``.rotary_attention``. Computed in float32, rounded once; against
float64 within 1e-5 (float32), 3e-3 (float16) or 2e-2 (bfloat16) of the values' size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gfxgraph_kernels import eager
from gfxgraph_kernels.launching import DTYPES, launch, target, why_not
from gfxgraph_kernels.shapes import attention as how_to
from gfxgraph_kernels.shapes import power_of_two


@torch.library.custom_op("gfxgraph_kernels::rotary_angles", mutates_args=())
def rotary_angles(
    positions: Tensor, frequencies: Tensor, scaling: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of a rotary embedding by halves.

    Args:
        positions: [batch, tokens], integers.
        frequencies: [n], of the halves' elements.
        scaling: cosines and sines are multiplied by it.
        dtype: of the results: float32, float16 or bfloat16.

    Returns:
        Two of [batch, tokens, 2n].

    Raises:
        TypeError: frequencies or results of another dtype.
        ValueError: shapes that do not fit.
    """
    if positions.dim() != 2 or frequencies.dim() != 1:
        raise ValueError(
            f"positions are {tuple(positions.shape)} and should be [batch, tokens], frequencies "
            f"{tuple(frequencies.shape)} and should be [n]"
        )
    if dtype not in DTYPES:
        raise TypeError(f"gfxgraph.kernels.rotary_angles gives float32, float16 and bfloat16, not {dtype}")
    if why_not("rotary_angles", frequencies) or positions.device != frequencies.device:
        angles = positions[..., None].float() * frequencies.float()
        angles = torch.cat((angles, angles), -1)
        return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)
    (batch, tokens), half = positions.shape, frequencies.shape[0]
    cos, sin = (torch.empty((batch, tokens, 2 * half), dtype=dtype, device=positions.device) for _ in "cs")
    if cos.numel():
        # lazily: Triton need not be there
        from gfxgraph_kernels._attention_kernels import rotary_angles as kernel

        launch(kernel, (batch * tokens,),
            positions, frequencies.contiguous(), cos, sin, half, tokens, *positions.stride(), scaling,
            HALF=power_of_two(half), num_warps=1,
        )  # fmt: skip
    return cos, sin


@rotary_angles.register_fake
def _(positions: Tensor, frequencies: Tensor, scaling: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    shape = (*positions.shape, 2 * frequencies.shape[0])
    return tuple(frequencies.new_empty(shape, dtype=dtype) for _ in "cs")


@torch.library.custom_op("gfxgraph_kernels::rotary_attention", mutates_args=("keys", "values"))
def rotary_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    behind: int = 0,
    mask: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Rotate a token's queries and key by halves, store key and value in their slot of a cache, and attend over it.

    Args:
        q: [batch, 1, heads, width], float32, float16 or bfloat16.
        k: [batch, 1, shared heads, width]; the heads are a multiple of these.
        v: [batch, 1, shared heads, width of values].
        cos, sin: [batch or 1, 1, rotated width], even and at most the width; the rest of a head passes.
        keys: [batch, shared heads, length, width]; changed in place.
        values: [batch, shared heads, length, width of values]; changed in place.
        position: [1] int64; the token's slot is ``position - behind``. Keys after it are neither read nor seen. A
            slot outside of the cache is not written.
        behind: slots by which the cache begins after position 0.
        mask: [batch or 1, 1, 1, length]: added to the scores, or, as booleans, True for keys that are seen.
        scale: of the scores; by default one over the root of the width.
        softcap: Gemma's: scores become softcap * tanh(scores / softcap). 0 for none.

    Returns:
        [batch, heads, 1, width of values], q's dtype. A query that sees no key is NaN.

    Raises:
        TypeError: a dtype that is not float32, float16 or bfloat16; several.
        ValueError: shapes that do not fit.
    """
    _check(q, k, v, cos, sin, keys, values, position, mask)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    is_bool = mask is not None and mask.dtype is torch.bool
    if why_not("rotary_attention", q, k, v, cos, sin, keys, values, None if is_bool else mask):
        slot = position - behind
        eager.store(eager.rotate(k, cos, sin), keys, slot)
        eager.store(v, values, slot)
        query = eager.rotate(q, cos, sin).transpose(1, 2)
        return eager.attention(query, keys, values, mask, slot, scale, softcap).contiguous()
    return _launch(q, k, v, cos, sin, keys, values, position, behind, mask, scale, softcap)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, position: Tensor,
    behind: int, mask: Tensor | None, scale: float, softcap: float,
) -> Tensor:  # fmt: skip
    (batch, _, heads, width), (_, shared, length, width_v) = q.shape, values.shape
    is_bool = mask is not None and mask.dtype is torch.bool
    out = torch.empty((batch, heads, 1, width_v), dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    # lazily: Triton need not be there
    from gfxgraph_kernels._attention_kernels import attention_finish, attention_parts

    at = target(q.device)
    how = how_to(batch, heads, shared, length, max(width, width_v), at, is_half=q.itemsize == 2)
    q, k, v, cos, sin = (each if each.stride(-1) == 1 else each.contiguous() for each in (q, k, v, cos, sin))
    seen = q if mask is None else mask.view(torch.uint8) if is_bool else mask
    n_parts = batch * heads * how.splits if how.splits > 1 else 0
    parts = torch.empty(n_parts * (width_v + 2), dtype=torch.float32, device=q.device)
    sums, tops, wholes = parts.split([n_parts * width_v, n_parts, n_parts])
    programs = heads if how.group == 1 else shared
    launch(attention_parts, (batch * programs, how.splits),
        q, keys, values, seen, position, k, v, cos, sin, out, sums, tops, wholes,
        heads, shared, programs, length, width, width_v, cos.shape[-1] // 2, behind, scale, softcap,
        q.stride(0), q.stride(2), *keys.stride()[:3], *values.stride()[:3],
        seen.stride(0) if mask is not None and mask.shape[0] > 1 else 0, seen.stride(-1),
        k.stride(0), k.stride(2), v.stride(0), v.stride(2), cos.stride(0) if cos.shape[0] > 1 else 0,
        HAS_MASK=mask is not None, IS_BOOL=is_bool, HAS_CAP=softcap != 0.0, IS_DOT=how.is_dot,
        AS_FLOAT32=q.dtype is torch.bfloat16 and not at.has_bf16_dot,
        SPLITS=how.splits, GROUP=how.group, WIDTH=how.width, BLOCK=how.block, num_warps=how.num_warps,
    )  # fmt: skip
    if how.splits > 1:
        launch(attention_finish, (batch * heads,),
            sums, tops, wholes, out, width_v, SPLITS=how.splits, WIDTH=power_of_two(width_v), num_warps=1,
        )  # fmt: skip
    return out


@rotary_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: object, **more: object) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2], 1, v.shape[3]))


def _check(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, position: Tensor,
    mask: Tensor | None,
) -> None:  # fmt: skip
    if not q.dim() == k.dim() == v.dim() == 4 or not cos.dim() == sin.dim() == 3 or q.shape[1] != 1:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} should be [batch, 1, heads, width], "
            f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} [batch or 1, 1, rotated width]"
        )
    batch, _, heads, width = q.shape
    turned = cos.shape[-1]
    if k.shape[:2] != q.shape[:2] or v.shape[:3] != k.shape[:3] or k.shape[3] != width:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not match")
    if turned % 2 or turned > width or cos.shape != sin.shape or cos.shape[:2] not in ((1, 1), (batch, 1)):
        raise ValueError(f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not rotate heads of width {width}")
    if (
        not keys.dim() == values.dim() == 4
        or keys.shape[2] == 0
        or values.shape[2] != keys.shape[2]
        or (
            keys.shape[:2] + keys.shape[3:] != (batch, *k.shape[2:])
            or values.shape[:2] + values.shape[3:] != (batch, *v.shape[2:])
        )
    ):
        raise ValueError(
            f"keys {tuple(k.shape)} and values {tuple(v.shape)} do not fit caches of {tuple(keys.shape)} and "
            f"{tuple(values.shape)}"
        )
    if keys.stride(-1) != 1 or values.stride(-1) != 1:
        raise ValueError("the last dimension of the cache must be contiguous")
    if not q.dtype is keys.dtype is values.dtype:
        raise TypeError(f"q is {q.dtype}, keys {keys.dtype}, values {values.dtype}: they must have the same dtype")
    if not k.shape[2] or heads % k.shape[2]:
        raise ValueError(f"{heads} heads cannot share {k.shape[2]} heads of keys")
    if position.shape != (1,) or position.dtype is not torch.int64:
        raise ValueError(f"the position is {tuple(position.shape)} {position.dtype} and should be (1,) torch.int64")
    if mask is not None and (mask.shape[0] not in (1, batch) or mask.shape[1:] != (1, 1, keys.shape[2])):
        raise ValueError(f"the mask is {tuple(mask.shape)}, not [{batch} or 1, 1, 1, {keys.shape[2]}]")
