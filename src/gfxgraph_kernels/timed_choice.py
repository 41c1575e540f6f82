"""Which of two variants is faster on this device.

Both ways are captured and replayed in turns, so that launches, which a graph removes, do not decide.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

N_CALLS, N_TURNS = 10, 7
MARGIN = 0.98
"""Ours must take less than this share of the time: a difference too small to be sure changes nothing."""


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """Microseconds per call, the median of the turns."""

    ours_us: float
    theirs_us: float

    @property
    def is_ours(self) -> bool:
        """Whether to use ours."""
        return self.ours_us < MARGIN * self.theirs_us


def measured(ours: Callable[[], object], theirs: Callable[[], object], device: torch.device) -> TrialTimes:
    """Time both alternately, as graphs."""
    timers = [timer(way, device) for way in (ours, theirs)]
    turns = [[timer() for timer in timers] for _ in range(N_TURNS)]
    mine, other = (statistics.median(column) for column in zip(*turns))
    return TrialTimes(mine, other)


def timer(way: Callable[[], object], device: torch.device, n_calls: int = N_CALLS) -> Callable[[], float]:
    """A function that returns the microseconds of one call, timed over ``n_calls`` in a graph."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            way()
    torch.cuda.current_stream(device).wait_stream(stream)
    with torch.cuda.graph(graph):
        for _ in range(n_calls):
            way()

    def by_events() -> float:
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        begun.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        return begun.elapsed_time(ended) * 1e3 / n_calls

    return by_events
