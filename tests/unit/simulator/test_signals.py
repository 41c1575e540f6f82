"""Signals that strike inside the simulator."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest
import torch

from gfxgraph.simulator import installation
from gfxgraph.simulator.allocator import Allocator


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A device whose every allocation is struck by a signal half-way; the functions that its handler was run in."""
    before = signal.getsignal(signal.SIGUSR1)
    found: list[str] = []
    pick = Allocator._pool_for

    def struck_half_way(self: Allocator, stream: int) -> object:
        signal.raise_signal(signal.SIGUSR1)
        return pick(self, stream)

    # As if it stood in the simulator's own folder.
    code = struck_half_way.__code__.replace(co_filename=installation.__file__)
    struck_half_way.__code__ = code
    with installation.install("cuda"):
        signal.signal(signal.SIGUSR1, lambda number, frame: found.append(frame.f_code.co_name if frame else ""))
        monkeypatch.setattr(Allocator, "_pool_for", struck_half_way)
        yield found
        monkeypatch.undo()
        signal.signal(signal.SIGUSR1, before)


def test_handlers_run_when_the_simulator_has_returned(struck: list[str]) -> None:
    """In the frame that called it, at once, with nothing traced afterwards."""
    x = torch.empty(4, device="cuda")
    assert struck == ["test_handlers_run_when_the_simulator_has_returned"] and sys.gettrace() is None
    assert x.numel() == 4


def test_what_a_handler_raises_arrives_there(struck: list[str]) -> None:
    """The work that was underway is done: nothing of the device is left half-way."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR1, interrupt)
    with pytest.raises(KeyboardInterrupt):
        _ = torch.ones(4, device="cuda") + 1
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    torch.cuda.empty_cache()
    assert (torch.ones(4, device="cuda") + 1).tolist() == [2.0] * 4


def test_programs_see_their_own_handlers() -> None:
    """signal.getsignal and signal.signal give what the program has set, with a device and after it."""
    before = signal.getsignal(signal.SIGINT)
    with installation.install("cuda"):
        assert signal.getsignal(signal.SIGINT) is before

        def mine(number: int, frame: object) -> None:
            raise AssertionError

        assert signal.signal(signal.SIGINT, mine) is before and signal.signal(signal.SIGINT, before) is mine
    assert signal.getsignal(signal.SIGINT) is before
