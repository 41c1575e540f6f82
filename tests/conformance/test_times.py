"""Device time of nodes, traces of a replay and its eager step, and memory that torch does not count."""

import json

import pytest
import torch

import gfxgraph
from gfxgraph.reporting.times import by, eager_timeline


@pytest.fixture
def graph(capture):
    x, w = torch.randn(4, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    count = torch.zeros(1, device="cuda")

    def body():
        count.add_(1)
        return torch.relu(x @ w) + torch.rand(4, 8, device="cuda")

    made, _ = capture(body)
    made.count = count
    return made


def test_every_node_has_a_time_and_nothing_is_changed(graph):
    """Timing runs the work several times, and leaves what it writes outside the graph, and generators, as they were."""
    before, state = graph.count.clone(), torch.cuda.get_rng_state()
    (seen,) = gfxgraph.inspect(graph, times=True)
    assert len(seen.nodes) >= 5 and all(node.device_us is not None and node.device_us >= 0 for node in seen.nodes)
    assert torch.equal(graph.count, before) and torch.equal(torch.cuda.get_rng_state(), state)
    rows = by(seen, "op")
    assert {op for op, _, _ in rows} == {node.op for node in seen.nodes}
    assert sum(us for _, us, _ in rows) == pytest.approx(sum(node.device_us for node in seen.nodes))


def test_a_trace_has_the_eager_step_and_the_replay(graph, tmp_path):
    """Both are on one axis, in the order in which they run; every event has what Perfetto needs."""
    gfxgraph.trace(graph, tmp_path / "t.json")
    table = json.loads((tmp_path / "t.json").read_text())
    stretches = [e for e in table["traceEvents"] if e["ph"] == "X"]
    assert {e["pid"] for e in stretches} == {1, 2}
    assert all({"name", "ts", "dur", "tid"} <= e.keys() and e["dur"] >= 0 for e in stretches)
    replayed = [e for e in stretches if e["pid"] == 2 and e["tid"] >= 1]
    assert len(replayed) == gfxgraph.inspect(graph)[0].n_nodes
    eager = [e["ts"] for e in stretches if e["pid"] == 1]
    assert eager == sorted(eager) and "aten::mm" in {e["name"] for e in stretches if e["pid"] == 1}
    assert table["otherData"]["replay_us"] > 0


def test_eager_time_is_not_guessed_for_launches_outside_torch(capture, platform):
    """Where a launch that torch did not make is in the graph, the eager step is left out and the trace says why."""
    if platform == "gpu":
        pytest.skip("the launch is the simulator's")
    from gfxgraph import simulator

    x = torch.ones(4, device="cuda")
    graph, _ = capture(lambda: simulator.launch_opaque("twice", lambda t: t.mul_(2), x), warm=False)
    with pytest.raises(ValueError, match="launches outside torch"):
        eager_timeline(graph)
    names = [e["args"].get("name", "") for e in gfxgraph.trace(graph)["traceEvents"] if e["ph"] == "M"]
    assert any("launches outside torch" in name for name in names)


def test_memory_of_graph_execs_is_measured(capture, monkeypatch):
    """What the device loses around an instantiation is the exec's; growth is told per thousand replays."""
    free = iter(range(1 << 40, 0, -(1 << 20)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *a: (next(free), 1 << 41))
    x = torch.ones(4, device="cuda")
    graph, _ = capture(lambda: x * 2)
    gfxgraph.memory_report()
    for _ in range(10):
        graph.replay()
    report = gfxgraph.memory_report()
    (row,) = [row for row in report["graphs"] if row["n_replays"] == 10]
    assert row["driver_bytes"] == 1 << 20 and row["n_nodes"] == 1 and row["where"].startswith(__file__)
    assert report["driver_bytes"] >= 1 << 20 and report["pools"]
    assert report["growth"]["replays"] == 10 and report["growth"]["driver_bytes_per_1000_replays"] > 0
    assert gfxgraph.inspect(graph)[0].driver_nbytes == 1 << 20


def test_growth_is_told_by_owner(capture):
    """Tensors that are kept are under the name of what keeps them; what came with a graph is the graph's."""

    class Server:
        pass

    server, kept = Server(), []
    server.answers = {}
    x = torch.ones(256, device="cuda")
    graph, y = capture(lambda: x * 2)
    gfxgraph.memory_report()
    for n in range(10):
        graph.replay()
        kept.append(y.clone())
        server.answers[n] = y.repeat(2)
    latest = y.repeat(3)
    second, _ = capture(lambda: x * 3)
    found = {row["owner"]: row for row in gfxgraph.memory_report()["growth"]["owners"]}
    assert (found["kept[...]"]["bytes"], found["kept[...]"]["n"]) == (10 * 1024, 10)
    assert found["answers[...]"]["bytes"] == 10 * 2048 and found["latest"]["bytes"] == latest.nbytes
    assert found["pools of graphs"]["bytes"] > 0 and second is not None
    assert "x" not in found


def test_a_report_knows_growth_since_the_first_graph(capture, tmp_path):
    """Where a report is kept, growth is counted from the first graph on, not from the report at the end."""
    from gfxgraph.process import process
    from gfxgraph.reporting import history

    kept = history.start(process.require())
    try:
        x = torch.ones(4, device="cuda")
        graph, _ = capture(lambda: x * 2)
        for _ in range(5):
            graph.replay()
        growth = gfxgraph.memory_report()["growth"]
        assert growth["replays"] == 5 and growth["driver_bytes_per_1000_replays"] is not None
        assert kept.first_look not in history.memory.instantiated
    finally:
        history.stop()


def test_metrics_have_memory_and_padding(platform):
    """What graphed callables take and pad is in the metrics, by device and bucket."""
    from gfxgraph.process import process
    from gfxgraph.process.metrics import parse
    from gfxgraph.reporting import watch

    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).cuda()
    call = gfxgraph.graphed(model, dynamic={"input": {0: "batch"}}, buckets=[4])
    watch.start(is_exact=True)
    try:
        with torch.no_grad():
            for _ in range(4):
                call(torch.ones(3, 8, device="cuda"))
        found = {metric.name: metric.samples for metric in parse(gfxgraph.metrics_text())}
    finally:
        watch.stop()
    (asked,), (ran,) = found["gfxgraph_elements_total"], found["gfxgraph_elements_run_total"]
    assert asked[0]["bucket"] == "batch=4" and asked[1] / ran[1] == pytest.approx(0.75)
    assert found["gfxgraph_graphed_cap_bytes"][0][1] >= found["gfxgraph_graphed_bytes"][0][1] > 0
    assert process.current().coverage is None
