"""The watchdog: reports captures and replays that do not finish, with everything known about them.

Problem: a hang says nothing. Idea: a thread of ours looks every two seconds or more often at the captures in progress
(from capture_lock.py), the traces (`tracing`) and the replays, each between two events. Whatever exceeds the limit is
reported once: where it was captured, the node if known (from the flight recorder, under ``--guard 2``), and the stack
of every thread. Every rank of a job reports its own.

Time counts while this process runs: not while it is stopped (Ctrl-Z, a debugger) or the machine is suspended. A
replay's counts from the moment at which the device comes to it.

Switched off, it costs nothing: no thread, no event. It never ends a capture or a replay.

    GFXGRAPH_WATCH=60, gfxgraph run --watch    switch it on
    replay_timeout_s of the defect table       switches it on where hangs are known
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

import gfxgraph
from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches.torch_functions import STOCK
from gfxgraph.capture.upward_hooks import rooms
from gfxgraph.diagnostics.render import render
from gfxgraph.errors import DriverError
from gfxgraph.process import process
from gfxgraph.types import GuardTier

LOOKS_IN_LIMIT = 4
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 2.0
MOST_UNDERWAY = 64
"""Replays watched by events at a time; later ones are covered by those queued before them."""
MOST_FRAMES, OUTERMOST_FRAMES = 16, 4
_OURS = (os.path.dirname(gfxgraph.__file__) + os.sep, "<gfxgraph ")
_TORCHS = os.path.dirname(torch.__file__) + os.sep


@dataclass(eq=False, slots=True, weakref_slot=True)
class Replaying:
    """A replay that has begun and is not known to have ended."""

    where: object
    """Where its graph was captured; formatted on demand."""
    number: int
    thread: int = field(default_factory=threading.get_ident)
    begun: float = field(default_factory=lambda: time.monotonic())
    queued: object = None
    """The event recorded before its work; None once the device is known to have come to it."""
    done: object = None
    """The event recorded after its work; None until the call itself has returned."""

    def describe(self) -> str:
        return f"replay {self.number} of the graph captured at {self.where}"


@dataclass(eq=False, slots=True, weakref_slot=True)
class Tracing:
    """Dynamo's trace of a callable's call."""

    where: object
    thread: int = field(default_factory=threading.get_ident)
    begun: float = field(default_factory=lambda: time.monotonic())


Late = Replaying | Tracing | capture_lock.Turn


@dataclass(slots=True)
class _Seen:
    """Since when something is known to last, by the watch's clock."""

    since: float
    is_told: bool = False


class Deadline:
    """Args:
    limit_s: how long a capture or a replay may take.
    """

    def __init__(self, state: process.Process, limit_s: float) -> None:
        self.limit_s = limit_s
        self.look_s = min(max(limit_s / LOOKS_IN_LIMIT, SHORTEST_LOOK_S), LONGEST_LOOK_S)
        self._state = state
        self._underway: deque[Replaying] = deque()
        self._traces: list[Tracing] = []
        self._seen: weakref.WeakKeyDictionary[Late, _Seen] = weakref.WeakKeyDictionary()
        self._looked, self._asleep_s = time.monotonic(), 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gfxgraph-watch", daemon=True)

    def begin(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, after the look underway: at the interpreter's end its calls below Python would abort."""
        atexit.unregister(self.stop)
        self._is_over.set()
        if self._state.hang_watch is self:
            self._state.hang_watch = None
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    # -- recording ------------------------------------------------------------------------------------------

    @contextmanager
    def replaying(self, graph: Any) -> Iterator[None]:
        """Watch one replay, from its call to the end of its work on the device."""
        this = Replaying(graph._program.begun_at, graph.n_replays)
        is_followed = len(self._underway) < MOST_UNDERWAY
        if is_followed:
            this.queued = _recorded()
        self._underway.append(this)
        try:
            yield
            if is_followed:
                this.done = _recorded()
        finally:
            if this.done is None:
                with suppress(ValueError):
                    self._underway.remove(this)

    @contextmanager
    def tracing(self, fn: object) -> Iterator[None]:
        """Watch Dynamo's trace of a call of ``fn``."""
        code = getattr(fn, "__code__", None) or getattr(getattr(fn, "forward", None), "__code__", None)
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        this = Tracing(f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name)
        self._traces.append(this)
        try:
            yield
        finally:
            self._traces.remove(this)

    # -- checking -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over.wait(self.look_s):
            process.attempt(self._look, "the watch for hangs")

    def _look(self) -> None:
        """Forget what is done, and report what is late."""
        now = time.monotonic()
        # Whoever is stopped, or gets no time, looks late: nothing of this process went on meanwhile.
        self._asleep_s += max(0.0, now - self._looked - 2 * self.look_s)
        self._looked = now
        can_ask = self._forget_done()
        for code, late in [*self._late_captures(), *self._late_replays(can_ask)]:
            self._seen[late].is_told = True
            self._report(code, late)

    def _lasts(self, thing: Late) -> _Seen:
        awake = time.monotonic() - self._asleep_s
        seen = self._seen.get(thing)
        if seen is None:
            lasted = min(time.monotonic() - thing.begun, 2 * self.look_s)
            seen = self._seen[thing] = _Seen(awake - lasted)
        return seen

    def _is_late(self, thing: Late) -> bool:
        return time.monotonic() - self._asleep_s - self._lasts(thing).since > self.limit_s

    def _late_captures(self) -> list[tuple[str, Late]]:
        things: list[tuple[str, Late]] = [("capture_hang", each) for each in capture_lock.underway()]
        things += [("trace_hang", each) for each in list(self._traces)]
        return [(code, each) for code, each in things if self._is_late(each) and not self._seen[each].is_told]

    def _late_replays(self, can_ask: bool) -> list[tuple[str, Late]]:
        """The first late replay of each thread; those that wait behind another are not what hangs."""
        underway = list(self._underway)
        late = [each for each in underway if self._is_late(each) and (can_ask or each.done is None)]
        begun = [each for each in late if each.queued is None or each.done is None]
        first = {each.thread: each for each in reversed(begun or [each for each in late if each is underway[0]])}
        return [("replay_hang", each) for each in first.values() if not self._seen[each].is_told]

    def _forget_done(self) -> bool:
        """Forget replays that are done; False if the device could not be asked."""
        # On some releases querying an event can end a capture; captures are short.
        with capture_lock.held_unless(capture_lock.is_capturing_anywhere) as can_ask, capture_lock.unnoticed():
            if not can_ask:
                return False
            for each in list(self._underway):
                if each.done is None:
                    continue
                try:
                    is_done = _is_past(each.done)
                    if not is_done and each.queued is not None and _is_past(each.queued):
                        each.queued = None
                        self._seen.pop(each, None)
                        each.begun = time.monotonic()
                except (RuntimeError, DriverError) as error:  # a dead device: its users get the error
                    process.log.debug("the watch could not ask the device: %s", error)
                    is_done = True
                if is_done:
                    with suppress(ValueError):
                        self._underway.remove(each)
        return True

    def _report(self, code: str, late: Late) -> None:
        where = f"{late.where} (replay {late.number})" if isinstance(late, Replaying) else str(late.where)
        fields = {"wait_s": f"{self.limit_s:g}", "where": where, "node": self._node(late)}
        parts = [render(code, fields, self._state.settings.lang), f"process {os.getpid()}", stacks(late.thread)]
        self._state.report(code, f"not done after {self.limit_s:g} s", where=where, level=logging.DEBUG)
        process.log.error("%s", "\n".join(parts))

    def _node(self, late: Late) -> str:
        if isinstance(late, Replaying) and late.queued is not None and late.done is not None:
            return "(none: what was queued before the replay is not done)"
        is_walked = self._state.settings.guard >= GuardTier.LOCALIZE
        unknown = "(none yet)" if is_walked else "(not known: --guard 2 names it)"
        return getattr(rooms, "running_node", lambda: "")() or unknown


def _recorded() -> object:
    event = torch.cuda.Event()
    STOCK["record"](event)
    return event


def _is_past(event: object) -> bool:
    return bool(STOCK["event_query"](event))


def stacks(first: int) -> str:
    """The stack of every thread, starting with the thread ``first``."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    parts = []
    for ident in sorted(frames, key=lambda ident: ident != first):
        if ident != threading.get_ident():
            lines = _without_ours(traceback.extract_stack(frames[ident]))
            if len(lines) > MOST_FRAMES:
                left_out = f"  ... ({len(lines) - MOST_FRAMES} more)\n"
                lines[OUTERMOST_FRAMES : OUTERMOST_FRAMES - MOST_FRAMES] = [left_out]
            parts.append(f"thread {names.get(ident, '?')} ({ident}):\n{''.join(lines)}")
    return "\n".join(parts)


def _without_ours(frames: list[traceback.FrameSummary]) -> list[str]:
    """The lines of a stack; each run of gfxgraph's or torch's frames is one, so that the program's stand out."""
    lines: list[str] = []
    for owner, run in itertools.groupby(frames, key=lambda frame: _owner(frame.filename)):
        rows = list(run)
        last = rows[-1]
        own = f"  ({len(rows)} frames of {owner}, the last {last.filename}:{last.lineno}, in {last.name})\n"
        lines += [own] if owner else traceback.format_list(rows)
    return lines


def _owner(filename: str) -> str:
    return "gfxgraph" if filename.startswith(_OURS) else "torch" if filename.startswith(_TORCHS) else ""


def start(state: process.Process, undo: list[Callable[[], None]]) -> None:
    """Watch this process if the settings or the defect table say so.

    Args:
        undo: gets the function that stops it, before it begins.
    """
    asked = state.settings.watch
    limit = asked if asked is not None else state.decisions.replay_timeout_s
    if not limit:
        return
    watch = state.hang_watch = Deadline(state, float(limit))
    undo.append(watch.stop)
    atexit.register(watch.stop)
    watch.begin()
