"""The flight recorder: a file that shows, however the process died, which node of which graph was running.

Each process has a folder in the user's state directory with the recorder itself, mapped into memory so
that writing costs no system call and survives SIGKILL, and the descriptions of graphs and memory
as JSON. It is removed at a clean exit, by the process or by the supervisor that started it.

``running`` and ``idle`` may be called from signal handlers: they only assign to mapped memory, without a
lock. Everything else writes files and may not.
"""

from __future__ import annotations

import atexit
import itertools
import json
import mmap
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gfxgraph import config, files
from gfxgraph.core import flight_page
from gfxgraph.core.fault_report import NodeInfo
from gfxgraph.core.flight_page import Page, Phase
from gfxgraph.core.memory_map import Allocation
from gfxgraph.process import process


class FlightRecorder:
    """This process's recorder."""

    def __init__(self, home: Path, *, is_supervised: bool) -> None:
        # With the time, because state directories are shared by machines and containers, and process ids are not
        # unique there.
        self.folder = home / f"{flight_page.PREFIX}{os.getpid()}-{time.time_ns():x}"
        self.is_supervised = is_supervised
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        files.new_folder(self.folder, 0o700)
        path = self.folder / flight_page.RECORDER_FILE
        files.write(path, b"\0" * flight_page.PAGE_NBYTES)
        with path.open("r+b") as file:  # created just now, by us
            self._map = mmap.mmap(file.fileno(), flight_page.PAGE_NBYTES)
        self.page = Page(self._owner)
        self._write(self.page)

    def next_graph(self) -> int:
        return next(self._numbers)

    def describe(self, graph: int, segment: int, nodes: Iterable[NodeInfo], where: str) -> None:
        """Write the description of a segment's nodes."""
        table = {"where": where, "nodes": [node.as_dict() for node in nodes]}
        self._save(flight_page.graph_file(graph, segment), table)

    def remember(self, allocations: Iterable[Allocation]) -> None:
        """Write which memory belongs to what."""
        self._save(flight_page.MEMORY_FILE, [allocation.as_dict() for allocation in allocations])

    def running(self, graph: int, segment: int, node: int, n_nodes: int, replay: int) -> None:
        """Record that a node is about to run."""
        n, now = self.page.sequence + 1, time.monotonic_ns()
        self._write(Page(self._owner, Phase.RUNNING, graph, segment, node, n_nodes, replay, now, n))

    def idle(self) -> None:
        """Record that the replay is done."""
        self._write(replace(self.page, phase=Phase.IDLE, sequence=self.page.sequence + 1))

    def faulted(self, text: str) -> None:
        """Record that the process saw a fault and reports it itself with ``text``."""
        self._save(flight_page.FAULT_FILE, {"text": text})
        self._write(replace(self.page, phase=Phase.FAULTED, sequence=self.page.sequence + 1))

    def close(self) -> None:
        """Clean exit: remove the folder, unless a supervisor will."""
        if os.getpid() != self._owner or self.is_supervised:
            return
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, page: Page) -> None:
        self.page = page
        data = page.pack()
        self._map[: len(data)] = data

    def _save(self, name: str, table: object) -> None:
        try:
            files.write(self.folder / name, json.dumps(table))
        except OSError as error:  # a full disk, or a process that ends while a thread replays: no reason to fail
            _report(self.folder, error)


_recorder: FlightRecorder | None = None


def recorder() -> FlightRecorder | None:
    """This process's recorder, made at the first call; None if the state directory is not writable."""
    global _recorder
    if _recorder is not None and _recorder._owner == os.getpid():
        return _recorder
    home = None
    try:
        home, is_supervised = _home()
        if not is_supervised:
            sweep(home)
        _recorder = FlightRecorder(home, is_supervised=is_supervised)
    except OSError as error:
        _report(home or error.filename, error)
        return None
    atexit.register(_recorder.close)
    return _recorder


def _report(where: object, error: OSError) -> None:
    process.require().report("guard_without_recorder", f"{where}: {error.strerror}", "flight recorder")


def running_node() -> str:
    """The node that this process is running, if graphs are walked; else ""."""
    page = _recorder.page if _recorder is not None else None
    if _recorder is None or page is None or page.phase is not Phase.RUNNING:
        return ""
    try:
        table = json.loads(files.read(_recorder.folder / flight_page.graph_file(page.graph, page.segment)))
        return f"{NodeInfo.from_dict(table['nodes'][page.node])} (of {page.n_nodes})"
    except (OSError, ValueError, LookupError):
        return f"{page.node} of {page.n_nodes}"


def _home() -> tuple[Path, bool]:
    """The folder's parent, and whether a supervisor asked for it."""
    own = config.state_folder()
    asked = config.load().flight
    # Nothing is written outside the user's state directory, whatever the variable says.
    if asked and Path(asked).resolve().is_relative_to(own.resolve()):
        return Path(asked), True
    return own / "flight", False


def sweep(home: Path) -> None:
    """Remove leftovers of processes that ended a week ago."""
    for folder in home.glob(f"{flight_page.PREFIX}*"):
        number = folder.name.split("-")[1]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            try:
                is_old = time.time() - folder.stat().st_mtime > 7 * 86400
            except OSError:
                continue
            if is_old:
                shutil.rmtree(folder, ignore_errors=True)
