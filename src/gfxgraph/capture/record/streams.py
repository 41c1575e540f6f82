"""The streams of one capture, and the events between them; collectives; waits, which are split out or made safe.

Problem: an asynchronous collective runs on a stream of the library's own, and ``work.wait()`` makes the current
stream wait for an event there. A split ends the capture: a collective that nothing waits for leaves it unjoined, and
once it has ended, its events are of no capture (on CUDA "invalid argument"). Idea: note what each segment launches.
Its end waits for what the program has not; a later wait has nothing to do, since everything before a split has run.

A work's future, and the question whether it is done, are torch's, which refuses them in a capture or after its end.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches.torch_functions import STOCK, Targets, session_here
from gfxgraph.capture.replay.graph_tensors import flat
from gfxgraph.process import process
from gfxgraph.types import CaptureStatus, OnUnsafe


def wait_for(state: process.Process, stream: Any) -> None:
    """Wait for the work on ``stream`` without disturbing any capture; a stream that is being captured is skipped.

    A failed device is not reported here: the next call reports it.
    """
    with suppress(RuntimeError):
        state.driver.synchronize_stream(stream.cuda_stream)  # torch's own call ends captures of other threads


class Streams:
    """Attributes:
    own: the stream on which the capture began.
    side: streams forked from it inside the capture, by handle.
    """

    def __init__(self) -> None:
        self.own = torch.cuda.current_stream()
        self.side: dict[int, Any] = {}
        # Strong references: torch's event type does not clear weak references when it dies.
        self._events: dict[int, tuple[Any, int, tuple[int, ...]]] = {}
        self._works: dict[int, tuple[weakref.ref[object], int]] = {}
        """What ``torch.distributed`` gave to wait for, and the segment that launched it. Works keep tensors alive."""
        self._unjoined: dict[int, object] = {}
        """Those of the open segment that nobody has waited for; functional collectives' results among them."""

    @contextmanager
    def be_on_own(self) -> Iterator[None]:
        """Make the stream current on which the capture began, without disturbing other captures."""
        is_current = torch.cuda.current_stream().cuda_stream == self.own.cuda_stream
        with capture_lock.relaxed(), nullcontext() if is_current else torch.cuda.stream(self.own):
            yield

    def captures(self, stream: Any) -> bool:
        """True if ``stream`` is part of this capture."""
        handle = stream.cuda_stream
        return handle == self.own.cuda_stream or handle in self.side

    def note_side(self, stream: Any) -> None:
        if stream.cuda_stream != self.own.cuda_stream:
            self.side[stream.cuda_stream] = stream

    def note_event(self, event: Any, segment: int, stream: Any) -> None:
        """Note that the event is recorded now: in which segment and, for `waits_inside`, behind which nodes."""
        behind = process.require().driver.frontier(stream.cuda_stream) if torch.version.hip else ()
        self._events[id(event)] = (event, segment, behind)

    def waits_inside(self, event: Any, stream: Any) -> bool:
        """Let a side stream of the capture wait for an event of it; False where the runtime's own wait is to do it.

        HIP's wait would make either stream the other's fork where both wait, and the end of the capture would not end
        (``GraphDriver.wait_for``).
        """
        driver = process.require().driver
        if not torch.version.hip or stream.cuda_stream == self.own.cuda_stream or "wait_for" in driver.missing:
            return False
        if self.status(stream) is not CaptureStatus.ACTIVE:
            return False  # this wait makes it part of the capture
        driver.wait_for(stream.cuda_stream, self._events[id(event)][2])
        return True

    def recorded_in(self, event: object) -> int | None:
        """The segment in which the event was last recorded; None if it was not recorded in this capture."""
        found = self._events.get(id(event))
        return found[1] if found is not None else None

    def note_launched(self, launched: object, segment: int) -> None:
        """Note what nobody has waited for yet: a work, or a functional collective's result."""
        if not isinstance(launched, weakref.ref):
            self._works[id(launched)] = weakref.ref(launched), segment
        self._unjoined[id(launched)] = launched

    def launched_in(self, work: object) -> int | None:
        """The segment that launched a work; None if it was not launched on the device in this capture."""
        found = self._works.get(id(work))
        return found[1] if found is not None and found[0]() is work else None

    def note_joined(self, work: object) -> None:
        """The program waits for it."""
        self._unjoined.pop(id(work), None)

    def fork(self) -> None:
        """Make the side streams part of the segment that has just been opened."""
        if not self.side:
            return
        event = torch.cuda.Event()
        STOCK["record"](event, self.own)
        for stream in self.side.values():
            STOCK["wait"](event, stream)

    def join(self) -> None:
        """Make the capture's own stream wait for the side streams."""
        for stream in self.side.values():
            if self.status(stream) is CaptureStatus.ACTIVE:
                event = torch.cuda.Event()
                try:
                    STOCK["record"](event, stream)
                    STOCK["wait"](event, self.own)
                except RuntimeError as error:  # the capture is dead; ending it reports that
                    process.log.debug("could not join %s: %s", stream, error)

    def join_collectives(self, recorder: Any) -> None:
        """Make the capture's own stream wait for those that run on another, which the tape holds."""
        launched, self._unjoined = self._unjoined, {}
        if not launched:
            return
        with self.be_on_own():
            recorder.note_opaque()
            for each in launched.values():
                try:
                    wait_for_launched(each)
                except RuntimeError as error:  # as above
                    process.log.debug("could not join %s: %s", each, error)
            recorder.disown_new_nodes()

    def status(self, stream: Any = None) -> CaptureStatus:
        """The runtime's capture status of a stream, by default the capture's own."""
        return process.require().driver.capture_info((stream or self.own).cuda_stream).status

    def release(self) -> None:
        self._events.clear()
        self._works.clear()
        self._unjoined.clear()
        self.side.clear()


# -- collectives ---------------------------------------------------------------------------------------------

_ROOMS = ("c10d::", "_c10d_functional::")
_WAITS = ("wait", "synchronize", "block_current_stream")
_OUTSIDE = "torch.cuda.Stream.wait_event"


def noting(name: str, call: Callable[..., object]) -> Callable[..., object]:
    """Wrap ``call`` (operation ``name``) so that the capture notes what it launches, if it is a collective."""
    if not name.startswith(_ROOMS) or name.endswith("::wait_tensor") or not torch.distributed.is_available():
        return call

    def launch(*args: object, **kwargs: object) -> object:
        out = call(*args, **kwargs)
        session = session_here()
        if session is not None and any(tensor.is_cuda for tensor in flat(args, kwargs)):
            for launched in _launched(name, out):
                session.streams.note_launched(launched, session.n_segments)
        return out

    return launch


def _launched(name: str, out: object) -> list[object]:
    """What is to be waited for: works, or for functional collectives the results, weakly."""
    if name.startswith("_"):
        return [weakref.ref(tensor) for tensor in flat(out)]
    return [*works_of(out)]


def works_of(out: object) -> Iterator[torch.distributed.Work]:
    """The works in what an operation gave: the same objects as the program will get.

    NCCL and RCCL give nothing to wait for where ``async_op`` is False, since torch 2.8: a null that only C++
    recognises, and that ends the process if asked.
    """
    for part in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(part, torch.ScriptObject) and part._has_method("wait"):
            work: torch.distributed.Work | None = torch.distributed.Work.unbox(part)
            if work is not None:
                yield work


def wait_for_launched(launched: object) -> None:
    """Make the current stream wait for what `noting` found."""
    if not isinstance(launched, weakref.ref):
        STOCK["work.wait"](launched)
    elif (tensor := launched()) is not None:
        torch_names.wait_tensor(tensor)


def are_used() -> bool:
    """Whether a process group has been made."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def targets() -> Targets:
    if not are_used():
        return {}
    work = torch.distributed.Work
    return {
        **{f"work.{name}": (work, name, _waiting(f"work.{name}")) for name in _WAITS if hasattr(work, name)},
        "work.end_coalescing": (*torch_names.place("_end_coalescing"), _end_coalescing),
    }


@functools.cache  # one for all captures: it is known by identity
def _waiting(short: str) -> Callable[..., object]:
    def wait(work: torch.distributed.Work, *args: object, **kwargs: object) -> object:
        session = session_here()
        call = STOCK[short]
        if session is None or session.policy is OnUnsafe.RAISE:
            return call(work, *args, **kwargs)
        segment = session.streams.launched_in(work)
        if segment is None:  # launched before the capture, or on the host
            return session.host_call(_OUTSIDE, lambda: call(work, *args, **kwargs))
        if segment != session.n_segments:
            return True if short == "work.wait" else None
        session.streams.note_joined(work)
        session.recorder.note_opaque()
        try:
            return call(work, *args, **kwargs)
        except RuntimeError as error:
            return session.call_failed("torch.distributed.Work.wait", error, lambda: wait(work, *args, **kwargs))
        finally:
            session.recorder.disown_new_nodes()  # the collective's own, which the tape holds

    return wait


def _end_coalescing(group: torch.distributed.ProcessGroup, *device: torch.device) -> torch.distributed.Work | None:
    work: torch.distributed.Work | None = STOCK["work.end_coalescing"](group, *device)
    session = session_here()
    if session is not None and work is not None and not any(each.type == "cpu" for each in device):
        session.streams.note_launched(work, session.n_segments)
    return work


# -- waits, queries and cache calls --------------------------------------------------------------------------


EXTERNAL = "_gfxgraph_external"
"""Attribute set on events made with ``external=True``, which torch's class does not remember."""


def event_new(original: Any) -> Any:
    """Wrap Event.__new__ to remember ``external=True``."""

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        event = original(cls, *args, **kwargs)
        if kwargs.get("external") or (len(args) > 3 and args[3]):
            setattr(event, EXTERNAL, True)
        return event

    return __new__


@functools.cache  # one for all captures: it is known by identity
def _by_host(short: str, row: str, repeat: bool) -> Callable[..., Any]:
    """A call between captures; inside one it splits, and each replay makes it too if ``repeat``."""

    def by_host(*args: object) -> Any:
        session, call = session_here(), functools.partial(STOCK[short], *args)
        if session is None:  # torch gives no memory back while any capture is underway, and a wait ends captures
            return capture_lock.synchronize_device(call)
        return session.host_call(row, call, repeat)

    return by_host


@functools.cache  # one for all captures: it is known by identity
def _wait_for(kind: str, name: str) -> Callable[[Any], bool | None]:
    """Wait for a stream or an event; asked whether it is done, the program goes on as after a wait."""

    def wait(self: Any) -> Any:
        session = session_here()
        if session is None:
            with capture_lock.relaxed():
                return STOCK[f"{kind}_{name}"](self)
        streams, on_stream = session.streams, STOCK["stream_synchronize"]
        is_own = streams.captures(self) if kind == "stream" else streams.recorded_in(self) is not None
        # At a replay the stream is the one that is current then, and everything up to here is waited for.
        current = torch.cuda.current_stream
        call = (lambda: on_stream(current())) if is_own else functools.partial(STOCK[f"{kind}_synchronize"], self)
        session.host_call(f"torch.cuda.{kind.title()}.{name}", call, repeat=is_own or name != "query")
        return True if name == "query" else None

    return wait


def _event_elapsed(self: object, other: object) -> float:
    session = session_here()
    elapsed = STOCK["elapsed"]
    if session is None:
        return elapsed(self, other)  # type: ignore[no-any-return]
    return session.host_call("torch.cuda.Event.elapsed_time", lambda: elapsed(self, other), repeat=False)  # type: ignore[no-any-return]


def _record(self: object, stream: object = None) -> Any:
    session = session_here()
    record = STOCK["record"]
    given = () if stream is None else (stream,)
    if session is None or getattr(self, EXTERNAL, False):
        return record(self, *given)
    session.streams.note_event(
        self, session.n_segments, stream if stream is not None else torch.cuda.current_stream()
    )
    try:
        return record(self, *given)
    except RuntimeError as error:
        return session.call_failed("torch.cuda.Event.record", error, lambda: _record(self, *given))


def _wait_event(self: object, stream: object = None) -> Any:
    session = session_here()
    wait = STOCK["wait"]
    if session is None:
        return wait(self, stream) if stream is not None else wait(self)
    stream = stream if stream is not None else torch.cuda.current_stream()
    segment = session.streams.recorded_in(self)
    if getattr(self, EXTERNAL, False):
        return wait(self, stream)  # a node of its own, which waits at each replay
    if segment is None:
        if not session.streams.captures(stream):
            return wait(self, stream)  # a stream outside the capture
        # At replay the program's work is on whichever stream is current then.
        current_stream = torch.cuda.current_stream
        return session.host_call("torch.cuda.Stream.wait_event", lambda: wait(self, current_stream()))
    session.streams.note_side(stream)
    try:
        if segment == session.n_segments:
            return None if session.streams.waits_inside(self, stream) else wait(self, stream)
        # Recorded before a split: that work is joined, so waiting for the new segment's start is enough.
        fork = torch.cuda.Event()
        STOCK["record"](fork, session.streams.own)
        return wait(fork, stream)
    except RuntimeError as error:
        return session.call_failed("torch.cuda.Event.wait", error, lambda: _wait_event(self, stream))


def wait_targets() -> Targets:
    cuda, place, wait = torch.cuda, torch_names.place, "torch.cuda.synchronize"
    return {
        "device_synchronize": (*place("_cuda_synchronize"), _by_host("device_synchronize", wait, True)),
        "accelerator_synchronize": (
            *place("_accelerator_synchronizeDevice"), _by_host("accelerator_synchronize", wait, True)
        ),
        "stream_synchronize": (cuda.Stream, "synchronize", _wait_for("stream", "synchronize")),
        "stream_query": (cuda.Stream, "query", _wait_for("stream", "query")),
        "event_synchronize": (cuda.Event, "synchronize", _wait_for("event", "synchronize")),
        "event_query": (cuda.Event, "query", _wait_for("event", "query")),
        "elapsed": (cuda.Event, "elapsed_time", _event_elapsed),
        "record": (cuda.Event, "record", _record),
        "wait": (cuda.Event, "wait", _wait_event),
        "empty_cache": (*place("_cuda_emptyCache"), _by_host("empty_cache", "torch.cuda.empty_cache", False)),
        # torch.cuda.graph() calls it on entry: freeing pinned memory kills a running capture.
        "host_empty_cache": (
            *place("_host_emptyCache"), _by_host("host_empty_cache", "torch.cuda.empty_cache", False)
        ),
    }  # fmt: skip
