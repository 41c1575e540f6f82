"""Hooks through which a graph calls the rooms above this one: imports point down only.

``guard.for_capture.fill()`` fills them in when graphs are made for programs (startup/activation.py) or for graphed
callables (callables/arena.py); ``reporting.inspect.fill()`` only for programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Rooms:
    """One hook per question; the room that fills it in documents it."""

    deep_capture: Callable[[], Any]
    guard_for: Callable[..., Any]
    replay_by_nodes: Callable[..., None]
    repaired: Callable[[Any, Any, Sequence[tuple[int, str]]], tuple[Any, Any]]
    running_node: Callable[[], str]
    inspect: Callable[[Any], Any] = staticmethod(lambda graph: graph.steps_text())


rooms = Rooms()
leaving: list[Callable[[Any], None]] = []
"""Called before a captured graph is destroyed, while it can still be read."""
