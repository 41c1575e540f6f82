"""What is unusual about a tensor's memory: broadcast, gaps, overlap, a storage that others share.

torch's own operations handle all of these. Kernels written for contiguous memory (Triton, extensions)
do not, and read or write outside the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Oddity(StrEnum):
    """One way in which a tensor differs from contiguous memory of its own."""

    BROADCAST = "broadcast"  # a dimension of stride 0: many elements are one
    OVERLAPPING = "overlapping"  # elements of different indices share bytes (unfold, as_strided)
    NEGATIVE = "negative stride"  # reversed, or negated or conjugated when its values are read
    GAPS = "gaps between its elements"
    PERMUTED = "not in row-major order"
    SHARED = "a part of a larger storage"


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """What `validate_layout` found.

    Attributes:
        tensor: what the caller calls it.
        layout: shape, strides, offset, dtype and device in one line.
        oddities: empty if the tensor is contiguous memory of its own.
    """

    tensor: str
    layout: str
    oddities: tuple[Oddity, ...]

    @property
    def is_safe(self) -> bool:
        return not self.oddities

    def __bool__(self) -> bool:
        return self.is_safe

    def __str__(self) -> str:
        found = ", ".join(self.oddities) or "plain memory of its own"
        return f"{self.tensor}: {found} ({self.layout})"


def oddities(
    size: Sequence[int], stride: Sequence[int], offset: int = 0, n_storage: int | None = None, is_lazy: bool = False
) -> tuple[Oddity, ...]:
    """Name what is unusual.

    Args:
        size: elements along each dimension.
        stride: elements to step along each.
        offset: elements before the first one in its storage.
        n_storage: how many elements the storage holds, None where that does not matter.
        is_lazy: values are to be negated or conjugated when read.
    """
    found = []
    n = math.prod(size)
    real = [(extent, step) for extent, step in zip(size, stride) if extent > 1] if n else []
    if any(step == 0 for _, step in real):
        found.append(Oddity.BROADCAST)
    if is_lazy or any(step < 0 for _, step in real):
        found.append(Oddity.NEGATIVE)
    steps = sorted((abs(step), extent) for extent, step in real if step != 0)
    reach, distinct = 0, 1  # over the dimensions so far: the position of the last element, and the number of elements
    overlaps = False
    for step, extent in steps:
        overlaps = overlaps or step <= reach
        reach += step * (extent - 1)
        distinct *= extent
    if overlaps:
        found.append(Oddity.OVERLAPPING)
    elif reach + 1 > distinct:
        found.append(Oddity.GAPS)
    positive = [step for _, step in real if step > 0]
    if positive != sorted(positive, reverse=True):
        found.append(Oddity.PERMUTED)
    if n_storage is not None and n and (offset != 0 or reach + 1 < n_storage - offset):
        found.append(Oddity.SHARED)
    return tuple(found)
