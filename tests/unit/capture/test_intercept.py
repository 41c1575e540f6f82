"""What stands in the place of torch's and Python's functions still works when the last capture ends under it."""

from __future__ import annotations

import gc
import threading

from gfxgraph.capture import intercept


def test_a_thread_started_as_the_last_capture_ends_is_started() -> None:
    """It was on its way through ours when another thread gave everything back; the next capture finds nothing."""
    ran = threading.Event()
    assert "start_thread" not in intercept.STOCK
    thread = threading.Thread(target=ran.set)
    intercept._start_thread(thread)
    thread.join(10)
    assert ran.is_set() and not intercept._undo


def test_garbage_is_collected_as_the_last_capture_ends() -> None:
    """Likewise."""
    assert "gc_collect" not in intercept.STOCK
    gc.collect()
    assert isinstance(intercept._collect(), int)
