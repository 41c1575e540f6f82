"""What is known about each gfx target, from ``architectures.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Architecture:
    """One gfx target. The fields are explained at the head of ``architectures.toml``."""

    name: str
    family: str
    chips: tuple[str, ...]
    names: tuple[str, ...]
    wavefronts: tuple[int, ...]
    lds_kib: int
    matrix: str
    bf16: str
    fp8: str
    xnack: bool
    override: str
    rocm_from: str
    rocm_until: str

    @property
    def wavefront(self) -> int:
        """Width that compilers choose when not told otherwise."""
        return self.wavefronts[0]

    @property
    def is_cdna(self) -> bool:
        """True for data-centre parts."""
        return self.family.startswith("CDNA")

    def support(self) -> str:
        """Official ROCm support as one phrase."""
        if not self.rocm_from:
            return "not officially supported"
        if self.rocm_until:
            return f"ROCm {self.rocm_from} to {self.rocm_until} only"
        return f"ROCm {self.rocm_from} and later"


@lru_cache(maxsize=1)
def architectures() -> dict[str, Architecture]:
    """Return every known architecture by gfx name."""
    with (Path(__file__).parent / "architectures.toml").open("rb") as file:
        table = tomllib.load(file)
    lists = ("chips", "names", "wavefronts")
    return {
        name: Architecture(name=name, **row | {each: tuple(row[each]) for each in lists})
        for name, row in table.items()
    }


def architecture(name: str) -> Architecture | None:
    """Return what is known of ``gfx1030`` or ``gfx90a:sramecc+:xnack-``; None for an unknown target."""
    return architectures().get(name.split(":")[0].lower())


def name_of_target(version: int) -> str:
    """Return ``gfx90a`` for KFD's ``gfx_target_version`` 90010; '' for 0, which KFD gives CPUs."""
    if version <= 0:
        return ""
    major, rest = divmod(version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def name_of_override(value: str) -> str:
    """Return ``gfx1030`` for ``10.3.0``; '' for what HSA_OVERRIDE_GFX_VERSION does not accept."""
    parts = value.strip().split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return ""
    major, minor, stepping = map(int, parts)
    return f"gfx{major}{minor:x}{stepping:x}"
