"""The watch: what does not end is reported, ranks that captured different things are named, and off is off."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gfxgraph
from gfxgraph.capture import remedies, watch
from gfxgraph.capture.peers import NO_ANSWER, Peers
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
    state.hang_watch = watch.Deadline(state, LIMIT_S)
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
    assert 'steps.py",' not in text and ("in the call" != where or "frames of gfxgraph, the last" in text)
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
def test_no_node_was_begun(watched, reports, tier, says):
    """Who runs with guard 2 already is not told to."""
    watched._state = SimpleNamespace(
        settings=SimpleNamespace(guard=tier, lang="en"), report=lambda *args, **kwargs: None
    )
    watched._report("replay_hang", "here", SimpleNamespace(thread=threading.get_ident()))
    assert says in reports.texts[-1]


def test_replays_that_end_are_not_reported(watched, reports):
    """Thousands of replays leave nothing behind, neither events nor reports."""
    x = torch.zeros(4, device="cuda")
    graph, _ = captured(lambda: x.add_(1))
    for _ in range(1000):
        graph.replay()
    torch.cuda.synchronize()
    watched._forget_done()
    assert not watched._underway and not reports.texts and float(x[0]) == 1000.0


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
        watch.start(state)
        assert (state.hang_watch.limit_s if state.hang_watch is not None else None) == limit
        if state.hang_watch is not None:
            state.hang_watch.stop()
            state.hang_watch = None


# -- ranks ------------------------------------------------------------------------------------------------------


def on_ranks(n, body):
    """body(peers) on each of ``n`` ranks, which are threads; their results by rank."""
    store, results = torch.distributed.HashStore(), [None] * n

    def run(rank):
        results[rank] = body(Peers(store, rank, n))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_that_captured_different_things(watched, reports):
    """Named before the first replay: the kernels, their order, and the ranks."""
    x = torch.ones(4, device="cuda")
    graph, _ = captured(lambda: (x + 1).sin())
    mine = watch.fingerprint(process.require(), graph._program)
    assert len(mine.lines) == 3 and not mine.has_collectives  # two kernels and the buffers
    mine.collective("c10d::allreduce_", ["tp"])
    other = [*mine.lines[:1], "kernel another", *mine.lines[2:]]
    lines = [mine.lines, other]
    found = on_ranks(2, lambda peers: peers.exchange("captured/0", lines[peers.rank], 60))
    assert found[0] == found[1] == lines
    difference = watch.first_difference(found[0])
    assert difference.startswith("at 2 of 4, rank 0 has ") and "rank 1 has 'kernel another'" in difference
    assert watch.first_difference([mine.lines, mine.lines]) == ""
    assert watch.first_difference([mine.lines, None]) == "rank 1 did not reach this graph"


def test_a_graph_with_collectives_is_compared_before_its_first_replay(watched, reports, monkeypatch):
    """Once, with the others' of the same number; a graph without collectives is not, and waits for nobody."""
    asked = []

    class Others:
        def exchange(self, topic, mine, wait_s):
            asked.append(topic)
            return [mine, [*mine[:-1], "7 buffers from outside, 0 results"]]

        def answer(self, text):
            pass

        def ask(self, text, wait_s):
            return [text]

    watched._peers = Others()
    x = torch.ones(4, device="cuda")
    captured(lambda: x + 1)[0].replay()
    assert asked == []
    driver = process.require().driver
    monkeypatch.setattr(driver, "kernel_name", lambda node: "ncclDevKernel_AllReduce")
    graph, _ = captured(lambda: x + 1)
    for _ in range(3):
        graph.replay()
    assert asked == ["captured/0"]
    assert any(text.startswith("ranks_differ: ") and "7 buffers" in text for text in reports.texts)


def test_the_rank_that_does_not_wait_is_named():
    """A rank that hangs asks where the others are: their watches answer, and one that is gone does not."""
    store = torch.distributed.HashStore()
    waiting, elsewhere = Peers(store, 0, 3), Peers(store, 1, 3)
    is_done = threading.Event()

    def live():
        while not is_done.wait(0.01):
            elsewhere.answer("is in no graph: train.py:7 in load")

    thread = threading.Thread(target=live)
    thread.start()
    told = waiting.ask("waits in replay 3", 1.0)
    is_done.set()
    thread.join()
    assert told == ["waits in replay 3", "is in no graph: train.py:7 in load", NO_ANSWER]


# -- the defect table ---------------------------------------------------------------------------------------------


def test_every_decision_is_acted_on():
    """Each answer of the defect table is read somewhere, or is done whatever the table says, where it says."""
    package = Path(gfxgraph.__file__).parent
    source = "\n".join(
        path.read_text("utf-8")
        for path in package.rglob("*.py")
        if path.name != "defects.py" and path.parent != "port"
    )
    names = {item.name for item in fields(Decisions)} - {"reasons", "env", "advice"}
    read = {name for name in names if re.search(rf'decisions, "{name}"|decisions\.{name}\b', source)}
    assert read | set(remedies.ALWAYS) == names
    assert not read & set(remedies.ALWAYS)
    assert all((package / path).is_file() for path in remedies.ALWAYS.values())


def test_an_update_needs_headroom(platform):
    """update_headroom_mib: with less free memory than that, a graph exec is not updated."""
    state = process.require()
    free = torch.cuda.mem_get_info()[0] >> 20
    for needed, has in ((0, True), (free // 2, True), (free * 2, False)):
        state.decisions = replace(state.decisions, update_headroom_mib=needed)
        assert remedies.has_headroom() == has


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
