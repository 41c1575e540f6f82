"""A fault report from everything known: the node, its tensors, the address, the runtime's own message.

AMD faults end in one of three ways, by version: the process aborts after a line on stderr, every
later call returns the same error, or calls no longer return. NVIDIA faults end in the second way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gfxgraph.core.memory_map import Allocation, MemoryMap, size_text

HANG_LIMIT_S = 60.0
"""How long one node may take before it counts as hanging."""


@dataclass(frozen=True, slots=True)
class TensorUse:
    """A tensor that a node touches, or that a capture reads from outside or leaves behind.

    Args:
        role: ``input``, ``output`` or ``argument 3`` of a launch outside torch; "" of a capture as a whole.
        name: its name in the program; "" if no visible variable holds it.
        layout: shape, strides and dtype in one line.
        place: "device", "pool" (memory of the graphs') or "host".
    """

    role: str
    name: str
    layout: str
    address: int
    nbytes: int
    place: str = "device"

    def __str__(self) -> str:
        name = f" `{self.name}`" if self.name else ""
        return f"{self.role}{name} {self.layout} at {self.address:#x} ({size_text(self.nbytes)})"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node of a graph, described for people.

    Args:
        op: the operation that made it, ``aten::mm``, or what is known about a launch outside torch.
        where: the source line of that operation.
        is_checked: whether the pointers among its arguments are known.
        why_unchecked: where they are not.
    """

    position: int
    kind: str
    kernel: str
    op: str
    where: str
    tensors: tuple[TensorUse, ...] = ()
    is_checked: bool = True
    why_unchecked: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> NodeInfo:
        tensors = tuple(TensorUse(**row) for row in table["tensors"])
        return cls(**{**table, "tensors": tensors})

    @property
    def title(self) -> str:
        return self.kernel or self.kind

    def __str__(self) -> str:
        return f"{self.position} ({self.title}), {self.op} at {self.where}"


@dataclass(frozen=True, slots=True)
class RuntimeWords:
    """What a runtime or a tool said about a fault.

    Args:
        kernel: the kernel it names; with several queues it can be a bystander.
        is_exact: False where the runtime itself says that the address may be off.
    """

    line: str
    address: int | None = None
    is_exact: bool = True
    kernel: str = ""
    reason: str = ""


_AMD_ABORT = re.compile(
    r"(?P<line>Memory access fault by GPU node-\d+ \(Agent handle: \S+\) on address "
    r"(?P<address>0x[0-9a-fA-F]+|\(nil\))"
    r"(?P<vague>\s?\(may not be exact address\))?\.? ?Reason: (?P<reason>[^.\n]+)\.?)"
)
_AMD_NAMED = re.compile(
    r"(?P<line>Memory Fault Error \[host: [^\]]*?faulting addr: (?P<address>0x[0-9a-fA-F]+)"
    r"(?:, kernel: (?P<kernel>[^\]\n]+))?\])"
)
_HW = re.compile(r"(?P<line>HW Exception by GPU node-\d+ \(Agent handle: \S+\) reason ?:\s?(?P<reason>[^.\n]+))")
_QUEUE = re.compile(r"(?P<line>(?:Warning: )?Queue error - (?P<reason>HSA_STATUS_ERROR_\w+))")
_STICKY = re.compile(
    r"(?P<line>(?:CUDA|HIP) error: (?P<reason>an illegal memory access was encountered|unspecified launch failure"
    r"|device-side assert triggered|misaligned address|an illegal instruction was encountered))"
)


def read_words(text: str) -> RuntimeWords | None:
    """The memory fault that ``text``, a program's stderr, reports, by its most informative line; None without one."""
    for pattern in (_AMD_NAMED, _AMD_ABORT, _HW, _QUEUE, _STICKY):
        found = list(pattern.finditer(text))
        if found:
            parts = found[-1].groupdict()  # the program survived earlier ones
            address = parts.get("address")
            return RuntimeWords(
                line=parts["line"],
                address=None if address is None else (0 if address == "(nil)" else int(address, 16)),
                is_exact=not parts.get("vague"),
                kernel=parts.get("kernel") or "",
                reason=parts.get("reason") or "",
            )
    return None


@dataclass(frozen=True, slots=True)
class Fault:
    """Everything known about one fault.

    Args:
        status: the runtime's name of the error, or how the process ended.
        node: None where the fault happened outside every node.
    """

    node: NodeInfo | None
    n_nodes: int
    replay: int
    status: str
    words: RuntimeWords | None = None
    memory: Sequence[Allocation] = field(default_factory=tuple)

    def fields(self) -> dict[str, object]:
        """Values for the catalogue's ``memory_fault``."""
        words, node = self.words, self.node
        known: dict[str, object] = {"status": self.status, "n_nodes": self.n_nodes, "replay": self.replay}
        known |= {"address": "", "nearest": ""}
        if words is not None and words.address is not None:
            known["address"] = f"{words.address:#x}{'' if words.is_exact else ', about'}"
            known["nearest"] = MemoryMap([*self.memory, *_own(node)]).place(words.address)
        if node is None:
            return known
        return known | {
            "node": node.position,
            "kernel": node.title,
            "op": node.op,
            "where": node.where,
            "layout": "\n".join(map(str, node.tensors)),
        }


def _own(node: NodeInfo | None) -> list[Allocation]:
    """The node's tensors, for addresses in no known allocation."""
    if node is None:
        return []
    return [Allocation(t.address, t.nbytes, t.name or t.role, "", t.layout) for t in node.tensors if t.address]
