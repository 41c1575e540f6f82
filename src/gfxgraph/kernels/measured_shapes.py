"""Sizes measured on NVIDIA GPUs, used instead of those that shapes.py derives; other GPUs use shapes.py's.

A layer uses the sizes of the measured layer that is nearest in outputs and inputs, with the same number of rows or
the next larger.

Enters: as in shapes.py.
Stays out: AMD's sizes, to which the committed table of code objects applies (tools/compiled_kernels.py).
Source: benchmarks/tune_layers.py and benchmarks/tune_kernels.py on an H200 (docs/decisions/kernels.md).
"""

from __future__ import annotations

import math
from dataclasses import replace

from gfxgraph.kernels import shapes
from gfxgraph.kernels.shapes import INTERPRETER, Attention, Linear, Target, power_of_two

AHEAD_NBYTES = 12 << 20
"""Smaller weights are prefetched, for one row. In a step with larger weights that took more time than it saved."""
ROOMY = ("sm_90", "sm_100", "sm_103")
"""Targets with 227 KiB of shared memory per workgroup; others have 99 or more."""
LEAST_INPUTS = 256
"""Layers with fewer inputs use shapes.py."""

ROWS = (1, 2, 4, 8, 32)
MEASURED: dict[tuple[int, bool], dict[tuple[int, int], tuple[bool, int, int, int, int, int]]] = {
    (1, False): {
        (1024, 1024): (True, 2, 1024, 1, 1, 0), (1024, 4096): (True, 2, 4096, 1, 4, 0),
        (1536, 1024): (True, 2, 1024, 1, 1, 0), (2048, 2048): (True, 2, 1024, 1, 1, 0),
        (2048, 8192): (True, 4, 2048, 1, 4, 0), (3072, 1024): (True, 4, 1024, 1, 4, 0),
        (3072, 2048): (True, 4, 1024, 1, 4, 0), (4096, 4096): (True, 4, 1024, 1, 4, 0),
        (4096, 16384): (True, 2, 1024, 1, 1, 0), (6144, 4096): (True, 4, 512, 1, 1, 0),
        (8192, 8192): (True, 2, 1024, 1, 1, 0), (8192, 32768): (True, 4, 1024, 1, 4, 0),
        (12288, 8192): (True, 4, 512, 1, 1, 0), (32000, 1024): (True, 4, 512, 1, 1, 0),
        (128256, 2048): (True, 4, 512, 1, 1, 0),
    },
    (1, True): {
        (2816, 1024): (True, 2, 512, 1, 1, 0), (4096, 1024): (True, 4, 512, 1, 1, 0),
        (8192, 2048): (True, 4, 256, 1, 1, 0), (16384, 4096): (True, 4, 256, 1, 1, 0),
        (32768, 8192): (True, 4, 256, 1, 1, 0),
    },
    (2, False): {
        (1024, 1024): (True, 1, 1024, 1, 2, 0), (1024, 4096): (False, 32, 128, 4, 4, 4),
        (1536, 1024): (True, 2, 512, 1, 2, 0), (2048, 2048): (False, 64, 128, 4, 4, 4),
        (2048, 8192): (False, 64, 128, 4, 4, 4), (3072, 2048): (True, 2, 256, 1, 1, 0),
        (4096, 4096): (False, 64, 128, 2, 4, 4), (4096, 16384): (False, 64, 128, 2, 4, 4),
        (6144, 4096): (False, 16, 128, 1, 2, 5), (8192, 8192): (False, 32, 128, 1, 2, 5),
        (8192, 32768): (False, 32, 128, 1, 2, 5), (12288, 8192): (False, 64, 128, 1, 4, 4),
        (32000, 1024): (False, 32, 256, 1, 4, 3), (128256, 2048): (False, 32, 256, 1, 4, 3),
    },
    (2, True): {
        (4096, 1024): (False, 32, 256, 1, 4, 4), (8192, 2048): (False, 32, 128, 1, 2, 5),
        (16384, 4096): (False, 64, 128, 1, 4, 4), (32768, 8192): (False, 32, 128, 1, 2, 5),
    },
    (4, False): {
        (1024, 1024): (True, 2, 1024, 1, 4, 0), (1024, 4096): (False, 32, 128, 4, 4, 4),
        (1536, 1024): (False, 16, 128, 1, 2, 5), (2048, 2048): (False, 64, 128, 4, 4, 4),
        (2048, 8192): (False, 64, 128, 4, 4, 4), (3072, 2048): (False, 32, 256, 1, 4, 4),
        (4096, 4096): (False, 64, 128, 2, 4, 4), (4096, 16384): (False, 64, 128, 2, 4, 4),
        (6144, 4096): (False, 16, 128, 1, 2, 5), (8192, 8192): (False, 32, 128, 1, 2, 5),
        (8192, 32768): (False, 32, 128, 1, 2, 5), (12288, 8192): (False, 64, 128, 1, 4, 4),
        (32000, 1024): (False, 32, 256, 1, 4, 3), (128256, 2048): (False, 32, 256, 1, 4, 3),
    },
    (4, True): {
        (4096, 1024): (False, 32, 128, 1, 2, 5), (8192, 2048): (False, 64, 128, 1, 4, 4),
        (16384, 4096): (False, 64, 128, 1, 4, 4), (32768, 8192): (False, 32, 256, 1, 4, 3),
    },
    (8, False): {
        (1024, 1024): (False, 16, 64, 8, 4, 3), (1024, 2816): (False, 32, 128, 4, 4, 4),
        (1024, 4096): (False, 32, 128, 4, 4, 4), (1536, 1024): (False, 16, 128, 1, 2, 5),
        (2048, 2048): (False, 64, 128, 4, 4, 4), (2048, 8192): (False, 64, 128, 4, 4, 4),
        (3072, 1024): (False, 16, 512, 1, 4, 3), (3072, 2048): (False, 32, 128, 1, 2, 5),
        (4096, 4096): (False, 32, 128, 2, 4, 4), (4096, 16384): (False, 32, 128, 2, 4, 4),
        (6144, 4096): (False, 16, 512, 1, 4, 3), (8192, 8192): (False, 32, 128, 1, 2, 5),
        (8192, 32768): (False, 32, 128, 1, 2, 5), (12288, 8192): (False, 16, 128, 1, 2, 5),
        (32000, 1024): (False, 32, 256, 1, 4, 3), (128256, 2048): (False, 32, 256, 1, 4, 3),
    },
    (8, True): {
        (2816, 1024): (False, 32, 256, 1, 4, 3), (4096, 1024): (False, 32, 256, 1, 4, 4),
        (8192, 2048): (False, 32, 128, 1, 2, 5), (16384, 4096): (False, 64, 128, 1, 4, 4),
        (32768, 8192): (False, 32, 128, 1, 2, 5),
    },
    (32, False): {
        (1024, 1024): (False, 64, 128, 4, 4, 4), (1024, 4096): (False, 16, 256, 2, 4, 3),
        (1536, 1024): (False, 32, 256, 1, 4, 4), (2048, 2048): (False, 64, 128, 4, 4, 4),
        (2048, 8192): (False, 64, 128, 4, 4, 4), (3072, 2048): (False, 16, 512, 1, 4, 3),
        (4096, 4096): (False, 32, 128, 4, 4, 4), (4096, 16384): (False, 32, 128, 4, 4, 4),
        (6144, 4096): (False, 32, 256, 1, 4, 4), (8192, 8192): (False, 32, 256, 1, 4, 4),
        (8192, 32768): (False, 32, 128, 4, 4, 4), (12288, 8192): (False, 32, 256, 1, 4, 3),
        (32000, 1024): (False, 32, 256, 1, 4, 3), (128256, 2048): (False, 32, 256, 1, 4, 3),
    },
    (32, True): {
        (4096, 1024): (False, 64, 128, 2, 4, 4), (8192, 2048): (False, 64, 128, 1, 4, 4),
        (16384, 4096): (False, 128, 128, 1, 8, 3), (32768, 8192): (False, 128, 128, 1, 8, 3),
    },
}  # fmt: skip
"""By rows and whether it is a gate; by outputs and inputs: vector instructions or not, then as in `Linear`.

For two models' layers these gave the fastest steps; the others were measured separately.
"""


def linear(m: int, n: int, k: int, target: Target, *, is_pair: bool = False, is_half: bool = True) -> Linear:
    """Like `shapes.linear`."""
    if not _is_nvidia(target):
        return shapes.linear(m, n, k, target, is_pair=is_pair, is_half=is_half)
    how = shapes.linear(m, n, k, target, is_pair=is_pair, is_half=is_half)
    # Rows by vector instructions need hardly any shared memory, tiles up to 220 KiB.
    if is_half and k >= LEAST_INPUTS and (m == 1 or target.name in ROOMY):
        how = _nearest(m, n, k, is_pair)
    return fetching_ahead(how, n, k, is_pair=is_pair, is_half=is_half)


def _nearest(m: int, n: int, k: int, is_pair: bool) -> Linear:
    rows = next((rows for rows in ROWS if m <= rows), ROWS[-1])
    points = MEASURED[rows, is_pair]
    at = min(points, key=lambda at: abs(math.log(n / at[0])) + abs(math.log(k / at[1])))
    is_vector, block_n, block_k, splits, warps, stages = points[at]
    block_m = power_of_two(m) if is_vector else min(max(16, power_of_two(m)), shapes.MOST_ROWS)
    return Linear(is_vector, block_m, block_n, min(block_k, power_of_two(k)), splits, warps, stages)


def fetching_ahead(how: Linear, n: int, k: int, *, is_pair: bool = False, is_half: bool = True) -> Linear:
    """The same sizes, with weights prefetched if they are smaller than `AHEAD_NBYTES`."""
    nbytes = n * k * (2 if is_half else 4) * (1 + is_pair)
    is_ahead = how.block_m == 1 and nbytes < AHEAD_NBYTES
    return replace(how, ahead=-(-n // how.block_n) if is_ahead else 0)


def attention(
    batch: int, heads: int, shared: int, length: int, width: int, target: Target, *, is_half: bool = True
) -> Attention:
    """Like `shapes.attention`."""
    usual = shapes.attention(batch, heads, shared, length, width, target, is_half=is_half)
    if not _is_nvidia(target):
        return usual
    group, n = power_of_two(heads // shared), batch * shared
    if not is_half or usual.width < 16:
        block = max(4, min(128, 8192 // (group * usual.width)))
        return replace(usual, group=group, block=block, num_warps=8, is_dot=False)
    splits, block, warps = 1, 64, 4
    if length < 2 * shapes.LEAST_KEYS:
        # In a step, 256 keys: 128 took 0.96 of the time of 64 for 16 workgroups, 32 took 0.69 for 128.
        if n >= 64:
            block = 32
        elif group == 1:
            block, warps = 128, 8
    else:
        while splits < 16 and n * splits < 3 * target.n_units and splits * 128 <= length:
            splits *= 2
    # Two blocks of keys and of values are in flight: 10.4 bytes of shared memory per element.
    block = max(16, min(block, (16384 if target.name in ROOMY else 8192) // usual.width))
    return replace(usual, group=max(group, 16), block=block, splits=splits, num_warps=warps, is_dot=True)


def _is_nvidia(target: Target) -> bool:
    return not target.name.startswith("gfx") and target.name != INTERPRETER
