"""The counters of ``gfxgraph.stats()`` as Prometheus text, for one process or for all processes of a server.

Problem: one process of a server answers ``/metrics``, and others replay graphs. Idea: each process writes its text to
a file in a folder (``GFXGRAPH_METRICS``), and the process that answers combines the files, with the process as a
label. The same files work with a node exporter's textfile collector.

Torch-free: statistics are read only if the runtime is loaded.

Source: the text format, https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gfxgraph import files
from gfxgraph.process import process
from gfxgraph.process.health import stats as current

SUFFIX = ".prom"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its samples are (labels, value)."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[Mapping[str, str], float], ...] = field(default=())


_COUNTERS = {
    "gfxgraph_captures_total": ("capture_count", "Graphs captured"),
    "gfxgraph_capture_failures_total": ("capture_failures", "Captures that failed"),
    "gfxgraph_replays_total": ("replay_count", "Graph replays"),
    "gfxgraph_splits_total": ("split_count", "Captures split at an operation that no graph records"),
    "gfxgraph_guard_mismatches_total": ("guard_mismatches", "Replays whose captured values had changed"),
    "gfxgraph_validations_total": ("validations", "Replays compared with eager execution"),
    "gfxgraph_validation_failures_total": ("validation_failures", "Replays that differed from eager execution"),
    "gfxgraph_graphs_retired_total": ("graphs_retired", "Graphs no longer used because a replay differed"),
}


def families(stats: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> list[Family]:
    """Convert ``stats`` to metrics; ``labels`` are added to every sample."""
    labels = dict(labels or {})
    made = [
        Family(name, "counter", text, ((labels, float(stats.get(key) or 0)),))
        for name, (key, text) in _COUNTERS.items()
    ]
    fallbacks = stats.get("fallbacks") or {}
    by_reason = tuple(({**labels, "reason": reason}, float(count)) for reason, count in sorted(fallbacks.items()))
    made.append(Family("gfxgraph_fallbacks_total", "counter", "Work that ran eagerly in place of a graph", by_reason))
    chosen = [event for event in stats.get("events") or () if event["kind"] == "engine_eager"]
    by_choice = tuple(({**labels, "reason": event["reason"]}, float(event["count"])) for event in chosen)
    text = "Steps, or whole modes, for which an engine or compiler left its graphs off"
    made.append(Family("gfxgraph_engine_eager_total", "counter", text, by_choice))
    if stats.get("avg_replay_us") is not None:
        seconds = float(stats["avg_replay_us"]) / 1e6
        text = "CPU time of a replay, mean of the timed ones"
        made.append(Family("gfxgraph_replay_cpu_seconds", "gauge", text, ((labels, seconds),)))
    is_on = float(stats.get("enabled_at") is not None)
    made.append(Family("gfxgraph_enabled", "gauge", "1 where the bridge was switched on", ((labels, is_on),)))
    return made


def metrics_text(stats: Mapping[str, Any] | None = None, labels: Mapping[str, str] | None = None) -> str:
    """This process's counters in Prometheus' text format.

    Args:
        stats: a result of ``gfxgraph.stats()``; by default the present one.
        labels: added to every sample.
    """
    return render(current_families(stats, labels))


def current_families(stats: Mapping[str, Any] | None = None, labels: Mapping[str, str] | None = None) -> list[Family]:
    """This process's counters, and coverage if it is being counted; arguments as for ``metrics_text``."""
    made = families(current() if stats is None else stats, labels)
    state = process.current()
    for name, kind, text, samples in state.coverage() if state is not None and state.coverage is not None else ():
        made.append(Family(name, kind, text, tuple(({**(labels or {}), **own}, value) for own, value in samples)))
    return made


def render(metrics: Iterable[Family]) -> str:
    """Render metrics as text; those without samples are omitted."""
    lines = []
    for metric in metrics:
        if metric.samples:
            lines += [f"# HELP {metric.name} {_escaped(metric.help, '')}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{_labels(labels)} {_number(value)}" for labels, value in metric.samples]
    return "".join(f"{line}\n" for line in lines)


def file_in(folder: str, pid: int | None = None) -> Path:
    """The file in which a process writes its text."""
    return Path(folder) / f"gfxgraph-{os.getpid() if pid is None else pid}{SUFFIX}"


def write(folder: str, stats: Mapping[str, Any] | None = None) -> None:
    """Replace this process's file atomically."""
    target = file_in(folder)
    files.new_folder(target.parent)
    files.write(target, metrics_text(stats, {"pid": str(os.getpid())}))


def texts(folder: str, is_alive: Callable[[int], bool] | None = None) -> Iterator[str]:
    """What every running process has written to ``folder``."""
    alive = is_alive if is_alive is not None else _is_alive
    for path in sorted(Path(folder).glob(f"gfxgraph-*{SUFFIX}")):
        pid = path.stem.rpartition("-")[2]
        if pid.isdigit() and alive(int(pid)):
            with suppress(OSError):  # it has just ended, or is not one of ours
                yield files.read_inside(folder, path.name, files.MOST_NBYTES).decode("utf-8", "replace")


def _labels(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str, quote: str = '"') -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace(quote, rf"\{quote}") if quote else text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process: it exists
        return True
    return True
