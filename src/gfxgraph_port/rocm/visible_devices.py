"""Visible devices: HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES kept in agreement.

HIP reads both, engines compare them, and torch fixes the list when it first asks the device; so set them
once, early, and together. ROCR_VISIBLE_DEVICES filters before either and renumbers, and is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence

NAMES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class VisibleDevicesError(ValueError):
    """The variables disagree, or were set too late."""


def visible_devices(environ: MutableMapping[str, str]) -> list[str] | None:
    """Which devices the environment leaves visible.

    Args:
        environ: usually ``os.environ``.

    Returns:
        Indices or UUIDs, as written; None where no variable is set. An empty one counts as not set.

    Raises:
        VisibleDevicesError: the variables disagree.
    """
    found = {name: _split(environ[name]) for name in NAMES if environ.get(name)}
    if len(set(map(tuple, found.values()))) > 1:
        shown = ", ".join(f"{k}={environ[k]}" for k in found)
        raise VisibleDevicesError(f"visible-devices-conflict: {shown}; set one, or make them equal")
    return next(iter(found.values()), None)


def set_visible_devices(devices: Sequence[int | str], environ: MutableMapping[str, str]) -> None:
    """Set both variables.

    Args:
        devices: indices or UUIDs.
        environ: usually ``os.environ``.

    Raises:
        VisibleDevicesError: torch has started the runtime already, or ROCR_VISIBLE_DEVICES leaves too few.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise VisibleDevicesError("visible-devices-late: the GPU runtime runs already; set them earlier")
    rocr = _split(environ.get("ROCR_VISIBLE_DEVICES", ""))
    beyond = [d for d in map(str, devices) if rocr and d.isdigit() and int(d) >= len(rocr)]
    if beyond:
        raise VisibleDevicesError(
            f"visible-devices-conflict: ROCR_VISIBLE_DEVICES leaves {len(rocr)}, asked for {', '.join(beyond)}"
        )
    value = ",".join(map(str, devices))
    for name in NAMES:
        environ[name] = value


def _split(value: str) -> list[str]:
    return [p.strip() for p in value.split(",") if p.strip()]
