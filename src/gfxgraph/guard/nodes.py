"""What each node of a captured segment is: kernel, operation, source line, and its tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from gfxgraph.capture.replay.graph_tensors import Layout
from gfxgraph.capture.replay.node_walk import raw_graph, working_nodes
from gfxgraph.core.fault_report import NodeInfo, TensorUse
from gfxgraph.core.tape import Entry, Opaque, Tape, TapeValue, leaves
from gfxgraph.driver.params import KernelParams
from gfxgraph.errors import DriverError
from gfxgraph.guard.layouts_of_kernels import layout_of
from gfxgraph.guard.tensor_names import TensorNames, describe, layout_text
from gfxgraph.process import process
from gfxgraph.types import NodeKind

if TYPE_CHECKING:
    from gfxgraph.capture.replay.program import Program, SegmentStep


@dataclass(frozen=True, slots=True)
class PointerArgument:
    """A word in a kernel's arguments that may be an address.

    Args:
        is_direct: it is an argument by itself, not a word inside a larger one.
    """

    argument: int
    address: int
    is_direct: bool


@dataclass(slots=True)
class SegmentNode:
    """A node with everything needed to watch and describe it."""

    handle: int
    kind: NodeKind
    kernel: str
    entry: Entry | None
    opaque: Opaque | None
    previous: str = ""
    """The line of the last operation before an opaque launch."""
    pointers: tuple[PointerArgument, ...] = ()
    why_unchecked: str = ""
    uses: list[TensorUse] = field(default_factory=list)

    @property
    def op(self) -> str:
        if self.entry is not None:
            return self.entry.name
        return "a call outside torch" if self.opaque is not None else ""

    @property
    def where(self) -> str:
        if self.entry is not None:
            return str(self.entry.where)
        if self.opaque is None:
            return ""
        # It was noticed at the next operation, so it lies somewhere after the last one.
        after = str(self.opaque.where)
        return f"{self.previous} to {after}" if self.previous and self.previous != after else after

    def info(self, position: int) -> NodeInfo:
        return NodeInfo(
            position,
            str(self.kind),
            self.kernel,
            self.op,
            self.where,
            tuple(self.uses),
            not self.why_unchecked,
            self.why_unchecked,
        )


def nodes_of(segment: SegmentStep, program: Program, names: TensorNames | None = None) -> list[SegmentNode]:
    """Describe every node of the segment that does work, in the order of a walk."""
    driver = process.require().driver
    if segment.graph is None:
        return []
    graph = raw_graph(segment.graph)
    kinds = {node: driver.node_kind(node) for node in driver.nodes(graph)}
    owner_of = owners_of(segment.tape, list(kinds), graph)
    found = []
    for node in working_nodes(kinds):
        owner = owner_of.get(node)
        entry = owner if isinstance(owner, Entry) else None
        opaque = owner if isinstance(owner, Opaque) else None
        made = SegmentNode(node, kinds[node], "", entry, opaque)
        if kinds[node] is NodeKind.KERNEL:
            made.kernel = _kernel_name(node)
            made.pointers, made.why_unchecked = _pointers(node, made.kernel)
        if opaque is not None:
            made.previous = _line_before(segment.tape, opaque)
        if entry is not None:
            made.uses = uses_of(entry, program, names)
        found.append(made)
    return found


def _line_before(tape: Tape, opaque: Opaque) -> str:
    """The line of the last operation before an opaque launch; views are recorded without one."""
    for entry in reversed(tape.entries[: opaque.before_entry]):
        if entry.code is not None:
            return str(entry.where)
    return ""


def owners_of(tape: Tape, order: list[int], graph: int) -> dict[int, Entry | Opaque]:
    """The operation, or the launch between two operations, that made each node.

    Each mark is the last node that its owner made; the nodes before it and after the previous mark
    are its own. The runtime may list nodes in another order than they were made in (HIP sorts
    them topologically): then their ancestors decide.
    """
    opaque_at: dict[int, list[Opaque]] = {}
    for opaque in tape.opaque:
        opaque_at.setdefault(opaque.before_entry, []).append(opaque)
    marks: list[tuple[tuple[int, ...], Entry | Opaque]] = []
    for position, entry in enumerate(tape.entries):
        for opaque in opaque_at.get(position, ()):
            marks.append(((opaque.last_node,), opaque))
        marks.append((entry.last_nodes, entry))
    for opaque in opaque_at.get(len(tape.entries), ()):
        marks.append(((opaque.last_node,), opaque))
    position_of = {node: at for at, node in enumerate(order)}
    ends: list[tuple[int, Entry | Opaque]] = []
    for nodes, owner in marks:
        at = max((position_of[node] for node in nodes if node in position_of), default=-1)
        if at >= 0 and (not ends or at != ends[-1][0]) and all(at != end for end, _ in ends[-64:]):
            ends.append((at, owner))
    if [end for end, _ in ends] == sorted(end for end, _ in ends):
        found: dict[int, Entry | Opaque] = {}
        begin = 0
        for end, owner in ends:
            for at in range(begin, end + 1):
                found[order[at]] = owner
            begin = max(begin, end + 1)
        return found
    return _by_ancestors([(order[end], owner) for end, owner in ends], graph)


def _by_ancestors(ends: list[tuple[int, Entry | Opaque]], graph: int) -> dict[int, Entry | Opaque]:
    driver = process.require().driver
    before: dict[int, list[int]] = {}
    for parent, child in driver.edges(graph):
        before.setdefault(child, []).append(parent)
    found: dict[int, Entry | Opaque] = dict(ends)
    for node, owner in ends:
        open_nodes = list(before.get(node, ()))
        while open_nodes:
            parent = open_nodes.pop()
            if parent not in found:
                found[parent] = owner
                open_nodes += before.get(parent, ())
    return found


def _kernel_name(node: int) -> str:
    driver = process.require().driver
    try:
        return driver.kernel_name(node)
    except DriverError:
        return ""


def known_params(node: int, kernel: str) -> tuple[KernelParams | None, str]:
    """A kernel's launch parameters with its arguments; None and the reason if they are unknown."""
    driver = process.require().driver
    if "param_layout" in driver.missing:
        layout = layout_of(kernel)
        if layout is None:
            return None, "neither the runtime nor a code object gives its argument layout"
        params = driver.node_params(node, layout)
    else:
        params = driver.node_params(node)
        if params.params is None and (layout := layout_of(kernel)) is not None:
            params = driver.node_params(node, layout)
    if params.params is None:
        return None, params.why_unknown or "the runtime does not give its argument layout"
    return params, ""


def _pointers(node: int, kernel: str) -> tuple[tuple[PointerArgument, ...], str]:
    """The words of a kernel's arguments, and why they are unknown if they are."""
    params, why = known_params(node, kernel)
    if params is None:
        return (), why
    found = []
    for index, value in enumerate(params.params or ()):
        for at in range(0, len(value) - 7, 8):
            word = int.from_bytes(value[at : at + 8], "little")
            if word >= _LOWEST_ADDRESS:
                found.append(PointerArgument(index, word, len(value) == 8))
    return tuple(found), ""


# Device memory is never in the lowest pages; sizes, strides and flags look like such addresses.
_LOWEST_ADDRESS = 1 << 16


def uses_of(entry: Entry, program: Program, names: TensorNames | None = None) -> list[TensorUse]:
    """The tensors that an operation reads and writes, once each."""
    found: list[TensorUse] = []
    seen: set[object] = set()
    for role, spec in (("input", (*entry.args, *entry.kwargs.values())), ("output", entry.outputs)):
        for value in leaves(spec):
            if value in seen:
                continue
            seen.add(value)
            use = _use(role, value, program, names)
            if use is not None:
                found.append(use)
    return found


def _use(role: str, value: TapeValue, program: Program, names: TensorNames | None) -> TensorUse | None:
    held = program.externals.get(value)
    if isinstance(held, Tensor):
        if not held.is_cuda:
            return None
        tensor, place = program.source(held)
        name = (names.of(tensor) if names is not None else "") or place
        return TensorUse(role, name, describe(held), held.data_ptr(), Layout.of(held).span_nbytes)
    layout = held if held is not None else value.layout or program.layouts.get(value)
    if not isinstance(layout, Layout):
        return None
    alive = value()
    name = names.of(alive) if names is not None and alive is not None else ""
    text = layout_text(layout.size, layout.stride, layout.dtype)
    return TensorUse(role, name, text, layout.address, layout.span_nbytes)
