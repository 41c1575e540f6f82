"""What a rank has captured, in lines that can be compared with another rank's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|cross_device", re.IGNORECASE)


@dataclass(slots=True)
class Fingerprint:
    """Kernels in order, collectives with their communicators, numbers of registered buffers."""

    lines: list[str] = field(default_factory=list)
    has_collectives: bool = False

    def collective(self, name: str, arguments: Sequence[str]) -> None:
        """A collective of torch's, with the group and whatever else is not a tensor."""
        self.has_collectives = True
        self.lines.append(f"collective {name}({', '.join(arguments)})")

    def node(self, kind: str, kernel: str) -> None:
        """A node of the graph, in its order."""
        self.has_collectives |= bool(_COLLECTIVE_KERNEL.search(kernel))
        self.lines.append(f"{kind} {kernel}".strip())

    def buffers(self, n_inputs: int, n_results: int) -> None:
        """How many buffers other ranks may know of: what the graph reads from outside, and what it leaves."""
        self.lines.append(f"{n_inputs} buffers from outside, {n_results} results")


def first_difference(by_rank: Sequence[Sequence[str] | None]) -> str:
    """The first difference between the ranks' fingerprints, in words; "" if all ranks that answered agree."""
    known = [(rank, lines) for rank, lines in enumerate(by_rank) if lines is not None]
    missing = [str(rank) for rank, lines in enumerate(by_rank) if lines is None]
    if missing and known:
        return f"rank {', '.join(missing)} did not reach this graph"
    for rank, lines in known[1:]:
        first_rank, first = known[0]
        for at in range(max(len(first), len(lines))):
            a = first[at] if at < len(first) else "nothing"
            b = lines[at] if at < len(lines) else "nothing"
            if a != b:
                return f"at {at + 1} of {len(first)}, rank {first_rank} has {a!r} and rank {rank} has {b!r}"
    return ""
