"""hardware.wave: when 32-lane wavefronts are ganged."""

import pytest

from gfxgraph.hardware.device import DeviceInfo
from gfxgraph.hardware.wave import should_convert

NAVI = DeviceInfo(arch="gfx1030", wavefront=32, cu=60, simds=120, max_waves_per_simd=16, lds_kib=64)
MI300X = DeviceInfo(arch="gfx942", wavefront=64, cu=304, simds=1216, max_waves_per_simd=8, lds_kib=64)


@pytest.mark.parametrize(
    "environ, block, grid, device, apply, words",
    [
        (
            {"GFXGRAPH_WAVE": "auto"},
            32,
            16,
            NAVI,
            True,
            "gang 2 wavefronts of 32 into 64 lanes, 64 threads",
        ),
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
