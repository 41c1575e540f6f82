"""The machine as a tree of files, so that a recorded tree stands in for a real machine.

Every reader here answers "nothing" for a file that is missing or may not be read: what is absent
is a finding for doctor, not an exception.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gfxgraph import config


@dataclass(frozen=True)
class Machine:
    """Where to read, and as whom.

    ``uid`` and ``groups`` are the user whose rights are judged; ``environ`` the variables that
    change what a GPU program sees.
    """

    root: Path = Path("/")
    uid: int = field(default_factory=os.getuid)
    groups: frozenset[int] = field(default_factory=lambda: frozenset({os.getgid(), *os.getgroups()}))
    environ: Mapping[str, str] = field(default_factory=config.gpu_variables)

    def path(self, name: str) -> Path:
        """Return ``name``, an absolute path, below the root."""
        return self.root / name.lstrip("/")

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def text(self, name: str) -> str:
        """Return the file's text without surrounding space, '' where it cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return ""

    def names(self, folder: str) -> list[str]:
        """Return what a folder holds, numbers in numeric order; [] where it cannot be listed."""
        try:
            return sorted(os.listdir(self.path(folder)), key=_natural)
        except OSError:
            return []

    def glob(self, pattern: str) -> list[Path]:
        """Return the paths matching ``pattern``, an absolute one, sorted."""
        return sorted(self.root.glob(pattern.lstrip("/")), key=lambda path: _natural(path.name))

    def stat(self, name: str) -> os.stat_result | None:
        try:
            return self.path(name).stat()
        except OSError:
            return None

    def properties(self, name: str) -> dict[str, int]:
        """Return a KFD properties file, ``key number`` lines."""
        found = {}
        for line in self.text(name).splitlines():
            key, _, value = line.partition(" ")
            if value.strip().lstrip("-").isdigit():
                found[key] = int(value)
        return found


def _natural(name: str) -> tuple[Iterable[object], ...]:
    digits = "".join(c for c in name if c.isdigit())
    return ((name.rstrip("0123456789"), int(digits) if digits else -1, name),)
