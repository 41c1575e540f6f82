"""A capture as plain data: what a replay does, node by node, with the source line of each node.

Enters: numbers, names, source lines.
Stays out: torch, drivers; read_capture.py reads those.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from gfxgraph.core.eviction import shown
from gfxgraph.core.fault_report import TensorUse

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class InspectedNode:
    """One node of a graph.

    Args:
        index: its position in the segment's list.
        kernel: the kernel's name, demangled; "" for other kinds.
        name: the same, short.
        nbytes: bytes of the tensors that its operation reads and writes, as far as known.
        op: the operation that made it, ``aten::mm``; "a call outside torch" if it was not torch's.
        where: the source line of that operation.
        defined_at: for a Triton kernel, the line of its function.
        after: indices of the nodes that it waits for.
    """

    index: int
    kind: str
    kernel: str
    name: str
    op: str
    where: str
    grid: Triple | None = None
    block: Triple | None = None
    shared_nbytes: int = 0
    nbytes: int = 0
    is_triton: bool = False
    defined_at: str = ""
    after: tuple[int, ...] = ()
    tensors: tuple[TensorUse, ...] = ()

    def __str__(self) -> str:
        on = ", ".join(tensor.layout for tensor in self.tensors)
        return f"{self.name or self.kind}  {self.op} at {self.where}" + (f" on {on}" if on else "")


@dataclass(frozen=True, slots=True)
class InspectedStep:
    """One part of a replay: a graph segment, or host work between two of them.

    Args:
        kind: "graph", "tape" (the segment's operations run eagerly), "operation", "read", "call" or "replay".
        why: why the host does it, or why the tape runs.
        rewrite: what to write instead, so that a graph could hold it.
        guards: conditions on a value that was read, checked at each replay.
        driver_nbytes: device memory that instantiating the segment took in addition to torch's; None if not measured.
    """

    kind: str
    op: str = ""
    where: str = ""
    why: str = ""
    rewrite: str = ""
    guards: tuple[str, ...] = ()
    n_operations: int = 0
    nodes: tuple[InspectedNode, ...] = ()
    n_nodes: int = 0
    driver_nbytes: int | None = None

    @property
    def is_segment(self) -> bool:
        return self.kind in ("graph", "tape")

    def __str__(self) -> str:
        if self.is_segment:
            return f"{self.kind} of {self.n_nodes} nodes, {self.n_operations} operations"
        text = f"{self.op} at {self.where}"
        return f"{text}: {self.why}" if self.why else text


MOST_SHOWN = 8
"""Names of inputs and numbers in the text; the object has all."""


@dataclass(frozen=True, slots=True)
class InspectedCapture:
    """One captured graph.

    Args:
        name: where it was captured, or its signature in a graphed callable.
        externals: tensors from outside that a replay reads.
        outputs: results that outlive the capture.
        numbers: attributes of what holds the inputs that are constants of the graph, with values and lines.
        pool_nbytes: memory of the pool it was captured into, which others may share.
    """

    name: str
    where: str
    steps: tuple[InspectedStep, ...]
    externals: tuple[TensorUse, ...] = ()
    outputs: tuple[TensorUse, ...] = ()
    pool: tuple[int, int] | None = None
    pool_nbytes: int = 0
    n_replays: int = 0
    is_recorded: bool = True
    numbers: tuple[str, ...] = ()

    @property
    def segments(self) -> list[InspectedStep]:
        return [step for step in self.steps if step.is_segment]

    @property
    def host_steps(self) -> list[InspectedStep]:
        return [step for step in self.steps if not step.is_segment]

    @property
    def nodes(self) -> list[InspectedNode]:
        return [node for step in self.segments for node in step.nodes]

    @property
    def n_nodes(self) -> int:
        return sum(step.n_nodes for step in self.segments)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what a replay reads from outside, by the places that hold it."""
        return tuple(dict.fromkeys(each.name for each in self.externals if each.name))

    @property
    def driver_nbytes(self) -> int | None:
        known = [step.driver_nbytes for step in self.segments if step.driver_nbytes is not None]
        return sum(known) if known else None

    def text(self) -> str:
        """The capture as lines: its steps, its tensors, its most common kernels."""
        lines = [f"{i}. {step}" for i, step in enumerate(self.steps, 1)]
        lines += [f"   instead: {step.rewrite}" for step in self.host_steps if step.rewrite]
        sizes = f"{len(self.externals)} inputs {_total(self.externals)}, {len(self.outputs)} results "
        lines.append(f"   {sizes}{_total(self.outputs)}, pool {shown(self.pool_nbytes)}")
        for title, all_of in (("reads", self.inputs), ("constants:", self.numbers)):
            more = f" and {len(all_of) - MOST_SHOWN} more" if len(all_of) > MOST_SHOWN else ""
            lines += [f"   {title} {', '.join(all_of[:MOST_SHOWN])}{more}"] if all_of else []
        if self.driver_nbytes is not None:
            lines.append(f"   driver memory of its graph execs: {shown(self.driver_nbytes)}")
        for (name, where), n in Counter((n.name or n.kind, n.where) for n in self.nodes).most_common(5):
            lines.append(f"   {n} x {name}{f' at {where}' if where else ''}")
        return "\n".join(lines)


def _total(tensors: tuple[TensorUse, ...]) -> str:
    return shown(sum(tensor.nbytes for tensor in tensors))


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of ``gfxgraph.inspect`` and ``graph.explain()``; ``str()`` gives readable text.

    Args:
        notes: further facts: why a signature has no graph, how a call passes its arguments.
    """

    captures: tuple[InspectedCapture, ...]
    notes: tuple[str, ...] = ()
    runtime: str = ""
    pools: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.captures:
            return "\n".join(self.notes) or "nothing captured"
        if len(self.captures) == 1 and not self.notes:
            return self.captures[0].text()
        parts = [f"{capture.name}: {capture.n_replays} replays\n{capture.text()}" for capture in self.captures]
        return "\n".join([*parts, *self.notes])

    def __iter__(self) -> Iterator[InspectedCapture]:
        return iter(self.captures)

    def __len__(self) -> int:
        return len(self.captures)

    def __getitem__(self, at: int) -> InspectedCapture:
        return self.captures[at]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def json(self, indent: int | None = None) -> str:
        return json.dumps(self.as_dict(), indent=indent)
