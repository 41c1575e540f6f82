"""The flight recorder: which node of which graph is running, in a file that shows it however the process died.

Under ``gfxgraph run --guard`` each process has a folder of its own in the run's: the recorder, mapped into memory so
that writing costs no system call and survives SIGKILL, and the descriptions of graphs and memory as JSON. The process
that supervises reads and removes them. Without one nobody would, and nothing is written: only the hang watch asks.

``running`` and ``idle`` may be called from signal handlers: they only assign to mapped memory, without a
lock. Everything else writes files and may not.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from gfxgraph import config, files
from gfxgraph.core import flight_page
from gfxgraph.core.fault_report import NodeInfo
from gfxgraph.core.flight_page import Page, Phase
from gfxgraph.core.memory_map import Allocation
from gfxgraph.process import process


class FlightRecorder:
    """This process's recorder.

    Args:
        home: where to make a folder for its files; None to write none.
    """

    def __init__(self, home: Path | None) -> None:
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self.page = Page(self._owner)
        self._nodes: dict[tuple[int, int], list[NodeInfo]] = {}
        self.folder: Path | None = None
        self._map: mmap.mmap | bytearray = bytearray(flight_page.PAGE_NBYTES)
        if home is None:
            return
        try:
            # With the time, because a run's processes may be in several containers, each with ids of its own.
            self.folder = home / f"{flight_page.PREFIX}{self._owner}-{time.time_ns():x}"
            files.new_folder(self.folder, 0o700)
            path = self.folder / flight_page.RECORDER_FILE
            files.write(path, b"\0" * flight_page.PAGE_NBYTES)
            with path.open("r+b") as file:  # created just now, by us
                self._map = mmap.mmap(file.fileno(), flight_page.PAGE_NBYTES)
        except OSError as error:
            self._lost(error)
        self._write(self.page)

    def next_graph(self) -> int:
        return next(self._numbers)

    def describe(self, graph: int, segment: int, nodes: list[NodeInfo], where: str) -> None:
        """Keep the description of a segment's nodes."""
        self._nodes[graph, segment] = nodes
        table = {"where": where, "nodes": [node.as_dict() for node in nodes]}
        self._save(flight_page.graph_file(graph, segment), table)

    def remember(self, allocations: Iterable[Allocation]) -> None:
        """Write which memory belongs to what."""
        self._save(flight_page.MEMORY_FILE, [asdict(allocation) for allocation in allocations])

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

    def running_node(self) -> str:
        """The node that runs now; "" if none does."""
        page = self.page
        nodes = self._nodes.get((page.graph, page.segment), ())
        if page.phase is not Phase.RUNNING:
            return ""
        return f"{nodes[page.node] if page.node < len(nodes) else page.node} (of {page.n_nodes})"

    def _write(self, page: Page) -> None:
        self.page = page
        data = page.pack()
        self._map[: len(data)] = data

    def _save(self, name: str, table: object) -> None:
        if self.folder is not None:
            try:
                files.write(self.folder / name, json.dumps(table))
            except OSError as error:  # a full disk, or a process that ends while a thread replays: no reason to fail
                self._lost(error)

    def _lost(self, error: OSError) -> None:
        process.require().report("guard_without_recorder", f"{self.folder}: {error.strerror}", "flight recorder")


_recorder: FlightRecorder | None = None


def recorder() -> FlightRecorder:
    """This process's recorder, made at the first call."""
    global _recorder
    if _recorder is None or _recorder._owner != os.getpid():
        asked, own = config.load().flight, config.state_folder()
        # Nothing is written outside the user's state directory, whatever the variable says.
        is_ours = bool(asked) and Path(asked).resolve().is_relative_to(own.resolve())
        _recorder = FlightRecorder(Path(asked) if is_ours else None)
    return _recorder


def running_node() -> str:
    """The node that this process is running, if graphs are walked; else ""."""
    return _recorder.running_node() if _recorder is not None else ""
