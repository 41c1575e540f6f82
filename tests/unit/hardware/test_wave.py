"""hardware.wave: when 32-lane wavefronts are ganged, and the arithmetic of it."""

import pytest

from gfxgraph.hardware.device import DeviceInfo
from gfxgraph.hardware.wave import plan, should_convert

NAVI = DeviceInfo(arch="gfx1030", wavefront=32, cu=60, simds=120, max_waves_per_simd=16, lds_kib=64)
MI300X = DeviceInfo(arch="gfx942", wavefront=64, cu=304, simds=1216, max_waves_per_simd=8, lds_kib=64)


@pytest.mark.parametrize(
    "lanes, block, gang, threads, gangs, lds",
    [
        (64, 0, 2, 64, 1, 8),
        (64, 256, 2, 256, 4, 32),
        (128, 128, 4, 128, 1, 16),
        (128, 200, 4, 256, 2, 32),
        (32, 64, 1, 64, 2, 0),
    ],
)
def test_gangs_of_wave32(lanes, block, gang, threads, gangs, lds):
    """W wavefronts a gang, whole gangs a block, one LDS value a wavefront."""
    found = plan(lanes, block, device=NAVI)
    assert (found.gang, found.block_threads, found.gangs_per_block, found.lds_bytes) == (gang, threads, gangs, lds)
    assert found.barriers == (2 if gang > 1 else 0)


def test_hardware_that_has_the_width_needs_no_gang():
    """wave64 on CDNA is the hardware's own; 128 lanes need two."""
    assert (plan(64, device=MI300X).gang, plan(64, device=MI300X).lds_bytes) == (1, 0)
    assert plan(128, device=MI300X).gang == 2


def test_occupancy_is_bounded_by_slots_and_lds():
    """A block of 1024 threads takes all 32 wavefront slots; large values run into LDS."""
    assert plan(64, 1024, device=NAVI).blocks_per_cu == 1
    assert plan(64, 64, value_nbytes=16384, device=NAVI).blocks_per_cu == 2


@pytest.mark.parametrize("lanes, block", [(48, 0), (16, 0), (2048, 0), (64, 2000)])
def test_impossible_plans_are_refused(lanes, block):
    """Only powers of two from 32 to 1024, and blocks up to the limit."""
    with pytest.raises(ValueError):
        plan(lanes, block, device=NAVI)


@pytest.mark.parametrize(
    "environ, block, grid, device, apply, words",
    [
        ({"GFXGRAPH_WAVE": "auto"}, 32, 16, NAVI, True, "gang 2 wavefronts of 32"),
        ({}, 32, 16, NAVI, False, "GFXGRAPH_WAVE=detect, would gang 2"),
        ({"GFXGRAPH_WAVE": "off"}, 32, 16, NAVI, False, "GFXGRAPH_WAVE=off"),
        ({"GFXGRAPH_WAVE": "auto", "GFXGRAPH_NO_WAVE": "1"}, 32, 16, NAVI, False, "GFXGRAPH_NO_WAVE"),
        ({"GFXGRAPH_WAVE": "auto"}, 256, 16, NAVI, False, "gangs wavefronts already"),
        ({"GFXGRAPH_WAVE": "auto"}, 32, 100_000, NAVI, False, "fills the GPU already"),
        ({"GFXGRAPH_WAVE": "auto"}, 64, 16, MI300X, False, "runs 64 lanes"),
        ({"GFXGRAPH_WAVE": "auto"}, 32, 16, DeviceInfo(), False, "no AMD GPU known"),
    ],
)
def test_should_convert(monkeypatch, environ, block, grid, device, apply, words):
    """It stays out of the way where the code, the grid, the hardware or the user says so."""
    for name in ("GFXGRAPH_WAVE", "GFXGRAPH_NO_WAVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = should_convert(block, grid, device=device)
    assert found[0] is apply and words in found[1]
