"""The runtime half: attention tiers agree, FP8 follows the architecture, visibility variables agree."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gfxgraph_port.rocm import (  # noqa: E402, I001
    attention,
    attention_tiers,
    fp8_dtype,
    fp8_max,
    set_visible_devices,
    to_fnuz,
    visible_devices,
)
from gfxgraph_port.rocm.visible_devices import VisibleDevicesError  # noqa: E402


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("lengths", [(5, 5), (1, 7), (3, 7)])
@pytest.mark.parametrize("masked", [False, True])
def test_tiers_agree(causal: bool, kv_heads: int, lengths: tuple[int, int], masked: bool) -> None:
    """Plain PyTorch and torch's own attention give the same result for every kind of call."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 4, lengths[0], 16, generator=generator)
    k, v = (torch.randn(2, kv_heads, lengths[1], 16, generator=generator) for _ in range(2))
    mask = torch.rand(2, 1, *lengths, generator=generator) > 0.3 if masked else None
    if mask is not None:
        mask[..., -1] = mask[..., 0] = True
    a = attention(q, k, v, causal=causal, mask=mask, tier="plain")
    b = attention(q, k, v, causal=causal, mask=mask, tier="sdpa")
    assert torch.allclose(a, b, atol=1e-5, equal_nan=True)


def test_library_tier_is_used_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed library comes first where the architecture has matrix units."""
    assert attention_tiers("gfx942")[-2:] == ("sdpa", "plain")
    monkeypatch.setattr("gfxgraph_port.rocm.attend._library", lambda: ("fake", None))
    assert attention_tiers("gfx942")[0] == "library"
    assert attention_tiers("gfx1030")[0] == "sdpa"  # RDNA2 has no matrix units


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        attention(torch.zeros(1, 3, 2, 4), torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, 4))
    with pytest.raises(ValueError, match="not one of"):
        attention(torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, 4), tier="fast")


def test_fp8_by_architecture() -> None:
    """fnuz on gfx94x only; gfx950, gfx12 and NVIDIA take the OCP type."""
    assert fp8_dtype(arch="gfx942") == torch.float8_e4m3fnuz and fp8_max(arch="gfx942:sramecc+") == 240
    for arch in ("gfx950", "gfx1201", "gfx1250", "gfx1030", ""):
        assert fp8_dtype(arch=arch) == torch.float8_e4m3fn
    assert fp8_dtype("e5m2", arch="gfx941") == torch.float8_e5m2fnuz


def test_fp8_of_the_gpu_that_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """GFXGRAPH_ARCH stands for the device, as everywhere."""
    monkeypatch.setenv("GFXGRAPH_ARCH", "gfx942")
    assert fp8_dtype() == torch.float8_e4m3fnuz


def test_stored_weights_keep_their_value() -> None:
    """Reading OCP bytes as fnuz with twice the scale gives the same numbers, and no NaN for -0.0."""
    weight = torch.tensor([1.0, -2.5, 448.0, 0.0, -0.0]).to(torch.float8_e4m3fn)
    moved, scale = to_fnuz(weight, torch.tensor(0.5))
    assert torch.equal(moved.float() * scale, weight.float() * 0.5)


def test_visible_devices() -> None:
    """Both variables are set together; disagreement is an error; empty counts as not set."""
    environ = {"HIP_VISIBLE_DEVICES": ""}
    assert visible_devices(environ) is None
    set_visible_devices([1, 0], environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == environ["HIP_VISIBLE_DEVICES"] == "1,0"
    environ["CUDA_VISIBLE_DEVICES"] = "0"
    with pytest.raises(VisibleDevicesError, match="visible-devices-conflict"):
        visible_devices(environ)
    with pytest.raises(VisibleDevicesError, match="leaves 1"):
        set_visible_devices([1], {"ROCR_VISIBLE_DEVICES": "3"})
