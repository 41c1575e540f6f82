"""What the defect table asks of the runtime, where it takes effect.

Each function acts on one of the table's answers (``hardware.defects.Decisions``), and does nothing
where the table does not ask. What the table asks elsewhere: ``capture_error_mode`` and
``validate_replays`` in graph.py, ``node_walk`` in walk.py, ``max_nodes`` in recorder.py. Always done,
whatever the table says: no collection of garbage inside a capture, a look at the capture after each
operation on HIP, replays inside a capture as steps of their own, and cleaning after a failed capture.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from typing import Any

import torch

from gfxgraph.process import process

# Held until the other capture ends; after so long two captures at once are the smaller harm.
WAIT_FOR_CAPTURE_S = 120

_captures = threading.RLock()
_kept: list[Any] = []


class _Turns(threading.local):
    """Captures of this thread that took their turn or were about to."""

    holders: frozenset[int] = frozenset()


_turns = _Turns()


def take_turn(holder: object) -> None:
    """``one_capture_at_a_time``: wait for the captures of other threads."""
    if not process.require().decisions.one_capture_at_a_time:
        return
    _turns.holders |= {id(holder)}
    if not _captures.acquire(timeout=WAIT_FOR_CAPTURE_S):
        process.require().report(
            "capture_not_serialized",
            f"another thread's capture took more than {WAIT_FOR_CAPTURE_S} s, so two run at once, which this ROCm "
            "may not survive; capture in one thread, or see gfxgraph doctor --why",
        )


def give_turn(holder: object) -> None:
    """The capture is over: others may go on, once this thread has none left."""
    _turns.holders -= {id(holder)}
    while not _turns.holders and _captures._is_owned():  # type: ignore[attr-defined]
        _captures.release()


def leave_stream(stream: Any) -> None:
    """``fresh_stream_after_failure``: the next ``torch.cuda.graph()`` makes another stream."""
    default = torch.cuda.graph.default_capture_stream
    if process.require().decisions.fresh_stream_after_failure and default is not None and default == stream:
        torch.cuda.graph.default_capture_stream = None


def before_replay() -> None:
    """``join_copies``: let the graph wait for what the stream was given before it."""
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
    """``synchronize_after_destroy``: let a destroyed graph be gone before anything else starts."""
    state = process.current()
    if state is not None and state.decisions.synchronize_after_destroy and process.active_session() is None:
        with suppress(RuntimeError):  # another thread captures: its graph comes first
            torch.cuda.synchronize()


def arrange_exit(state: process.Process) -> Any:
    """``destroy_before_exit``: destroy graphs in order before the runtime unloads; gives the undo, if any."""
    if not state.decisions.destroy_before_exit:
        return None

    def destroy() -> None:
        for graph in list(state.graphs):
            with suppress(RuntimeError):
                graph.reset()

    atexit.register(destroy)
    return lambda: atexit.unregister(destroy)
