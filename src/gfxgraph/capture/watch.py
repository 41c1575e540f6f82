"""The watchdog: reports captures and replays that do not finish, with everything known about them.

Problem: a hang says nothing. Idea: a thread of ours checks, a few times per limit, the captures in progress
(from turns.py) and an event recorded after each replay. Whatever exceeds the limit is reported once: where the
graph was captured, the node if known (from the flight recorder, under ``--guard 2``), the stack of every
thread, and what the other ranks are doing: those that wait in the same replay, and the one that is elsewhere.

Ranks that hang have usually captured different things, so graphs with collectives are compared before their first
replay (``core/fingerprint.py``), and a difference is named.

Switched off, it costs nothing: no thread, no event, no access to the store. It never ends a capture or a replay.

    GFXGRAPH_WATCH=60, gfxgraph run --watch    switch it on
    replay_timeout_s of the defect table       switches it on where hangs are known
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

import gfxgraph
from gfxgraph.capture import intercept, turns
from gfxgraph.capture.above import rooms
from gfxgraph.capture.peers import Peers, peers_of_process
from gfxgraph.core.fingerprint import Fingerprint, first_difference
from gfxgraph.core.tape import where_of
from gfxgraph.diagnostics.render import render
from gfxgraph.errors import DriverError
from gfxgraph.process import bridge, process
from gfxgraph.types import GuardTier

LOOKS_IN_LIMIT = 4
MOST_UNDERWAY = 64
"""Replays watched by an event at a time; later ones are covered by those queued before them."""
MOST_FRAMES = 12
_OURS = (os.path.dirname(gfxgraph.__file__) + os.sep, "<gfxgraph ")


@dataclass(eq=False, slots=True)
class Replaying:
    """A replay that has begun and is not known to have ended."""

    where: object
    """Where its graph was captured; formatted on demand."""
    number: int
    thread: int = field(default_factory=threading.get_ident)
    begun: float = field(default_factory=time.monotonic)
    done: Any = None
    """The event recorded after its work; None until the call itself has returned."""
    is_told: bool = False

    def describe(self) -> str:
        return f"replay {self.number} of the graph captured at {self.where}"


class Deadline:
    """Args:
    limit_s: how long a capture or a replay may take.
    peers: the other ranks; None to ask torch.distributed once it has started.
    """

    def __init__(self, state: process.Process, limit_s: float, peers: Peers | None = None) -> None:
        self.limit_s = limit_s
        self._state = state
        self._peers = peers
        self._underway: deque[Replaying] = deque()
        self._told: set[int] = set()
        self._n_compared = 0
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Start watching."""
        threading.Thread(target=self._run, name="gfxgraph-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_over.set()

    # -- recording ------------------------------------------------------------------------------------------

    @contextmanager
    def replaying(self, graph: Any) -> Iterator[None]:
        """Watch one replay, from its call to the end of its work on the device."""
        program = graph._program
        this = Replaying(program.begun_at, graph.n_replays)
        if graph.n_replays <= 1:
            self._compare(program)
        self._underway.append(this)
        try:
            yield
            if len(self._underway) <= MOST_UNDERWAY:
                this.done = torch.cuda.Event()
                intercept.stock("record")(this.done)
        finally:
            if this.done is None:
                with suppress(ValueError):
                    self._underway.remove(this)

    def _compare(self, program: Any) -> None:
        """Check, before a graph with collectives is replayed for the first time, that all ranks captured the same."""
        peers = self._others()
        if peers is None:
            return
        mine = fingerprint(self._state, program)
        if not mine.has_collectives:
            return
        number, self._n_compared = self._n_compared, self._n_compared + 1
        theirs = peers.exchange(f"captured/{number}", mine.lines, self.limit_s)
        difference = first_difference(theirs)
        if difference:
            where = str(program.begun_at)
            self._state.report("ranks_differ", difference, where=where, level=logging.DEBUG)
            fields = {"n": number, "difference": difference, "where": where}
            process.log.warning("%s", render("ranks_differ", fields, self._lang))

    @property
    def _lang(self) -> str:
        return self._state.settings.lang

    def _others(self) -> Peers | None:
        if self._peers is None:
            self._peers = peers_of_process()
        return self._peers

    # -- checking -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over.wait(self.limit_s / LOOKS_IN_LIMIT):
            process.attempt(self._look, "the watch for hangs")

    def _look(self) -> None:
        """Forget what is done, report what is late, and tell other ranks where this one is if they ask."""
        now = time.monotonic()
        late: tuple[str, str, Any] | None = None
        for turn in turns.underway():
            if now - turn.begun > self.limit_s and id(turn) not in self._told:
                self._told.add(id(turn))
                late = "capture_hang", str(turn.where), turn
        self._forget_done()
        for replay in list(self._underway)[:1]:
            if now - replay.begun > self.limit_s and not replay.is_told:
                replay.is_told = True
                late = "replay_hang", f"{replay.where} (replay {replay.number})", replay
        if late is not None:
            self._report(*late)
        elif self._peers is not None:
            self._peers.answer(self.whereabouts())

    def _forget_done(self) -> None:
        # On some releases querying an event can end a capture; captures are short.
        while self._underway and not intercept.is_capturing_anywhere():
            done = self._underway[0].done
            if done is None:
                return
            try:
                with turns.unnoticed():
                    if not intercept.stock("event_query")(done):
                        return
            except (RuntimeError, DriverError) as error:  # a dead device: its users get the error
                process.log.debug("the watch could not ask the device: %s", error)
            with suppress(IndexError):
                self._underway.popleft()

    def whereabouts(self) -> str:
        """What this rank is doing, in one line."""
        if self._underway:
            return f"waits in {self._underway[0].describe()}"
        for turn in turns.underway():
            return f"captures, since {turn.where}"
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        return f"is in no graph: {_line(frame)}" if frame is not None else "is in no graph"

    def _report(self, code: str, where: str, late: Any) -> None:
        unknown = (
            "(none yet)" if self._state.settings.guard >= GuardTier.LOCALIZE else "(not known: --guard 2 names it)"
        )
        node = getattr(rooms, "running_node", lambda: "")() or unknown
        fields = {"wait_s": f"{self.limit_s:g}", "where": where, "node": node}
        parts = [render(code, fields, self._lang)]
        if self._peers is not None:
            told = self._peers.ask(self.whereabouts(), min(self.limit_s, 10.0))
            parts += [f"rank {rank} {text}" for rank, text in enumerate(told)]
        parts.append(stacks(late.thread))
        self._state.report(code, f"not done after {self.limit_s:g} s", where=where, level=logging.DEBUG)
        process.log.error("%s", "\n".join(parts))


def fingerprint(state: process.Process, program: Any) -> Fingerprint:
    """The parts of a program on which all ranks must agree, line by line."""
    made = Fingerprint()
    for segment in program.segments:
        for entry in segment.tape.entries:
            if entry.name.startswith(("c10d", "_c10d")):
                plain = [str(arg) for arg in entry.args if isinstance(arg, (str, int, bool))]
                made.collective(entry.name, plain)
        if state.driver is None or segment.graph is None:
            continue
        try:
            raw = int(state.base.raw_cuda_graph(segment.graph))
            for node in state.driver.nodes(raw):
                made.node(state.driver.node_kind(node).value, state.driver.kernel_name(node))
        except (DriverError, RuntimeError) as error:
            process.log.debug("nodes are not compared between ranks: %s", error)
    made.buffers(len(program.externals), len(program.addresses))
    return made


def stacks(first: int) -> str:
    """The stack of every thread, starting with the thread ``first``."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    parts = []
    for ident in sorted(frames, key=lambda ident: ident != first):
        if ident != threading.get_ident():
            lines = "".join(_without_ours(traceback.extract_stack(frames[ident]))[-MOST_FRAMES:])
            parts.append(f"thread {names.get(ident, '?')} ({ident}):\n{lines}")
    return "\n".join(parts)


def _without_ours(frames: list[traceback.FrameSummary]) -> list[str]:
    """The lines of a stack, with each run of gfxgraph's own frames as one line, so that the program's stand out."""
    lines: list[str] = []
    for is_ours, run in itertools.groupby(frames, key=lambda frame: frame.filename.startswith(_OURS)):
        rows = list(run)
        last = rows[-1]
        own = f"  ({len(rows)} frames of gfxgraph, the last {last.filename}:{last.lineno}, in {last.name})\n"
        lines += [own] if is_ours else traceback.format_list(rows)
    return lines


def _line(frame: Any) -> str:
    return str(where_of(frame.f_code, frame.f_lasti))


def start(state: process.Process) -> None:
    """Watch this process, until the bridge is switched off, if the settings or the defect table say so."""
    asked = state.settings.watch
    limit = asked if asked is not None else state.decisions.replay_timeout_s
    if not limit:
        return
    state.hang_watch = Deadline(state, float(limit))
    bridge.undo.append(state.hang_watch.stop)
    state.hang_watch.begin()
