"""The watchdog: reports captures and replays that do not finish, with everything known about them.

Problem: a hang says nothing. Idea: a thread of ours looks every two seconds or more often at the captures in progress
(from capture_lock.py) and the replays, each of which records an event at its end. Whatever exceeds the limit is
reported once: where it was captured, the node if known (from the flight recorder, under ``--guard 2``), and the stack
of every thread. Every rank of a job reports its own.

What is late is what the thread has looked at too often: while this process is stopped (Ctrl-Z, a debugger) or the
machine is suspended, nobody looks. A replay's looks count from when those of its thread before it are done.

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

from gfxgraph.capture import capture_lock, rooms
from gfxgraph.diagnostics.render import render
from gfxgraph.errors import DriverError
from gfxgraph.process import process
from gfxgraph.types import GuardTier

LOOKS_IN_LIMIT = 4
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 2.0


@dataclass(eq=False, slots=True, weakref_slot=True)
class Replay:
    """A replay that has begun and is not known to have ended."""

    where: object
    """Where its graph was captured, formatted on demand."""
    number: int
    thread: int = field(default_factory=threading.get_ident)
    done: Any = None
    """The event recorded after its work; None until the call itself has returned."""


Late = Replay | capture_lock.Turn


class Deadline:
    """Args:
    limit_s: how long a capture or a replay may take.
    """

    def __init__(self, state: process.Process, limit_s: float) -> None:
        self.limit_s = limit_s
        self.look_s = min(max(limit_s / LOOKS_IN_LIMIT, SHORTEST_LOOK_S), LONGEST_LOOK_S)
        self._state = state
        self._replays: list[Replay] = []
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

    @contextmanager
    def replaying(self, graph: Any) -> Iterator[None]:
        """Watch one replay, from its call to the end of its work on the device."""
        this = Replay(graph._program.begun_at, graph.n_replays)
        self._replays.append(this)
        try:
            yield
            done = torch.cuda.Event()
            done.record()
            this.done = done
        finally:
            if this.done is None:
                self._forget(this)

    def _forget(self, replay: Replay) -> None:
        with suppress(ValueError):
            self._replays.remove(replay)

    def _run(self) -> None:
        while not self._is_over.wait(self.look_s):
            process.attempt(self._look, "the watch for hangs")

    def _look(self) -> None:
        """Forget what is done, and report what is late, once."""
        can_ask = self._forget_done()
        # Of a thread's replays the first: those that wait behind it are not what hangs.
        first = {each.thread: each for each in reversed(self._replays)}
        replays = [each for each in first.values() if can_ask or each.done is None]
        things: list[Late] = [*capture_lock.underway(), *replays]
        for each in things:
            looks = self._looks[each] = self._looks.get(each, 0) + 1
            if looks - 1 <= self.limit_s / self.look_s < looks:
                self._report(each)

    def _forget_done(self) -> bool:
        """Forget replays that are done; False if the device could not be asked."""
        # On some releases querying an event can end a capture; captures are short.
        with capture_lock.held_unless(capture_lock.is_capturing_anywhere) as can_ask, capture_lock.unnoticed():
            for each in [each for each in self._replays if each.done is not None] if can_ask else ():
                try:
                    is_done = each.done.query()
                except (RuntimeError, DriverError) as error:  # a dead device: its users get the error
                    process.log.debug("the watch could not ask the device: %s", error)
                    is_done = True
                if is_done:
                    self._forget(each)
        return can_ask

    def _report(self, late: Late) -> None:
        code, where = "capture_hang", str(late.where)
        if isinstance(late, Replay):
            code, where = "replay_hang", f"{where} (replay {late.number})"
        is_walked = self._state.settings.guard >= GuardTier.LOCALIZE
        unknown = "(none yet)" if is_walked else "(not known: --guard 2 names it)"
        fields = {
            "wait_s": f"{self.limit_s:g}",
            "where": where,
            "node": getattr(rooms, "running_node", lambda: "")() or unknown,
        }
        parts = [render(code, fields, self._state.settings.lang), f"process {os.getpid()}", stacks(late.thread)]
        self._state.report(code, f"not done after {self.limit_s:g} s", where=where, level=logging.DEBUG)
        process.log.error("%s", "\n".join(parts))


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
