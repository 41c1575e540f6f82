"""What one process has: settings, the driver, counters, the captures underway in each thread."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gfxgraph.config import Config
from gfxgraph.core.counters import Counters
from gfxgraph.driver.base import CopyKernel, GraphDriver
from gfxgraph.hardware.defects import Decisions
from gfxgraph.process.context import Contexts

log = logging.getLogger("gfxgraph")


class OngoingRecording(Protocol):
    """What records a capture's operations, as its callers see it."""

    paused: bool
    is_wary: bool
    rows: list[Any]

    def __torch_dispatch__(self, func: object, types: object, args: object = ..., kwargs: object = ...) -> Any: ...


class OngoingCapture(Protocol):
    """A capture underway in some thread, as the rooms and files below it see it."""

    begun_at: tuple[Any, int]
    error: BaseException | None

    @property
    def recorder(self) -> OngoingRecording: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def abort(self, error: BaseException | None) -> None: ...
    def replay_inside(self, graph: object) -> None: ...
    def make_room_for_threads(self) -> None: ...


class LaunchCounter(Protocol):
    """Who counts replays and eager launches while it is there (reporting/watch.py)."""

    def replaying(self, graph: object, is_compared: bool = False) -> None: ...
    def checking_begins(self) -> None: ...
    def replayed(self) -> None: ...


Samples = list[tuple[str, str, str, list[tuple[dict[str, str], float]]]]
"""Metrics as (name, kind, help, samples)."""


@dataclass(slots=True)
class Process:
    """State of the bridge in this process; made by ``activation.enable``."""

    settings: Config
    platform: str
    """"rocm", "cuda" or "simulator"."""
    driver: GraphDriver | None
    base: Any
    """The class that ``torch.cuda.CUDAGraph`` was before it was replaced."""
    validate_replays: int = 0
    capture_error_mode: str | None = None
    """Set by the defect table where the default mode is known to fail; None leaves the caller's."""
    recording: dict[tuple[int, int], OngoingCapture] = field(default_factory=dict)
    """Pools that a capture is recording into right now; only those that programs chose."""
    lost_streams: dict[int, str] = field(default_factory=dict)
    """Streams that a failed capture left unusable, with the status that did it (HIP, 904)."""
    decisions: Decisions = field(default_factory=Decisions)
    """The defect table's answers for this machine (hardware.defects.Decisions)."""
    copy_kernels: dict[int, CopyKernel | None] = field(default_factory=dict)
    """By device: the kernel that copies small tensors; None where it cannot be had."""
    joins: dict[int, bool] = field(default_factory=dict)
    """By device: whether copies may be part of a graph exec, their addresses changed from call to call."""
    hang_watch: Any = None
    """Reports captures and replays that do not end (capture/watch.py); None if it is off."""
    why_not_joined: str = ""
    """Why they may not, where that is so."""
    contexts: Contexts = field(default_factory=Contexts)
    counters: Counters = field(default_factory=Counters)
    enabled_at: float = field(default_factory=time.time)
    pid: int = field(default_factory=os.getpid)
    graphs: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    watch: LaunchCounter | None = None
    """Where it is there, each replay tells it, and none takes the fast path."""
    coverage: Callable[[], Samples] | None = None
    """Coverage's metrics for Prometheus; None if it is off."""
    first_look: Any = None
    """Device memory at the first report of it, for what has grown since (reporting/memory.py)."""
    graph_memory: dict[int, set[int]] = field(default_factory=dict)
    """Addresses where captures left results, by the ``id`` of each program. Tensors there are not pinned by other
    captures: engines count on a pool's memory being reused."""

    @property
    def is_watched(self) -> bool:
        """Whether each replay is reported, so that none takes the fast path."""
        return self.watch is not None or self.hang_watch is not None

    def report(self, kind: str, reason: str, op: str = "", where: object = "", level: int = logging.WARNING) -> None:
        """Count an event; log it the first time, each time at debug level."""
        if self.counters.event(kind, reason, op, str(where)):
            place = f" ({op}{' at ' if op and str(where) else ''}{where})" if op or str(where) else ""
            log.log(level, "%s: %s%s", kind.replace("_", " "), reason, place)
        elif log.isEnabledFor(logging.DEBUG):
            log.debug("%s, again: %s (%s %s)", kind.replace("_", " "), reason, op, where)


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
    if _current is None:  # a graph object that outlived disable() keeps working on its own state
        raise RuntimeError("gfxgraph is not enabled in this process")
    return _current


def sessions() -> list[OngoingCapture]:
    """Captures underway in this thread, outermost first."""
    try:
        stack: list[OngoingCapture] = _local.sessions
    except AttributeError:
        stack = _local.sessions = []
    return stack


def leftover_modes() -> list[Any]:
    """Recorders of this thread whose sessions are over and that could not be popped yet."""
    try:
        modes: list[Any] = _local.modes
    except AttributeError:
        modes = _local.modes = []
    return modes


def active_session() -> OngoingCapture | None:
    """The innermost capture of this thread, or None."""
    stack = getattr(_local, "sessions", None)
    return stack[-1] if stack else None


def in_forked_child() -> bool:
    return _forked


def _after_fork() -> None:
    # A GPU context does not survive fork: every graph of the parent must refuse in the child.
    global _forked
    if _current is None:
        return
    _forked = True
    _local.__dict__.clear()
    for graph in list(_current.graphs):
        graph._forget_fast_path()
        _never_destroyed.append(graph)


# A forked child must not destroy graphs either: that calls into the parent's GPU context.
_never_destroyed: list[Any] = []
_registered = False


def watch_forks(register: Callable[..., None] = os.register_at_fork) -> None:
    """Have forked children refuse the parent's graphs; once per process."""
    global _registered
    if not _registered:
        _registered = True
        register(after_in_child=_after_fork)
