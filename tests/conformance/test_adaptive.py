"""Adaptive: the faster way wins by measurement, is remembered, and can be asked why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import gfxgraph
import gfxgraph_simulator as simulator
from gfxgraph.callables.adaptive import Timed
from gfxgraph.process import process
from tests.conformance.conftest import PLATFORMS

pytestmark = [
    pytest.mark.any_platform,
    pytest.mark.skipif(PLATFORMS == ["gpu"], reason="times are planted in the simulator"),
]


@pytest.fixture
def slow_graphs(platform):
    """Every graph launch takes 3 ms longer."""
    simulator.active().device.faults.slow_launch_s = 0.003


def step(x):
    return (x + 1) * 2 - 3


def decided(g, n=90):
    x = torch.randn(8, 6, device="cuda")
    for _ in range(n):
        assert torch.equal(g(x), g._fn(x))
        if "undecided" not in g.explain() and "pairs" in g.explain():
            return g.explain()
    raise AssertionError(g.explain())


def test_a_model_that_is_slower_as_a_graph_ends_up_eager(slow_graphs):
    """Planted: every launch costs 3 ms. Answers are right all the while; afterwards no graph is launched."""
    g = gfxgraph.graphed(step, mode="adaptive")
    said = decided(g)
    assert "eager: the graph is slower" in said
    n = g.stats()["replays"]
    for _ in range(5):
        g(torch.randn(8, 6, device="cuda"))
    assert g.stats()["replays"] == n
    assert g.stats()["eager"]["measured to be faster than its graph"] >= 5


def test_a_model_that_is_faster_as_a_graph_ends_up_there(platform):
    """And then replays without being timed."""

    def eager_is_slow(x):
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()
            import time

            time.sleep(0.002)
        return x * 2

    g = gfxgraph.graphed(eager_is_slow, mode="adaptive", assume_pure=True)  # for the wait in it
    assert "graph: the graph is faster" in decided(g)
    n = g.stats()["replays"]
    for _ in range(5):
        g(torch.randn(8, 6, device="cuda"))
    assert g.stats()["replays"] == n + 5


def test_each_signature_is_timed_on_its_own(slow_graphs):
    """Another shape is undecided when the first is decided."""
    g = gfxgraph.graphed(step, mode="adaptive")
    decided(g)
    for _ in range(4):
        g(torch.randn(9, 6, device="cuda"))
    assert "float32[8, 6]: eager: the graph is slower" in g.explain() and "float32[9, 6]: undecided" in g.explain()


def test_timing_waits_for_nothing(platform, monkeypatch):
    """Events that have not passed are left alone, and the call goes on."""
    waiting = []
    monkeypatch.setattr(torch.cuda.Event, "query", lambda self: not waiting)
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: pytest.fail("waited"))
    timed = Timed("s")
    waiting.append(1)
    for _ in range(20):
        assert timed.decided() is None
        timed.timed(timed.next_way(), lambda: None)
    assert timed.choice.n_pairs == 0
    waiting.clear()
    timed.collect()
    assert timed.choice.n_pairs or timed.choice.decision


def test_the_environment_asks_for_it(platform, monkeypatch):
    """GFXGRAPH_REPLAY_MODE, and the older GFXGRAPH_REPLAY_HOT_MODE."""
    for name, value, mode in (
        ("GFXGRAPH_REPLAY_MODE", "adaptive", "adaptive"),
        ("GFXGRAPH_REPLAY_MODE", "hot", "hot"),
        ("GFXGRAPH_REPLAY_HOT_MODE", "1", "hot"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert gfxgraph.graphed(step).explain().startswith(f"step: {mode}")
            assert gfxgraph.graphed(step, mode="standard").explain().startswith("step: standard")


def test_older_tuning_variables_say_how_often_the_slow_way_is_taken(platform, monkeypatch):
    """So many replays before the short way, and then one in so many; hot takes none."""

    def slow_calls(mode, n=40):
        g = gfxgraph.graphed(step, mode=mode)
        slow = []
        whole = g._slow
        g._slow = lambda *a: (slow.append(1), whole(*a))[1]
        for _ in range(n):
            g(torch.zeros(4, device="cuda"))
        return len(slow)

    least = slow_calls("standard")
    assert least <= 3  # the trace, the capture, and what the capture changed in the classes that are watched
    settings = process.current().settings
    monkeypatch.setattr(process.current(), "settings", replace(settings, trusted_replay_threshold=12))
    assert slow_calls("standard") == 13  # the trace, and twelve replays
    assert slow_calls("hot") < 12
    monkeypatch.setattr(process.current(), "settings", replace(settings, trusted_replay_sample_interval=5))
    assert slow_calls("standard") == least + (40 - least) // 5
