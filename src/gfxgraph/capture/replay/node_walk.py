"""Node walk: run a graph's nodes one at a time by enabling one, launching, and disabling it again.

It runs the same kernels that were captured, closed-source and Triton ones included, and needs no
struct layouts. Nodes that were disabled before stay disabled. Nodes that no runtime can disable
(host functions, child graphs), and all nodes if disabling is missing or broken, run as graphs
of one node: a clone of the graph with the others removed.

HIP 7.2.4 repeats the nodes of the last launch if the same number is enabled: there, a launch with all nodes
off comes before each node's launch.

Source: measured exact on an H200 (torch 2.11, 60 nodes, 36 us a node) and on real HIP 6.4.3 and
7.15 under AMD's emulator for kernel, memcpy and memset nodes; HIP refuses child graph nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
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
_ALONE = frozenset({NodeKind.HOST, NodeKind.CHILD_GRAPH})


def raw_graph(graph: Any) -> int:
    """Handle of the graph; ours always keep it, whatever the user asked for."""
    return int(process.require().base.raw_cuda_graph(graph))


def raw_exec(graph: Any) -> int:
    return int(process.require().base.raw_cuda_graph_exec(graph))


def can_walk(segment: SegmentStep) -> bool:
    """True if every node of the segment can be run by itself."""
    driver = process.require().driver
    if driver is None or segment.graph is None:
        return False
    try:
        kinds = {driver.node_kind(node) for node in driver.nodes(raw_graph(segment.graph))}
    except (DriverError, RuntimeError):
        return False
    if not kinds <= _SWITCHABLE | _HARMLESS | _ALONE:
        return False
    if _can_switch() and not kinds & _ALONE:
        return True
    # torch advances the generators when it launches, and nodes that cannot be switched off would run too.
    return "exec_of" not in driver.missing and not segment.tape.generators


def _can_switch() -> bool:
    state = process.require()
    assert state.driver is not None
    return "set_node_enabled" not in state.driver.missing and state.decisions.node_walk


def walk(
    segment: SegmentStep,
    program: Any,
    after: Callable[[int, int], bool] | None = None,
    first_advance: Callable[[], None] | None = None,
    before: Callable[[int, int], None] | None = None,
) -> None:
    """Run the segment node by node.

    Args:
        first_advance: called once the generators have been advanced as by one replay; it may reset
            them to their starting point, and they are advanced again.
        after: called after each node with (position, node handle); True stops the walk.
        before: called before each node that runs.

    Positions count the nodes that do work, in the graph's order.
    """
    driver = process.require().driver
    assert driver is not None
    graph = raw_graph(segment.graph)
    kinds = {node: driver.node_kind(node) for node in driver.nodes(graph)}
    nodes = working_nodes(kinds)
    stream = torch.cuda.current_stream().cuda_stream
    with ExitStack() as held:
        if _can_switch():
            run = _by_switching(segment, program, graph, kinds, first_advance, held)
        else:
            run = _alone(graph, _disabled(segment, kinds))
        for position, node in enumerate(nodes):
            if before is not None:
                before(position, node)
            run(node, stream)
            if after is not None and after(position, node):
                break


def working_nodes(kinds: dict[int, NodeKind]) -> list[int]:
    """The nodes that do work, in order."""
    return [node for node, kind in kinds.items() if kind not in _HARMLESS]


Runner = Callable[[int, int], None]


def _disabled(segment: SegmentStep, kinds: dict[int, NodeKind]) -> frozenset[int]:
    """Nodes that are disabled, if the runtime can tell."""
    driver = process.require().driver
    assert driver is not None
    if "node_enabled" in driver.missing:
        return frozenset()
    graph_exec = raw_exec(segment.graph)
    switchable = (node for node, kind in kinds.items() if kind in _SWITCHABLE)
    return frozenset(node for node in switchable if not driver.node_enabled(graph_exec, node))


def _alone(graph: int, skipped: frozenset[int] = frozenset()) -> Runner:
    """Run each node as a graph of its own."""
    driver = process.require().driver
    assert driver is not None

    def run(node: int, stream: int) -> None:
        if node in skipped:
            return
        with driver.exec_of(graph, {node}) as (graph_exec, _):
            driver.launch(graph_exec, stream)
            driver.synchronize_stream(stream)

    return run


def _by_switching(
    segment: SegmentStep,
    program: Any,
    graph: int,
    kinds: dict[int, NodeKind],
    first_advance: Callable[[], None] | None,
    held: ExitStack,
) -> Runner:
    """Run each node by enabling it alone; those that cannot be disabled run as graphs of their own."""
    driver = process.require().driver
    assert driver is not None
    graph_exec = raw_exec(segment.graph)
    switchable = [node for node, kind in kinds.items() if kind in _SWITCHABLE]
    enabled = {node for node in switchable if driver.node_enabled(graph_exec, node)}
    stands_for = {node: node for node in switchable}
    has_loners = any(kind in _ALONE for kind in kinds.values())
    if has_loners:
        # Every launch of the whole graph would run them.
        graph_exec, stands_for = held.enter_context(driver.exec_of(graph, set(switchable)))
    on = [stands_for[node] for node in switchable if node in enabled or has_loners]
    for node in on:
        driver.set_node_enabled(graph_exec, node, False)
    held.callback(_switch_on, graph_exec, [] if has_loners else on)
    resets = process.require().decisions.node_walk_resets
    if not has_loners:
        # With every node off: this advances the random generators once, as a replay does.
        program.launch(segment.graph)
        if first_advance is not None:
            first_advance()
            program.launch(segment.graph)
    alone = _alone(graph)

    def run(node: int, stream: int) -> None:
        if node not in stands_for:
            alone(node, stream)
        elif node in enabled:
            if resets:
                driver.launch(graph_exec, stream)  # with every node off
            driver.set_node_enabled(graph_exec, stands_for[node], True)
            driver.launch(graph_exec, stream)
            driver.synchronize_stream(stream)
            driver.set_node_enabled(graph_exec, stands_for[node], False)

    return run


def _switch_on(graph_exec: int, nodes: list[int]) -> None:
    driver = process.require().driver
    assert driver is not None
    # The device may be gone; the first error is the one to report.
    Undo(partial(driver.set_node_enabled, graph_exec, node, True) for node in nodes).take_back()
