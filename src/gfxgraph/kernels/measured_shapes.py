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
    # 64 keys and four warps took 3.4 us for 16 heads of one query, 128 and eight 4.1, no dot 8.9.
    if is_half and usual.width >= 16:
        return replace(usual, group=max(group, 16), block=64, num_warps=4, is_dot=True)
    return replace(
        usual, group=group, block=max(4, min(128, 8192 // (group * usual.width))), num_warps=8, is_dot=False
    )


def _is_nvidia(target: Target) -> bool:
    return not target.name.startswith("gfx") and target.name != INTERPRETER
