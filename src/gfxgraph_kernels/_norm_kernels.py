"""Triton: layer norm and RMS norm, one program a row; and what every kernel begins with.

Sums are float32; a row is held in registers.
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
def norm_forward(
    x, weight, bias, y, n, stride_x, eps, offset,
    IS_RMS: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """y[row] = norm(x[row]) * (weight + offset) + bias."""
    overlap(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride_x + at, mask=at < n, other=0.0).to(tl.float32)
    if not IS_RMS:
        v = tl.where(at < n, v - tl.sum(v, axis=0) / n, 0.0)
    v = v / tl.sqrt(tl.sum(v * v, axis=0) / n + eps)
    if HAS_WEIGHT:
        v = v * (tl.load(weight + at, mask=at < n, other=0.0).to(tl.float32) + offset)
    if HAS_BIAS:
        v = v + tl.load(bias + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row * n + at, v.to(y.dtype.element_ty), mask=at < n)
