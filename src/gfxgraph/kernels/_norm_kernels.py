"""Triton: layer norm and RMS norm, forward and backward, and softmax. One program a row.

Sums are float32. A row that fits in a block is read once; a longer one in pieces, once for each sum.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def overlap(OVERLAP: tl.constexpr):
    """First in every kernel: the next one may be put on the units while this one runs, and waits there for its end.

    Of NVIDIA's GPUs from sm_90 on (programmatic dependent launch); elsewhere nothing.
    """
    let_next_begin(OVERLAP)
    wait_for_last(OVERLAP)


@triton.jit
def let_next_begin(OVERLAP: tl.constexpr):
    """The first half of `overlap`."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_last(OVERLAP: tl.constexpr):
    """The second half; before it nothing is read that another kernel may write."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


@triton.jit
def to_cache(pointers):
    """Have the L2 cache fetch these lines: no value is read, so nothing written meanwhile is missed."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0", "=r,l", [pointers.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _row_piece(x, residual, at, n, HAS_RESIDUAL: tl.constexpr):
    """Elements as the model has them: a sum with the residual is rounded to its dtype before it is normed."""
    inside = at < n
    v = tl.load(x + at, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        r = tl.load(residual + at, mask=inside, other=0.0)
        v = (v.to(tl.float32) + r.to(tl.float32)).to(v.dtype)
    return v


@triton.jit
def _scaled(v, weight, bias, at, n, offset, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr):
    if HAS_WEIGHT:
        v = v * (tl.load(weight + at, mask=at < n, other=0.0).to(tl.float32) + offset)
    if HAS_BIAS:
        v = v + tl.load(bias + at, mask=at < n, other=0.0).to(tl.float32)
    return v


@triton.jit
def norm_forward(
    x, residual, weight, bias, y, total, n, stride_x, stride_r, eps, offset,
    IS_RMS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr, IS_ONE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """y[row] = norm(x[row] + residual[row]) * (weight + offset) + bias; the sum goes to ``total``."""
    overlap(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    x += row * stride_x
    residual += row * stride_r
    y += row * n
    total += row * n
    piece = tl.arange(0, BLOCK)
    if IS_ONE:
        v = _row_piece(x, residual, piece, n, HAS_RESIDUAL)
        if HAS_RESIDUAL:
            tl.store(total + piece, v, mask=piece < n)
        v = v.to(tl.float32)
        if not IS_RMS:
            v = tl.where(piece < n, v - tl.sum(v, axis=0) / n, 0.0)
        v = v / tl.sqrt(tl.sum(v * v, axis=0) / n + eps)
        v = _scaled(v, weight, bias, piece, n, offset, HAS_WEIGHT, HAS_BIAS)
        tl.store(y + piece, v.to(y.dtype.element_ty), mask=piece < n)
    else:
        mean = 0.0
        if not IS_RMS:
            added = tl.zeros([BLOCK], tl.float32)
            for start in range(0, n, BLOCK):
                added += _row_piece(x, residual, start + piece, n, HAS_RESIDUAL).to(tl.float32)
            mean = tl.sum(added, axis=0) / n
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            v = _row_piece(x, residual, start + piece, n, HAS_RESIDUAL).to(tl.float32)
            v = tl.where(start + piece < n, v - mean, 0.0)
            squares += v * v
        root = tl.sqrt(tl.sum(squares, axis=0) / n + eps)
        for start in range(0, n, BLOCK):
            at = start + piece
            v = _row_piece(x, residual, at, n, HAS_RESIDUAL)
            if HAS_RESIDUAL:
                tl.store(total + at, v, mask=at < n)
            v = _scaled((v.to(tl.float32) - mean) / root, weight, bias, at, n, offset, HAS_WEIGHT, HAS_BIAS)
            tl.store(y + at, v.to(y.dtype.element_ty), mask=at < n)


@triton.jit
def _statistics(x, n, eps, IS_RMS: tl.constexpr, BLOCK: tl.constexpr):
    """Mean (0 for RMS) and root of a row."""
    piece = tl.arange(0, BLOCK)
    mean = 0.0
    if not IS_RMS:
        added = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            added += tl.load(x + start + piece, mask=start + piece < n, other=0.0).to(tl.float32)
        mean = tl.sum(added, axis=0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        v = tl.load(x + start + piece, mask=start + piece < n, other=0.0).to(tl.float32)
        v = tl.where(start + piece < n, v - mean, 0.0)
        squares += v * v
    return mean, tl.sqrt(tl.sum(squares, axis=0) / n + eps)


@triton.jit
def norm_backward(
    dy, x, weight, dx, dw, db, rows, n, stride_dy, stride_x, eps, offset,
    IS_RMS: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """dx of each row, and the program's own part of dw and db, float32, which begin as zeros."""
    overlap(OVERLAP)
    program = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, BLOCK)
    dw += program * n
    db += program * n
    for index in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = index + tl.zeros([], tl.int64)
        mean, root = _statistics(x + row * stride_x, n, eps, IS_RMS, BLOCK)
        along = tl.zeros([BLOCK], tl.float32)
        level = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            at = start + piece
            v = (tl.load(x + row * stride_x + at, mask=at < n, other=0.0).to(tl.float32) - mean) / root
            d = tl.load(dy + row * stride_dy + at, mask=at < n, other=0.0).to(tl.float32)
            if HAS_WEIGHT:
                tl.store(dw + at, tl.load(dw + at, mask=at < n, other=0.0) + d * v, mask=at < n)
            if HAS_BIAS:
                tl.store(db + at, tl.load(db + at, mask=at < n, other=0.0) + d, mask=at < n)
            d = _scaled(d, weight, weight, at, n, offset, HAS_WEIGHT, False)
            along += d * v
            level += d
        slope = tl.sum(along, axis=0) / n
        base = 0.0 if IS_RMS else tl.sum(level, axis=0) / n
        for start in range(0, n, BLOCK):
            at = start + piece
            v = (tl.load(x + row * stride_x + at, mask=at < n, other=0.0).to(tl.float32) - mean) / root
            d = tl.load(dy + row * stride_dy + at, mask=at < n, other=0.0).to(tl.float32)
            d = _scaled(d, weight, weight, at, n, offset, HAS_WEIGHT, False)
            tl.store(dx + row * n + at, ((d - base - v * slope) / root).to(dx.dtype.element_ty), mask=at < n)


@triton.jit
def softmax_forward(x, y, n, stride_x, BLOCK: tl.constexpr, IS_ONE: tl.constexpr, OVERLAP: tl.constexpr):
    """y[row] = softmax(x[row]); a row of minus infinities, or with a NaN or plus infinity, is NaN."""
    overlap(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    x += row * stride_x
    y += row * n
    piece = tl.arange(0, BLOCK)
    if IS_ONE:
        v = tl.load(x + piece, mask=piece < n, other=float("-inf")).to(tl.float32)
        e = tl.exp(v - tl.max(v, axis=0))
        e = tl.where(piece < n, e, 0.0)
        tl.store(y + piece, (e / tl.sum(e, axis=0)).to(y.dtype.element_ty), mask=piece < n)
    else:
        largest = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, n, BLOCK):
            v = tl.load(x + start + piece, mask=start + piece < n, other=float("-inf")).to(tl.float32)
            largest = tl.maximum(largest, v)
        top = tl.max(largest, axis=0)
        added = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            v = tl.load(x + start + piece, mask=start + piece < n, other=float("-inf")).to(tl.float32)
            added += tl.where(start + piece < n, tl.exp(v - top), 0.0)
        whole = tl.sum(added, axis=0)
        for start in range(0, n, BLOCK):
            at = start + piece
            v = tl.load(x + at, mask=at < n, other=float("-inf")).to(tl.float32)
            tl.store(y + at, (tl.exp(v - top) / whole).to(y.dtype.element_ty), mask=at < n)
