"""capture: the drop-in graph: recording, splitting, replaying and checking it; torch enters here.

Enters: tensors, streams, graphs.
Stays out: command line, engines, functions that are captured per signature.

    graph.py      BridgedCUDAGraph: what users hold, over whichever base
    torchs_graph.py
                  torch's CUDAGraph by version: messages, arguments, its ``with`` block, its launch
    state.py, session.py
                  the states of a graph object and of its capture; one capture: segments, and how it begins and ends
    function_capture.py
                  a function captured into a pool that captures share
    undo.py       how what a capture changes is undone: one stack, one baseline, one repair; torch's stacks of modes
    capture_lock.py
                  captures of several threads
    failures.py   a capture that fails to begin or to end, or is invalidated; cleaning up torch after it

and subpackages: record/ (the program's operations, numbers, draws, splits), replay/ (the captured program, its
steps, fallback and checks), patches/ (torch's functions that are replaced while a capture runs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Rooms:
    """Hooks through which a graph calls the rooms above: imports point down only. Who fills one in documents it:
    ``guard.guard.fill()``, and ``reporting.read_capture.fill()`` where graphs are made for programs.
    """

    deep_capture: Callable[[], object]
    guard_for: Callable[..., object]
    replay_by_nodes: Callable[..., None]
    repaired: Callable[[object, object, Sequence[tuple[int, str]]], tuple[object, object]]
    inspect: Callable[[Any], Any] = staticmethod(lambda graph: graph.steps_text())


rooms = Rooms()
leaving: list[Callable[[Any], None]] = []
"""Called before a captured graph is destroyed, while it can still be read."""
