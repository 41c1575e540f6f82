"""FP8 by architecture.

gfx940 to gfx942 read FP8 bytes in the fnuz encodings: the exponent bias differs by one, so the same bits mean
half the value, the byte of -0.0 is NaN, and the largest e4m3 value is 240. gfx950, gfx12 and NVIDIA use
the OCP encodings. Never chosen from the vendor, never asked at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gfxgraph import config
from gfxgraph.hardware.architectures import architecture

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def arch_name(device: int | None = None) -> str:
    """The gfx name of a device, without its features; "" on NVIDIA or without a device. GFXGRAPH_ARCH goes first.

    Args:
        device: its index; the current one where None.
    """
    # lazily: devices are chosen before torch is loaded
    import torch

    if (asked := config.load().arch) or not torch.version.hip or not torch.cuda.is_available():
        return asked
    found = torch.cuda.get_device_properties(torch.cuda.current_device() if device is None else device)
    return str(found.gcnArchName).split(":")[0]


def fp8_dtype(kind: str = "e4m3", *, arch: str | None = None, device: int | None = None) -> torch.dtype:
    """The FP8 type a device computes in.

    Args:
        kind: ``"e4m3"`` or ``"e5m2"``.
        arch: a gfx name; the device is asked where None.
        device: its index; the current one where None.

    Returns:
        The fnuz form on CDNA 3, OCP's elsewhere.

    Raises:
        ValueError: another kind.
    """
    # lazily: devices are chosen before torch is loaded
    import torch

    if kind not in ("e4m3", "e5m2"):
        raise ValueError(f"kind {kind!r} is neither 'e4m3' nor 'e5m2'")
    row = architecture(arch_name(device) if arch is None else arch)
    if row is not None and row.fp8 == "fnuz":
        return torch.float8_e4m3fnuz if kind == "e4m3" else torch.float8_e5m2fnuz
    return torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2


def fp8_max(kind: str = "e4m3", *, arch: str | None = None, device: int | None = None) -> float:
    """The largest finite value of ``fp8_dtype``: 240 where e4m3 is fnuz, 448 elsewhere.

    Args:
        kind: ``"e4m3"`` or ``"e5m2"``.
        arch: a gfx name; the device is asked where None.
        device: its index; the current one where None.

    Raises:
        ValueError: another kind.
    """
    # lazily: devices are chosen before torch is loaded
    import torch

    return float(torch.finfo(fp8_dtype(kind, arch=arch, device=device)).max)


def to_fnuz(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Read stored OCP e4m3 weights on a fnuz device: same bytes, -0.0 cleared, scale doubled.

    Args:
        weight: any shape, float8_e4m3fn.
        scale: any shape that broadcasts to the weight's; the factor that turns stored values into real ones.

    Returns:
        The weight as float8_e4m3fnuz and its scale, in their shapes; ``weight * scale`` is unchanged.

    Raises:
        ValueError: another dtype.
    """
    # lazily: devices are chosen before torch is loaded
    import torch

    if weight.dtype != torch.float8_e4m3fn:
        raise ValueError(f"to_fnuz takes float8_e4m3fn, not {weight.dtype}")
    raw = weight.view(torch.int8)
    cleared = torch.where(raw == -128, torch.zeros_like(raw), raw)
    return cleared.view(torch.float8_e4m3fnuz), scale * 2.0
