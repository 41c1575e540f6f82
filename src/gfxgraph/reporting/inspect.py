"""``gfxgraph.inspect`` and ``graph.explain()``: every graph of an object, or of the process, as plain data."""

from __future__ import annotations

import sys

from gfxgraph.capture import rooms
from gfxgraph.capture.graph import BridgedGraph
from gfxgraph.guard.tensor_names import TensorNames
from gfxgraph.process import process
from gfxgraph.reporting.inspection import Inspection
from gfxgraph.reporting.reading import graphs_of, read_capture


def inspect(obj: object = None, *, tensors: bool = True) -> Inspection:
    """What a captured graph does, node by node, with the source line that made each node.

    Args:
        obj: a graph, a ``graphed`` function, a compiled region, an object that holds such, or several in a list; by
        default every graph of this process.
        tensors: also list each node's tensors; without them a graph of thousands of nodes is read faster.

    Raises:
        TypeError: ``obj`` holds no graph.
    """
    state = process.current()
    names = TensorNames(sys._getframe(1)) if tensors else None
    found: list[tuple[str, BridgedGraph]] = []
    notes: list[str] = []
    if obj is None:
        found = [("", graph) for graph in list(state.graphs)] if state is not None else []
    else:
        for part in obj if isinstance(obj, (list, tuple)) else (obj,):
            made, said = graphs_of(part)
            found += made
            notes += said
    captured = [(label, graph) for label, graph in found if getattr(graph, "_program", None) is not None]
    captures = [read_capture(graph, label, names) for label, graph in captured]
    if obj is None:  # a set has no order
        captures.sort(key=lambda capture: (capture.where, capture.name))
    driver = state.driver if state is not None else None
    runtime = f"{driver.name} {'.'.join(map(str, driver.version))}" if driver is not None else ""
    pools = {str(capture.pool): capture.pool_nbytes for capture in captures if capture.pool is not None}
    return Inspection(tuple(captures), tuple(notes), runtime, pools)


def fill() -> None:
    """Install the implementation of ``graph.explain()``."""
    rooms.inspect = inspect
