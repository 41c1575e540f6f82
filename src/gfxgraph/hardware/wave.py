"""Planning for code that wants 64 or 128 lanes on a GPU that runs 32.

Problem: CDNA and GCN run 64 lanes a wavefront, RDNA under HIP runs 32 (-mwavefrontsize64 is refused
there). Code written for the wider one loses its reductions across lanes.

Idea: a gang. W wavefronts of 32 lanes in one workgroup stand for one of 32*W lanes; what used to
be a cross-lane step becomes two: within each wavefront, then one merge of W partial results
through LDS with a barrier. This module does the arithmetic and says whether it is worth it; it
rewrites no kernel.

Not worth it where the code already gangs (its block is larger than a wavefront), where the grid
fills the GPU without, or where the hardware has the width itself.
"""

from __future__ import annotations

import math

from gfxgraph import config
from gfxgraph.config import WaveMode
from gfxgraph.hardware.device import DeviceInfo, device_info

_WAVES_PER_SIMD = 16  # RDNA2 and later; enough to hide latency is about half


def should_convert(
    block_threads: int, grid_blocks: int, *, lanes: int = 64, device: DeviceInfo | None = None
) -> tuple[bool, str]:
    """Say whether software wave64/128 should be applied to a launch, and why or why not.

    Args:
        block_threads: threads of one block of the launch.
        grid_blocks: blocks of the launch.
        lanes: width that the code wants, 64 or 128.
        device: the GPU; the detected (or GFXGRAPH_ARCH) one where None.

    Returns:
        (apply, reason). With GFXGRAPH_WAVE=detect, the default, apply is False and the reason says
        what would be done; GFXGRAPH_WAVE=auto applies it.
    """
    settings = config.load()
    if settings.no_wave:
        return False, "GFXGRAPH_NO_WAVE is set"
    if settings.wave is WaveMode.OFF:
        return False, "GFXGRAPH_WAVE=off"
    found = device or device_info()
    if not found.arch:
        return False, "no AMD GPU known: set GFXGRAPH_ARCH"
    if found.wavefront >= lanes:
        return False, f"{found.arch} runs {found.wavefront} lanes a wavefront itself"
    if block_threads > found.wavefront:
        return (
            False,
            f"the launch gangs wavefronts already: {block_threads} threads a block, over {found.wavefront}",
        )
    full = _blocks_that_fill(found, block_threads)
    if full and grid_blocks >= full:
        return False, f"the grid fills the GPU already: {grid_blocks} blocks, {full} run at once"
    width = found.wavefront or 32
    gang = lanes // width
    threads = math.ceil(max(block_threads, 1) / lanes) * lanes
    what = (
        f"gang {gang} wavefronts of {width} into {lanes} lanes, "
        f"{threads} threads a block, merge through {4 * threads // width} bytes of LDS"
    )
    if settings.wave is WaveMode.DETECT:
        return False, f"GFXGRAPH_WAVE=detect, would {what}"
    return True, what


def _blocks_that_fill(found: DeviceInfo, block_threads: int) -> int:
    """Blocks that occupy every SIMD at half its slots, from where more only queue; 0 where unknown."""
    simds = found.simds or found.cu * (4 if found.wavefront == 64 else 2)
    waves = math.ceil(max(block_threads, 1) / found.wavefront)
    slots = found.max_waves_per_simd or _WAVES_PER_SIMD
    return simds * slots // 2 // waves
