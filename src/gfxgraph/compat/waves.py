"""Software wave64 and wave128: whether, and how."""

from __future__ import annotations

import re

from gfxgraph import config
from gfxgraph.compat.diagnosis import Diagnosis, explain
from gfxgraph.config import WaveMode
from gfxgraph.hardware.chosen_device import device_info

__all__ = ["detect_wave64", "plan_software_wave", "should_convert", "wave_mode"]

_WANTS_WIDE = re.compile(
    r"wave(front)?[ _-]?(size)?[ _=-]{0,4}(64|128)\b|wavefront.{0,40}\b(64|128)\b|warpsize\s*={1,2}\s*64\b",
    re.IGNORECASE,
)
_LANES, _CU = 32, 20
"""Where no GPU is known: an RDNA2 card of 20 dual units."""
_BLOCKS_PER_CU = 32
_MODES = {WaveMode.OFF: 0, WaveMode.DETECT: 1, WaveMode.AUTO: 2}


def wave_mode() -> int:
    """GFXGRAPH_WAVE as a number: 0 off, 1 detect, 2 auto."""
    return _MODES[config.load().wave]


def detect_wave64(text: str) -> Diagnosis | None:
    """The diagnosis `wave64_ignored` if 64 or 128 lanes are requested.

    Args:
        text: flags, source or a log.

    Returns:
        The diagnosis; None where nothing asks for them.
    """
    return explain("mwavefrontsize64") if text and _WANTS_WIDE.search(text) else None


def _device(lanes: int | None, cu: int | None) -> tuple[int, int]:
    if lanes is not None and cu is not None:
        return lanes, cu
    found = device_info()
    return lanes or found.wavefront or _LANES, cu or found.cu or _CU


def should_convert(
    block_threads: int, grid_blocks: int, *, lanes: int | None = None, cu: int | None = None
) -> tuple[bool, str]:
    """Whether a launch gains from ganged wavefronts, and why or why not.

    Args:
        block_threads: threads of one block.
        grid_blocks: blocks of the launch.
        lanes: of the hardware's wavefront; the detected GPU's where None.
        cu: compute units; likewise.

    Returns:
        (apply, reason).
    """
    settings = config.load()
    wide, units = _device(lanes, cu)
    if settings.wave is WaveMode.OFF:
        return False, "GFXGRAPH_WAVE=off"
    if settings.no_wave:
        return False, "GFXGRAPH_NO_WAVE is set"
    if block_threads > wide:
        return False, f"the launch gangs wavefronts already: {block_threads} threads a block, over {wide}"
    if grid_blocks >= units * _BLOCKS_PER_CU:
        return False, f"the grid fills the GPU already: {grid_blocks} blocks on {units} compute units"
    return True, f"{grid_blocks} blocks of one wavefront leave {units} compute units idle"


def plan_software_wave(
    total_rows: int,
    target_width: int = 64,
    *,
    lanes: int | None = None,
    cu: int | None = None,
    min_rows_per_lane: int = 8,
    max_kv_len: int | None = None,
) -> dict[str, int | bool | str]:
    """Plan a launch in which a gang of wavefronts stands for one of ``target_width`` lanes.

    Args:
        total_rows: independent pieces of work, a block each.
        target_width: lanes wanted.
        lanes, cu: the hardware's; the detected GPU's where None.
        min_rows_per_lane: with ``max_kv_len``, the least that each wavefront must have to do.
        max_kv_len: length of what is reduced.

    Returns:
        ``W`` wavefronts in a gang, ``block`` threads, ``grid`` blocks, ``lanes``, ``emulated_width``, ``underfilled``
        (the GPU has room), ``note``. W is 1 where the grid fills the GPU as it is.
    """
    wide, units = _device(lanes, cu)
    has_room = total_rows < units * _BLOCKS_PER_CU
    gang = max(1, round(target_width / wide)) if has_room else 1
    while gang > 1 and max_kv_len is not None and max_kv_len < min_rows_per_lane * gang:
        gang //= 2
    what = f"{gang} wavefronts of {wide} lanes a block, merged through LDS" if gang > 1 else f"plain wave{wide}"
    return {
        "W": gang,
        "block": wide * gang,
        "grid": int(total_rows),
        "lanes": wide,
        "emulated_width": wide * gang,
        "underfilled": has_room,
        "note": what if has_room else f"{what}: {total_rows} blocks fill {units} compute units",
    }
