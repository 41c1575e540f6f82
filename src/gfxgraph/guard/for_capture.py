"""The hooks of this room that graphs call."""

from __future__ import annotations

from gfxgraph.capture.upward_hooks import rooms
from gfxgraph.guard.flight_recorder import running_node
from gfxgraph.guard.guard import DeepCapture, guard_for, replay_by_nodes
from gfxgraph.guard.layout import repaired


def fill() -> None:
    """Install this room's hooks."""
    rooms.deep_capture = DeepCapture
    rooms.guard_for = guard_for
    rooms.replay_by_nodes = replay_by_nodes
    rooms.repaired = repaired
    rooms.running_node = running_node
