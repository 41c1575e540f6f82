"""Writes a process's data for ``gfxgraph run --report`` and ``GFXGRAPH_REPORT``: one JSON file."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gfxgraph import files
from gfxgraph.capture import leaving
from gfxgraph.capture.graph import BridgedGraph
from gfxgraph.config import Config
from gfxgraph.diagnostics.render import without_secrets
from gfxgraph.errors import GfxGraphError
from gfxgraph.hardware.time_limit import LAST_S, Aside
from gfxgraph.process import bridge, process
from gfxgraph.process.health import stats
from gfxgraph.reporting.inspection import InspectedCapture, Inspection
from gfxgraph.reporting.read_capture import inspect, memory_report, read_capture

PERIOD_S = 5.0
MOST_NODES = 5000
"""Most nodes written; the rest are left out, and the report says so."""
MOST_GONE = 64
_gone: list[InspectedCapture] = []
_arranged: set[int] = set()
_profiles: list[Any] = []
"""The profile of this run."""


def arrange(settings: Config) -> None:
    """Write this process's counters to the folder of ``settings.report`` every few seconds; graphs at its end."""
    if os.getpid() in _arranged or not bridge.is_enabled():
        return
    _arranged.add(os.getpid())
    if settings.profile:
        # lazily: few runs are profiled
        from gfxgraph.reporting.profile import profile

        _profiles.append(profile())
        _profiles[-1].__enter__()
    leaving.append(_leaving)
    os.register_at_fork(after_in_child=functools.partial(_arranged.discard, os.getpid()))
    ended = threading.Event()
    writer = threading.Thread(
        target=_keep_writing, args=(settings, os.getpid(), ended), name="gfxgraph-report", daemon=True
    )
    atexit.register(_end, settings, os.getpid(), ended, writer, Aside())
    # A worker that is killed runs no exit handlers: then the last periodic file remains.
    writer.start()


def process_report(with_nodes: bool = True) -> dict[str, object]:
    """Everything known about this process: counters, captures, memory."""
    state = process.current()
    made: dict[str, Any] = {
        "pid": os.getpid(),
        "argv": without_secrets(sys.argv),
        "cwd": _here(),
        "at": time.time(),
        "platform": state.platform if state is not None else None,
        "stats": stats(),
    }
    if with_nodes:
        made["memory"] = memory_report()
        made["inspection"] = _captures(inspect(), _gone)
        for found in _profiles:
            found.__exit__()
            made["profile"] = found.found.as_dict()
        _profiles.clear()
    return made


def _leaving(graph: BridgedGraph) -> None:
    """Read a graph that is about to be destroyed: when main() has returned, a program's graphs are gone."""
    if len(_gone) >= MOST_GONE:
        return
    try:
        _gone.append(read_capture(graph))
    except (GfxGraphError, RuntimeError) as error:  # the device may be gone, or busy with a failure
        process.log.debug("a graph was not read before it was destroyed: %s", error)


def _here() -> str:
    """The current folder; "" where the program removed it."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _captures(found: Inspection, gone: list[InspectedCapture]) -> dict[str, object]:
    """The most replayed captures, up to the limit of nodes; those in ``gone`` were destroyed earlier."""
    ranked = sorted((*found.captures, *gone), key=lambda capture: -capture.n_replays)
    kept: list[InspectedCapture] = []
    n = 0
    for capture in ranked:
        if kept and n + capture.n_nodes > MOST_NODES:
            continue
        kept.append(capture)
        n += capture.n_nodes
    table = Inspection(tuple(kept), found.notes, found.runtime, found.pools).as_dict()
    are_gone = set(map(id, gone))
    for capture, row in zip(kept, table["captures"]):
        row["is_gone"] = id(capture) in are_gone
    return {**table, "left_out": len(ranked) - len(kept)}


def write(folder: str, report: dict[str, object]) -> None:
    """Replace this process's file atomically."""
    target = Path(folder) / f"gfxgraph-{os.getpid()}.json"
    files.new_folder(target.parent)
    files.write(target, json.dumps(report, default=str))


def _keep_writing(settings: Config, owner: int, ended: threading.Event) -> None:
    while not ended.wait(PERIOD_S) and os.getpid() == owner:
        process.attempt(
            lambda: write(settings.report, process_report(with_nodes=False)),
            f"the report's data was not written to {settings.report}",
        )


def _end(settings: Config, owner: int, ended: threading.Event, writer: threading.Thread, aside: Aside) -> None:
    if os.getpid() != owner:
        return
    ended.set()
    if writer.is_alive():
        # It knows no captures: what it writes is to be replaced, not to replace.
        writer.join(LAST_S)
    try:
        report = process_report()
    except (GfxGraphError, RuntimeError) as error:  # the device may be gone; the counters are still known
        process.log.warning("captures could not be read at the end: %s", error)
        report = process_report(with_nodes=False)
    try:
        aside.within(LAST_S, lambda: write(settings.report, report))
    except OSError as error:
        sys.stderr.write(f"gfxgraph: the report's data was not written to {settings.report}: {error.strerror}\n")
