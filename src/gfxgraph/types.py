"""types: enums and frozen dataclasses that every room may use.

Enters: names, plain values.
Stays out: behaviour, torch, drivers, files, environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

OUR_PACKAGES = ("gfxgraph", "gfxgraph_kernels", "gfxgraph_port", "gfxgraph_simulator")
"""The import packages of this distribution; gfxgraph works without the others."""
OUR_MODULES = ("gfxgraph.", *OUR_PACKAGES[1:])
"""How the names of our modules begin."""


class OnUnsafe(StrEnum):
    """What to do at an operation that no graph can record."""

    SPLIT = "split"
    """Split the graph there; values that Python reads flow on as expressions."""
    PIN = "pin"
    """Split, and take values that are computed with as constants, checked at each replay."""
    STRICT = "strict"
    """Split, and refuse at capture what computes with a value; comparing and printing it is allowed."""
    RAISE = "raise"
    """torch's own error."""


class ReplayMode(StrEnum):
    """How a graphed callable chooses between graph and eager."""

    STANDARD = "standard"
    ADAPTIVE = "adaptive"
    HOT = "hot"


class MovedInput(StrEnum):
    """What a graphed callable does about an argument at another address than before."""

    COPY = "copy"
    RECAPTURE = "recapture"


class GuardTier(IntEnum):
    """How strictly memory is checked before and after a replay."""

    OFF = 0
    SAFE = 1
    LOCALIZE = 2
    DEEP = 3


class CaptureStatus(IntEnum):
    """State of a stream's capture; the values of hipStreamCaptureStatus and cudaStreamCaptureStatus."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2


class NodeKind(StrEnum):
    """What one node of a graph does."""

    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    HOST = "host"
    CHILD_GRAPH = "child_graph"
    EMPTY = "empty"
    WAIT_EVENT = "wait_event"
    EVENT_RECORD = "event_record"
    MEM_ALLOC = "mem_alloc"
    MEM_FREE = "mem_free"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the user's Python source."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What the driver says about a stream that may be capturing.

    ``graph`` is the handle of the graph under construction (0 when there is none);
    ``capture_id`` is unique in the process.
    """

    status: CaptureStatus
    capture_id: int
    graph: int
