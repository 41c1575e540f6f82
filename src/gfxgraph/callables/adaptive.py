"""``adaptive``: each signature runs as graph or eagerly, whichever was measured to be faster, and says why.

Timings are taken while a signature is undecided: a pair of events on the stream around the call. Nothing waits for
them; a later call that finds them completed reads the time. A call that is not timed pays for one comparison.

On an idle stream the time between two events is what the caller waits for, launch overhead included; on a
busy stream, what the device needs. Both are what matters in their case.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from gfxgraph.capture.capture_lock import is_capturing_anywhere
from gfxgraph.core.eager_or_graph import Choice, Way
from gfxgraph.process import process

MOST_WAITING = 64


class Timed:
    """One signature: how its next call runs, and the events not read yet.

    Args:
        label: the function and the signature, for reports.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.choice = Choice()
        self._n_timed = 0
        self._waiting: deque[tuple[Way, Any, Any]] = deque()

    def decided(self) -> Way | None:
        """How to run a call that need not be timed; None if this one is to be timed."""
        if self._waiting:
            self.collect()
        decision = self.choice.decision
        return decision.way if decision is not None else None

    def next_way(self) -> Way:
        """How the next timed call runs."""
        return self.choice.next_way(self._n_timed)

    def timed(self, way: Way, run: Callable[[], Any]) -> Any:
        """Run the call between two events, which are read later."""
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        result = run()
        ended.record()
        self._n_timed += 1
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append((way, begun, ended))
        return result

    def collect(self) -> None:
        """Read the completed events without waiting for any."""
        if is_capturing_anywhere():
            return
        while self._waiting and self._waiting[0][2].query():
            way, begun, ended = self._waiting.popleft()
            decision = self.choice.add(way, begun.elapsed_time(ended) * 1e3)
            if decision is not None:
                self._waiting.clear()
                state = process.current()
                if state is not None:
                    state.report("adaptive", f"{self.label}: {decision}", level=logging.INFO)
                return
