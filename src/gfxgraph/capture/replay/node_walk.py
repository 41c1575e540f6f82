"""Node walk: run a graph's nodes one at a time by enabling one, launching, and disabling it again.

It runs the same kernels that were captured, closed-source and Triton ones included, and needs no
struct layouts. Nodes that were disabled before stay disabled. A graph with nodes that no runtime can disable (host
functions, child graphs) is not walked, and none where disabling is missing or broken (`can_walk`).

HIP 7.2.4 repeats the nodes of the last launch if the same number is enabled: there, a launch with all nodes
off comes before each node's launch.

Source: measured exact on an H200 (torch 2.11, 60 nodes, 36 us a node) and on real HIP 6.4.3 and
7.15 under AMD's emulator for kernel, memcpy and memset nodes; HIP refuses child graph nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gfxgraph.capture.undo import Undo
from gfxgraph.errors import DriverError
from gfxgraph.process import process
from gfxgraph.types import NodeKind

if TYPE_CHECKING:
    from gfxgraph.capture.replay.program import SegmentStep

_SWITCHABLE = frozenset({NodeKind.KERNEL, NodeKind.MEMCPY, NodeKind.MEMSET})
# They only order other nodes: a walk, which waits after each node, keeps every order.
_HARMLESS = frozenset({NodeKind.EMPTY, NodeKind.WAIT_EVENT, NodeKind.EVENT_RECORD})


def raw_graph(graph: Any) -> int:
    """Handle of the graph; ours always keep it, whatever the user asked for."""
    return int(process.require().base.raw_cuda_graph(graph))


def raw_exec(graph: Any) -> int:
    return int(process.require().base.raw_cuda_graph_exec(graph))


def can_walk(segment: SegmentStep) -> bool:
    """True if every node of the segment can be run by itself."""
    state = process.require()
    driver = state.driver
    if segment.graph is None or not state.decisions.node_walk:
        return False
    if not {"set_node_enabled", "node_enabled"}.isdisjoint(driver.missing):
        return False
    try:
        kinds = {driver.node_kind(node) for node in driver.nodes(raw_graph(segment.graph))}
    except (DriverError, RuntimeError):
        return False
    return kinds <= _SWITCHABLE | _HARMLESS


def walk(
    segment: SegmentStep,
    program: Any,
    after: Callable[[int, int], bool] | None = None,
    before: Callable[[int, int], None] | None = None,
) -> None:
    """Run the segment node by node.

    Args:
        after: called after each node with (position, node handle); True stops the walk.
        before: called before each node that runs.

    Positions count the nodes that do work, in the graph's order.
    """
    state = process.require()
    driver = state.driver
    graph, graph_exec = raw_graph(segment.graph), raw_exec(segment.graph)
    kinds = {node: driver.node_kind(node) for node in driver.nodes(graph)}
    nodes = working_nodes(kinds)
    stream = torch.cuda.current_stream().cuda_stream
    enabled = {node: True for node in nodes if driver.node_enabled(graph_exec, node)}
    # The device may be gone afterwards; the first error is the one to report.
    undo = Undo(partial(driver.set_node_enabled, graph_exec, node, True) for node in enabled)
    try:
        for node in enabled:
            driver.set_node_enabled(graph_exec, node, False)
        # With every node off: this advances the random generators once, as a replay does.
        program.launch(segment.graph)
        for position, node in enumerate(nodes):
            if before is not None:
                before(position, node)
            if node in enabled:
                if state.decisions.node_walk_resets:
                    driver.launch(graph_exec, stream)  # with every node off
                driver.set_node_enabled(graph_exec, node, True)
                driver.launch(graph_exec, stream)
                driver.synchronize_stream(stream)
                driver.set_node_enabled(graph_exec, node, False)
            if after is not None and after(position, node):
                break
    finally:
        undo.undo_all()


def working_nodes(kinds: dict[int, NodeKind]) -> list[int]:
    """The nodes that do work, in order."""
    return [node for node, kind in kinds.items() if kind not in _HARMLESS]
