"""Illegal memory accesses: layouts, faults, red zones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gfxgraph import config, torch_names
from gfxgraph.core.strides import Oddity
from gfxgraph.errors import ActivationError, GfxGraphFault
from gfxgraph.guard import layout, redzones
from gfxgraph.guard.localize import is_illegal_access
from gfxgraph.guard.localize import named_fault as localize_fault
from gfxgraph.process import process
from gfxgraph.startup import sanitizer

__all__ = [
    "GfxGraphFault", "RedZone", "apply_deep_guard_env", "compute_sanitizer_cmd", "deep_guard_env", "guard_level",
    "is_illegal_access", "localize_fault", "make_capture_safe", "make_safe", "validate_layout",
]  # fmt: skip

_WORDS = {
    Oddity.BROADCAST: "broadcast/0-stride view",
    Oddity.OVERLAPPING: "non-contiguous, elements share memory",
    Oddity.NEGATIVE: "negative stride",
    Oddity.GAPS: "non-contiguous, with gaps",
    Oddity.PERMUTED: "non-contiguous, not in row-major order",
}


def guard_level() -> int:
    """The tier as a number, 0 to 3: what GFXGRAPH_GUARD says now, else the process's."""
    if config.variables(["GFXGRAPH_GUARD"]):
        return int(config.load().guard)
    state = process.current()
    return int(state.settings.guard) if state is not None else 0


def validate_layout(t: object, name: str = "tensor") -> list[str]:
    """What is unsafe about a tensor's strides.

    A contiguous part of a larger storage is safe here, as in 1.1.0; ``gfxgraph.validate_layout`` names it, too.

    Args:
        t: a tensor; anything else is safe.
        name: what it is called in the lines.

    Returns:
        A line for each thing that is unsafe; empty where nothing is.
    """
    if not isinstance(t, Tensor):
        return []
    found = layout.validate_layout(t, name)
    return [f"{name}: {_WORDS[each]} (stride={tuple(t.stride())})" for each in found.oddities if each in _WORDS]


def make_safe(t: object, name: str = "tensor") -> tuple[object, bool]:
    """A tensor with safe strides.

    Args:
        t: a tensor; other values are handed back.
        name: has no effect; 1.1.0 took it.

    Returns:
        The tensor, and whether it had to be copied.
    """
    if not validate_layout(t, name):
        return t, False
    return layout.make_safe(t), True


def make_capture_safe(obj: object) -> tuple[object, int]:
    """``obj`` with every tensor in it made safe, and how many were copied."""
    n_copied = 0

    def safe(tensor: Tensor) -> Tensor:
        nonlocal n_copied
        result, was_copied = make_safe(tensor)
        n_copied += was_copied
        return result

    return torch_names.tree_map_only(Tensor, safe, obj), n_copied


def deep_guard_env() -> dict[str, str]:
    """Variables with which a fault shows at the allocation that it leaves: without torch's caching of memory.

    With it torch captures no graphs. Tier 3 does without it; it is for eager runs.
    """
    return {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def apply_deep_guard_env() -> list[str]:
    """Set those of ``deep_guard_env`` that are not set, for this process; return what was set, as ``NAME=value``."""
    return [f"{name}={value}" for name, value in deep_guard_env().items() if config.set_default(name, value)]


def compute_sanitizer_cmd(argv: Sequence[str]) -> list[str] | None:
    """A command line under the platform's memory checker.

    Args:
        argv: the command line.

    Returns:
        The longer one; None where there is no checker.
    """
    try:
        return sanitizer.compute_sanitizer_cmd(argv)
    except ActivationError:
        return None


class RedZone:
    """A tensor with zones around it that must not be written.

    Args:
        shape: of the tensor.
        dtype: of its elements.
        device: where it lies.
        pad_elems: elements of each zone, at least.

    Attributes:
        tensor: to work on.
        pad: elements of each zone, at least ``pad_elems``.
    """

    SENTINEL = redzones.PATTERN

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str, pad_elems: int = 128
    ) -> None:
        self._zone = redzones.RedZone(shape, dtype, device, int(pad_elems) * dtype.itemsize)
        self.tensor = self._zone.tensor
        self.pad = self._zone.n_pad
        self._n = self.tensor.numel()
        # all of it, zones included: what a kernel that leaves its bounds would write to
        self._flat = self._zone.whole()

    def check_intact(self) -> bool:
        """Whether both zones are as they were; says on the log where they are not."""
        found = self._zone.overruns()
        for offset, n_changed in found:
            process.log.error(
                "red zone overwritten: %d bytes, the nearest at byte %d of a tensor of %d bytes",
                n_changed,
                offset,
                self.tensor.nbytes,
            )
        return not found

    def reset(self) -> None:
        """Write both zones anew."""
        self._zone.arm()
