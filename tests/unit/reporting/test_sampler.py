"""When the windows of coverage open and close."""

from __future__ import annotations

import time

from gfxgraph.reporting import sampler


class Watch:
    """What the sampler opens and closes."""

    cost_s = 0.0
    has_seen = is_held = False

    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")


def until(is_so) -> None:
    end = time.monotonic() + 30.0
    while not is_so() and time.monotonic() < end:
        time.sleep(0.001)  # pending calls run in this thread


def test_the_first_window_lasts_until_something_is_seen():
    """A program that does nothing for longer than a window is not missed."""
    watch = Watch()
    made = sampler.Sampler(watch)
    made.start()
    try:
        until(lambda: len(watch.calls) >= 3)
        assert set(watch.calls) == {"open"}
        watch.has_seen = True
        until(lambda: "close" in watch.calls)
        assert watch.calls[-1] == "close"
    finally:
        made.stop()
