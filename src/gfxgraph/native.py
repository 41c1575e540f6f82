"""native: where the companion package's libraries are, how to preload one, and what it reported.

Enters: paths, an environment to extend, the report's JSON.
Stays out: torch, drivers, the libraries themselves.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gfxgraph._native import State, Symbol, SymbolReport, read_symbol_report, state, symbol_report
from gfxgraph.errors import GfxGraphError

__all__ = [
    "Report",
    "State",
    "Symbol",
    "SymbolReport",
    "library_path",
    "preload_environment",
    "read_report",
    "read_symbol_report",
    "state",
    "symbol_report",
]

PRELOAD = "gfxgraph_preload"
COMPANION = "gfxgraph_native"


def library_path(name: str = PRELOAD) -> Path | None:
    """Return the companion package's ``lib{name}.so``, or None where it is not installed."""
    if importlib.util.find_spec(COMPANION) is None:
        return None
    found: Path | None = importlib.import_module(COMPANION).library_path(name)
    return found


def preload_environment(environ: Mapping[str, str], report: Path, library: Path | None = None) -> dict[str, str]:
    """Return ``environ`` with the preload library set up, writing to ``report``.

    A ``%p`` in the report's name becomes the process id, so that every process has a file of its own.

    Raises:
        GfxGraphError: `native_library_unusable`, where the companion package is not installed.
    """
    path = library or library_path()
    if path is None or not path.exists():
        raise GfxGraphError("native_library_unusable", path=path or f"lib{PRELOAD}.so", problem="not installed")
    others = environ.get("LD_PRELOAD", "")
    return {
        **environ,
        # First, so that it is asked before other preloaded libraries.
        "LD_PRELOAD": f"{path}:{others}" if others else str(path),
        "GFXGRAPH_PRELOAD_REPORT": str(report),
    }


@dataclass(frozen=True, slots=True)
class Report:
    """What the preload library saw in one process."""

    library: str
    hip: tuple[int, ...]
    captures: int
    captures_failed: int
    captured_nodes: int
    rebuilds: int
    fallback: Mapping[str, int]
    not_recorded: Mapping[str, int]
    calls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    failures: tuple[Mapping[str, Any], ...] = ()
    execs: tuple[Mapping[str, int], ...] = ()

    def lines(self) -> Iterator[str]:
        """The report as a person reads it, most important first."""
        version = ".".join(map(str, self.hip))
        yield f"HIP {version}: {self.library}" if self.library else "no HIP runtime was called"
        yield f"captures: {self.captures}, of {self.captured_nodes} nodes; failed: {self.captures_failed}"
        launches = self.calls.get("hipGraphLaunch", {}).get("calls", 0)
        made = sum(call["calls"] for name, call in self.calls.items() if name.startswith("hipGraphInstantiate"))
        yield f"graph execs made: {made}; launches: {launches}; rebuilt: {self.rebuilds}"
        for api, times in self.not_recorded.items():
            yield f"not recorded: {api} ran at once inside a capture, {times} times"
        if self.fallback.get("nodes"):
            yield (
                f"fallback: {self.fallback['instantiate']} instantiations and {self.fallback['launch']} launches"
                f" refused, {self.fallback['nodes']} nodes run one by one"
            )
        for failure in self.failures:
            yield f"failed: {failure['api']} with {failure['status']}, {failure['times']} times"


def read_report(path: Path) -> Report | None:
    """Return what was written to ``path``; None where no process made a graph call."""
    if not path.exists():
        return None
    told = json.loads(path.read_text(encoding="utf-8"))
    number = told["hip"]
    return Report(
        library=told["library"],
        hip=(number // 10_000_000, number // 100_000 % 100, number % 100_000),
        captures=told["captures"],
        captures_failed=told["captures_failed"],
        captured_nodes=told["captured_nodes"],
        rebuilds=told["rebuilds"],
        fallback=told["fallback"],
        not_recorded=told["not_recorded"],
        calls=told["calls"],
        failures=tuple(told["failures"]),
        execs=tuple(told["execs"]),
    )
