"""The one table of operations that no GPU graph can record.

CUDA refuses most of them inside a capture, which ends it. HIP, depending on the version, refuses some, runs some
at once and records nothing. The recorder asks this table before an operation runs, so both
platforms behave alike. Operations missing here are still caught: by torch's own check for hidden
synchronization, and afterwards because the capture has ended.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    """Why a graph cannot hold the operation."""

    HOST_READ = "a value read by the host"
    DYNAMIC_SHAPE = "a shape that depends on data"
    HOST_COPY = "a copy from or to pageable host memory"
    SYNC = "a wait for the device"
    GENERATOR = "a random generator not registered with the graph"
    NOT_RECORDED = "work that the runtime runs at once instead of recording"


class When(StrEnum):
    """Which calls of the operation are unsafe."""

    ALWAYS = "always"
    CROSSES_DEVICE = "host and device tensors meet, unless pinned and non-blocking"
    HOST_OR_MASK_INDEX = "an index is a mask or lives on the host"
    NO_OUTPUT_SIZE = "output_size is not given"
    NO_RANGE = "no range is given: min and max are equal"
    DIFFERENT_TENSORS = "the operands are not the same tensor"
    FOREIGN_GENERATOR = "the generator is not registered with the graph"
    TENSOR_STD = "the standard deviation is a tensor"
    RECORDED_NOTHING = "the capture gained no node from it"


@dataclass(frozen=True, slots=True)
class UnsafeOp:
    """One row: an operation, why a graph cannot hold it, and which calls are unsafe."""

    name: str
    kind: Kind
    reason: str
    when: When = When.ALWAYS


def _table() -> Iterator[UnsafeOp]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for row in tomllib.loads(text)["row"]:
        for name in row["names"].split():
            yield UnsafeOp(name, Kind[row["kind"]], row["reason"], When[row.get("when", "ALWAYS")])


TABLE: tuple[UnsafeOp, ...] = tuple(_table())
"""``unsafe.toml``, one row an operation."""

BY_NAME: dict[str, UnsafeOp] = {row.name: row for row in TABLE}

NO_LAYOUT = UnsafeOp(
    "a sparse, nested or quantized tensor",
    Kind.DYNAMIC_SHAPE,
    "torch's code for such tensors reads sizes on the host, and keeps some of their content there",
)
