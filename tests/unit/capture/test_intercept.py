"""What stands in the place of torch's and Python's functions still works when the last capture ends under it."""

from __future__ import annotations

import gc
import threading

import pytest

import gfxgraph
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


def test_an_end_that_an_interrupt_stopped_is_ended_by_the_clean_up() -> None:
    """Its capture is known no more, but functions of torch's were still replaced."""

    class Interrupted:
        n_tries = 0

        def __setattr__(self, name: str, value: object) -> None:
            Interrupted.n_tries += 1
            if Interrupted.n_tries == 1:
                raise KeyboardInterrupt

    holder = object()
    gfxgraph.enable(simulate="hip")
    try:
        known = intercept.holders_here()
        intercept.enter(holder, "here")
        assert not gc.isenabled()
        intercept._undo.append((Interrupted(), "name", 1))
        with pytest.raises(KeyboardInterrupt):
            intercept.leave(holder)
        intercept.leave_others(known)
        assert not intercept._undo and gc.isenabled() and Interrupted.n_tries == 2
    finally:
        gfxgraph.disable()
