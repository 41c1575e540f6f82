"""Triton: attention of one query a head over a cache of fixed length, and the choice of a token.

Heads that share keys are one program's: it reads those once. The keys are divided among programs where heads alone
are too few; each leaves its sums with its maximum, and `attention_finish` joins them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attention_parts(
    q, keys, values, mask, last, out, parts, tops, wholes, heads, shared, length, width, width_v, scale, softcap,
    q_b, q_h, keys_b, keys_h, keys_l, values_b, values_h, values_l, mask_b, mask_l,
    HAS_MASK: tl.constexpr, IS_BOOL: tl.constexpr, HAS_LAST: tl.constexpr, HAS_CAP: tl.constexpr,
    IS_DOT: tl.constexpr, AS_FLOAT32: tl.constexpr,
    SPLITS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One shared head, one part of the keys.

    Args:
        last: [1] int64; keys after this number are not looked at.
        mask: added to the scores where ``IS_BOOL`` is not set, else the keys that are seen.
    """
    b = (tl.program_id(0) // shared).to(tl.int64)
    s = tl.program_id(0) % shared
    split = tl.program_id(1)
    group = heads // shared
    g = tl.arange(0, GROUP)
    d = tl.arange(0, WIDTH)
    end = length
    if HAS_LAST:
        end = tl.minimum(length, tl.load(last).to(tl.int32) + 1)
    mine = (g[:, None] < group) & (d[None, :] < width)
    query = tl.load(q + b * q_b + (s * group + g[:, None]) * q_h + d[None, :], mask=mine, other=0.0)
    if AS_FLOAT32 or not IS_DOT:
        query = query.to(tl.float32)
    top = tl.full([GROUP], float("-inf"), tl.float32)
    whole = tl.zeros([GROUP], tl.float32)
    sums = tl.zeros([GROUP, WIDTH], tl.float32)
    # Each split has a run of keys, as near to equal as blocks allow, of those that are seen.
    each = tl.cdiv(tl.cdiv(end, SPLITS), BLOCK) * BLOCK
    for start in range(split * each, tl.minimum(end, (split + 1) * each), BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = (at[:, None] < end) & (d[None, :] < width)
        key = tl.load(
            keys + b * keys_b + s * keys_h + at[:, None].to(tl.int64) * keys_l + d[None, :], mask=inside, other=0.0
        )
        inside = (at[:, None] < end) & (d[None, :] < width_v)
        value = tl.load(
            values + b * values_b + s * values_h + at[:, None].to(tl.int64) * values_l + d[None, :],
            mask=inside,
            other=0.0,
        )
        if IS_DOT:
            if AS_FLOAT32:
                key = key.to(tl.float32)
            score = tl.dot(query, tl.trans(key), input_precision="ieee")
        else:
            score = tl.sum(query[:, None, :] * key.to(tl.float32)[None, :, :], axis=2)
        score = score * scale
        if HAS_CAP:
            score = softcap * (1.0 - 2.0 / (tl.exp(2.0 * score / softcap) + 1.0))
        if HAS_MASK:
            given = tl.load(mask + b * mask_b + at * mask_l, mask=at < end, other=0)
            if IS_BOOL:
                score = tl.where(given[None, :] != 0, score, float("-inf"))
            else:
                score = score + given.to(tl.float32)[None, :]
        score = tl.where(at[None, :] < end, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        e = tl.exp(score - base[:, None])
        shrink = tl.exp(top - base)
        whole = whole * shrink + tl.sum(e, axis=1)
        if IS_DOT:
            if AS_FLOAT32:
                added = tl.dot(e, value.to(tl.float32), input_precision="ieee")
            else:
                added = tl.dot(e.to(value.dtype), value)
        else:
            added = tl.sum(e[:, :, None] * value.to(tl.float32)[None, :, :], axis=1)
        sums = sums * shrink[:, None] + added
        top = higher
    row = b * heads + s * group + g
    mine = (g[:, None] < group) & (d[None, :] < width_v)
    if SPLITS == 1:
        tl.store(
            out + row[:, None] * width_v + d[None, :], (sums / whole[:, None]).to(out.dtype.element_ty), mask=mine
        )
    else:
        tl.store(parts + (row[:, None] * SPLITS + split) * width_v + d[None, :], sums, mask=mine)
        tl.store(tops + row * SPLITS + split, top, mask=g < group)
        tl.store(wholes + row * SPLITS + split, whole, mask=g < group)


@triton.jit
def attention_finish(parts, tops, wholes, out, width_v, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    """Join the parts of one head; a head that saw no key is NaN, as softmax makes it."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, WIDTH)
    top = tl.load(tops + row * SPLITS + split)
    highest = tl.max(top, axis=0)
    shrink = tl.exp(top - tl.where(highest == float("-inf"), 0.0, highest))
    whole = tl.sum(tl.load(wholes + row * SPLITS + split) * shrink, axis=0)
    at = (row * SPLITS + split[:, None]) * width_v + d[None, :]
    sums = tl.load(parts + at, mask=d[None, :] < width_v, other=0.0)
    y = tl.sum(sums * shrink[:, None], axis=0) / whole
    tl.store(out + row * width_v + d, y.to(out.dtype.element_ty), mask=d < width_v)


@triton.jit
def _key_of(v):
    """Integers in the order of the floats; NaN above all, both zeros alike, and all above the smallest integer."""
    bits = tl.where(v == 0.0, 0.0, v).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(v != v, 0x7FFFFFFF, ordered)


@triton.jit
def choice_parts(
    scores,
    noise,
    keys,
    places,
    n,
    parts,
    stride_s,
    stride_n,
    temperature,
    HAS_NOISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The highest of a block of scores, the first of several; with noise, of scores / temperature - log(noise)."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(scores + row * stride_s + at, mask=at < n, other=0.0).to(tl.float32)
    if HAS_NOISE:
        v = v / temperature - tl.log(tl.load(noise + row * stride_n + at, mask=at < n, other=1.0))
    key = tl.where(at < n, _key_of(v), -2147483648)
    highest = tl.max(key, axis=0)
    place = tl.min(tl.where((key == highest) & (at < n), at, 2147483647), axis=0)
    tl.store(keys + row * parts + part, highest)
    tl.store(places + row * parts + part, place)


@triton.jit
def choice_finish(keys, places, out, parts, BLOCK: tl.constexpr):
    """The highest of all blocks."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    key = tl.load(keys + row * parts + at, mask=at < parts, other=-2147483648)
    place = tl.load(places + row * parts + at, mask=at < parts, other=2147483647)
    highest = tl.max(key, axis=0)
    tl.store(out + row, tl.min(tl.where(key == highest, place, 2147483647), axis=0).to(tl.int64))
