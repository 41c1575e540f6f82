"""Rotary embedding with the write to the cache, attention of a step over it, and both in one. New in 2.0.

``torch.ops.gfxgraph_kernels.rotary_to_cache``, ``.decode_attention`` and ``.rotary_attention``. Computed in float32,
rounded once; against float64 within 1e-5 (float32), 3e-3 (float16) or 2e-2 (bfloat16) of the values' size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gfxgraph.kernels import eager
from gfxgraph.kernels.launching import DTYPES, launch, target, why_not
from gfxgraph.kernels.measured_shapes import attention as how_to
from gfxgraph.kernels.shapes import power_of_two

MOST_HEADS = 16
"""Rotated heads per compute unit; with more, each workgroup rotates several."""


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
        from gfxgraph.kernels._gate_kernels import rotary_angles as kernel

        launch(kernel, (batch * tokens,),
            positions, frequencies.contiguous(), cos, sin, half, tokens, *positions.stride(), scaling,
            HALF=power_of_two(half), num_warps=1,
        )  # fmt: skip
    return cos, sin


def _check_rotary(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, slots: Tensor
) -> None:
    if not q.dim() == k.dim() == v.dim() == 4 or not cos.dim() == sin.dim() == 3:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} should be [batch, tokens, heads, width], "
            f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} [batch or 1, tokens, rotated width]"
        )
    batch, tokens, _, width = q.shape
    turned = cos.shape[-1]
    if k.shape[:2] != q.shape[:2] or v.shape[:3] != k.shape[:3] or k.shape[3] != width:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not match")
    if turned % 2 or turned > width or cos.shape != sin.shape or cos.shape[:2] not in ((1, tokens), (batch, tokens)):
        raise ValueError(f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not rotate heads of width {width}")
    if keys.shape[:2] != (batch, k.shape[2]) or values.shape[:3] != keys.shape[:3]:
        raise ValueError(f"a cache of {tuple(keys.shape)} and {tuple(values.shape)} does not hold {tuple(k.shape)}")
    _check_index("the slots", slots, tokens)
    if keys.stride(-1) != 1 or values.stride(-1) != 1:
        raise ValueError("the last dimension of the cache must be contiguous")


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
    _check_rotary(q, k, v, cos, sin, keys, values, slots)
    (batch, tokens, heads, width), turned = q.shape, cos.shape[-1]
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
    shared = k.shape[2]
    programs = max(1, min(heads + shared, MOST_HEADS * target(q.device).n_units // (batch * tokens)))
    launch(kernel, (batch * tokens, programs),
        q, k, v, cos, sin, slots, out, keys, values, tokens, heads, shared, turned // 2, width, v.shape[3],
        keys.shape[2],
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], cos.stride(0) if cos.shape[0] > 1 else 0, cos.stride(1),
        *keys.stride()[:3], *values.stride()[:3],
        HALF=power_of_two(turned // 2), REST=power_of_two(width - turned) if width > turned else 0,
        WIDTH_V=power_of_two(v.shape[3]), num_warps=1,
    )  # fmt: skip
    return out


def _check_index(what: str, index: Tensor, n: int) -> None:
    if index.shape != (n,) or index.dtype is not torch.int64:
        raise ValueError(f"{what} are {tuple(index.shape)} {index.dtype} and should be ({n},) torch.int64")


def _check_attention(q: Tensor, heads: int, keys: Tensor, values: Tensor, mask: Tensor | None) -> None:
    batch, width = q.shape[0], q.shape[3]
    if not q.dtype is keys.dtype is values.dtype:
        raise TypeError(f"q is {q.dtype}, keys {keys.dtype}, values {values.dtype}: they must have the same dtype")
    if (
        not keys.dim() == values.dim() == 4
        or keys.shape[0] != batch
        or keys.shape[3] != width
        or values.shape[:3] != keys.shape[:3]
    ):
        raise ValueError(
            f"{batch} x {heads} queries of {width} do not fit keys {tuple(keys.shape)}, values {tuple(values.shape)}"
        )
    if not keys.shape[1] or heads % keys.shape[1]:
        raise ValueError(f"{heads} heads cannot share {keys.shape[1]} heads of keys")
    if mask is not None and (mask.shape[0] not in (1, batch) or mask.shape[1:] != (1, 1, keys.shape[2])):
        raise ValueError(f"the mask is {tuple(mask.shape)}, not [{batch} or 1, 1, 1, {keys.shape[2]}]")


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
        TypeError: a dtype that is not float32, float16 or bfloat16; several.
        ValueError: shapes that do not fit.
    """
    if q.dim() != 4 or q.shape[2] != 1:
        raise ValueError(f"q is {tuple(q.shape)} and should be [batch, heads, 1, width]")
    _check_attention(q, q.shape[1], keys, values, mask)
    if last is not None:
        _check_index("the last keys", last, 1)
    return attend(q, keys, values, mask, last, q.shape[3] ** -0.5 if scale is None else scale, softcap)


@torch.library.custom_op("gfxgraph_kernels::decode_attention", mutates_args=())
def attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, last: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """The operation behind `decode_attention`."""
    if why_not("decode_attention", q, keys, values, _numbers(mask)):
        return eager.attention(q, keys, values, mask, last, scale, softcap).contiguous()
    batch, heads, _, width = q.shape
    return _attend(q.view(batch, heads, width), None, keys, values, mask, last, 0, scale, softcap)


def rotary_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    *,
    behind: int = 0,
    mask: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """`rotary_to_cache` and `decode_attention` of one token, in one launch where the keys are not divided.

    Args:
        q: [batch, 1, heads, width], float32, float16 or bfloat16.
        k: [batch, 1, shared heads, width]; written to the cache, rotated.
        v: [batch, 1, shared heads, width of values]; written to the cache.
        cos: of the token's position, as `rotary_to_cache` takes it.
        sin: likewise.
        keys: [batch, shared heads, length, width]; changed in place.
        values: [batch, shared heads, length, width of values]; changed in place.
        position: [1] int64; the token's slot is ``position - behind``, and keys after it are not read.
        behind: slots by which the cache begins after position 0.
        mask: as `decode_attention` takes it.
        scale: of the products of query and key; ``width ** -0.5`` where None.
        softcap: scores are bent to stay below it; 0 leaves them.

    Returns:
        [batch, heads, 1, width of values], q's dtype.

    Raises:
        TypeError: a dtype that is not float32, float16 or bfloat16; several.
        ValueError: shapes that do not fit.
    """
    if q.dim() != 4 or q.shape[1] != 1:
        raise ValueError(f"q is {tuple(q.shape)} and should be [batch, 1, heads, width]")
    _check_rotary(q, k, v, cos, sin, keys, values, position)
    _check_attention(q, q.shape[2], keys, values, mask)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    return rotate_and_attend(q, k, v, cos, sin, keys, values, position, behind, mask, scale, softcap)


@torch.library.custom_op("gfxgraph_kernels::rotary_attention", mutates_args=("keys", "values"))
def rotate_and_attend(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, position: Tensor,
    behind: int, mask: Tensor | None, scale: float, softcap: float,
) -> Tensor:  # fmt: skip
    """The operation behind `rotary_attention`."""
    if why_not("rotary_attention", q, k, v, cos, sin, keys, values, _numbers(mask)):
        slot = position - behind
        query = rotary_to_cache(q, k, v, cos, sin, keys, values, slot)
        return eager.attention(query, keys, values, mask, slot, scale, softcap).contiguous()
    q, k, v, cos, sin = (each if each.stride(-1) == 1 else each.contiguous() for each in (q, k, v, cos, sin))
    return _attend(q[:, 0], (k, v, cos, sin), keys, values, mask, position, behind, scale, softcap)


def _numbers(mask: Tensor | None) -> Tensor | None:
    """A mask whose dtype a kernel computes in; booleans are none."""
    return None if mask is None or mask.dtype is torch.bool else mask


def _attend(
    q: Tensor, new: tuple[Tensor, Tensor, Tensor, Tensor] | None, keys: Tensor, values: Tensor, mask: Tensor | None,
    last: Tensor | None, behind: int, scale: float, softcap: float,
) -> Tensor:  # fmt: skip
    """q: [batch, heads, width]; new: key, value, cos and sin of the token whose slot is ``last - behind``."""
    (batch, heads, width), (_, shared, length, width_v) = q.shape, values.shape
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
    is_bool = mask is not None and mask.dtype is torch.bool
    seen = q if mask is None else mask.view(torch.uint8) if is_bool else mask
    k, v, cos, sin = new or (q, q, q, q)
    n_parts = batch * heads * how.splits if how.splits > 1 else 0
    parts = torch.empty(n_parts * (width_v + 2), dtype=torch.float32, device=q.device)
    sums, tops, wholes = parts.split([n_parts * width_v, n_parts, n_parts])
    launch(attention_parts, (batch * shared, how.splits),
        q, keys, values, seen, q if last is None else last, k, v, cos, sin, out, sums, tops, wholes,
        heads, shared, length, width, width_v, cos.shape[-1] // 2, behind, scale, softcap,
        q.stride(0), q.stride(1), *keys.stride()[:3], *values.stride()[:3],
        seen.stride(0) if mask is not None and mask.shape[0] > 1 else 0, seen.stride(-1),
        k.stride(0), k.stride(-2), v.stride(0), v.stride(-2), cos.stride(0) if cos.shape[0] > 1 else 0,
        HAS_MASK=mask is not None, IS_BOOL=is_bool, HAS_LAST=last is not None, HAS_NEW=new is not None,
        HAS_CAP=softcap != 0.0, IS_DOT=how.is_dot, AS_FLOAT32=q.dtype is torch.bfloat16 and not at.has_bf16_dot,
        SPLITS=how.splits, GROUP=how.group, WIDTH=how.width, BLOCK=how.block, num_warps=how.num_warps,
    )  # fmt: skip
    if how.splits > 1:
        launch(attention_finish, (batch * heads,),
            sums, tops, wholes, out, width_v, SPLITS=how.splits, WIDTH=power_of_two(width_v), num_warps=1,
        )  # fmt: skip
    return out


@rotary_angles.register_fake
def _(positions: Tensor, frequencies: Tensor, scaling: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    shape = (*positions.shape, 2 * frequencies.shape[0])
    return tuple(frequencies.new_empty(shape, dtype=dtype) for _ in "cs")


@rotary_to_cache.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, slots: Tensor
) -> Tensor:
    batch, tokens, heads, width = q.shape
    return q.new_empty((batch, heads, tokens, width))


@attend.register_fake
def _(q: Tensor, keys: Tensor, values: Tensor, *rest: object) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1], 1, values.shape[3]))


@rotate_and_attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, *rest: object
) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2], 1, values.shape[3]))
