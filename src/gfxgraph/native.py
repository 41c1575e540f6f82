"""native: finds the companion package's libraries, preloads one, and reads its report.

Enters: paths, an environment to extend, the report's JSON.
Stays out: torch, drivers, the libraries themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gfxgraph import _native, config, files
from gfxgraph._native import State, state
from gfxgraph.diagnostics import statuses
from gfxgraph.driver.table import split_version
from gfxgraph.errors import GfxGraphError

__all__ = [
    "Report",
    "State",
    "library_path",
    "preload_environment",
    "preload_settings",
    "read_report",
    "state",
]

PRELOAD = "gfxgraph_preload"
REPORT = "GFXGRAPH_PRELOAD_REPORT"
CAPTURE_MODE = "GFXGRAPH_PRELOAD_CAPTURE_MODE"
UPDATE_BUDGET = "GFXGRAPH_PRELOAD_UPDATE_BUDGET"
DEEPBIND = "GFXGRAPH_PRELOAD_DEEPBIND"
NODE_LIMIT = "GFXGRAPH_PRELOAD_NODE_LIMIT"


def library_path(name: str = PRELOAD) -> Path | None:
    """Find one of the companion's libraries.

    Args:
        name: without ``lib`` and ``.so``; the preload library by default.

    Returns:
        ``lib{name}.so`` beside GFXGRAPH_LIB, or the companion package's; None if there is neither.
    """
    if beside := config.load().lib:
        if not Path(beside).exists():
            return None  # no reason to look elsewhere: the user has named it
        path = Path(beside).parent / f"lib{name}.so"
        if path.exists():
            return path
    return _native.library_path(name)


def preload_environment(environ: Mapping[str, str], report: Path, library: Path | None = None) -> dict[str, str]:
    """Return ``environ`` with the preload library set up.

    Args:
        environ: of the process to be started; not modified.
        report: the file that each process writes when it exits. A ``%p`` in its name becomes the process id, so that
            every process has a file of its own.
        library: the preload library; by default the one that ``library_path`` finds.

    Raises:
        GfxGraphError: `native_library_unusable`, if the companion package is not installed.
    """
    path = library or library_path()
    if path is None or not path.exists():
        where = path or config.load().lib or f"lib{PRELOAD}.so"
        raise GfxGraphError("native_library_unusable", path=where, problem="not installed")
    others = environ.get("LD_PRELOAD", "")
    return {
        **environ,
        # First, so that it is searched before other preloaded libraries.
        "LD_PRELOAD": f"{path}:{others}" if others else str(path),
        REPORT: str(report),
    }


def preload_settings(
    modes: Mapping[str, str | None], update_budget: int | None, node_limit: int | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the preload library's settings for known defects; settings in ``environ`` take precedence.

    Args:
        modes: capture modes that programs ask for, and what to use instead; None leaves one alone.
        update_budget: updates of an exec before it is rebuilt.
        node_limit: larger graphs run node by node.
        environ: the user's own settings.
    """
    # Some releases ignore updates, and the budget is 0: rebuilding the exec each time is right.
    budget = None if update_budget is None else max(update_budget, 1)
    changed = ",".join(f"{asked}:{used}" for asked, used in modes.items() if used)
    wanted = {CAPTURE_MODE: changed or None, UPDATE_BUDGET: budget, NODE_LIMIT: node_limit}
    return {name: str(value) for name, value in wanted.items() if value is not None and name not in environ}


@dataclass(frozen=True, slots=True)
class Report:
    """What the preload library saw in one process."""

    pid: int
    library: str
    runtime: str
    version: tuple[int, ...]
    asked_by: tuple[str, ...]
    captures: int
    captures_failed: int
    captured_nodes: int
    rebuilds: int
    set_aside: int
    made_again: int
    fallback: Mapping[str, int]
    not_recorded: Mapping[str, int]
    calls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    failures: tuple[Mapping[str, Any], ...] = ()
    execs: tuple[Mapping[str, int], ...] = ()
    deepbind_cleared: tuple[str, ...] = ()
    deepbind_kept: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The report as readable lines, most important first."""
        yield from self._unseen()
        if not self.runtime:
            yield "no graph call was seen"
            return
        yield f"{self.runtime.upper()} {'.'.join(map(str, self.version))}: {self.library}"
        yield from self._cuda_runtime()
        for path in self.deepbind_cleared:
            yield f"opened without RTLD_DEEPBIND, so that its calls are seen: {path} ({DEEPBIND}=keep leaves it)"
        yield f"captures: {self.captures}, of {self.captured_nodes} nodes; failed: {self.captures_failed}"
        made, updates = self.n_calls("GraphInstantiate"), self.n_calls("GraphExecUpdate")
        launches = self.n_calls("GraphLaunch")
        yield f"graph execs made: {made}; updated: {updates}; launches: {launches}; rebuilt: {self.rebuilds}"
        if self.set_aside:
            yield f"graph execs set aside over the limit: {self.set_aside}; made again when used: {self.made_again}"
        spent = [f"{words} {self._mean_us(name):.1f} us" for name, words in _TIMED if self.n_calls(name)]
        if spent:
            yield f"mean time in a call: {', '.join(spent)}"
        for api, times in self.not_recorded.items():
            yield f"not recorded: {api} ran at once inside a capture, {_times(times)}"
        if self.fallback.get("nodes"):
            yield (
                f"fallback: {self.fallback.get('instantiate', 0)} instantiations and"
                f" {self.fallback.get('launch', 0)} launches"
                f" refused, {self.fallback['nodes']} nodes run one by one"
            )
        if self.fallback.get("refused"):
            yield f"no fallback: {self.fallback['refused']} failures of graphs that cannot be run node by node"
        for failure in self.failures:
            status = statuses.by_number(failure["status"])
            name = status[0].name if status and status[0].api == "HIP" and self.runtime == "hip" else ""
            what = f"{name} ({failure['status']})" if name else str(failure["status"])
            yield f"failed: {failure['api']} with {what}, {_times(failure['times'])}"

    def n_calls(self, name: str) -> int:
        """The number of calls of every form of a function.

        Args:
            name: without ``hip`` or ``cu``, as in ``GraphLaunch``; a prefix counts every function that starts with
            it.
        """
        return sum(call["calls"] for call in self._forms(name))

    def _forms(self, name: str) -> list[Mapping[str, int]]:
        prefixes = (f"hip{name}", f"cu{name}")
        return [call for symbol, call in self.calls.items() if symbol.startswith(prefixes)]

    def _mean_us(self, name: str) -> float:
        forms = self._forms(name)
        return sum(call["ns"] for call in forms) / max(sum(call["timed"] for call in forms), 1) / 1000

    def _unseen(self) -> Iterator[str]:
        for path in self.deepbind_kept:
            yield f"not seen: graph calls of {path}, opened with RTLD_DEEPBIND, which {DEEPBIND}=keep leaves"
        for path in self.namespaces:
            yield f"not seen: graph calls of {path}, opened in its own namespace (dlmopen)"

    def _cuda_runtime(self) -> Iterator[str]:
        for path in self.asked_by:
            name = Path(path).name
            if not name.startswith("libcudart"):
                yield f"no libcudart: {name} links CUDA's runtime statically or calls the driver; its calls are seen"


_TIMED = (("GraphInstantiate", "instantiate"), ("GraphExecUpdate", "update"), ("GraphLaunch", "launch"))


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


_NUMBERS = "pid runtime_version captures captures_failed captured_nodes rebuilds set_aside made_again"
_KINDS = {
    **dict.fromkeys(("library", "runtime"), str),
    **dict.fromkeys(_NUMBERS.split(), int),
    "asked_by": [str],
    "fallback": {...: int},
    "not_recorded": {...: int},
    "calls": {...: {"calls": int, "timed": int, "ns": int}},
    "failures": [{"api": str, "status": int, "times": int}],
    "execs": [{...: int}],
    **dict.fromkeys(("deepbind_cleared", "deepbind_kept", "namespaces"), [str]),
}


def _is_like(value: object, kind: Any) -> bool:
    """Whether JSON that anybody may have written has a type, or is like ``[type]``, ``{name: type}``."""
    if isinstance(kind, list):
        return isinstance(value, list) and all(_is_like(item, kind[0]) for item in value)
    if not isinstance(kind, dict) or not isinstance(value, dict):
        return not isinstance(kind, dict) and isinstance(value, kind)
    shapes = dict.fromkeys(value, kind[...]) if ... in kind else kind
    return all(name in value and _is_like(value[name], shape) for name, shape in shapes.items())


def read_report(path: Path) -> Report | None:
    """Return what was written to ``path``; None if the process had nothing to report.

    Raises:
        OSError: it cannot be read.
        ValueError: it contains something else, as after a process that died while writing.
    """
    if not path.exists():
        return None
    told = files.read_json(path)
    if not _is_like(told, _KINDS):
        raise ValueError("it is not a report of the preload library")
    seen: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    seen["version"] = split_version(seen["runtime"], seen["runtime_version"])
    return Report(**{name: seen[name] for name in Report.__match_args__ if name in seen})
