"""Graphs, nodes and graph execs of the simulated runtime.

Enters: callables over CPU twins, edges.
Stays out: streams and captures (runtime.py), torch's CUDAGraph class (torch_classes.py).

A node owns no device memory: its tensors are twins. At a replay it reads and writes whatever is at those addresses
then, as on a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch

from gfxgraph.types import NodeKind
from gfxgraph_simulator.random_state import ReplayDraw

_handles = itertools.count(0x7F5100000000, 0x40)


class Operand(NamedTuple):
    """Where a call has a twin: the list or dict that holds it, and its index or name there."""

    container: Any
    key: object

    @property
    def tensor(self) -> torch.Tensor:
        return self.container[self.key]  # type: ignore[no-any-return]


@dataclass(eq=False)
class RecordedNode:
    """One recorded operation.

    Args:
        run: performs it, given the node and the generator to draw from, or None.
        call: ``(args, kwargs)`` of the operation, twins in place of device tensors.
        input_slots: the places in ``call`` of the twins that it reads.
        target_slots: the places of twins that it both reads and writes.
        outputs: twins it writes beyond those.
        draw: for an op that draws: returns the generator at ``offset`` of its state.
    """

    kind: NodeKind
    name: str
    run: Callable[[RecordedNode, torch.Generator | None], None]
    call: tuple[list[Any], dict[str, Any]] = field(default_factory=lambda: ([], {}))
    input_slots: list[Operand] = field(default_factory=list)
    target_slots: list[Operand] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    draw: ReplayDraw | None = None
    offset: int = 0
    parents: tuple[RecordedNode, ...] = ()
    handle: int = field(default_factory=lambda: next(_handles))

    def slots(self) -> list[Operand]:
        """The places of the twins that it reads and writes; written ones come last."""
        return [*self.input_slots, *(Operand(self.outputs, i) for i in range(len(self.outputs))), *self.target_slots]

    @property
    def inputs(self) -> list[torch.Tensor]:
        return [slot.tensor for slot in self.input_slots]

    @property
    def written(self) -> list[torch.Tensor]:
        return [*self.outputs, *(slot.tensor for slot in self.target_slots)]

    def execute(self) -> None:
        """Run eagerly, or as part of a replay."""
        self.run(self, self.draw.draw(self.offset) if self.draw is not None else None)


def _nothing(node: RecordedNode, generator: torch.Generator | None) -> None:
    """A child-graph node runs nothing itself; its graph exec runs the nodes inside."""


class ChildNode(RecordedNode):
    """A graph inside a graph, with its own copy of the node list from when it was added."""

    def __init__(self, inner: Graph, parents: tuple[RecordedNode, ...]) -> None:
        super().__init__(NodeKind.CHILD_GRAPH, "", _nothing, parents=parents)
        self.inner = Graph(list(inner.nodes))

    @property
    def written(self) -> list[torch.Tensor]:
        return [tensor for node in self.inner.nodes for tensor in node.written]


@dataclass(eq=False)
class Graph:
    """An editable graph; nodes in recording order, which is a topological one."""

    nodes: list[RecordedNode] = field(default_factory=list)
    is_built: bool = False
    """Made node by node through the driver: only its edges order the nodes."""
    handle: int = field(default_factory=lambda: next(_handles))

    def leaves(self) -> list[RecordedNode]:
        inner = {id(parent) for node in self.nodes for parent in node.parents}
        return [node for node in self.nodes if id(node) not in inner]

    def order(self) -> tuple[RecordedNode, ...]:
        """An order in which the nodes may run.

        For a built graph it is the least expected one: whatever was added last runs as soon as its edges
        allow, so that a missing edge shows as a wrong result.
        """
        if not self.is_built:
            return tuple(self.nodes)
        done: dict[int, RecordedNode] = {}
        while len(done) < len(self.nodes):
            ready = [n for n in self.nodes if id(n) not in done and all(id(p) in done for p in n.parents)]
            done[id(ready[-1])] = ready[-1]
        return tuple(done.values())


class GraphExec:
    """An instantiated graph: its own list of the nodes, and which of them are disabled."""

    def __init__(self, graph: Graph, index: int) -> None:
        self.handle = next(_handles)
        self.nodes: Sequence[RecordedNode] = graph.order()
        self.index = index
        self.disabled: set[int] = set()
        self.goes_stale = False
        self._last_off: frozenset[int] = frozenset()
        self.launches = 0

    def run(
        self,
        after_node: Callable[[int, RecordedNode], None] | None = None,
        before_node: Callable[[RecordedNode], None] | None = None,
    ) -> None:
        """Execute every enabled node; ``before_node`` sees each, and ``after_node`` with its index."""
        disabled = frozenset(self.disabled)
        if self.goes_stale and len(disabled) == len(self._last_off):
            disabled = self._last_off
        self._last_off = disabled
        for at, node in enumerate(self.nodes):
            if node.handle in disabled:
                continue
            for part in node.inner.nodes if isinstance(node, ChildNode) else (node,):
                if before_node is not None:
                    before_node(part)
                part.execute()
            if after_node is not None:
                after_node(at, node)


class Handles:
    """Integer handles of the driver interface's objects. Weak: a dead graph has no handle."""

    def __init__(self) -> None:
        self.graphs: WeakValueDictionary[int, Graph] = WeakValueDictionary()
        self.execs: WeakValueDictionary[int, GraphExec] = WeakValueDictionary()
        self.nodes: WeakValueDictionary[int, RecordedNode] = WeakValueDictionary()
