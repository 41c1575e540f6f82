"""What the defect table asks for is done: each answer changes what the runtime does."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from dataclasses import replace

import pytest
import torch

import gfxgraph
from gfxgraph.capture.replay import runtime_workarounds
from gfxgraph.process import bridge, process


@pytest.fixture
def table(platform):
    """table(max_nodes=3): the table's answers on this platform, with these changed."""
    state = process.require()

    def changed(**answers):
        state.decisions = replace(state.decisions, **answers)

    return changed


def arange():
    return torch.arange(8.0, device="cuda")


def captured(body, **kw):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **kw):
        out = body()
    return graph, out


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_long_graphs_are_cut(table, limit):
    """max_nodes: a longer capture becomes several graphs, which replay as one, and nothing ran at capture."""
    table(max_nodes=limit)
    x, side = arange(), torch.cuda.Stream()

    def body():
        y = x
        for _ in range(4):
            y = y + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y * 2
            z = z + torch.rand(8, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        x.add_(1)
        return y + z

    before, start = torch.cuda.get_rng_state(), x.clone()
    graph, out = captured(body)
    assert torch.equal(x, start) and torch.equal(torch.cuda.get_rng_state(), before)
    for _ in range(3):
        at, rng = x.clone(), torch.cuda.get_rng_state()
        graph.replay()
        got = out.clone()
        torch.cuda.set_rng_state(rng)
        x.copy_(at)
        assert torch.equal(got, body())
    n_nodes = [step.n_nodes for step in graph._program.segments]
    assert (len(n_nodes) > 1) == (limit < 100) and max(n_nodes) <= max(limit + 1, 8)
    stats = gfxgraph.stats()
    assert any(event["kind"] == "graph_cut" for event in stats["events"]) == (limit < 100)
    assert stats["split_count"] == 0 and stats["fallback_count"] == 0


def test_no_node_is_switched(table):
    """node_walk: where switching nodes off and on can hang, graphs are not walked."""
    from gfxgraph.capture.replay.node_walk import can_walk

    x = arange()
    graph, _ = captured(lambda: (x + 1) * 2)
    assert can_walk(graph._program.segments[0]) == ("set_node_enabled" not in process.require().driver.missing)
    table(node_walk=False)
    assert not can_walk(graph._program.segments[0])


@pytest.mark.parametrize("profile", ["hip-6.4", "hip-7.2"])
def test_a_walk_runs_each_node_once(profile):
    """node_walk_resets: exact where HIP would run the nodes of the last launch again (7.2.4), and where not (6.4.3)."""
    if torch.cuda.is_available():
        pytest.skip("simulates HIP, beside a GPU that is there")
    from gfxgraph.capture.replay.node_walk import walk

    gfxgraph.enable(simulate=profile, validate=False)
    try:
        x = arange()
        graph, y = captured(lambda: (x + 1) * 2 - 3)
        walk(graph._program.segments[0], graph._program)
        assert torch.equal(y, (x + 1) * 2 - 3)
    finally:
        gfxgraph.disable()


def test_graphs_are_kept(table):
    """keep_graphs: a graph that was dropped is held until the process ends."""
    x = arange()
    dropped = []
    for keep in (False, True):
        table(keep_graphs=keep)
        graph, _ = captured(lambda: x + 1)
        dropped.append(weakref.ref(graph))
        del graph
        gc.collect()
    assert dropped[0]() is None and dropped[1]() is not None
    runtime_workarounds._kept.clear()


def test_a_failed_captures_stream_is_left(table):
    """fresh_stream_after_failure, which always holds: the next torch.cuda.graph() captures on another stream."""
    x = arange()
    captured(lambda: x + 1)
    first = torch.cuda.graph.default_capture_stream
    with pytest.raises(RuntimeError, match="cholesky"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.linalg.cholesky(-torch.eye(3, device="cuda"))
    captured(lambda: x + 1)
    assert torch.cuda.graph.default_capture_stream != first


def test_one_capture_at_a_time(table):
    """one_capture_at_a_time, which always holds: a second thread's capture begins when the first one has ended."""
    x, log = arange(), []
    torch.cuda.synchronize()
    is_begun = threading.Event()

    def capture(number):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="thread_local")
            log.append(("begin", number))
            is_begun.set()
            time.sleep(0.1)
            x + number
            log.append(("end", number))
            graph.capture_end()

    first = threading.Thread(target=capture, args=(1,))
    first.start()
    is_begun.wait(20)
    second = threading.Thread(target=capture, args=(2,))
    second.start()
    first.join()
    second.join()
    assert log == [("begin", 1), ("end", 1), ("begin", 2), ("end", 2)]


def test_copies_are_joined(table, monkeypatch):
    """join_copies: each replay waits for an event recorded after what came before it."""
    table(join_copies=True)
    waits = []
    x = arange()
    graph, y = captured(lambda: x + 1)
    monkeypatch.setattr(torch.cuda.Event, "wait", lambda self, stream=None: waits.append(self))
    for _ in range(3):
        x.add_(1)
        graph.replay()
    monkeypatch.undo()
    assert len(waits) == 3 and torch.equal(y, x + 1)


def test_synchronized_after_destroy(table, monkeypatch):
    """synchronize_after_destroy: reset() waits for the device."""
    table(synchronize_after_destroy=True)
    waits = []
    x = arange()
    graph, _ = captured(lambda: x + 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *a: waits.append(1))
    graph.reset()
    monkeypatch.undo()
    assert waits == [1]


def test_destroyed_before_exit(table):
    """destroy_before_exit: what is arranged resets every graph."""
    x = arange()
    state = process.require()
    registered, gone = [], []
    monkey = pytest.MonkeyPatch()
    monkey.setattr(runtime_workarounds.atexit, "register", registered.append)
    monkey.setattr(runtime_workarounds.atexit, "unregister", gone.append)
    runtime_workarounds.arrange_exit(state)
    assert not registered
    table(destroy_before_exit=True)
    runtime_workarounds.arrange_exit(state)
    bridge.undo.pop()()
    monkey.undo()
    graph, _ = captured(lambda: x + 1)
    registered[0]()
    assert graph._program is None and gone == registered
