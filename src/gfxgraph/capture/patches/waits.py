"""Replacements, while a capture runs, for waits, queries and cache calls: split out, or made safe."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches.torch_functions import STOCK, Targets, session_here
from gfxgraph.capture.record.user_lines import place, shown
from gfxgraph.errors import CaptureError

EXTERNAL = "_gfxgraph_external"
"""Attribute set on events made with ``external=True``, which torch's class does not remember."""

_RECORDED_AT = "_gfxgraph_recorded_at"
"""Attribute set on events that a capture recorded: the line."""


def event_new(original: Any) -> Any:
    """Wrap Event.__new__ to remember ``external=True``."""

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        event = original(cls, *args, **kwargs)
        if kwargs.get("external") or (len(args) > 3 and args[3]):
            setattr(event, EXTERNAL, True)
        return event

    return __new__


def elapsed_of_events(original: Callable[[object, object], float]) -> Callable[[object, object], float]:
    """Wrap Event.elapsed_time to say why an event that a capture recorded has no time."""

    @functools.wraps(original)
    def elapsed_time(self: object, end_event: object) -> float:
        try:
            return original(self, end_event)
        except RuntimeError as error:
            where = getattr(self, _RECORDED_AT, None) or getattr(end_event, _RECORDED_AT, None)
            if where is None:
                raise
            raise CaptureError("event_has_no_time", where=shown(where), quote=str(error)) from error

    return elapsed_time


@functools.cache  # one for all captures: it is known by identity
def _wait_for_device(short: str) -> Callable[..., Any]:
    def wait_for_device(*args: Any) -> Any:
        call = STOCK[short]
        if session_here() is None:
            return capture_lock.synchronize_device(lambda: call(*args))
        return _wait("torch.cuda.synchronize", short, *args)

    return wait_for_device


def _synchronize_current(synchronize: Any) -> Callable[[], Any]:
    """Return a function that waits for the stream current at its call: at replay, the replaying one."""
    current_stream = torch.cuda.current_stream
    return lambda: synchronize(current_stream())


def _stream_synchronize(self: Any) -> Any:
    session = session_here()
    if session is not None and session.streams.captures(self):
        call = _synchronize_current(STOCK["stream_synchronize"])
        return session.host_call("torch.cuda.Stream.synchronize", call)
    return _wait("torch.cuda.Stream.synchronize", "stream_synchronize", self)


def _wait(name: str, short: str, *args: Any) -> Any:
    session = session_here()
    call = STOCK[short]
    if session is None:
        with capture_lock.unnoticed():
            return call(*args)
    return session.host_call(name, lambda: call(*args))


def _stream_query(self: Any) -> bool:
    session = session_here()
    if session is None:
        with capture_lock.unnoticed():
            return STOCK["stream_query"](self)  # type: ignore[no-any-return]
    synchronize = STOCK["stream_synchronize"]
    if session.streams.captures(self):  # the program goes on as after a wait, and so must each replay
        session.host_call("torch.cuda.Stream.query", _synchronize_current(synchronize))
    else:
        session.host_call("torch.cuda.Stream.query", lambda: synchronize(self), repeat=False)
    return True


def _event_synchronize(self: Any) -> Any:
    session = session_here()
    if session is None:
        with capture_lock.unnoticed():
            return STOCK["event_synchronize"](self)
    if session.streams.recorded_in(self) is not None:  # wait for everything up to here
        return session.host_call("torch.cuda.Event.synchronize", _synchronize_current(STOCK["stream_synchronize"]))
    event_synchronize = partial(_of_no_capture, self, STOCK["event_synchronize"])
    return session.host_call("torch.cuda.Event.synchronize", lambda: event_synchronize(self))


def _event_query(self: Any) -> bool:
    session = session_here()
    if session is None:
        with capture_lock.unnoticed():
            return STOCK["event_query"](self)  # type: ignore[no-any-return]
    if session.streams.recorded_in(self) is not None:  # as above
        session.host_call("torch.cuda.Event.query", _synchronize_current(STOCK["stream_synchronize"]))
        return True
    query = partial(_of_no_capture, self, STOCK["event_query"])
    return session.host_call("torch.cuda.Event.query", lambda: query(self), repeat=False)  # type: ignore[no-any-return]


def _event_elapsed(self: object, other: object) -> float:
    session = session_here()
    elapsed = STOCK["elapsed"]
    if session is None:
        return elapsed(self, other)  # type: ignore[no-any-return]
    return session.host_call("torch.cuda.Event.elapsed_time", lambda: elapsed(self, other), repeat=False)  # type: ignore[no-any-return]


def _of_no_capture(event: object, call: Callable[..., object], *args: object) -> object:
    """Call something about an event of no capture under way, and say why if it is of one that has ended."""
    try:
        return call(*args)
    except RuntimeError as error:
        where = getattr(event, _RECORDED_AT, None)
        if where is None:
            raise
        raise CaptureError("event_of_ended_capture", where=shown(where), quote=str(error)) from error


def _record(self: Any, stream: Any = None) -> Any:
    session = session_here()
    record = STOCK["record"]
    given = () if stream is None else (stream,)
    if session is None or getattr(self, EXTERNAL, False):
        return record(self, *given)
    session.streams.note_event(self, session.n_segments)
    setattr(self, _RECORDED_AT, place())
    try:
        return record(self, *given)
    except RuntimeError as error:
        return session.call_failed("torch.cuda.Event.record", error, lambda: _record(self, *given))


def _wait_event(self: Any, stream: Any = None) -> Any:
    session = session_here()
    wait = STOCK["wait"]
    if session is None:
        return wait(self, stream) if stream is not None else wait(self)
    stream = stream if stream is not None else torch.cuda.current_stream()
    segment = session.streams.recorded_in(self)
    if getattr(self, EXTERNAL, False):
        return wait(self, stream)  # a node of its own, which waits at each replay
    if segment is None:
        wait = partial(_of_no_capture, self, wait)
        if not session.streams.captures(stream):
            return wait(self, stream)  # a stream outside the capture
        # At replay the program's work is on whichever stream is current then.
        current_stream = torch.cuda.current_stream
        return session.host_call("torch.cuda.Stream.wait_event", lambda: wait(self, current_stream()))
    session.streams.note_side(stream)
    try:
        if segment == session.n_segments:
            return wait(self, stream)
        # Recorded before a split: that work is joined, so waiting for the new segment's start is enough.
        fork = torch.cuda.Event()
        STOCK["record"](fork, session.streams.own)
        return wait(fork, stream)
    except RuntimeError as error:
        return session.call_failed("torch.cuda.Event.wait", error, lambda: _wait_event(self, stream))


@functools.cache  # one for all captures: it is known by identity
def _empty_cache(short: str) -> Callable[[], None]:
    def empty_cache() -> None:
        session = session_here()
        call = STOCK[short]
        if session is None:
            with capture_lock.alone():  # torch gives no memory back while any capture is underway
                call()
        else:
            session.host_call("torch.cuda.empty_cache", call, repeat=False)

    return empty_cache


def targets() -> Targets:
    cuda, C = torch.cuda, torch._C
    return {
        "device_synchronize": (C, "_cuda_synchronize", _wait_for_device("device_synchronize")),
        "accelerator_synchronize": (C, "_accelerator_synchronizeDevice", _wait_for_device("accelerator_synchronize")),
        "stream_synchronize": (cuda.Stream, "synchronize", _stream_synchronize),
        "stream_query": (cuda.Stream, "query", _stream_query),
        "event_synchronize": (cuda.Event, "synchronize", _event_synchronize),
        "event_query": (cuda.Event, "query", _event_query),
        "elapsed": (cuda.Event, "elapsed_time", _event_elapsed),
        "record": (cuda.Event, "record", _record),
        "wait": (cuda.Event, "wait", _wait_event),
        "empty_cache": (C, "_cuda_emptyCache", _empty_cache("empty_cache")),
        # torch.cuda.graph() calls it on entry: freeing pinned memory kills a running capture.
        "host_empty_cache": (C, "_host_emptyCache", _empty_cache("host_empty_cache")),
    }
