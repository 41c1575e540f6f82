"""The streams of one capture: the one it began on, those forked from it, and the events between them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch

from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches import replaced
from gfxgraph.capture.patches.torch_functions import STOCK
from gfxgraph.capture.record import collectives
from gfxgraph.process import process
from gfxgraph.types import CaptureStatus


def wait_for(state: process.Process, stream: Any) -> None:
    """Wait for the work on ``stream`` without disturbing any capture; a stream that is being captured is skipped.

    A failed device is not reported here: the next call reports it.
    """
    with suppress(RuntimeError):
        if state.driver is not None:  # torch's own call ends captures of other threads
            state.driver.synchronize_stream(stream.cuda_stream)
        else:
            STOCK["stream_synchronize"](stream)


class Streams:
    """Attributes:
    own: the stream on which the capture began.
    side: streams forked from it inside the capture, by handle.
    """

    def __init__(self) -> None:
        self.own = torch.cuda.current_stream()
        self.side: dict[int, Any] = {}
        # Strong references: torch's event type does not clear weak references when it dies.
        self._events: dict[int, tuple[Any, int]] = {}
        self._works: dict[int, tuple[weakref.ref[object], int]] = {}
        """What ``torch.distributed`` gave to wait for, and the segment that launched it. Works keep tensors alive."""
        self._unjoined: dict[int, object] = {}
        """Those of the open segment that nobody has waited for; functional collectives' results among them."""

    @contextmanager
    def be_on_own(self) -> Iterator[None]:
        """Make the stream current on which the capture began, without disturbing other captures."""
        is_current = torch.cuda.current_stream().cuda_stream == self.own.cuda_stream
        with capture_lock.unnoticed(), nullcontext() if is_current else torch.cuda.stream(self.own):
            yield

    def captures(self, stream: Any) -> bool:
        """True if ``stream`` is part of this capture."""
        handle = stream.cuda_stream
        return handle == self.own.cuda_stream or handle in self.side

    def note_side(self, stream: Any) -> None:
        if stream.cuda_stream != self.own.cuda_stream:
            self.side[stream.cuda_stream] = stream

    def note_event(self, event: Any, segment: int) -> None:
        self._events[id(event)] = (event, segment)

    def recorded_in(self, event: Any) -> int | None:
        """The segment in which the event was last recorded; None if it was not recorded in this capture."""
        found = self._events.get(id(event))
        return found[1] if found is not None else None

    def note_launched(self, launched: object, segment: int) -> None:
        """Note what nobody has waited for yet: a work, or a functional collective's result."""
        if not isinstance(launched, weakref.ref):
            self.note_work(launched, segment)
        self._unjoined[id(launched)] = launched

    def note_work(self, work: object, segment: int) -> None:
        """Note which segment launched a work, or made a future."""
        replaced.also("collectives")
        self._works[id(work)] = weakref.ref(work), segment

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
                    collectives.wait_for(each)
                except RuntimeError as error:  # as above
                    process.log.debug("could not join %s: %s", each, error)
            recorder.disown_new_nodes()

    def status(self, stream: Any = None) -> CaptureStatus:
        """The runtime's capture status of a stream, by default the capture's own."""
        driver = process.require().driver
        if driver is None:
            return CaptureStatus.ACTIVE if torch.cuda.is_current_stream_capturing() else CaptureStatus.INVALIDATED
        return driver.capture_info((stream or self.own).cuda_stream).status

    def let_go(self) -> None:
        self._events.clear()
        self._works.clear()
        self._unjoined.clear()
        self.side.clear()
