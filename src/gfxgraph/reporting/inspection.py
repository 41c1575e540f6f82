"""A capture as plain data: what a replay does, node by node, with the source line of each node.

Enters: numbers, names, source lines.
Stays out: torch, drivers; inspect.py reads those.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from gfxgraph.core.budget import shown

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor that a capture reads from outside or leaves behind, or that a node uses.

    Args:
        name: its name in the program; "" if no visible variable holds it.
        layout: shape, strides and dtype in one line.
        place: "device", "pool" (memory of the graphs') or "host".
    """

    name: str
    layout: str
    nbytes: int
    address: int
    place: str = "device"
    role: str = ""


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
        device_us: time on the device, if measured (``times=True``).
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
    tensors: tuple[TensorInfo, ...] = ()
    device_us: float | None = None

    def token(self, with_layouts: bool) -> tuple[object, ...]:
        """The key by which nodes of different captures are the same work."""
        # Only its inputs: of its outputs only live ones are known, and the last layer must equal the others.
        layouts = tuple(tensor.layout for tensor in self.tensors if tensor.role == "input") if with_layouts else ()
        return self.kind, self.kernel, self.op, self.where, self.grid, self.block, layouts

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


@dataclass(frozen=True, slots=True)
class InspectedCapture:
    """One captured graph.

    Args:
        name: where it was captured, or its signature in a graphed callable.
        externals: tensors from outside that a replay reads.
        outputs: results that outlive the capture.
        pool_nbytes: memory of the pool it was captured into, which others may share.
    """

    name: str
    where: str
    steps: tuple[InspectedStep, ...]
    externals: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    pool: tuple[int, int] | None = None
    pool_nbytes: int = 0
    n_replays: int = 0
    is_recorded: bool = True

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
    def driver_nbytes(self) -> int | None:
        known = [step.driver_nbytes for step in self.segments if step.driver_nbytes is not None]
        return sum(known) if known else None

    @property
    def share_with_line(self) -> float:
        """The share of nodes with a known source line."""
        nodes = self.nodes
        return sum(1 for node in nodes if node.where) / len(nodes) if nodes else 1.0

    def text(self) -> str:
        """The capture as lines: its steps, its tensors, its most common kernels."""
        lines = [f"{i}. {step}" for i, step in enumerate(self.steps, 1)]
        lines += [f"   instead: {step.rewrite}" for step in self.host_steps if step.rewrite]
        sizes = f"{len(self.externals)} inputs {_total(self.externals)}, {len(self.outputs)} results "
        lines.append(f"   {sizes}{_total(self.outputs)}, pool {shown(self.pool_nbytes)}")
        if self.driver_nbytes is not None:
            lines.append(f"   driver memory of its graph execs: {shown(self.driver_nbytes)}")
        for (name, where), n in Counter((n.name or n.kind, n.where) for n in self.nodes).most_common(5):
            lines.append(f"   {n} x {name}{f' at {where}' if where else ''}")
        return "\n".join(lines)


def _total(tensors: tuple[TensorInfo, ...]) -> str:
    return shown(sum(tensor.nbytes for tensor in tensors))


@dataclass(frozen=True, slots=True)
class CaptureDiff:
    """What changed from one capture to another: nodes, inputs and host steps that only one has, and moved inputs."""

    removed: tuple[InspectedNode, ...]
    added: tuple[InspectedNode, ...]
    moved_tensors: tuple[tuple[TensorInfo, TensorInfo], ...]
    removed_steps: tuple[InspectedStep, ...]
    added_steps: tuple[InspectedStep, ...]
    ratio: float
    """1.0 if both run the same nodes in the same order."""
    removed_tensors: tuple[TensorInfo, ...] = ()
    added_tensors: tuple[TensorInfo, ...] = ()

    @property
    def is_same(self) -> bool:
        return not self._lines()

    def _lines(self) -> list[str]:
        removed = [*self.removed, *(f"host: {step}" for step in self.removed_steps), *_inputs(self.removed_tensors)]
        added = [*self.added, *(f"host: {step}" for step in self.added_steps), *_inputs(self.added_tensors)]
        lines = []
        for sign, things in (("-", removed), ("+", added)):
            counted = Counter(str(thing) for thing in things)  # equal layers are one line
            lines += [f"{sign} {text}" if n == 1 else f"{sign} {n} x {text}" for text, n in counted.items()]
        for old, new in self.moved_tensors:
            name = new.name or old.name or "an input"
            lines.append(f"~ {name} {old.layout} -> {new.layout}, {old.address:#x} -> {new.address:#x}")
        return lines

    def __str__(self) -> str:
        lines = self._lines()
        return "\n".join([f"{self.ratio:.1%} of the nodes are the same", *lines]) if lines else _SAME


_SAME = "the same work at the same addresses"


def _inputs(tensors: tuple[TensorInfo, ...]) -> list[str]:
    return [f"input {tensor.name} {tensor.layout}" for tensor in tensors]


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

    def dot(self) -> str:
        """The graphs for Graphviz: one cluster per segment, host steps in red."""
        lines = ["digraph gfxgraph {", '  node [shape=box, fontname="monospace", fontsize=10];']
        for c, capture in enumerate(self.captures):
            before = ""
            for s, step in enumerate(capture.steps):
                if not step.is_segment:
                    host = f"h{c}_{s}"
                    text = _quoted(f"{step.op}\n{step.where}\n{step.why}")
                    lines.append(f'  {host} [label="{text}", color=red, style=bold];')
                    if before:
                        lines.append(f"  {before} -> {host} [color=red];")
                    before = host
                    continue
                lines.append(f'  subgraph cluster_{c}_{s} {{ label="{_quoted(f"{capture.name} {step}")}";')
                for node in step.nodes:
                    text = _quoted(f"{node.name or node.kind}\n{node.op}\n{node.where}")
                    lines.append(f'    n{c}_{s}_{node.index} [label="{text}"];')
                    lines += [f"    n{c}_{s}_{parent} -> n{c}_{s}_{node.index};" for parent in node.after]
                lines.append("  }")
                if before and step.nodes:
                    lines.append(f"  {before} -> n{c}_{s}_{step.nodes[0].index} [color=red];")
                if step.nodes:
                    before = f"n{c}_{s}_{step.nodes[-1].index}"
        return "\n".join([*lines, "}"])

    def diff(self, other: Inspection) -> CaptureDiff:
        """The differences from this inspection to ``other``; captures are compared in order."""
        return diff(self, other)


def diff(old: Inspection, new: Inspection) -> CaptureDiff:
    """Compare two inspections: what their nodes run, in order, their layouts, and the addresses of their inputs."""
    mine = [node for capture in old for node in capture.nodes]
    theirs = [node for capture in new for node in capture.nodes]
    # An inspection without tensors has no layouts.
    both = any(node.tensors for node in mine) and any(node.tensors for node in theirs)
    matcher = difflib.SequenceMatcher(
        None, [node.token(both) for node in mine], [node.token(both) for node in theirs], autojunk=False
    )
    removed: list[InspectedNode] = []
    added: list[InspectedNode] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            removed += mine[a:b]
            added += theirs[c:d]
    steps_old = Counter(step for capture in old for step in map(_identity, capture.host_steps))
    steps_new = Counter(step for capture in new for step in map(_identity, capture.host_steps))
    all_steps = {_identity(s): s for inspection in (old, new) for capture in inspection for s in capture.host_steps}
    pairs, gone, come = _paired(
        [tensor for capture in old for tensor in capture.externals],
        [tensor for capture in new for tensor in capture.externals],
    )
    return CaptureDiff(
        tuple(removed),
        tuple(added),
        tuple((a, b) for a, b in pairs if (a.address, a.layout) != (b.address, b.layout)),
        tuple(all_steps[key] for key in (steps_old - steps_new).elements()),
        tuple(all_steps[key] for key in (steps_new - steps_old).elements()),
        matcher.ratio(),
        gone,
        come,
    )


def _paired(
    old: list[TensorInfo], new: list[TensorInfo]
) -> tuple[list[tuple[TensorInfo, TensorInfo]], tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Corresponding inputs: those at the same address, else with the same name, else in the order in which they are
    read.

    If a variable was assigned another tensor, its name belongs to the new one, and the old one has none.
    """
    pairs: list[tuple[TensorInfo, TensorInfo]] = []
    for key in ("address", "name"):
        by_key = {getattr(tensor, key): tensor for tensor in new if getattr(tensor, key)}
        for tensor in list(old):
            twin = by_key.pop(getattr(tensor, key), None)
            if twin is not None:
                old.remove(tensor)
                new.remove(twin)
                pairs.append((tensor, twin))
    if len(old) == len(new):
        return pairs + list(zip(old, new)), (), ()
    return pairs, tuple(old), tuple(new)


def _identity(step: InspectedStep) -> tuple[str, str, str]:
    return step.kind, step.op, step.where


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
