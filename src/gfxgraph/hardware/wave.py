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
from dataclasses import dataclass

from gfxgraph import config
from gfxgraph.config import WaveMode
from gfxgraph.hardware.device import DeviceInfo, device_info

MAX_WORKGROUP = 1024
_WAVES_PER_SIMD = 16  # RDNA2 and later; enough to hide latency is about half


@dataclass(frozen=True, slots=True)
class WavePlan:
    """How a wide wavefront is made from narrow ones.

    Attributes:
        lanes: lanes that the code wants.
        wavefront: lanes that the hardware runs.
        gang: wavefronts that stand for one wide one (W).
        block_threads: threads of the workgroup that holds whole gangs.
        gangs_per_block: gangs in one workgroup.
        lds_bytes: LDS for the merge: one value of each wavefront, a row for each gang.
        barriers: workgroup barriers of one merge; 0 where the hardware does it alone.
        blocks_per_cu: workgroups that LDS and the wavefront slots allow on one CU.
    """

    lanes: int
    wavefront: int
    gang: int
    block_threads: int
    gangs_per_block: int
    lds_bytes: int
    barriers: int
    blocks_per_cu: int


def plan(
    lanes: int = 64,
    block_threads: int = 0,
    value_nbytes: int = 4,
    device: DeviceInfo | None = None,
) -> WavePlan:
    """Plan gangs of wavefronts that act as ``lanes`` lanes.

    Args:
        lanes: 64 or 128 (any power of two from 32 to 1024).
        block_threads: threads of the block as the code has it; ``lanes`` where 0.
        value_nbytes: bytes of one merged value.
        device: the GPU; the detected (or GFXGRAPH_ARCH) one where None.

    Returns:
        The wavefronts of a gang, the gangs of a block, and what merging their values takes.

    Raises:
        ValueError: ``lanes`` is no power of two from 32 to 1024, or the block is too large.
    """
    if lanes < 32 or lanes > MAX_WORKGROUP or lanes & (lanes - 1):
        raise ValueError(f"lanes must be a power of two from 32 to {MAX_WORKGROUP}, not {lanes}")
    found = device or device_info()
    wavefront = found.wavefront or 32
    gang = max(1, math.ceil(lanes / wavefront))
    # Whole gangs only: a gang split over two workgroups could not meet at a barrier.
    unit = max(lanes, wavefront)
    threads = math.ceil(max(block_threads, 1) / unit) * unit
    if threads > MAX_WORKGROUP:
        raise ValueError(f"a block of {threads} threads is over the limit of {MAX_WORKGROUP}")
    gangs = threads // unit
    lds = gang * gangs * value_nbytes if gang > 1 else 0
    by_lds = (found.lds_kib or 64) * 1024 // lds if lds else MAX_WORKGROUP
    slots = _WAVES_PER_SIMD * (4 if wavefront == 64 else 2)
    return WavePlan(
        lanes=lanes,
        wavefront=wavefront,
        gang=gang,
        block_threads=threads,
        gangs_per_block=gangs,
        lds_bytes=lds,
        barriers=2 if gang > 1 else 0,  # before reading the partial values, and before writing the next
        blocks_per_cu=max(1, min(by_lds, slots // max(1, threads // wavefront))),
    )


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
    shape = plan(lanes, block_threads, device=found)
    what = (
        f"gang {shape.gang} wavefronts of {shape.wavefront} into {lanes} lanes, "
        f"{shape.block_threads} threads a block, merge through {shape.lds_bytes} bytes of LDS"
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
