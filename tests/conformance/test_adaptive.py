"""Adaptive: the faster way wins by measurement, is remembered, and can be asked why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import gfxgraph
from gfxgraph import simulator
from gfxgraph.callables.adaptive import Adaptive, _function, kept_decision, store
from gfxgraph.core.eager_or_graph import Decision, Way
from gfxgraph.process import process
from tests.conformance.conftest import PLATFORMS

pytestmark = [
    pytest.mark.any_platform,
    pytest.mark.skipif(PLATFORMS == ["gpu"], reason="times are planted in the simulator"),
]


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "gfxgraph").mkdir()
    return tmp_path / "gfxgraph" / "decisions.json"


@pytest.fixture
def slow_graphs(state, platform):
    """Every graph launch takes 3 ms longer."""
    simulator.active().device.faults.slow_launch_s = 0.003
    return state


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


def test_a_model_that_is_faster_as_a_graph_ends_up_there(state, platform):
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


def test_a_decision_is_kept_for_the_next_process(slow_graphs):
    """By torch, toolkit, device, arch, function and signature; a new callable starts with it."""
    decided(gfxgraph.graphed(step, mode="adaptive"))
    rows = json.loads(slow_graphs.read_text())["rows"]
    (row,) = rows.values()
    assert set(row["about"]) == {"torch", "toolkit", "device", "arch", "function", "signature"}
    assert row["decision"]["way"] == "eager" and row["about"]["signature"].startswith("float32[8, 6]")
    g = gfxgraph.graphed(step, mode="adaptive")
    x = torch.randn(8, 6, device="cuda")
    for _ in range(4):
        g(x)
    assert g.stats()["replays"] == 0
    assert "measured in an earlier run" in g.explain()
    other = gfxgraph.graphed(step, mode="adaptive")
    for _ in range(4):
        other(torch.randn(9, 6, device="cuda"))
    assert "undecided" in other.explain()


def test_another_body_is_another_function():
    """A changed function is measured anew, under its old name too."""
    first, second = (compile(f"def f(x): return x * {n}", "f.py", "exec") for n in (2, 3))
    names = []
    for code in (first, first, second):
        space = {"__name__": "m"}
        exec(code, space)
        names.append(_function(space["f"]))
    assert names[0] == names[1] != names[2]
    assert _function(torch.nn.Linear(2, 2)) == _function(torch.nn.Linear(2, 2)) != _function(torch.nn.Linear(2, 3))


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 99, "rows": {}}', '{"version": 1, "rows": {"k": 3}}', ""])
def test_a_broken_file_is_no_reason_to_fail(text, state, platform):
    """It is left until there is something to write, and then replaced."""
    state.write_text(text)
    kept = store()
    assert kept_decision(kept, "k") is None
    decision = Decision(Way.EAGER, "planted", 0.5, 0.4, 0.6, 9, 1.0, 2.0)
    kept.put("k", {"decision": decision.as_dict()})
    assert kept_decision(store(), "k") == decision


def test_nothing_is_written_where_it_is_impossible(tmp_path, platform, monkeypatch):
    """No home, or a folder that cannot be made: decisions hold for this process alone."""
    decision = Decision(Way.GRAPH, "planted", 2.0, 1.9, 2.1, 9, 2.0, 1.0)
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, "nowhere")
    store().put("k", {"decision": decision.as_dict()})
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file" / "below"))
    kept = store()
    kept.put("k", {"decision": decision.as_dict()})
    assert kept_decision(kept, "k") == decision
    assert any(e["kind"] == "decisions_not_kept" for e in process.current().counters.snapshot()["events"])


def test_what_other_processes_kept_stays(state, platform):
    """Two writers of one file: neither loses the other's decision."""
    decision = Decision(Way.GRAPH, "planted", 2.0, 1.9, 2.1, 9, 2.0, 1.0)
    one, two = store(), store()
    assert kept_decision(one, "a") is kept_decision(two, "a") is None
    one.put("a", {"decision": decision.as_dict()})
    two.put("b", {"decision": decision.as_dict()})
    assert kept_decision(store(), "a") == kept_decision(store(), "b") == decision


def test_timing_waits_for_nothing(state, platform, monkeypatch):
    """Events that have not passed are left alone, and the call goes on."""
    waiting = []
    monkeypatch.setattr(torch.cuda.Event, "query", lambda self: not waiting)
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: pytest.fail("waited"))
    timed = Adaptive(step, 0, store()).of("s")
    waiting.append(1)
    for _ in range(20):
        assert timed.decided() is None
        timed.timed(timed.next_way(), lambda: None)
    assert timed.choice.n_pairs == 0
    waiting.clear()
    timed.collect()
    assert timed.choice.n_pairs or timed.choice.decision


def test_the_environment_asks_for_it(state, platform, monkeypatch):
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


def test_older_tuning_variables_say_how_often_the_slow_way_is_taken(state, platform, monkeypatch):
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
