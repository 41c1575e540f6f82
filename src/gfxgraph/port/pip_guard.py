"""Protect an installed ROCm torch from ``pip install``.

pip itself is asked, with ``--dry-run --report``, what it would install; nothing is guessed from names. If the
answer would put another torch in the place of a ROCm build, the install is refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gfxgraph.hardware.software import find_torch

GUARDED = ("torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "pytorch-triton-rocm")


class PipGuardError(Exception):
    """pip could not be asked, or its answer could not be read."""


@dataclass(frozen=True, slots=True)
class Change:
    """One guarded package that the install would put in place."""

    name: str
    version: str
    url: str

    @property
    def is_rocm(self) -> bool:
        return "rocm" in self.version or "/rocm" in self.url


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the install may run."""

    installed: str
    build: str
    changes: tuple[Change, ...]

    @property
    def refused(self) -> bool:
        """A ROCm torch is there, and something not built for ROCm would come in its place."""
        return self.build == "rocm" and any(not c.is_rocm for c in self.changes)


def judge(arguments: Sequence[str], *, python: str = sys.executable, search: list[str] | None = None) -> Judgement:
    """Ask pip what ``pip <arguments>`` would install.

    Args:
        arguments: what follows ``pip``; the first must be ``install``.

    Raises:
        PipGuardError: the command is not an install, or pip fails.
    """
    if not arguments or arguments[0] != "install":
        raise PipGuardError("only `install` is guarded: gfxgraph port pip -- install PACKAGE...")
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [python, "-m", "pip", *arguments, "--dry-run", "--quiet", "--report", report]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            # Of a wrong option pip prints its usage first.
            said = next((line.strip() for line in reversed(lines) if line.strip()), "")
            raise PipGuardError(f"pip could not resolve it: {said[-600:]}")
        try:
            data = json.loads(Path(report).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PipGuardError(f"pip's report could not be read: {error}; pip 22.2 or newer writes one") from error
    version, build = torch_build(search)
    return Judgement(version, build, tuple(changes_in(data)))


def changes_in(report: dict[str, object]) -> list[Change]:
    """The guarded packages of a pip installation report."""
    found = []
    rows = report.get("install")
    for row in rows if isinstance(rows, list) else []:
        meta = row.get("metadata", {})
        name = str(meta.get("name", "")).lower().replace("_", "-")
        if name in GUARDED:
            found.append(Change(name, str(meta.get("version", "")), str(row.get("download_info", {}).get("url", ""))))
    return found


def install(arguments: Sequence[str], *, python: str = sys.executable) -> int:
    """Run pip for real and return its exit status."""
    return subprocess.run([python, "-m", "pip", *arguments], check=False).returncode


def torch_build(search: list[str] | None = None) -> tuple[str, str]:
    """Version and build (``rocm``, ``cuda``, ``cpu``, or "" without torch) of the torch that would be imported."""
    found = find_torch(search)
    kind = "rocm" if found.kind == "cpu" and "+rocm" in found.version else found.kind
    return (found.version, kind) if found.version else ("", "")
