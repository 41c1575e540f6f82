"""The watch: what does not end is reported, ranks that captured different things are named, and off is off."""

from __future__ import annotations

import logging
import os
import re
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.callables.arena import arena_of
from gfxgraph.capture.replay import hang_watch
from gfxgraph.hardware.defects import Decisions
from gfxgraph.process import process
from gfxgraph.types import GuardTier

LIMIT_S = 0.2
"""So short that tests end soon; nothing here depends on its being kept."""


@pytest.fixture
def reports(platform):
    """What was reported, and an event that says that something was."""

    class Reports(logging.Handler):
        def __init__(self):
            super().__init__()
            self.texts, self.is_told = [], threading.Event()

        def emit(self, record):
            self.texts.append(record.getMessage())
            if record.levelno >= logging.WARNING:
                self.is_told.set()

    handler = Reports()
    process.log.addHandler(handler)
    yield handler
    process.log.removeHandler(handler)


@pytest.fixture
def watched(platform):
    """A watch on this process."""
    state = process.require()
    state.hang_watch = hang_watch.Deadline(state, LIMIT_S)
    state.hang_watch.begin()
    yield state.hang_watch
    state.hang_watch.stop()


def captured(body):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()
    return graph, out


graph_begins = captured.__code__.co_firstlineno + 2


def test_a_capture_that_does_not_end(watched, reports):
    """Reported while it lasts, once, with its line and the stack of the thread it waits in; then it ends well."""
    x = torch.ones(4, device="cuda")

    def a_line_that_waits():
        assert reports.is_told.wait(60)

    graph, y = captured(lambda: (x + 1, a_line_that_waits())[0])
    graph.replay()
    assert y.tolist() == [2.0] * 4
    text = reports.texts[0]
    assert (
        text.startswith("capture_hang: ") and "a_line_that_waits" in text and "test_watch.py" in text.splitlines()[1]
    )
    assert len([event for event in gfxgraph.stats()["events"] if event["kind"] == "capture_hang"]) == 1


@pytest.mark.parametrize("where", ["in the call", "on the device"])
def test_a_replay_that_does_not_end(watched, reports, monkeypatch, where):
    """A launch that does not return, and one whose work is never done: the graph's line and the replay's number."""
    x = torch.ones(4, device="cuda")
    graph, y = captured(lambda: x + 1)
    graph.replay()
    torch.cuda.synchronize()
    watched._forget_done()
    if where == "in the call":
        launch = graph._program.launch
        monkeypatch.setattr(graph._program, "launch", lambda g: (reports.is_told.wait(60), launch(g))[1])
    else:
        monkeypatch.setattr(torch.cuda.Event, "query", lambda self: reports.is_told.is_set())
    graph.replay()
    assert reports.is_told.wait(60)
    text = reports.texts[0]
    assert text.startswith("replay_hang: ") and "(replay 2)" in text and "thread MainThread" in text
    assert f"test_watch.py:{graph_begins}" in text.splitlines()[1]
    torch.cuda.synchronize()
    assert y.tolist() == [2.0] * 4


def test_the_node_is_named(platform, watched, reports):
    """Where nodes are walked: its number, its kernel and its source line, as the supervisor names it."""
    if platform == "gpu":
        pytest.skip("a kernel that waits for this test is the simulator's")
    from gfxgraph import simulator

    state = process.require()
    state.settings = replace(state.settings, guard=GuardTier.LOCALIZE)
    x = torch.ones(4, device="cuda")

    def body():
        y = x + 1
        simulator.launch_opaque("spins", lambda _: reports.is_told.wait(60), y)
        return y

    graph, _ = captured(body)
    graph.replay()
    node = re.search("last node begun: (.*)", reports.texts[0]).group(1)
    assert node.startswith("1 (spins)") and "test_watch.py" in node and node.endswith("(of 2)")


@pytest.mark.parametrize(
    ("tier", "says"), [(GuardTier.OFF, "--guard 2 names it"), (GuardTier.LOCALIZE, "(none yet)")]
)
def test_no_node_was_begun(watched, reports, monkeypatch, tier, says):
    """Who runs with guard 2 already is not told to."""
    state = process.require()
    monkeypatch.setattr(state, "settings", replace(state.settings, guard=tier))
    watched._report(hang_watch.Replay("here", 1))
    assert says in reports.texts[-1] and f"process {os.getpid()}" in reports.texts[-1]


def test_replays_that_end_are_not_reported(watched, reports):
    """Thousands of replays leave nothing behind, neither events nor reports."""
    x = torch.zeros(4, device="cuda")
    graph, _ = captured(lambda: x.add_(1))
    for _ in range(1000):
        graph.replay()
    torch.cuda.synchronize()
    watched._forget_done()
    assert not watched._replays and not reports.texts and float(x[0]) == 1000.0


def test_off_is_off(platform):
    """Without a word of the user's or the table's: no thread, no look at a replay, torch's own path."""
    graph, _ = captured(lambda: torch.ones(4, device="cuda") + 1)
    for _ in range(5):
        graph.replay()
    assert process.require().hang_watch is None and graph._left > 0
    assert not [thread for thread in threading.enumerate() if thread.name == "gfxgraph-watch"]


def test_the_table_and_the_setting_switch_it_on(platform):
    """replay_timeout_s of the defect table is its limit, unless GFXGRAPH_WATCH says otherwise."""
    state = process.require()
    for asked, table, limit in ((None, None, None), (None, 60, 60.0), (5.0, 60, 5.0), (0.0, 60, None)):
        state.settings = replace(state.settings, watch=asked)
        state.decisions = replace(state.decisions, replay_timeout_s=table)
        hang_watch.start(state, [])
        assert (state.hang_watch.limit_s if state.hang_watch is not None else None) == limit
        if state.hang_watch is not None:
            state.hang_watch.stop()
            state.hang_watch = None


def test_callables_are_watched_without_enable(platform):
    """Their process is one without patches, made at the first call; a watch that is off is not started."""
    state = process.require()
    for asked in (0.0, 5.0):
        unpatched = replace(state, settings=replace(state.settings, watch=asked))
        arena_of(unpatched, 0)
        assert bool(unpatched.hang_watch) == bool(asked)
    unpatched.hang_watch.stop()
    assert unpatched.hang_watch is None


# -- by hand ----------------------------------------------------------------------------------------------------


class ByHand:
    """A watch with a limit of 10 s whose looks are made by hand, and a device whose work takes what the test says."""

    def __init__(self, monkeypatch):
        self.now, self.due = 0.0, {}
        monkeypatch.setattr(hang_watch.Deadline, "_run", lambda self: None)
        monkeypatch.setattr(torch.cuda.Event, "query", lambda event: self.now >= self.due.get(id(event), 0.0))
        self.watch = hang_watch.Deadline(process.require(), 10.0)

    def replay(self, graph, ends):
        with self.watch.replaying(graph):
            pass
        self.due[id(self.watch._replays[-1].done)] = ends

    def goes_on(self, seconds):
        for _ in range(round(seconds / self.watch.look_s)):
            self.now += self.watch.look_s
            self.watch._look()


@pytest.fixture
def by_hand(platform, monkeypatch):
    made = ByHand(monkeypatch)
    yield made
    made.watch.stop()


def plain():
    x = torch.ones(4, device="cuda")
    return captured(lambda: x + 1)[0]


def test_a_queue_of_replays_is_no_hang(by_hand, reports):
    """Each counts from when the one before it is done: five of 8 s each, launched at once."""
    graph = plain()
    for n in range(5):
        by_hand.replay(graph, 8.0 * (n + 1))
    by_hand.goes_on(45)
    assert not reports.texts and not by_hand.watch._replays


def test_what_waits_behind_a_hang_is_not_reported(by_hand, reports):
    """One report, for the one that runs; the next one when that is done and the next hangs, too."""
    graph = plain()
    for n in range(4):
        by_hand.replay(graph, 40.0 * (n + 1))
    by_hand.goes_on(39)
    assert len(reports.texts) == 1 and "(replay 0)" in reports.texts[0]
    by_hand.goes_on(20)
    assert len(reports.texts) == 2


def test_a_finished_replay_is_not_taken_for_the_capture_after_it(by_hand, reports):
    """While something is captured the device is not asked: the replay may be done, and the capture is what hangs."""
    by_hand.replay(plain(), 0.0)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        by_hand.goes_on(15)
    assert [text.split(":")[0] for text in reports.texts] == ["capture_hang"]


def test_each_capture_is_reported(by_hand, reports):
    """Also one that takes the place in memory of one before; and one beside a replay that is late, too."""
    for _ in range(4):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            by_hand.goes_on(12)
    assert len(reports.texts) == 4
    by_hand.watch._replays.append(hang_watch.Replay("elsewhere", 3))
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        by_hand.goes_on(12)
    assert [text.split(":")[0] for text in reports.texts[4:]] == ["capture_hang", "replay_hang"]
    by_hand.watch._replays.clear()


def test_a_stopped_process_does_not_hang(by_hand, reports):
    """Ctrl-Z, a debugger, a suspended machine: nobody looks meanwhile."""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        by_hand.goes_on(2)
        by_hand.now += 1000.0
        by_hand.goes_on(6)
        assert not reports.texts
        by_hand.goes_on(8)
    assert len(reports.texts) == 1


def test_a_look_that_fails_is_not_the_last(platform, monkeypatch):
    """Whatever raises: a handler of the program's for its log, the device."""
    looks = []

    def look(self):
        looks.append(1)
        if len(looks) == 3:
            done.set()
        raise LookupError("odd")

    done = threading.Event()
    monkeypatch.setattr(hang_watch.Deadline, "_look", look)
    deadline = hang_watch.Deadline(process.require(), 0.01)
    deadline.begin()
    assert done.wait(60)
    deadline.stop()
    assert not deadline._thread.is_alive() and process.require().hang_watch is None


def test_any_limit_can_be_kept(platform):
    """It looks every two seconds at most, and not all the time."""
    for limit, look in ((1e308, 2.0), (60.0, 2.0), (1.0, 0.25), (1e-9, 0.05)):
        deadline = hang_watch.Deadline(process.require(), limit)
        deadline.stop()
        assert deadline.look_s == look


# -- the defect table ---------------------------------------------------------------------------------------------


def test_every_decision_is_acted_on():
    """Each answer of the defect table is read somewhere; what is done whatever the table says is none."""
    package = Path(gfxgraph.__file__).parent
    source = "\n".join(
        path.read_text("utf-8")
        for path in package.rglob("*.py")
        if path.name != "defects.py" and path.parent != "port"
    )
    names = {item.name for item in fields(Decisions)} - {"reasons", "env", "advice"}
    read = {name for name in names if re.search(rf'decisions, "{name}"|decisions\.{name}\b', source)}
    assert read == names


def test_relaxed_captures_where_they_crash(platform, monkeypatch):
    """relaxed_capture_mode: what a program asks for as relaxed is captured in the mode that the table names."""
    state, modes = process.require(), []
    begin = state.base.capture_begin
    monkeypatch.setattr(
        state.base,
        "capture_begin",
        lambda graph, pool, mode, *a, **k: (modes.append(mode), begin(graph, pool, mode))[1],
    )
    for answer in (None, "thread_local"):
        state.decisions = replace(state.decisions, relaxed_capture_mode=answer)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="relaxed"):
            torch.ones(4, device="cuda") + 1
    assert modes == ["relaxed", "thread_local"]
