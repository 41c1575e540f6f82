"""What a rank has captured, in lines that can be compared with another rank's.

Ranks are compared in pairs: of two ranks' collectives, those on communicators to which both belong must be the same,
in the same order. Their other kernels and buffers must be the same where all of their collectives are on the same
communicators; stages of a pipeline, or groups that share nothing, differ by right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field

_COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|cross_device", re.IGNORECASE)
_ONE_SIDED = re.compile(r"::(send|recv)")
Collective = tuple[str, str, list[int] | None]
"""Its name, its communicator, and the ranks of that; None for ranks that are not known."""


@dataclass(slots=True)
class Fingerprint:
    """Collectives with their communicators, kernels in order, numbers of registered buffers."""

    collectives: list[Collective] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    has_collectives: bool = False
    is_one_sided: bool = False
    """Whether it sends or receives: what its partner has captured is something else by right."""

    @property
    def knows_its_ranks(self) -> bool:
        """Whether every communicator is known, so that no rank is compared that has nothing to do with it."""
        is_known = all(ranks is not None for _, _, ranks in self.collectives)
        return is_known and (bool(self.collectives) or self.is_one_sided)

    def collective(self, name: str, group: str, ranks: list[int] | None) -> None:
        """A collective of torch's."""
        if _ONE_SIDED.search(name):
            self.is_one_sided = True
            return
        self.has_collectives = True
        self.collectives.append((name, group, ranks))

    def node(self, kind: str, kernel: str) -> None:
        """A node of the graph, in its order."""
        self.has_collectives |= bool(_COLLECTIVE_KERNEL.search(kernel))
        self.lines.append(f"{kind} {kernel}".strip())

    def buffers(self, n_inputs: int, n_results: int) -> None:
        """How many buffers other ranks may know of: what the graph reads from outside, and what it leaves."""
        self.lines.append(f"{n_inputs} buffers from outside, {n_results} results")

    def ranks(self, everybody: Iterable[int]) -> set[int]:
        """The ranks with which this one must agree."""
        if not self.knows_its_ranks:
            return set(everybody)
        return {rank for _, _, ranks in self.collectives for rank in ranks or ()}

    def difference(self, other: Fingerprint, rank: int, other_rank: int) -> str:
        """The first difference from another rank's, in words; "" if the two agree."""
        both = {rank, other_rank}
        mine, theirs = self._of(both), other._of(both)
        found = _first(mine, theirs, rank, other_rank, "collective")
        if found or self.is_one_sided or other.is_one_sided:
            return found
        if len(mine) < len(self.collectives) or len(theirs) < len(other.collectives):
            return ""
        found = _first(self.lines, other.lines, rank, other_rank, "line")
        return f"{found}; their collectives are the same" if found and mine else found

    def _of(self, ranks: Collection[int]) -> list[str]:
        """The collectives that concern all of ``ranks``."""
        return [
            f"{name} on communicator {group}" + (f" of ranks {', '.join(map(str, of))}" if of is not None else "")
            for name, group, of in self.collectives
            if of is None or not set(ranks) - set(of)
        ]

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Fingerprint:
        """Raises:
        ValueError: ``text`` is not what `as_text` makes.
        """
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(text) from error


def _first(mine: list[str], theirs: list[str], rank: int, other_rank: int, what: str) -> str:
    for at in range(max(len(mine), len(theirs))):
        a = mine[at] if at < len(mine) else "nothing"
        b = theirs[at] if at < len(theirs) else "nothing"
        if a != b:
            return f"at {what} {at + 1}, rank {rank} has {a} and rank {other_rank} has {b}"
    return ""
