"""The state of one process: settings, the driver, counters, and each thread's running captures."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from gfxgraph.config import Config
from gfxgraph.core.counters import Counters
from gfxgraph.core.locks import free_in_child
from gfxgraph.core.tape import Place, Tape, where_of
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.driver.small_copies import CopyKernel
from gfxgraph.errors import GuardMismatch
from gfxgraph.hardware.defects import Decisions

log = logging.getLogger("gfxgraph")


class OngoingRecording(Protocol):
    """The recorder of a running capture, as its callers see it."""

    paused: bool
    is_wary: bool

    def adopt(self, out: object) -> None: ...
    def __torch_dispatch__(self, func: object, types: object, args: object = ..., kwargs: object = ...) -> object: ...


class SharingValues(Protocol):
    """The host values of a running capture, which other threads may be told of."""

    def pin_shared(self) -> None: ...


class OngoingCapture(Protocol):
    """A running capture of some thread, as lower rooms see it."""

    begun_at: Place
    block: object

    @property
    def is_abandoned(self) -> bool: ...
    @property
    def recorder(self) -> OngoingRecording: ...
    @property
    def values(self) -> SharingValues: ...
    def abort(self, error: BaseException | None) -> None: ...
    def replay_inside(self, graph: object) -> None: ...
    def make_room_for_threads(self) -> None: ...


@dataclass(slots=True)
class Process:
    """State of the bridge in this process; made by ``activation.enable``."""

    settings: Config
    platform: str
    """"rocm", "cuda" or "simulator"."""
    driver: GraphDriver
    base: Any
    """The original class ``torch.cuda.CUDAGraph``."""
    validate_replays: int = 0
    capture_error_mode: str | None = None
    """Set by the defect table if the default mode is known to fail; None keeps the caller's."""
    recording: dict[tuple[int, int], OngoingCapture] = field(default_factory=dict)
    """Pools into which a capture is recording right now; only those chosen by programs."""
    """Streams that a failed capture left unusable, with the status that did it (HIP, 904)."""
    decisions: Decisions = field(default_factory=Decisions)
    """The defect table's answers for this machine (hardware.defects.Decisions)."""
    copy_kernels: dict[int, CopyKernel | None] = field(default_factory=dict)
    """By device: the kernel that copies small tensors; None if it is not available."""
    joins: dict[int, bool] = field(default_factory=dict)
    """By device: whether copies can be part of a graph exec, with addresses updated at each call."""
    why_not_joined: str = ""
    """Why they cannot, if so."""
    counters: Counters = field(default_factory=Counters)
    enabled_at: float = field(default_factory=time.time)
    pid: int = field(default_factory=os.getpid)
    graphs: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    graph_memory: dict[int, set[int]] = field(default_factory=dict)
    """Addresses of captures' results, by the ``id`` of each program. Other captures do not pin tensors
    there: engines rely on a pool's memory being reused.
    """

    def report(self, kind: str, reason: str, op: str = "", where: object = "", level: int = logging.WARNING) -> None:
        """Count an event; log it the first time, and at debug level every time."""
        if kind == "fallback":
            _local.fell_back = reason, str(where)
        extra = {"event": kind, "reason": reason, "op": op, "line": str(where)}  # for handlers that write JSON
        if self.counters.event(kind, reason, op, str(where)):
            place = f" ({op}{' at ' if op and str(where) else ''}{where})" if op or str(where) else ""
            log.log(level, "%s: %s%s", kind.replace("_", " "), reason, place, extra=extra)
        elif log.isEnabledFor(logging.DEBUG):
            log.debug("%s, again: %s (%s %s)", kind.replace("_", " "), reason, op, where, extra=extra)


_current: Process | None = None
_local = threading.local()
_forked = False


def current() -> Process | None:
    """The process state, or None before ``enable``."""
    return _current


def install(process: Process | None) -> None:
    global _current
    _current = process


def require() -> Process:
    if _current is None:  # a graph object that outlived disable() keeps using its own state
        raise RuntimeError("gfxgraph is not enabled in this process")
    return _current


def tell(kind: str, reason: str, op: str = "", level: int = logging.WARNING) -> None:
    """Report an event; log it where nothing is counted."""
    if _current is not None:
        _current.report(kind, reason, op, level=level)
    else:
        log.log(level, "%s (%s)" if op else "%s", *filter(None, (reason, op)))


def mismatch(code: str, **fields: object) -> GuardMismatch:
    """The error, counted, of a replay that finds what its capture assumed no longer so."""
    require().counters.add("guard_mismatch")
    return GuardMismatch(code, **fields)  # type: ignore[arg-type]


class _Stack(list[OngoingCapture]):
    """One thread's captures. It dies in that thread as the thread ends: what is still open would block all others."""

    def __del__(self) -> None:
        if not (_forked or sys.is_finalizing()):
            self.give_up("a thread")

    def give_up(self, who: str) -> None:
        for session in reversed([*self]):
            log.warning("%s ended inside the capture begun at %s; it is given up", who, where_of(*session.begun_at))
            session.abort(None)


def sessions() -> _Stack:
    """This thread's running captures, outermost first."""
    try:
        stack: _Stack = _local.sessions
    except AttributeError:
        stack = _local.sessions = _Stack()
    return stack


def leftover_modes() -> list[object]:
    """Recorders of this thread whose sessions are over and that could not be popped yet."""
    try:
        modes: list[object] = _local.modes
    except AttributeError:
        modes = _local.modes = []
    return modes


def last_fallback() -> tuple[str, str]:
    """The reason and line of this thread's last fallback."""
    found: tuple[str, str] = getattr(_local, "fell_back", ("a fallback", ""))
    return found


def active_session() -> OngoingCapture | None:
    """The innermost capture of this thread, or None."""
    stack = getattr(_local, "sessions", None)
    return stack[-1] if stack else None


def no_note(tape: Tape) -> None:
    """What ``note_module`` is while profiling is off."""


note_module: Callable[[Tape], None] = no_note
"""Called with a capture's tape before an operation is written to it."""
repairs: list[Callable[[], object]] = []
"""Calls that do, in this thread, what an interrupt has left undone (capture/undo.py)."""


def attempt(step: Callable[[], object], what: str) -> None:
    """One round of a thread of ours: what it raises is reported and ends the round, not the thread."""
    try:
        step()
    except Exception as error:  # noqa: BLE001  # reported
        reason = f"{what}: {type(error).__name__}: {error}"
        with suppress(Exception):  # a program's log handler, say: the next round is not its
            tell("round_failed", reason)


def never_destroy(graph: object) -> None:
    """Keep it, at the interpreter's end too: a forked child's would call into the parent's GPU context, say."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))


def _after_fork() -> None:
    # A GPU context does not survive fork: the child must refuse every graph of the parent.
    global _forked
    if _current is None:
        return
    _forked = True
    free_in_child()
    for graph in list(_current.graphs):
        graph._allow_fast_replays(0)
        never_destroy(graph)
    for end in in_child:
        end()
    _local.__dict__.clear()


in_child: list[Callable[[], object]] = []
"""Calls that end, in a forked child, what the parent's captures had changed in its process and thread."""
_registered = False


def watch_forks(register: Callable[..., None] = os.register_at_fork) -> None:
    """Make forked children refuse the parent's graphs, and the program's end end its captures; once per process."""
    global _registered
    if not _registered:
        _registered = True
        register(after_in_child=_after_fork)
        # Before modules go: an open capture in a dying interpreter can end in torch's std::terminate.
        atexit.register(lambda: sessions().give_up("the program"))
