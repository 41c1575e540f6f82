"""Triton: linear layers of few rows, with the norm before and the activation, gate and residual after in them.

The norm costs no pass of its own: its root divides the finished sums, so that the squares of a row are added up in
the loop that multiplies it. Where several programs share the inputs of an output, each leaves float32 sums, which
`linear_finish` adds in a fixed order: a result does not depend on who was first.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gfxgraph_kernels._norm_kernels import let_next_begin, overlap, to_cache, wait_for_last


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
def _finished(
    y, up, root, bias, residual, m, n, M, N, stride_r, KIND: tl.constexpr, HAS_UP: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Sums of rows ``m`` and outputs ``n``, which are broadcast, to results."""
    if HAS_NORM:
        y = y / root
    if HAS_BIAS:
        y = y + tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    y = activate(y, KIND)
    if HAS_UP:
        if HAS_NORM:
            up = up / root
        y = y * up
    if HAS_RESIDUAL:
        y = y + tl.load(residual + m * stride_r + n, mask=(m < M) & (n < N), other=0.0).to(tl.float32)
    return y


@triton.jit
def _inputs(x, norm, m, k, M, K, stride_x, offset, HAS_NORM: tl.constexpr, HAS_WEIGHT: tl.constexpr):
    """[m, k] inputs and, where they are normed, the same with the norm's weight."""
    inside = (m[:, None] < M) & (k[None, :] < K)
    plain = tl.load(x + m[:, None] * stride_x + k[None, :], mask=inside, other=0.0)
    scaled = plain
    if HAS_NORM:
        plain = plain.to(tl.float32)
        scaled = plain
        if HAS_WEIGHT:
            scaled = plain * (tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32) + offset)[None, :]
    return plain, scaled


@triton.jit
def _weights(w, n, k, N, K, stride_w):
    inside = (n[:, None] < N) & (k[None, :] < K)
    return tl.load(w + n[:, None].to(tl.int64) * stride_w + k[None, :], mask=inside, other=0.0)


@triton.jit
def _ahead(w, n, N, K, stride_w, first, step, ahead, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr):
    """What a program will read of a weight, on its way to the L2 cache while the kernel before this one runs.

    Args:
        ahead: programs that do so; all weights at once would push each other out of the cache.
    """
    if OVERLAP:
        LINE: tl.constexpr = 32 * 8 // w.dtype.element_ty.primitive_bitwidth
        if tl.program_id(0) < ahead:
            rows = tl.minimum(n, N - 1)[:, None].to(tl.int64) * stride_w
            for start in range(first, K, step):
                k = tl.minimum(start + tl.arange(0, (BLOCK_K + LINE - 1) // LINE) * LINE, K - 1)
                to_cache(w + rows + k[None, :])


@triton.jit
def _stored(
    y, up, squares, bias, residual, out, parts, part_squares, m, n, M, N, K, split, is_first, stride_r, stride_y,
    column, eps, KIND: tl.constexpr, HAS_UP: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Write results, or one split's sums, of rows ``m`` and outputs ``n``, which are broadcast."""
    inside = (m < M) & (n < N)
    if SPLITS == 1:
        root = tl.sqrt(squares / K + eps)
        y = _finished(
            y, up, root, bias, residual, m, n, M, N, stride_r, KIND, HAS_UP, HAS_NORM, HAS_BIAS, HAS_RESIDUAL
        )
        tl.store(out + m * stride_y + column + n, y.to(out.dtype.element_ty), mask=inside)
    else:
        pairs = 2 if HAS_UP else 1
        at = (split * pairs * M + m) * N + n
        tl.store(parts + at, y, mask=inside)
        if HAS_UP:
            tl.store(parts + at + M * N, up, mask=inside)
        if HAS_NORM:
            tl.store(part_squares + split * M + m, squares, mask=m < tl.where(is_first, M, 0))


@triton.jit
def _multiplied(
    sums, ups, squared, x, norm, weights, up_weights, m, k, M, K, stride_x, offset,
    HAS_UP: tl.constexpr, HAS_NORM: tl.constexpr, HAS_NORM_WEIGHT: tl.constexpr,
):  # fmt: skip
    """One more block of inputs; a lane adds its neighbours' products at once, so that it holds one sum of them."""
    plain, scaled = _inputs(x, norm, m, k, M, K, stride_x, offset, HAS_NORM, HAS_NORM_WEIGHT)
    scaled = scaled.to(tl.float32)
    LANES: tl.constexpr = sums.shape[1]
    LANE: tl.constexpr = weights.shape[1] // LANES
    sums += tl.sum(tl.reshape(scaled * weights.to(tl.float32), [sums.shape[0], LANES, LANE]), axis=2)
    if HAS_UP:
        ups += tl.sum(tl.reshape(scaled * up_weights.to(tl.float32), [sums.shape[0], LANES, LANE]), axis=2)
    if HAS_NORM:
        squared += tl.sum(tl.reshape(plain * plain, [squared.shape[0], LANES, LANE]), axis=2)
    return sums, ups, squared


@triton.jit
def _pairs(first_m, first_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows and outputs of a tile as one dim of pairs: of three dims, Triton moves what it loads between lanes."""
    pair = tl.arange(0, BLOCK_M * BLOCK_N)
    if BLOCK_M == 1:
        m = first_m + tl.arange(0, 1)
    else:
        m = first_m + pair // BLOCK_N
    return m, first_n + pair % BLOCK_N


@triton.jit
def _vector_sums(
    x, w, w_up, norm, m, n, M, N, K, stride_x, stride_w, stride_u, first, step, offset, ahead,
    HAS_UP: tl.constexpr, HAS_NORM: tl.constexpr, HAS_NORM_WEIGHT: tl.constexpr, IS_EARLY: tl.constexpr,
    BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Sums of rows times weights, one a pair, and each row's sum of squares; waits for the kernel before.

    Args:
        IS_EARLY: the first weights are read before that.
    """
    k = first + tl.arange(0, BLOCK_K)
    if HAS_NORM_WEIGHT:
        if tl.program_id(0) == 0:
            _ahead(norm, n * 0, 1, K, 0, first, step, ahead, BLOCK_K, OVERLAP)
    if IS_EARLY:
        weights = _weights(w, n, k, N, K, stride_w)
        up_weights = weights
        if HAS_UP:
            up_weights = _weights(w_up, n, k, N, K, stride_u)
        first += step
    _ahead(w, n, N, K, stride_w, first, step, ahead, BLOCK_K, OVERLAP)
    if HAS_UP:
        _ahead(w_up, n, N, K, stride_u, first, step, ahead, BLOCK_K, OVERLAP)
    wait_for_last(OVERLAP)
    LANES: tl.constexpr = BLOCK_K // 8 if BLOCK_K > 8 else 1
    sums = tl.zeros([n.shape[0], LANES], tl.float32)
    ups = tl.zeros([n.shape[0], LANES], tl.float32)
    squared = tl.zeros([m.shape[0], LANES], tl.float32)
    if IS_EARLY:
        sums, ups, squared = _multiplied(
            sums, ups, squared, x, norm, weights, up_weights, m, k, M, K, stride_x, offset,
            HAS_UP, HAS_NORM, HAS_NORM_WEIGHT,
        )  # fmt: skip
    for start in range(first, K, step):
        k = start + tl.arange(0, BLOCK_K)
        weights = _weights(w, n, k, N, K, stride_w)
        up_weights = weights
        if HAS_UP:
            up_weights = _weights(w_up, n, k, N, K, stride_u)
        sums, ups, squared = _multiplied(
            sums, ups, squared, x, norm, weights, up_weights, m, k, M, K, stride_x, offset,
            HAS_UP, HAS_NORM, HAS_NORM_WEIGHT,
        )  # fmt: skip
    y = tl.sum(sums, axis=1)
    up = y
    if HAS_UP:
        up = tl.sum(ups, axis=1)
    return y, up, tl.sum(squared, axis=1)


@triton.jit(do_not_specialize=["ahead"])
def linear_vector(
    x, w, w_up, bias, norm, residual, out, parts, part_squares, M, N, K,
    stride_x, stride_w, stride_u, stride_r, eps, offset, ahead,
    KIND: tl.constexpr, HAS_UP: tl.constexpr, HAS_NORM: tl.constexpr, HAS_NORM_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, SPLITS: tl.constexpr, IS_EARLY: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Products are added lane by lane, and the lanes once, at the end."""
    let_next_begin(OVERLAP)
    split = tl.program_id(1)
    m, n = _pairs(tl.program_id(2) * BLOCK_M, tl.program_id(0) * BLOCK_N, BLOCK_M, BLOCK_N)
    y, up, squares = _vector_sums(
        x, w, w_up, norm, m, n, M, N, K, stride_x, stride_w, stride_u, split * BLOCK_K, SPLITS * BLOCK_K, offset,
        ahead, HAS_UP, HAS_NORM, HAS_NORM_WEIGHT, IS_EARLY, BLOCK_K, OVERLAP,
    )  # fmt: skip
    _stored(
        y, up, squares, bias, residual, out, parts, part_squares, m, n, M, N, K, split, tl.program_id(0) == 0,
        stride_r, N, 0, eps, KIND, HAS_UP, HAS_NORM, HAS_BIAS, HAS_RESIDUAL, SPLITS,
    )  # fmt: skip


@triton.jit
def _dotted(
    y, x, w, m, n, start, M, N, K, stride_x, stride_w, BLOCK_K: tl.constexpr, AS_FLOAT32: tl.constexpr
):  # fmt: skip
    """One more block of inputs, by ``tl.dot``: matrix instructions where there are some.

    Args:
        AS_FLOAT32: convert both sides first (RDNA2 and older have no bf16 product).
    """
    k = start + tl.arange(0, BLOCK_K)
    rows = tl.load(x + m * stride_x + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
    n = tl.trans(n)
    weights = tl.load(w + n.to(tl.int64) * stride_w + k[None, :], mask=(n < N) & (k[None, :] < K), other=0.0)
    if AS_FLOAT32:
        rows = rows.to(tl.float32)
        weights = weights.to(tl.float32)
    return tl.dot(rows, tl.trans(weights), y, input_precision="ieee")


@triton.jit(do_not_specialize=["ahead"])
def linear_three(
    x, w_a, w_b, w_c, bias_a, bias_b, bias_c, norm, counter, out, M, N_A, N_B, N_C, K,
    stride_x, stride_a, stride_b, stride_c, eps, offset, ahead,
    HAS_NORM: tl.constexpr, HAS_NORM_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_COUNTER: tl.constexpr,
    IS_VECTOR: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    AS_FLOAT32: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Three layers of the same rows (query, key, value) in one launch, their results side by side.

    The next kernel begins only after what was before this one: it and those after may read their weights early.

    Args:
        counter: [1] int64; one program adds 1 to it.
        IS_VECTOR: as `linear_vector`, else as `linear_tiled`, without a norm.
    """
    program = tl.program_id(0)
    is_first = (program == 0) & (tl.program_id(1) == 0)
    blocks_a, blocks_b = tl.cdiv(N_A, BLOCK_N), tl.cdiv(N_B, BLOCK_N)
    if program < blocks_a:
        w, bias, N, stride_w, column = w_a, bias_a, N_A, stride_a, 0
    elif program < blocks_a + blocks_b:
        w, bias, N, stride_w, column = w_b, bias_b, N_B, stride_b, N_A
        program -= blocks_a
    else:
        w, bias, N, stride_w, column = w_c, bias_c, N_C, stride_c, N_A + N_B
        program -= blocks_a + blocks_b
    if IS_VECTOR:
        m, n = _pairs(tl.program_id(1) * BLOCK_M, program * BLOCK_N, BLOCK_M, BLOCK_N)
        y, _, squares = _vector_sums(
            x, w, w, norm, m, n, M, N, K, stride_x, stride_w, stride_w, 0, BLOCK_K, offset, ahead,
            False, HAS_NORM, HAS_NORM_WEIGHT, False, BLOCK_K, OVERLAP,
        )  # fmt: skip
    else:
        wait_for_last(OVERLAP)
        m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        n = program * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        squares = y
        for start in range(0, K, BLOCK_K):
            y = _dotted(y, x, w, m, n, start, M, N, K, stride_x, stride_w, BLOCK_K, AS_FLOAT32)
    let_next_begin(OVERLAP)
    if HAS_COUNTER:
        count = tl.load(counter, mask=is_first, other=0) + 1
        tl.store(counter, count, mask=is_first)
    _stored(
        y, y, squares, bias, x, out, out, out, m, n, M, N, K, 0, False, 0, N_A + N_B + N_C, column,
        eps, "none", False, HAS_NORM, HAS_BIAS, False, 1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["ahead"])
def linear_tiled(
    x, w, w_up, bias, norm, residual, out, parts, part_squares, M, N, K,
    stride_x, stride_w, stride_u, stride_r, eps, offset, ahead,
    KIND: tl.constexpr, HAS_UP: tl.constexpr, HAS_NORM: tl.constexpr, HAS_NORM_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, AS_FLOAT32: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Products by ``tl.dot``. Inputs come normed; this one does not."""
    overlap(OVERLAP)
    split = tl.program_id(1)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(split * BLOCK_K, K, SPLITS * BLOCK_K):
        y = _dotted(y, x, w, m, n, start, M, N, K, stride_x, stride_w, BLOCK_K, AS_FLOAT32)
        if HAS_UP:
            up = _dotted(up, x, w_up, m, n, start, M, N, K, stride_x, stride_u, BLOCK_K, AS_FLOAT32)
    _stored(
        y, up, y, bias, residual, out, parts, part_squares, m, n, M, N, K, split, False,
        stride_r, N, 0, eps, KIND, HAS_UP, False, HAS_BIAS, HAS_RESIDUAL, SPLITS,
    )  # fmt: skip


@triton.jit
def linear_finish(
    parts, part_squares, bias, residual, out, M, N, K, stride_r, eps,
    KIND: tl.constexpr, HAS_UP: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add what the splits left, in their order."""
    overlap(OVERLAP)
    m = tl.program_id(1) + tl.arange(0, 1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.zeros([BLOCK], tl.float32)
    up = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([1], tl.float32)
    pairs = 2 if HAS_UP else 1
    for split in range(SPLITS):
        at = (split * pairs * M + m) * N + n
        y += tl.load(parts + at, mask=n < N, other=0.0)
        if HAS_UP:
            up += tl.load(parts + at + M * N, mask=n < N, other=0.0)
        if HAS_NORM:
            squares += tl.load(part_squares + split * M + m)
    root = tl.sqrt(squares / K + eps)
    y = _finished(y, up, root, bias, residual, m, n, M, N, stride_r, KIND, HAS_UP, HAS_NORM, HAS_BIAS, HAS_RESIDUAL)
    tl.store(out + m * N + n, y.to(out.dtype.element_ty), mask=n < N)
