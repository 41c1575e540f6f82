"""Builds the class that replaces torch's CUDAGraph, over torch's base class or the simulator's."""

from __future__ import annotations

from typing import Any

from gfxgraph.capture.graph import BridgedGraph
from gfxgraph.capture.replay import fast_replay
from gfxgraph.capture.torchs_graph import launch_of


class TwoEnds(BridgedGraph):
    """torch 2.14's API for ending a capture in two halves."""

    def capture_end_pre(self) -> None:
        """The first half of ``capture_end``; afterwards the graph can be inspected and instantiated."""
        session = self._session
        if session is None or not session.is_open or session.end_was_tried:  # called by torch's own capture_end
            super().capture_end_pre()
            return
        self.capture_end()
        self._is_between_halves = True

    def capture_end_post(self) -> None:
        """The second half of ``capture_end``."""
        if not self._is_between_halves:
            super().capture_end_post()
        self._is_between_halves = False


def bridged_class(base: type) -> type[BridgedGraph]:
    """Return the subclass of ``base`` (torch's CUDAGraph, or the simulator's) that replaces it."""
    launch = launch_of(base)
    over = TwoEnds if hasattr(base, "capture_end_pre") else BridgedGraph

    class BridgedCUDAGraph(over, base):  # type: ignore[misc, valid-type]
        __doc__ = BridgedGraph.__doc__
        # The replay countdown. A slot: in ``__dict__`` each replay would take 0.07 us longer.
        __slots__ = ("_left",)
        _launch = staticmethod(launch)
        replay = fast_replay.replay(launch)

    class GuardedCUDAGraph(BridgedCUDAGraph):
        """The class of a graph at tier 1 and above: each replay first checks for freed memory."""

        __slots__ = ()
        replay = fast_replay.guarded_replay(launch)

    class OlderCUDAGraph(BridgedCUDAGraph):
        """The class of a graph after ``capture``: its replay takes the keywords of gfxgraph 1.x, at their cost."""

        __slots__ = ()

        def replay(self, **older: Any) -> Any:
            return self._replay_older(**older) if older else super().replay()

    BridgedCUDAGraph._guarded_class, BridgedCUDAGraph._older_class = GuardedCUDAGraph, OlderCUDAGraph
    for made in (BridgedCUDAGraph, GuardedCUDAGraph, OlderCUDAGraph):
        made.__qualname__ = made.__name__ = "BridgedCUDAGraph"
        made.__module__ = "gfxgraph"
    return BridgedCUDAGraph
