"""Rotary embedding with the write to the cache, and attention of a step over it, as operations of torch. New in 2.0.

``torch.ops.gfxgraph_kernels.rotary_to_cache`` and ``.decode_attention``. Computed in float32, rounded once; against
float64 within 1e-5 (float32), 3e-3 (float16) or 2e-2 (bfloat16) of the values' size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gfxgraph.kernels import eager
from gfxgraph.kernels.launching import launch, target, why_not
from gfxgraph.kernels.shapes import attention as how_to
from gfxgraph.kernels.shapes import power_of_two


@torch.library.custom_op("gfxgraph_kernels::rotary_to_cache", mutates_args=("keys", "values"))
def rotary_to_cache(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, slots: Tensor
) -> Tensor:
    """Rotate queries and keys by halves; store keys and values in their slots of a cache.

    Args:
        q: [batch, tokens, heads, width].
        k: [batch, tokens, shared heads, width].
        v: [batch, tokens, shared heads, width of values].
        cos, sin: [batch or 1, tokens, rotated width], even and at most the width; the rest of a head passes.
        keys, values: [batch, shared heads, length, width], written. Slots outside of them are not.
        slots: [tokens] int64.

    Returns:
        The queries, [batch, heads, tokens, width], contiguous.

    Raises:
        TypeError: a dtype that is not float32, float16 or bfloat16.
        ValueError: shapes that do not fit.
    """
    batch, tokens, heads, width = q.shape
    turned = cos.shape[-1]
    if k.shape[:2] != q.shape[:2] or v.shape[:3] != k.shape[:3] or k.shape[3] != width:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not belong together")
    if turned % 2 or turned > width or cos.shape != sin.shape or cos.shape[0] not in (1, batch):
        raise ValueError(f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not turn heads of {width}")
    if keys.shape[:2] != (batch, k.shape[2]) or values.shape[:3] != keys.shape[:3] or slots.shape != (tokens,):
        raise ValueError(
            f"a cache of {tuple(keys.shape)} with slots {tuple(slots.shape)} does not hold {tuple(k.shape)}"
        )
    if why_not("rotary_to_cache", q, k, v, cos, sin, keys, values):
        seen = (slots >= 0) & (slots < keys.shape[2])
        at = slots.clamp(0, keys.shape[2] - 1)
        for store, new in ((keys, eager.rotate(k, cos, sin)), (values, v)):
            new = new.transpose(1, 2).to(store.dtype)
            store.index_copy_(2, at, torch.where(seen[:, None], new, store.index_select(2, at)))
        return eager.rotate(q, cos, sin).transpose(1, 2).contiguous()
    out = torch.empty((batch, heads, tokens, width), dtype=q.dtype, device=q.device)
    if not q.numel():
        return out
    # lazily: Triton need not be there
    from gfxgraph.kernels._gate_kernels import rotary_to_cache as kernel

    q, k, v, cos, sin = (each if each.stride(-1) == 1 else each.contiguous() for each in (q, k, v, cos, sin))
    if keys.stride(-1) != 1 or values.stride(-1) != 1:
        raise ValueError("the last dimension of the cache must be dense")
    launch(kernel, (batch * tokens, heads + k.shape[2]),
        q, k, v, cos, sin, slots, out, keys, values, tokens, heads, turned // 2, width, v.shape[3], keys.shape[2],
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], cos.stride(0) if cos.shape[0] > 1 else 0, cos.stride(1),
        *keys.stride()[:3], *values.stride()[:3],
        HALF=power_of_two(turned // 2), REST=power_of_two(width - turned) if width > turned else 0,
        WIDTH_V=power_of_two(v.shape[3]), num_warps=1,
    )  # fmt: skip
    return out


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor | None = None,
    last: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Attention of one query a head over a cache whose heads may be shared.

    Args:
        q: [batch, heads, 1, width].
        keys: [batch, shared heads, length, width]; the heads are a multiple of these.
        values: [batch, shared heads, length, width of values].
        mask: [batch or 1, 1, 1, length]: added to the scores, or, as booleans, True for keys that are seen.
        last: [1] int64: keys after this number are neither read nor seen.
        scale: of the scores; by default one over the root of the width.
        softcap: Gemma's: scores become softcap * tanh(scores / softcap). 0 for none.

    Returns:
        [batch, heads, 1, width of values], q's dtype. A query that sees no key is NaN.

    Raises:
        TypeError: a dtype that is not float32, float16 or bfloat16.
        ValueError: shapes that do not fit.
    """
    batch, heads, n_queries, width = q.shape
    if n_queries != 1 or keys.shape[0] != batch or keys.shape[3] != width or values.shape[:3] != keys.shape[:3]:
        raise ValueError(f"q {tuple(q.shape)}, keys {tuple(keys.shape)} and values {tuple(values.shape)} do not fit")
    if not keys.shape[1] or heads % keys.shape[1]:
        raise ValueError(f"{heads} heads cannot share {keys.shape[1]}")
    if mask is not None and (mask.shape[0] not in (1, batch) or mask.shape[1:] != (1, 1, keys.shape[2])):
        raise ValueError(f"the mask is {tuple(mask.shape)}, not [{batch} or 1, 1, 1, {keys.shape[2]}]")
    return attend(q, keys, values, mask, last, width**-0.5 if scale is None else scale, softcap)


@torch.library.custom_op("gfxgraph_kernels::decode_attention", mutates_args=())
def attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, last: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """The operation behind `decode_attention`."""
    is_bool = mask is not None and mask.dtype is torch.bool
    if why_not("decode_attention", q, keys, values, None if is_bool else mask):
        return eager.attention(q, keys, values, mask, last, scale, softcap).contiguous()
    batch, heads, _, width = q.shape
    shared, length, width_v = keys.shape[1], keys.shape[2], values.shape[3]
    out = torch.empty((batch, heads, 1, width_v), dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    if not length:
        return out.fill_(torch.nan)
    # lazily: Triton need not be there
    from gfxgraph.kernels._attention_kernels import attention_finish, attention_parts

    at = target(q.device)
    how = how_to(batch, heads, shared, length, max(width, width_v), at, is_half=q.itemsize == 2)
    q, keys, values = (each if each.stride(-1) == 1 else each.contiguous() for each in (q, keys, values))
    seen = q if mask is None else mask.view(torch.uint8) if is_bool else mask
    n_parts = batch * heads * how.splits if how.splits > 1 else 0
    parts = torch.empty(n_parts * (width_v + 2), dtype=torch.float32, device=q.device)
    sums, tops, wholes = parts.split([n_parts * width_v, n_parts, n_parts])
    launch(attention_parts, (batch * shared, how.splits),
        q, keys, values, seen, q if last is None else last, out, sums, tops, wholes, heads, shared, length, width,
        width_v, scale, softcap, q.stride(0), q.stride(1), *keys.stride()[:3], *values.stride()[:3],
        seen.stride(0) if mask is not None and mask.shape[0] > 1 else 0, seen.stride(-1),
        HAS_MASK=mask is not None, IS_BOOL=is_bool, HAS_LAST=last is not None, HAS_CAP=softcap != 0.0,
        IS_DOT=how.is_dot, AS_FLOAT32=q.dtype is torch.bfloat16 and not at.has_bf16_dot,
        SPLITS=how.splits, GROUP=how.group, WIDTH=how.width, BLOCK=how.block, num_warps=how.num_warps,
    )  # fmt: skip
    if how.splits > 1:
        launch(
            attention_finish,
            (batch * heads,),
            sums,
            tops,
            wholes,
            out,
            width_v,
            SPLITS=how.splits,
            WIDTH=power_of_two(width_v),
            num_warps=1,
        )
    return out


@rotary_to_cache.register_fake
def _(q: Any, k: Any, v: Any, cos: Any, sin: Any, keys: Any, values: Any, slots: Any) -> Any:
    batch, tokens, heads, width = q.shape
    return q.new_empty((batch, heads, tokens, width))


@attend.register_fake
def _(q: Any, keys: Any, values: Any, *rest: Any) -> Any:
    return q.new_empty((q.shape[0], q.shape[1], 1, values.shape[3]))
