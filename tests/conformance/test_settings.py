"""What settings promise for graphs that a program captures itself."""

from __future__ import annotations

import logging

import pytest
import torch

import gfxgraph

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the settings are tried in the simulator")


@pytest.fixture
def simulated():
    yield lambda **options: gfxgraph.enable(simulate="cuda", **options)
    gfxgraph.disable()
    logging.getLogger("gfxgraph").setLevel(logging.WARNING)


def captured():
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    return graph, y


def test_average_replay_is_known_after_one_replay(simulated):
    """``avg_replay_us`` is None before the first replay, and a time after it."""
    simulated()
    gfxgraph.reset_stats()
    graph, _ = captured()
    assert gfxgraph.stats()["avg_replay_us"] is None
    graph.replay()
    assert gfxgraph.stats()["avg_replay_us"] > 0


def test_replays_after_the_first_go_straight_to_torch(simulated):
    """Where nothing is asked for, only the first replay and the sampled ones are looked at."""
    simulated()
    graph, _ = captured()
    looked_at = []
    slow = type(graph)._checked_replay
    for _ in range(5):
        before = graph._left
        graph.replay()
        looked_at.append(before <= 0)
    assert slow is type(graph)._checked_replay and looked_at == [True, False, False, False, False]


def test_the_sampled_replay_is_a_launch_with_a_clock(simulated, monkeypatch):
    """One in 256 replays is timed and counted; what is checked at the first is not checked again there."""
    simulated()
    gfxgraph.reset_stats()
    graph, _ = captured()
    graph.replay()
    checked = []
    monkeypatch.setattr(type(graph).__mro__[1], "_replay_with_checks", checked.append)
    for _ in range(300):
        graph.replay()
    assert (graph.n_replays, checked) == (301, [])
    assert graph._state.counters._replay_us[1] == 2


def test_debug_logs_each_capture_and_replay(simulated, caplog):
    """GFXGRAPH=debug: a line for each capture and each replay, of callables too."""
    simulated(debug=True)
    logger = logging.getLogger("gfxgraph")
    logger.propagate = True
    with caplog.at_level(logging.DEBUG, logger="gfxgraph"):
        graph, _ = captured()
        for _ in range(3):
            graph.replay()
        assert [r.message.split()[0] for r in caplog.records].count("captured") == 1
        assert [r.message.split()[0] for r in caplog.records].count("replay") == 3
        caplog.clear()
        f = gfxgraph.graphed(lambda x: x * 2, assume_pure=True)
        x = torch.ones(4, device="cuda")
        for _ in range(5):
            f(x)
        n_replays = f.stats()["replays"]
        assert n_replays and [r.message.split()[0] for r in caplog.records].count("replay") >= n_replays


def test_debug_logs_each_fallback(simulated, caplog):
    """A step down that was logged before is logged again."""
    simulated(debug=True)
    state_log = logging.getLogger("gfxgraph")
    state_log.propagate = True
    from gfxgraph.capture.replay.program import note_fallback

    with caplog.at_level(logging.DEBUG, logger="gfxgraph"):
        for _ in range(3):
            note_fallback("a reason", "an op", "a place")
    assert sum("a reason" in record.message for record in caplog.records) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GFXGRAPH_VRAM_CAP", "0.000001"),
        ("GFXGRAPH_REPLAY_MODE", "adaptive"),
        ("GFXGRAPH_REPLAY_HOT_MODE", "1"),
        ("GFXGRAPH_TRUSTED_REPLAY_THRESHOLD", "2"),
    ],
)
def test_settings_of_callables_leave_plain_graphs_alone(simulated, monkeypatch, name, value):
    """As the documentation says: a plain graph is captured and replayed as it is asked to."""
    monkeypatch.setenv(name, value)
    simulated()
    gfxgraph.reset_stats()
    graph, y = captured()
    for _ in range(4):
        y.zero_()
        graph.replay()
        assert y.tolist() == [2.0] * 4
    assert graph._program.is_plain and not gfxgraph.stats()["fallbacks"] and gfxgraph.stats()["replay_count"] == 4


def test_a_misspelt_setting_is_logged(simulated, caplog, monkeypatch):
    """Its name would else look like a setting in force; a name that resembles none is left alone."""
    monkeypatch.setenv("GFXGRAPH_GAURD", "2")
    monkeypatch.setenv("GFXGRAPH_SOMEBODYS", "1")
    simulated()
    said = [record.getMessage() for record in caplog.records if "not a setting" in record.getMessage()]
    assert said == ["GFXGRAPH_GAURD is not a setting of gfxgraph; did you mean GFXGRAPH_GUARD?"]
