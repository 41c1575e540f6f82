"""What a fast call does round its body."""

from __future__ import annotations

import signal
import threading

from gfxgraph.callables.fast_path import IN_TURN
from gfxgraph.errors import ReplayError


def test_a_signals_error_leaves_no_lock() -> None:
    """Wherever it strikes: other threads would wait for the lock for ever."""

    class Struck(Exception):
        pass

    def strike(*_: object) -> None:
        raise Struck

    lock = threading.RLock()
    names = {"acquire": lock.acquire, "release": lock.release, "ReplayError": ReplayError, "MISS": None}
    exec(IN_TURN.format("return len(args)"), names)
    fast, n_struck, before = names["fast"], 0, signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                while True:
                    assert fast((), {}) == 0
            except Struck:
                n_struck += 1
            assert not lock._is_owned()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert n_struck == 300
