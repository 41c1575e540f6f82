"""A process's state over time, including what is gone by its end.

Problem: a report is written when a process ends. By then main() has returned: its graphs are destroyed, their pools
are
empty, and nothing shows when anything happened. Idea: a graph that is about to be destroyed is read first, as long as
there is room for it. And a thread samples the counters, often at first, and half as often each time the list is full.

Invariants: switched off, it costs nothing; the thread calls no driver and changes nothing, so it may run while others
capture; only plain data is kept, so no memory of a graph lives longer.

Source: docs/decisions/0180.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch

from gfxgraph.callables import arena
from gfxgraph.capture import above, memory
from gfxgraph.errors import GfxGraphError
from gfxgraph.process import process
from gfxgraph.reporting.inspection import InspectedCapture
from gfxgraph.reporting.memory import Look
from gfxgraph.reporting.reading import read_capture

FIRST_PAUSE_S = 0.05
MOST_MOMENTS = 400
MOST_GONE = 64
MOST_NODES = 5000


@dataclass(frozen=True, slots=True)
class Moment:
    """Counters and bytes at one time; ``at`` in seconds since the first sample."""

    at: float
    captures: int
    replays: int
    splits: int
    fallbacks: int
    graph_nbytes: int
    """Bytes of graphed callables, all devices."""
    driver_nbytes: int
    """Bytes of the existing graph execs."""
    torch_nbytes: int
    """What torch has reserved, including the graphs' pools."""

    def as_row(self) -> list[float]:
        return [round(self.at, 2), *(getattr(self, name) for name in MOMENT_FIELDS[1:])]


MOMENT_FIELDS = tuple(Moment.__slots__)  # type: ignore[attr-defined]


class History:
    """Keeps samples, the largest state of graphed callables' memory, and destroyed graphs."""

    def __init__(self, state: process.Process) -> None:
        self.state = state
        self.moments: list[Moment] = []
        self.devices: list[dict[str, Any]] = []
        """Graphed callables by device and bucket when they used most memory."""
        self.padding: dict[tuple[str, str], dict[str, Any]] = {}
        self.labels: dict[int, str] = {}
        """By identity of a graph: its signature, if it belongs to a graphed callable."""
        self.gone: list[InspectedCapture] = []
        self.n_left_out = 0
        self._fullest = -1
        self._pause_s = FIRST_PAUSE_S
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._owner = os.getpid()

    def start(self) -> None:
        above.leaving.append(self.leaving)
        memory.instantiated.append(self.first_look)
        threading.Thread(target=self._run, name="gfxgraph-history", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()
        if self.leaving in above.leaving:
            above.leaving.remove(self.leaving)
        if self.first_look in memory.instantiated:
            memory.instantiated.remove(self.first_look)

    def first_look(self) -> None:
        """Note the device memory when the first graph exists, as the baseline of its growth."""
        memory.instantiated.remove(self.first_look)
        if self.state.first_look is None:
            self.state.first_look = Look.now(self.state)

    # -- destroyed graphs --------------------------------------------------------------------------------

    def leaving(self, graph: Any) -> None:
        """Read a graph that is about to be destroyed; if there are too many, keep those replayed most."""
        if os.getpid() != self._owner or self._ended.is_set():
            return
        room = MOST_NODES - sum(capture.n_nodes for capture in self.gone)
        n_nodes = sum(segment.n_nodes for segment in graph._program.segments)
        least = min(self.gone, key=lambda capture: capture.n_replays, default=None)
        if self.gone and (len(self.gone) >= MOST_GONE or n_nodes > room):
            assert least is not None
            self.n_left_out += 1
            if least.n_replays >= graph.n_replays or n_nodes > room + least.n_nodes:
                return
            self.gone.remove(least)
        try:
            self.gone.append(read_capture(graph, self.labels.get(id(graph), "")))
        except (GfxGraphError, RuntimeError) as error:  # the device may be gone, or busy with a failure
            self.n_left_out += 1
            process.log.debug("a graph was not read before it was destroyed: %s", error)

    # -- samples ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Add a sample; may run in threads that have no device work."""
        try:
            moment = self._moment()
            self._note_devices(moment.graph_nbytes)
        except RuntimeError:
            return  # a table grew while it was read: the next sample reads it
        self.moments.append(moment)
        if len(self.moments) >= MOST_MOMENTS:
            del self.moments[1::2]
            self._pause_s *= 2

    def _moment(self) -> Moment:
        # One graph at a time: a list would keep a graph that is dropped meanwhile alive, and its memory.
        counted = self.state.counters.snapshot(lambda: (graph.n_replays for graph in self.state.graphs))
        programs = (graph._program for graph in self.state.graphs)
        driver = sum(s.driver_nbytes or 0 for program in programs if program is not None for s in program.segments)
        return Moment(
            time.monotonic() - self._began,
            counted["capture_count"],
            counted["replay_count"],
            counted["split_count"],
            counted["fallback_count"],
            sum(each.graph_nbytes() for each in arena.of_process(self.state)),
            driver,
            sum(each.reserved() for each in arena.of_process(self.state)) or _reserved(),
        )

    def _note_devices(self, nbytes: int) -> None:
        self.labels = {key: name for each in arena.of_process(self.state) for key, name in each.labels().items()}
        for each in arena.of_process(self.state):
            for row in each.padding():
                self.padding[row["function"], row["bucket"]] = row
        if nbytes and nbytes >= self._fullest:
            self._fullest = nbytes
            self.devices = [
                {
                    "device": f"cuda:{each.device_index}",
                    "cap_bytes": each.nominal_cap(),
                    "graph_bytes": each.graph_nbytes(),
                    "captures": each.report(),
                }
                for each in arena.of_process(self.state)
            ]

    def _run(self) -> None:
        while not self._ended.is_set() and os.getpid() == self._owner:
            process.attempt(self.look, "the history of this process")
            self._ended.wait(self._pause_s)

    # -- results ----------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        self.look()
        return {
            "fields": list(MOMENT_FIELDS),
            "moments": [moment.as_row() for moment in self.moments],
            "devices": self.devices,
            "padding": list(self.padding.values()),
        }


def _reserved() -> int:
    if not torch.cuda.is_initialized():
        return 0
    return int(torch._C._cuda_memoryStats(0)["reserved_bytes"]["all"]["current"])


_current: History | None = None


def start(state: process.Process) -> History:
    """Start keeping this process's history."""
    global _current
    if _current is None or _current.state is not state:
        stop()
        _current = History(state)
        _current.start()
    return _current


def stop() -> None:
    global _current
    if _current is not None:
        _current.stop()
    _current = None


def current() -> History | None:
    """This process's history; None unless one was requested."""
    return _current
