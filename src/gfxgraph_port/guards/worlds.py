"""Worlds and values: what a condition is evaluated in, and what can come out.

True, False, None, a str      known
SOME                          known to be truthy and not None, value unknown
UNKNOWN                       anything
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gfxgraph_port.archs import Arch


class Mark(Enum):
    SOME = "some"
    UNKNOWN = "unknown"


SOME = Mark.SOME
UNKNOWN = Mark.UNKNOWN

Value = bool | str | None | Mark


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """One kind of device: an AMD architecture, or NVIDIA (``arch`` is None)."""

    arch: Arch | None

    def __hash__(self) -> int:
        return hash("" if self.arch is None else self.arch.name)

    @property
    def is_amd(self) -> bool:
        return self.arch is not None


NVIDIA = DeviceKind(None)


def truth(value: Value) -> bool | None:
    """Truthiness of a value; None when it is not known."""
    if value is UNKNOWN:
        return None
    if value is SOME:
        return True
    return bool(value)


def all_of(values: list[Value]) -> Value:
    """``and`` over values in any order: one false decides, whatever the others are."""
    truths = [truth(v) for v in values]
    if any(t is False for t in truths):
        return False
    if all(t is True for t in truths):
        return True
    return UNKNOWN


def any_of(values: list[Value]) -> Value:
    """``or`` over values in any order: one true decides."""
    truths = [truth(v) for v in values]
    if any(t is True for t in truths):
        return True
    if all(t is False for t in truths):
        return values[-1] if values and values[-1] is None else False
    return UNKNOWN


def negate(value: Value) -> Value:
    known = truth(value)
    return UNKNOWN if known is None else not known
