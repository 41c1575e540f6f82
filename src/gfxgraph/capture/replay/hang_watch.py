"""The watchdog: reports captures and replays that do not finish, with everything known about them.

Problem: a hang says nothing. Idea: a thread of ours looks every two seconds or more often at the captures in progress
(from capture_lock.py), the traces (`tracing`) and the replays, each between two events. Whatever exceeds the limit is
reported once: where it was captured, the node if known (from the flight recorder, under ``--guard 2``), and the stack
of every thread. Every rank of a job reports its own.

What is late is what the thread has looked at too often: while this process is stopped (Ctrl-Z, a debugger) or the
machine is suspended, nobody looks. A replay's looks count from the moment at which the device comes to it.

Switched off, it costs nothing: no thread, no event. It never ends a capture or a replay.

    GFXGRAPH_WATCH=60, gfxgraph run --watch    switch it on
    replay_timeout_s of the defect table       switches it on where hangs are known
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches.torch_functions import STOCK
from gfxgraph.capture.upward_hooks import rooms
from gfxgraph.diagnostics.render import render
from gfxgraph.errors import DriverError
from gfxgraph.process import process
from gfxgraph.types import GuardTier

LOOKS_IN_LIMIT = 4
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 2.0


@dataclass(eq=False, slots=True, weakref_slot=True)
class Underway:
    """A replay that has begun and is not known to have ended, or Dynamo's trace of a callable's call."""

    code: str
    """Of the report, if it does not end."""
    where: object
    """Where its graph was captured, formatted on demand; the callable."""
    number: int = 0
    """Of the replay."""
    thread: int = field(default_factory=threading.get_ident)
    queued: object = None
    """The event recorded before its work; None once the device is known to have come to it."""
    done: object = None
    """The event recorded after its work; None until the call itself has returned."""


Late = Underway | capture_lock.Turn


class Deadline:
    """Args:
    limit_s: how long a capture or a replay may take.
    """

    def __init__(self, state: process.Process, limit_s: float) -> None:
        self.limit_s = limit_s
        self.look_s = min(max(limit_s / LOOKS_IN_LIMIT, SHORTEST_LOOK_S), LONGEST_LOOK_S)
        self._state = state
        self._underway: list[Underway] = []
        self._traces: list[Underway] = []
        self._looks: weakref.WeakKeyDictionary[Late, int] = weakref.WeakKeyDictionary()
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
        this = Underway("replay_hang", graph._program.begun_at, graph.n_replays, queued=_recorded())
        self._underway.append(this)
        try:
            yield
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
        where = f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name
        this = Underway("trace_hang", where)
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
        """Forget what is done, and report what is late, once."""
        can_ask = self._forget_done()
        # Of a thread's replays the first: those that wait behind it are not what hangs.
        first = {each.thread: each for each in reversed(self._underway)}
        replays = [each for each in first.values() if can_ask or each.done is None]
        things: list[Late] = [*capture_lock.underway(), *self._traces, *replays]
        for each in things:
            looks = self._looks[each] = self._looks.get(each, 0) + 1
            if looks - 1 <= self.limit_s / self.look_s < looks:
                self._report(each)

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
                        self._looks.pop(each, None)
                except (RuntimeError, DriverError) as error:  # a dead device: its users get the error
                    process.log.debug("the watch could not ask the device: %s", error)
                    is_done = True
                if is_done:
                    with suppress(ValueError):
                        self._underway.remove(each)
        return True

    def _report(self, late: Late) -> None:
        code, where = getattr(late, "code", "capture_hang"), str(late.where)
        where += f" (replay {late.number})" if isinstance(late, Underway) and code == "replay_hang" else ""
        fields = {"wait_s": f"{self.limit_s:g}", "where": where, "node": self._node(late)}
        parts = [render(code, fields, self._state.settings.lang), f"process {os.getpid()}", stacks(late.thread)]
        self._state.report(code, f"not done after {self.limit_s:g} s", where=where, level=logging.DEBUG)
        process.log.error("%s", "\n".join(parts))

    def _node(self, late: Late) -> str:
        if isinstance(late, Underway) and late.queued is not None and late.done is not None:
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
            lines = "".join(traceback.format_stack(frames[ident]))
            parts.append(f"thread {names.get(ident, '?')} ({ident}):\n{lines}")
    return "\n".join(parts)


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
