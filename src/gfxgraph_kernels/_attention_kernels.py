"""Triton: a token's rotary embedding, its attention over a cache of fixed length, and the choice of the next one.

By matrix instructions, heads that share keys are one program's, which reads those once; else each head is one's. The
keys are divided among programs where heads alone are too few; each leaves its sums with its maximum, and
`attention_finish` joins them. The token's own key and value come with the call, to be turned and written to the
cache: the first program of a head takes them from registers, so that no program waits for another's write.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gfxgraph_kernels._norm_kernels import let_next_begin, overlap, to_cache, wait_for_last


@triton.jit
def rotary_angles(
    positions, frequencies, cos, sin, half, tokens, p_b, p_t, scaling, HALF: tl.constexpr, OVERLAP: tl.constexpr
):  # fmt: skip
    """Cosine and sine of position * frequency, twice beside each other; one program a token."""
    overlap(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, HALF)
    inside = at < half
    position = tl.load(positions + row // tokens * p_b + row % tokens * p_t).to(tl.float32)
    angle = position * tl.load(frequencies + at, mask=inside, other=0.0).to(tl.float32)
    c = (tl.cos(angle) * scaling).to(cos.dtype.element_ty)
    s = (tl.sin(angle) * scaling).to(sin.dtype.element_ty)
    at += row * 2 * half
    tl.store(cos + at, c, mask=inside)
    tl.store(cos + at + half, c, mask=inside)
    tl.store(sin + at, s, mask=inside)
    tl.store(sin + at + half, s, mask=inside)


@triton.jit
def _turned(x, at, cos, sin, d, half, inside):
    """Rows of heads, their first 2 * half elements rotated by halves; rounded as if they had been stored."""
    plain = tl.load(x + at + d, mask=inside, other=0.0)
    mate = tl.load(x + at + tl.where(d < half, d + half, d - half), mask=inside & (d < 2 * half), other=0.0)
    c = tl.load(cos + d, mask=d < 2 * half, other=1.0).to(tl.float32)
    s = tl.load(sin + d, mask=d < 2 * half, other=0.0).to(tl.float32)
    turned = plain.to(tl.float32) * c + mate.to(tl.float32) * tl.where(d < half, -s, s)
    return turned.to(plain.dtype)


@triton.jit
def _capped(score, softcap, HAS_CAP: tl.constexpr):
    if HAS_CAP:
        score = softcap * (1.0 - 2.0 / (tl.exp(2.0 * score / softcap) + 1.0))
    return score


@triton.jit
def _masked(score, given, IS_BOOL: tl.constexpr):
    if IS_BOOL:
        return tl.where(given != 0, score, float("-inf"))
    return score + given.to(tl.float32)


@triton.jit
def _block(
    keys, values, mask, at, d, bound, width, width_v, keys_l, values_l, mask_l,
    HAS_MASK: tl.constexpr, IS_BOOL: tl.constexpr,
):  # fmt: skip
    """[BLOCK, WIDTH] keys and values, and the mask of each; nothing beyond ``bound`` is read."""
    far = at[:, None].to(tl.int64)
    key = tl.load(keys + far * keys_l + d[None, :], mask=(at[:, None] < bound) & (d[None, :] < width), other=0.0)
    value = tl.load(
        values + far * values_l + d[None, :], mask=(at[:, None] < bound) & (d[None, :] < width_v), other=0.0
    )
    given = at
    if HAS_MASK:
        given = tl.load(mask + at * mask_l, mask=at < bound, other=0)
    return key, value, given


@triton.jit
def _attended(
    top, whole, sums, query, key, value, given, is_seen, scale, softcap,
    HAS_MASK: tl.constexpr, IS_BOOL: tl.constexpr, HAS_CAP: tl.constexpr, IS_DOT: tl.constexpr,
    AS_FLOAT32: tl.constexpr,
):  # fmt: skip
    """One more block of keys; what is not seen may be anything, NaN too.

    Without ``IS_DOT`` of one query: keys stay in the lanes that loaded them, and the scores are a column of them.
    """
    value = tl.where(is_seen[:, None], value, 0.0)
    if IS_DOT:
        if AS_FLOAT32:
            key = key.to(tl.float32)
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        given, is_seen = given[None, :], is_seen[None, :]
    else:
        score = tl.sum(query * key.to(tl.float32), axis=1, keep_dims=True)
        given, is_seen = given[:, None], is_seen[:, None]
    AXIS: tl.constexpr = 1 if IS_DOT else 0
    score = _capped(score * scale, softcap, HAS_CAP)
    if HAS_MASK:
        score = _masked(score, given, IS_BOOL)
    score = tl.where(is_seen, score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, axis=AXIS))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    e = tl.exp(score - tl.expand_dims(base, AXIS))
    shrink = tl.exp(top - base)
    if not IS_DOT:
        added = tl.sum(e * value.to(tl.float32), axis=0, keep_dims=True)
    elif AS_FLOAT32:
        added = tl.dot(e, value.to(tl.float32), input_precision="ieee")
    else:
        added = tl.dot(e.to(value.dtype), value)
    return higher, whole * shrink + tl.sum(e, axis=AXIS), sums * shrink[:, None] + added


@triton.jit
def attention_parts(
    q, keys, values, mask, position, new_k, new_v, cos, sin, out, parts, tops, wholes,
    heads, shared, programs, length, width, width_v, half, behind, scale, softcap,
    q_b, q_h, keys_b, keys_h, keys_l, values_b, values_h, values_l, mask_b, mask_l, k_b, k_h, v_b, v_h, c_b,
    HAS_MASK: tl.constexpr, IS_BOOL: tl.constexpr, HAS_CAP: tl.constexpr, IS_DOT: tl.constexpr,
    AS_FLOAT32: tl.constexpr, SPLITS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """One shared head, or one head alone, and one part of the keys.

    Args:
        programs: of a row, as many as shared heads or as heads; those of the same keys write the same to the cache.
        position: [1] int64; less ``behind`` the token's slot, after which no key is looked at.
        mask: added to the scores where ``IS_BOOL`` is not set, else the keys that are seen.
        new_k, new_v: of the token: not in the cache yet, and neither they nor the queries turned.
    """
    let_next_begin(OVERLAP)
    b = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    s = program * shared // programs
    split = tl.program_id(1)
    if OVERLAP and SPLITS == 1:
        LINE: tl.constexpr = 32 * 8 // keys.dtype.element_ty.primitive_bitwidth
        first = tl.minimum(tl.arange(0, BLOCK), length - 1)[:, None].to(tl.int64)
        line = tl.arange(0, (WIDTH + LINE - 1) // LINE)[None, :] * LINE
        to_cache(keys + b * keys_b + s * keys_h + first * keys_l + tl.minimum(line, width - 1))
        to_cache(values + b * values_b + s * values_h + first * values_l + tl.minimum(line, width_v - 1))
    wait_for_last(OVERLAP)
    group = heads // programs
    g, d = tl.arange(0, GROUP), tl.arange(0, WIDTH)
    mine = (g[:, None] < group) & (d[None, :] < width)
    at_q = b * q_b + (program * group + g[:, None]) * q_h
    keys += b * keys_b + s * keys_h
    values += b * values_b + s * values_h
    mask += b * mask_b
    slot = tl.load(position) - behind
    end = tl.maximum(tl.minimum(length, slot), 0).to(tl.int32)
    if SPLITS == 1:
        # Underway before it is known how many of them are seen.
        at = tl.arange(0, BLOCK)
        key, value, given = _block(
            keys, values, mask, at, d, length, width, width_v, keys_l, values_l, mask_l, HAS_MASK, IS_BOOL
        )
    # As [1, WIDTH]: the layout of the queries, so that nothing moves between lanes.
    column = d[None, :]
    cos, sin = cos + b * c_b, sin + b * c_b
    query = _turned(q, at_q, cos, sin, column, half, mine)
    new_key = _turned(new_k, b * k_b + s * k_h, cos, sin, column, half, column < width).to(keys.dtype.element_ty)
    new_value = tl.load(new_v + b * v_b + s * v_h + column, column < width_v, 0.0).to(values.dtype.element_ty)
    is_mine = (slot >= 0) & (slot < length) & (split == 0)
    tl.store(keys + slot * keys_l + column, new_key, mask=(column < width) & is_mine)
    tl.store(values + slot * values_l + column, new_value, mask=(column < width_v) & is_mine)
    top = _capped(tl.sum(query.to(tl.float32) * new_key.to(tl.float32), axis=1) * scale, softcap, HAS_CAP)
    if HAS_MASK:
        top = _masked(top, tl.load(mask + slot * mask_l, mask=is_mine, other=0), IS_BOOL)
    top = tl.where(is_mine, top, float("-inf"))
    whole = tl.exp(top - tl.where(top == float("-inf"), 0.0, top))
    sums = tl.where(is_mine, whole[:, None] * new_value.to(tl.float32), 0.0)
    if AS_FLOAT32 or not IS_DOT:
        query = query.to(tl.float32)
    # Each split has a run of keys, as near to equal as blocks allow, of those that are seen.
    each = tl.cdiv(tl.cdiv(end, SPLITS), BLOCK) * BLOCK
    first, stop = split * each, tl.minimum(end, (split + 1) * each)
    if SPLITS == 1:
        top, whole, sums = _attended(
            top, whole, sums, query, key, value, given, at < end, scale, softcap,
            HAS_MASK, IS_BOOL, HAS_CAP, IS_DOT, AS_FLOAT32,
        )  # fmt: skip
        first = BLOCK
    for start in range(first, stop, BLOCK):
        at = start + tl.arange(0, BLOCK)
        key, value, given = _block(
            keys, values, mask, at, d, end, width, width_v, keys_l, values_l, mask_l, HAS_MASK, IS_BOOL
        )
        top, whole, sums = _attended(
            top, whole, sums, query, key, value, given, at < end, scale, softcap,
            HAS_MASK, IS_BOOL, HAS_CAP, IS_DOT, AS_FLOAT32,
        )  # fmt: skip
    row = b * heads + program * group + g
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
def attention_finish(
    parts, tops, wholes, out, width_v, SPLITS: tl.constexpr, WIDTH: tl.constexpr, OVERLAP: tl.constexpr
):
    """Join the parts of one head; a head that saw no key is NaN, as softmax makes it."""
    overlap(OVERLAP)
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
    scores, noise, keys, places, n, parts, stride_s, stride_n, temperature,
    HAS_NOISE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The highest of a block of scores, the first of several; with noise, of scores / temperature - log(noise)."""
    overlap(OVERLAP)
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
def choice_finish(keys, places, out, parts, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """The highest of all blocks."""
    overlap(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    key = tl.load(keys + row * parts + at, mask=at < parts, other=-2147483648)
    place = tl.load(places + row * parts + at, mask=at < parts, other=2147483647)
    highest = tl.max(key, axis=0)
    tl.store(out + row, tl.min(tl.where(key == highest, place, 2147483647), axis=0).to(tl.int64))
