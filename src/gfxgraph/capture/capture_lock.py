"""Captures of several threads take turns; calls that would break a capture wait for it.

Problem: torch allows one capture in a process, and the runtime lets calls of any thread end it: waiting for the
whole device in every capture mode, destroying a graph on HIP, drawing random numbers (the default generator is in
capture mode for all threads). Two threads that capture, or one that captures while another works, break each
other.

Idea: captures take turns. A thread's capture begins when those of other threads are over; another thread's call
that would break a capture waits in the same queue. Captures of one thread never wait for each other.

A capture may itself wait for the thread that waits for it (it started a thread and joins it). So a turn whose thread
is blocked in a lock, a queue or a join is not waited for: two captures at once, each in a mode that concerns only its
own thread, are better than a hang.

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
_LOOK_EVERY_S = 0.02
_LOOKS_UNTIL_BLOCKED = 20  # 0.4 s: on a busy machine a starved thread looks blocked, too
_WAITING_FILES = (
    "capture/capture_lock.py", "threading.py", "queue.py", "selectors.py", "concurrent/futures/", "multiprocessing/",
)  # fmt: skip
# Errors of torch's CUDAGeneratorState while the generator is in capture mode; the second since torch 2.11.
_REFUSED_BY_GENERATOR = ("Cannot prepare for replay during capturing stage", "Offset increment outside graph capture")

lock = new_lock()
"""For turns and for what captures replace: a finalizer that runs where one of two was held may need the other."""
_turns: list[weakref.ref[Turn]] = []
"""Weak references: an interrupt may skip `end_turn`, but the turn still dies with its holder's frame."""


_graveyard: list[object] = []
"""Graphs, and calls, that wait until no capture runs."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Turn:
    """One thread's exclusive time: a capture, or a call that must not run during one.

    It ends when it is given, or when nobody holds this object any more.
    """

    thread: int = field(default_factory=threading.get_ident)
    is_draw: bool = False
    """A draw of random numbers, which conflicts with everything but other draws."""


holders: dict[int, Turn] = {}
"""Running captures by identity, with their turns. A dict, so that entering or leaving twice does no harm.

While it is empty no thread is in torch's ``capture_begin``, which registers its graph without the GIL and without a
lock: a graph freed meanwhile ends the process ("The graph should be registered to the state").
"""


def is_capturing_anywhere() -> bool:
    """True while any thread captures: some calls, such as event queries, could break that capture."""
    return bool(holders)


def keep_until_captures_end(held: object) -> bool:
    """If a capture is running, hold graphs that are being dropped until it ends; False if none is."""
    with lock:
        if holders:
            _graveyard.append(held)
        return bool(holders)


def take_deferred() -> list[object]:
    """What was held, which is the caller's now."""
    found, _graveyard[:] = list(_graveyard), []
    return found


def begin_turn(turn: Turn) -> None:
    """Begin a turn once those of other threads are over."""
    is_alone = _wait(turn)
    if not is_alone:
        process.require().report(
            "capture_not_serialized",
            "another thread's capture waits for this thread or takes too long, so two run at once; random numbers "
            "are not safe in either",
            level=logging.INFO,
        )


def end_turn(turn: Turn) -> None:
    """End a turn; may be called from any thread, and more than once."""
    with lock:
        _turns[:] = [each for each in _turns if each() not in (turn, None)]


def end_own_turns() -> None:
    """End this thread's turns, of which an interrupt has skipped the end; not while it captures."""
    for turn in _all():
        if turn.thread == threading.get_ident():
            end_turn(turn)


def forget_all() -> None:
    """In a forked child: the threads that had turns are not there."""
    _turns.clear()


@contextmanager
def held(is_draw: bool = False) -> Iterator[bool]:
    """Hold a turn for one call; yields False if another thread's turn could not be waited for."""
    turn = Turn(is_draw=is_draw)
    try:
        yield _wait(turn)
    finally:
        end_turn(turn)


@contextmanager
def alone() -> Iterator[bool]:
    """A turn for one call that ends no other's capture, and is not refused for one's sake; yields as ``held``."""
    with held() as is_alone, unnoticed():
        yield is_alone


@contextmanager
def held_to_destroy(dead: object) -> Iterator[bool]:
    """Hold a turn at once, beside others' calls, to destroy graphs; yields False, and keeps them, if one captures."""
    turn = Turn()
    with lock:
        is_time = not keep_until_captures_end(dead)
        if is_time:
            _turns.append(weakref.ref(turn))
    try:
        yield is_time
    finally:
        end_turn(turn)


def is_held_here() -> bool:
    """True while this thread captures."""
    me = threading.get_ident()
    return any(turn.thread == me for turn in _all())


def launched_again(error: RuntimeError, launch: Callable[[], object]) -> bool:
    """Repeat a launch that was refused because another thread captured with the generator, while none does.

    Returns:
        False if it was refused for something else; nothing was launched then.
    """
    if not any(text in str(error) for text in _REFUSED_BY_GENERATOR):
        return False
    with held(is_draw=True):
        launch()
    return True


def _all() -> list[Turn]:
    return [turn for each in list(_turns) if (turn := each()) is not None]


def _others(turn: Turn) -> list[int]:
    """The ids of other threads that have a turn. Not the turns: a waiting thread would keep them alive."""
    me = threading.get_ident()
    alive = set(sys._current_frames()) if _turns else ()  # ids only: frames, this one included, would make a cycle
    return [t.thread for t in _all() if t.thread != me and t.thread in alive and not (t.is_draw and turn.is_draw)]


def _wait(turn: Turn) -> bool:
    """Wait for other threads' turns, and begin ``turn``; False if waiting is pointless."""
    deadline = monotonic() + WAIT_FOR_CAPTURE_S
    seen: dict[int, tuple[object, int]] = {}
    while True:
        with lock:
            others = _others(turn)
            looks = [seen[thread][1] if thread in seen else 0 for thread in others]
            if monotonic() > deadline or all(n > _LOOKS_UNTIL_BLOCKED for n in looks):  # true where there are none
                _turns.append(weakref.ref(turn))
                return not others
        sleep(_LOOK_EVERY_S)
        seen = {thread: _look(thread, seen.get(thread)) for thread in others}


def _look(thread: int, before: tuple[object, int] | None) -> tuple[object, int]:
    """Where a thread is, and for how many looks it has been waiting there."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return None, 0
    at = (id(frame), frame.f_lasti)
    return at, (before[1] + 1 if _waits(frame) and before is not None and before[0] == at else 0)


def _waits(frame: FrameType) -> bool:
    code = frame.f_code  # ``run`` may have called a function of torch's itself
    return code.co_name != "run" and any(part in code.co_filename.replace("\\", "/") for part in _WAITING_FILES)


def others_work() -> bool:
    """Whether any other thread does anything but wait for a lock, a queue or another thread."""
    me = threading.get_ident()
    return not all(thread == me or _waits(frame) for thread, frame in sys._current_frames().items())


def unnoticed() -> AbstractContextManager[Any]:
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
    with alone():
        return wait()
