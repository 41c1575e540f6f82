"""AMD architectures: the facts a rule may ask about, and named sets of them.

Never infer a fact from the vendor: gfx9 compute parts run wavefronts of 64 lanes, RDNA and gfx1250 of 32,
and the prefix "gfx12" joins two families, so names are matched whole.

Enters: hardware's table.
Stays out: the machine's own device; see ``hardware`` for that.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from gfxgraph.hardware.architectures import Architecture as Arch
from gfxgraph.hardware.architectures import architectures

__all__ = ["ALL", "FNUZ", "GCN5", "GFX94", "WAVE32", "WAVE64", "Arch", "ArchSet", "select", "table"]


@dataclass(frozen=True, slots=True)
class ArchSet:
    """A named set of architectures, given by a test so that a new row of the table falls in by itself."""

    label: str
    test: Callable[[Arch], bool]

    def __contains__(self, arch: object) -> bool:
        return isinstance(arch, Arch) and self.test(arch)

    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in table() if self.test(a))


@lru_cache(maxsize=1)
def table() -> tuple[Arch, ...]:
    """Every architecture a port may target, in the order of ``hardware``'s table."""
    return tuple(a for a in architectures().values() if not a.family.startswith("GCN4"))


def select(spec: str | Iterable[str] | None) -> tuple[Arch, ...]:
    """Return the architectures that ``--arch`` names; all of them for None.

    Args:
        spec: comma-separated names, shell patterns (``gfx11*``) or families (``RDNA2``).

    Raises:
        ValueError: a part that matches nothing; the message lists what is known.
    """
    rows = table()
    if spec is None:
        return rows
    parts = spec.split(",") if isinstance(spec, str) else list(spec)
    chosen: dict[str, Arch] = {}
    for part in (p.strip() for p in parts):
        if not part:
            continue
        name = part.split(":")[0]  # gfx90a:sramecc+:xnack- names features after a colon
        found = [a for a in rows if fnmatch.fnmatchcase(a.name, name) or a.family.lower() == name.lower()]
        if not found:
            known = ", ".join(a.name for a in rows)
            raise ValueError(f"unknown architecture {part!r}; known: {known}")
        chosen.update((a.name, a) for a in found)
    return tuple(chosen.values()) or rows


ALL = ArchSet("all", lambda a: True)
WAVE64 = ArchSet("wave64", lambda a: a.wavefront == 64)
WAVE32 = ArchSet("wave32", lambda a: a.wavefront == 32)
FNUZ = ArchSet("fp8-fnuz", lambda a: a.fp8 == "fnuz")
GFX94 = ArchSet("gfx94x", lambda a: a.family == "CDNA3")
GCN5 = ArchSet("gcn5", lambda a: a.family == "GCN5")
