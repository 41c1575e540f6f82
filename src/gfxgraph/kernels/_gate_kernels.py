"""Triton: activations, gates, and rotary embedding with the write to the cache."""

from __future__ import annotations

import triton
import triton.language as tl

from gfxgraph.kernels._norm_kernels import overlap


@triton.jit
def activate(v, KIND: tl.constexpr):
    """An activation of float32: "none", "silu", "gelu" (with erf), "gelu_tanh"."""
    if KIND == "silu":
        v = v / (1.0 + tl.exp(-v))
    elif KIND == "gelu":
        v = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
        v = v * (1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0))
    return v


@triton.jit
def gate_forward(
    gate, up, y, n, stride_g, stride_u,
    KIND: tl.constexpr, HAS_UP: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """y = activate(gate) * up."""
    overlap(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = activate(tl.load(gate + row * stride_g + at, mask=at < n, other=0.0).to(tl.float32), KIND)
    if HAS_UP:
        v = v * tl.load(up + row * stride_u + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row * n + at, v.to(y.dtype.element_ty), mask=at < n)


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
def _rotated(source, cos, sin, target, half, width, HALF: tl.constexpr, REST: tl.constexpr):
    """Rotate the first 2 * half elements of a head by halves; the rest passes."""
    at = tl.arange(0, HALF)
    inside = at < half
    a = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + half + at, mask=inside, other=0.0).to(tl.float32)
    cos_a = tl.load(cos + at, mask=inside, other=0.0).to(tl.float32)
    cos_b = tl.load(cos + half + at, mask=inside, other=0.0).to(tl.float32)
    sin_a = tl.load(sin + at, mask=inside, other=0.0).to(tl.float32)
    sin_b = tl.load(sin + half + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + at, (a * cos_a - b * sin_a).to(target.dtype.element_ty), mask=inside)
    tl.store(target + half + at, (b * cos_b + a * sin_b).to(target.dtype.element_ty), mask=inside)
    if REST > 0:
        rest = 2 * half + tl.arange(0, REST)
        tl.store(target + rest, tl.load(source + rest, mask=rest < width, other=0.0), mask=rest < width)


@triton.jit
def rotary_to_cache(
    q, k, v, cos, sin, slots, out, keys, values, tokens, heads, shared, half, width, width_v, length,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, keys_b, keys_h, keys_l, values_b, values_h, values_l,
    HALF: tl.constexpr, REST: tl.constexpr, WIDTH_V: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Queries are rotated; keys rotated into their slot of the cache, values copied there.

    A slot outside of the cache is not written.
    """
    overlap(OVERLAP)
    b = (tl.program_id(0) // tokens).to(tl.int64)
    t = tl.program_id(0) % tokens
    cos += b * c_b + t * c_t
    sin += b * c_b + t * c_t
    slot = tl.load(slots + t)
    for head in range(tl.program_id(1), heads + shared, tl.num_programs(1)):
        if head < heads:
            target = out + ((b * heads + head) * tokens + t) * width
            _rotated(q + b * q_b + t * q_t + head * q_h, cos, sin, target, half, width, HALF, REST)
        elif (slot >= 0) & (slot < length):
            h = head - heads
            target = keys + b * keys_b + h * keys_h + slot * keys_l
            _rotated(k + b * k_b + t * k_t + h * k_h, cos, sin, target, half, width, HALF, REST)
            at = tl.arange(0, WIDTH_V)
            copied = tl.load(v + b * v_b + t * v_t + h * v_h + at, mask=at < width_v, other=0.0)
            tl.store(values + b * values_b + h * values_h + slot * values_l + at, copied, mask=at < width_v)
