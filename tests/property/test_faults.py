"""A part of faults.py: after a failure at any of these positions later captures, replays and eager work are right."""

from __future__ import annotations

import inspect
import signal
import sys

import pytest
import torch

import gfxgraph
from gfxgraph.callables.trace import in_dynamo
from gfxgraph.capture.patches import patch_table
from gfxgraph.process import process
from tests.property import faults, faults_mixed, faults_threads

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="failures are planted in the simulator"),
    # A signal that strikes in a finalizer or a callback of the collector: Python swallows what its handler raises.
    pytest.mark.filterwarnings(
        "ignore:(?s)Exception ignored in.*(KeyboardInterrupt|Late):pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture
def simulated():
    gfxgraph.enable(simulate="hip", validate=False)
    yield
    gfxgraph.disable()


@pytest.mark.parametrize("scenario", [faults.capture, faults.split, faults.graphed_replay], ids=lambda s: s.__name__)
def test_driver_calls(simulated, scenario):
    """Each call of the driver that a scenario makes fails once."""
    n_struck = 0
    for nth in range(1, 10_000):
        struck, bad = faults.with_failing_driver(scenario, nth)
        assert not bad, (nth, struck, bad)
        if not struck:
            break
        n_struck += 1
    assert n_struck or scenario is faults.graphed_replay


def test_threads_at_random(simulated, monkeypatch):
    """Eight threads capture, replay, draw, free and fail for a while, switched 500 times as often as Python does.

    The simulator's draw is Python that seven threads interrupt: a device's asks for its numbers within a millisecond.
    """
    monkeypatch.setattr(patch_table, "_DRAWN_WITHIN_S", 0.05)
    torch._dynamo.reset()  # functions that compiled code is guarded on are not replaced
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        found = faults_threads.run(seed=1, seconds=3)
    finally:
        sys.setswitchinterval(before)
    assert found["wrong"] == [], found


def test_replay_on_a_full_stack(simulated):
    """What a launch raises because Python's stack is full is no failure of the graph: no fallback is deeper."""
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.replay, x)
    here, limit = len(inspect.stack(0)), sys.getrecursionlimit()
    seen = set()
    for room in range(4, 30):
        try:
            sys.setrecursionlimit(here + room)
            kept["graph"].replay()
            seen.add("")
        except RuntimeError as error:
            seen.add(type(error).__name__)
        finally:
            sys.setrecursionlimit(limit)
    assert seen == {"", "RecursionError"}
    assert faults.faults_left(x, kept) == []


def test_signals(simulated):
    """Real signals at random times."""
    found = faults.signals(25, 1000.0, seed=1)
    assert found["then"] == [] and found["survived"] == 25, found


def test_signals_in_mixed_programs(simulated):
    """Real signals while gradients, training steps and graphed functions are captured, beside another thread."""
    jobs = (faults_mixed.gradients, faults_mixed.step, faults_mixed.threads)
    found = faults_mixed.signals(12, 1000.0, 1, jobs)
    assert found["then"] == [] and found["survived"] == 12, found


def test_half_left_inner_capture(simulated):
    """An interrupt before the first line of an inner block's exit is what the program sees, not the open capture."""
    code = torch.cuda.graph.__exit__.__code__
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.capture, x)

    def strike(frame, event, _):
        if frame.f_code is not code:
            return None
        sys.settrace(None)
        raise KeyboardInterrupt

    def inner():
        sys.settrace(strike)
        return x + 1

    try:
        with pytest.raises(KeyboardInterrupt):
            faults.captured(lambda: (faults.program(x), faults.captured(inner), x * 3))
    finally:
        sys.settrace(None)
    assert faults.faults_left(x, kept) == []


class Late(RuntimeError):
    """What a program's handler raises when its time is up."""


@pytest.mark.parametrize("scenario", [faults.capture, faults.split, faults.graphed_first], ids=lambda s: s.__name__)
def test_a_handlers_own_error(simulated, scenario, monkeypatch):
    """A signal's handler raises a RuntimeError: no fallback is made of it, and after one repair nothing is left."""

    def ring(number, frame):
        each = frame
        while each is not None:  # torch's own code would not be interrupted
            if each.f_code.co_filename.startswith(faults.SIMULATOR):
                signal.setitimer(signal.ITIMER_REAL, 2e-5)
                return
            each = each.f_back
        raise Late

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's holds the frames, and so what they hold
    x = torch.ones(8, device="cuda")
    kept = faults.before(scenario, x)
    took = faults._seconds(lambda: scenario(x, kept))
    saved = signal.signal(signal.SIGALRM, ring)
    n_struck = 0
    try:
        for n in range(40):
            seen = ""
            try:
                signal.setitimer(signal.ITIMER_REAL, took * (n + 1) / 40)
                scenario(x, kept)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Late:
                n_struck += 1
            except Exception as error:
                seen = repr(error)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert not seen
            for each in process.repairs:  # as health_check does first
                each()
            assert faults.faults_left(x, kept) == []
            assert not gfxgraph.stats()["fallbacks"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, saved)
    assert n_struck > 5


@pytest.mark.parametrize("n_signals", [1, 2])
def test_a_signal_waits_until_a_trace_is_over(simulated, monkeypatch, n_signals):
    """The first one does; the second breaks in."""
    x, whole, look = torch.ones(8, device="cuda"), [], in_dynamo.look

    def struck(graph):
        for _ in range(n_signals):
            signal.raise_signal(signal.SIGINT)
        whole.append(True)
        return look(graph)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        made = gfxgraph.graphed(lambda a: a * 3)
        made.reset()  # another test's trace of this code
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(in_dynamo, "look", struck)
            made(x)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert bool(whole) is (n_signals == 1)
    assert [made(x).tolist() for _ in range(4)] == [[3.0] * 8] * 4
