"""The capture lock: one thread captures at a time; calls of other threads that would break a capture wait for it.

Problem: torch allows one capture in a process, and the runtime lets calls of any thread end it: waiting for the
whole device in every capture mode, destroying a graph on HIP, drawing random numbers (the default generator is in
capture mode for all threads). Two threads that capture, or one that captures while another works, break each
other.

Idea: a lock with owners. A thread's capture acquires it when other threads have released it; so does another
thread's call that would break a capture. Captures of one thread never wait for each other.

A capture may itself wait for the thread that waits for it (it started a thread and joins it). So an owner is not
waited for while its thread is blocked in a lock, a queue or a join: two captures at once, each in a mode that
concerns only its own thread, are better than a hang.

Source: CUDA's documentation of cuThreadExchangeStreamCaptureMode; hipamd's sources as noted in
gfxgraph_simulator/profiles; decision 0138.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import monotonic, sleep
from types import FrameType
from typing import Any

from gfxgraph.core.locks import new_lock
from gfxgraph.errors import DriverError
from gfxgraph.process import process

WAIT_FOR_CAPTURE_S = 120.0
"""After this long, two captures at once do less harm than waiting on."""
_SAMPLE_EVERY_S = 0.02
_SAMPLES_UNTIL_BLOCKED = 20  # 0.4 s: on a busy machine a starved thread looks blocked, too
_WAITING_FILES = (
    "capture/capture_lock.py", "threading.py", "queue.py", "selectors.py", "concurrent/futures/", "multiprocessing/",
)  # fmt: skip
# Errors of torch's CUDAGeneratorState while the generator is in capture mode; the second since torch 2.11.
_REFUSED_BY_GENERATOR = ("Cannot prepare for replay during capturing stage", "Offset increment outside graph capture")

lock = new_lock()
"""For owners and for what captures replace: a finalizer that runs where one of two was held may need the other."""
_owners: list[weakref.ref[Owner]] = []
"""Weak references: an interrupt may skip `release`, but the owner still dies with the frame that made it."""


_deferred_frees: list[object] = []
"""Graphs, and calls, that wait until no capture runs."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Owner:
    """One owner of the capture lock: a capture, or a call that must not run during one.

    The lock is released by `release`, or when nobody holds this object any more.
    """

    thread: int = field(default_factory=threading.get_ident)
    is_draw: bool = False
    """A draw of random numbers, which conflicts with everything but other draws."""


captures: dict[int, Owner] = {}
"""Running captures by identity, with their owners. A dict, so that beginning or ending one twice does no harm.

While it is empty no thread is in torch's ``capture_begin``, which registers its graph without the GIL and without a
lock: a graph freed meanwhile ends the process ("The graph should be registered to the state").
"""


def is_capturing_anywhere() -> bool:
    """True while any thread captures: some calls, such as event queries, could break that capture."""
    return bool(captures)


def keep_until_captures_end(held: object) -> bool:
    """If a capture is running, hold graphs that are being dropped until it ends; False if none is."""
    with lock:
        if captures:
            _deferred_frees.append(held)
        return bool(captures)


def take_deferred_frees() -> list[object]:
    """What was held, which is the caller's now."""
    found, _deferred_frees[:] = list(_deferred_frees), []
    return found


def acquire(owner: Owner) -> None:
    """Acquire the lock once other threads have released it, or without them where waiting is pointless."""
    is_exclusive = _acquire(owner)
    if not is_exclusive:
        process.require().report(
            "capture_not_serialized",
            "another thread's capture waits for this thread or takes too long, so two run at once; random numbers "
            "are not safe in either",
            level=logging.INFO,
        )


def release(owner: Owner) -> None:
    """Release the lock; may be called from any thread, and more than once."""
    with lock:
        _owners[:] = [each for each in _owners if each() not in (owner, None)]


def release_own() -> None:
    """Release what this thread owns, where an interrupt has skipped that; not while it captures."""
    for owner in _alive():
        if owner.thread == threading.get_ident():
            release(owner)


def release_all() -> None:
    """In a forked child: the threads that owned the lock are not there."""
    _owners.clear()


@contextmanager
def owned(is_draw: bool = False) -> Iterator[bool]:
    """Own the lock for one call; yields False if another thread could not be waited for."""
    owner = Owner(is_draw=is_draw)
    try:
        yield _acquire(owner)
    finally:
        release(owner)


@contextmanager
def owned_relaxed() -> Iterator[bool]:
    """``owned``, for a call that ends no other's capture, and is not refused for one's sake."""
    with owned() as is_exclusive, relaxed():
        yield is_exclusive


@contextmanager
def owned_to_destroy(dead: object) -> Iterator[bool]:
    """Own it at once, beside others' calls, to destroy graphs; yields False, and keeps them, while one captures."""
    owner = Owner()
    with lock:
        is_time = not keep_until_captures_end(dead)
        if is_time:
            _owners.append(weakref.ref(owner))
    try:
        yield is_time
    finally:
        release(owner)


def is_owned_here() -> bool:
    """True while this thread owns the lock: it captures, or makes a call that must not run during a capture."""
    me = threading.get_ident()
    return any(owner.thread == me for owner in _alive())


def relaunched(error: RuntimeError, launch: Callable[[], object]) -> bool:
    """Repeat a launch that was refused because another thread captured with the generator, while none does.

    Returns:
        False if it was refused for something else; nothing was launched then.
    """
    if not any(text in str(error) for text in _REFUSED_BY_GENERATOR):
        return False
    with owned(is_draw=True):
        launch()
    return True


def _alive() -> list[Owner]:
    return [owner for each in list(_owners) if (owner := each()) is not None]


def _others(owner: Owner) -> list[int]:
    """The ids of other threads that own the lock. Not the owners: a waiting thread would keep them alive."""
    me = threading.get_ident()
    alive = set(sys._current_frames()) if _owners else ()  # ids only: frames, this one included, would make a cycle
    return [o.thread for o in _alive() if o.thread != me and o.thread in alive and not (o.is_draw and owner.is_draw)]


def _acquire(owner: Owner) -> bool:
    """Wait until other threads have released the lock, and acquire it; False if waiting is pointless."""
    deadline = monotonic() + WAIT_FOR_CAPTURE_S
    samples: dict[int, tuple[object, int]] = {}
    while True:
        with lock:
            others = _others(owner)
            waited = [samples[thread][1] if thread in samples else 0 for thread in others]
            if monotonic() > deadline or all(n > _SAMPLES_UNTIL_BLOCKED for n in waited):  # true if there are none
                _owners.append(weakref.ref(owner))
                return not others
        sleep(_SAMPLE_EVERY_S)
        samples = {thread: _sample_thread(thread, samples.get(thread)) for thread in others}


def _sample_thread(thread: int, before: tuple[object, int] | None) -> tuple[object, int]:
    """Where a thread is, and for how many samples it has been waiting there."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return None, 0
    at = (id(frame), frame.f_lasti)
    return at, (before[1] + 1 if _is_waiting(frame) and before is not None and before[0] == at else 0)


def _is_waiting(frame: FrameType) -> bool:
    code = frame.f_code  # ``run`` may have called a function of torch's itself
    return code.co_name != "run" and any(part in code.co_filename.replace("\\", "/") for part in _WAITING_FILES)


def do_others_run() -> bool:
    """Whether any other thread does anything but wait for a lock, a queue or another thread."""
    me = threading.get_ident()
    return not all(thread == me or _is_waiting(frame) for thread, frame in sys._current_frames().items())


def relaxed() -> AbstractContextManager[Any]:
    """Calls of this thread in the block neither end a capture of another thread nor are refused because of one."""
    state = process.current()
    if state is None or "relaxed" in state.driver.missing:
        return nullcontext()
    try:
        return state.driver.relaxed()
    except DriverError as error:
        process.log.debug("the capture mode of this thread could not be changed: %s", error)
        return nullcontext()


def synchronize_device(wait: Any) -> object:
    """Wait for the device between captures.

    Args:
        wait: torch's own call. Every runtime refuses it while any capture is running, and ends that capture.
    """
    with owned_relaxed():
        return wait()
