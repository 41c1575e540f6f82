"""Workarounds for runtime defects, as the defect table asks for them.

Each function acts on one of the table's answers (``hardware.defects.Decisions``), and does nothing
unless the table asks for it. Handled elsewhere: ``capture_error_mode`` and
``validate_replays`` in graph.py, ``node_walk`` in node_walk.py, ``max_nodes`` in recorder.py. Always done,
whatever the table says: one capture at a time (capture_lock.py), no garbage collection inside a capture, a check of
the capture after each operation on HIP, replays inside a capture as steps of their own, and cleaning up after a
failed capture (``ALWAYS``, which a test compares with the table).
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from typing import Any

import torch

from gfxgraph.capture import capture_lock
from gfxgraph.process import bridge, process

ALWAYS = {
    "one_capture_at_a_time": "capture/capture_lock.py",
    "gc_before_capture": "capture/patches/replaced.py",
    "check_after_each_op": "capture/record/recorder.py",
    "inline_nested_replay": "capture/record/splits.py",
    "clean_after_failure": "capture/failures.py",
    "conditional_nodes": "callables/control/conditional.py",
    "host_functions": "capture/replay/node_walk.py",
}
"""Workarounds that are always on, and where. The last two kinds of node are never made."""
_kept: list[Any] = []


def leave_stream(stream: Any) -> None:
    """``fresh_stream_after_failure``: make the next ``torch.cuda.graph()`` use a new stream."""
    default = torch.cuda.graph.default_capture_stream
    if process.require().decisions.fresh_stream_after_failure and default is not None and default == stream:
        torch.cuda.graph.default_capture_stream = None


def before_replay() -> None:
    """``join_copies``: make the graph wait for earlier work on the stream."""
    if process.require().decisions.join_copies:
        done = torch.cuda.Event()
        done.record()
        done.wait()


def keeps(graph: Any) -> bool:
    """``keep_graphs``: hold a graph that is being dropped until the process ends; True if it is held."""
    if process.current() is None or not process.require().decisions.keep_graphs:
        return False
    _kept.append(graph)
    return True


def after_destroy() -> None:
    """``synchronize_after_destroy``: wait until a destroyed graph is gone before anything else starts."""
    state = process.current()
    if state is not None and state.decisions.synchronize_after_destroy and process.active_session() is None:
        with suppress(RuntimeError):
            capture_lock.synchronize_device(torch.cuda.synchronize)


def arrange_exit(state: process.Process) -> None:
    """``destroy_before_exit``: destroy graphs in order before the runtime unloads."""
    if not state.decisions.destroy_before_exit:
        return

    def destroy() -> None:
        for graph in list(state.graphs):
            with suppress(RuntimeError):
                graph.reset()

    bridge.undo.append(lambda: atexit.unregister(destroy))
    atexit.register(destroy)
