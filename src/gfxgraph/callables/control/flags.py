"""Reading device values on the host without waiting for later work.

Problem: ``flag.item()`` waits until everything queued on the stream has run, and while the host waits
nothing new is queued, so the device idles. Idea: the value is copied to pinned memory on a separate
stream, which waits only for the work queued before the request; the host waits for that copy
only. A program that asks early and queues other work before it needs the answer keeps the device busy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.arena import current_arena

_streams: dict[tuple[int, int], Any] = {}


class Answer:
    """A device value being copied to the host."""

    __slots__ = ("_event", "_host", "_source")

    def __init__(self, host: Tensor, event: Any = None, source: Tensor | None = None) -> None:
        self._host = host
        self._event = event
        self._source = source  # the copy reads it until the event completes

    @property
    def is_ready(self) -> bool:
        """True once the value has arrived; does not wait."""
        return self._event is None or bool(self._event.query())

    def value(self) -> Any:
        """The value as a Python number; waits for its copy, but for no work queued after the request."""
        if self._source is not None:
            self._event.synchronize()
            self._source = None
        return self._host.item()


def ask(flag: Tensor) -> Answer:
    """Start reading a one-element tensor, as of the current stream's queued work."""
    if flag.numel() != 1:
        raise ValueError(f"a flag must have one element; this tensor has the shape {tuple(flag.shape)}")
    if not flag.is_cuda:
        return Answer(flag.detach().clone().reshape(()))
    asked = torch.cuda.Event()
    asked.record()
    stream = _stream()
    asked.wait(stream)
    host = torch.empty((), dtype=flag.dtype, pin_memory=True)
    with torch.cuda.stream(stream), torch.no_grad():
        host.copy_(flag.detach().reshape(()), non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
    return Answer(host, arrived, flag)


def _stream() -> Any:
    place = current_arena()
    key = id(place), torch.cuda.current_device()
    if key not in _streams:
        _streams[key] = torch.cuda.Stream()
    return _streams[key]
