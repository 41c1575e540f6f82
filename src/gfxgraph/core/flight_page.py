"""The flight recorder's page: what a process was doing when it died, in 128 bytes that outlive it.

A process writes the page through a shared mapping before each node. A process that finds the file later,
such as the supervisor, reads where it was. The files beside it, which describe nodes and memory, are
JSON, written once for each graph.

    idle ──node about to run──> running ──node done──> idle
                                   └── the process saw a fault itself ──> faulted
    any ──clean end──> the file is removed
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"GFXFLT02"
PAGE_NBYTES = 4096
_PAGE = struct.Struct("<8sQIIIIIIQQQQ")  # magic, sequence, phase, pid, graph, segment, node, n_nodes, replay, ...


class Phase(IntEnum):
    """What the process was doing."""

    IDLE = 0
    RUNNING = 1
    FAULTED = 2


@dataclass(frozen=True, slots=True)
class Page:
    """The recorder's content.

    Args:
        node: position of the node that runs, or ran last, among the graph's nodes.
        replay: which replay of the graph, from 1.
        begun_ns: when the node was begun, by the machine's monotonic clock.
        sequence: grows with every change; the page is whole when both copies agree.
    """

    pid: int
    phase: Phase = Phase.IDLE
    graph: int = 0
    segment: int = 0
    node: int = 0
    n_nodes: int = 0
    replay: int = 0
    begun_ns: int = 0
    sequence: int = 0

    def pack(self) -> bytes:
        place = self.graph, self.segment, self.node, self.n_nodes, self.replay, self.begun_ns
        return _PAGE.pack(MAGIC, self.sequence, self.phase, self.pid, *place, self.sequence, 0)


def unpack(data: bytes) -> Page | None:
    """The page in ``data``; None if it is not a page, or was being written when the process died."""
    if len(data) < _PAGE.size:
        return None
    magic, first, phase, pid, graph, segment, node, n_nodes, replay, begun_ns, last, _ = _PAGE.unpack_from(data)
    if magic != MAGIC or first != last or phase not in set(Phase):
        return None
    return Page(pid, Phase(phase), graph, segment, node, n_nodes, replay, begun_ns, first)


def graph_file(graph: int, segment: int) -> str:
    """Name of the description of one segment's nodes, beside the recorder."""
    return f"graph-{graph}-{segment}.json"


RECORDER_FILE = "recorder"
MEMORY_FILE = "memory.json"
FAULT_FILE = "fault.json"
PREFIX = "flight-"
