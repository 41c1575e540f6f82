"""Sizes measured on NVIDIA's GPUs, in place of those that shapes.py argues; for others it is shapes.py's.

Enters: as in shapes.py.
Stays out: AMD's sizes, which the committed table of code objects holds for (objects.source_digest).
Source: benchmarks/tune_kernels.py on an H200, in captured steps of two models; benchmarks/results/kernels_h200.json.
"""

from __future__ import annotations

from dataclasses import replace

from gfxgraph.kernels import shapes
from gfxgraph.kernels.shapes import INTERPRETER, Attention, Linear, Target, power_of_two

AHEAD_NBYTES = 16 << 20
"""Of a weight, at most, before the kernel begins: more pushes out what the kernel before still reads."""

ROOMY = ("sm_90", "sm_100", "sm_103")
"""Those with 227 KiB of shared memory for a workgroup; others have 99 or more."""


def linear(m: int, n: int, k: int, target: Target, *, is_pair: bool = False, is_half: bool = True) -> Linear:
    """As `shapes.linear`."""
    if not _is_nvidia(target):
        return shapes.linear(m, n, k, target, is_pair=is_pair, is_half=is_half)
    return fetching_ahead(_linear(m, n, k, target, is_pair, is_half), n, k, is_pair=is_pair, is_half=is_half)


def fetching_ahead(how: Linear, n: int, k: int, *, is_pair: bool = False, is_half: bool = True) -> Linear:
    """The same, with as many workgroups fetching ahead as `AHEAD_NBYTES` allow."""
    nbytes = how.block_n * k * (2 if is_half else 4) * (1 + is_pair)
    return replace(how, ahead=min(-(-n // how.block_n), AHEAD_NBYTES // max(nbytes, 1)))


def _linear(m: int, n: int, k: int, target: Target, is_pair: bool, is_half: bool) -> Linear:
    if m != 1 or k < 512:
        return shapes.linear(m, n, k, target, is_pair=is_pair, is_half=is_half)
    # One warp, or 64 elements a lane of four: lanes of one are added without a barrier, all workgroups are underway.
    if 2048 < n < 4096 and not is_pair and k <= 2048:
        return Linear(True, 1, 4, 1024, 1, 4)
    if n < 4096 and k > 2048:
        deep = 4096 if k <= 4096 else 2048
        return Linear(True, 1, 8192 // deep, deep, 1, 4)
    if n <= 2048 and not is_pair:
        return Linear(True, 1, 2, min(power_of_two(k), 1024), 1, 1)
    return Linear(True, 1, 4 if n >= 4096 else 2, 256 if is_pair and n >= 4096 else 512, 1, 1)


def attention(
    batch: int, heads: int, shared: int, length: int, width: int, target: Target, *, is_half: bool = True
) -> Attention:
    """As `shapes.attention`."""
    usual = shapes.attention(batch, heads, shared, length, width, target, is_half=is_half)
    if not _is_nvidia(target):
        return usual
    group = power_of_two(heads // shared)
    if not is_half or usual.width < 16:
        block = max(4, min(128, 8192 // (group * usual.width)))
        return replace(usual, group=group, block=block, num_warps=8, is_dot=False)
    # In a step 128 keys took 0.96 of the time of 64 for one sequence of 16 heads, 32 took 0.75 for eight of them;
    # where four heads share keys, 64 by eight warps.
    if batch * shared * usual.splits >= target.n_units // 2:
        block, warps = 32, 4
    else:
        block, warps = (128, 8) if group == 1 else (64, 8)
    # Two blocks of keys and of values are underway: 10.4 bytes an element of shared memory.
    held = 16384 if target.name in ROOMY else 8192
    block = max(16, min(block, held // usual.width))
    return replace(usual, group=max(group, 16), block=block, num_warps=warps, is_dot=True)


def _is_nvidia(target: Target) -> bool:
    return not target.name.startswith("gfx") and target.name != INTERPRETER
