"""Device time of nodes, and memory that torch does not count."""

import pytest
import torch

import gfxgraph


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


def test_memory_of_graph_execs_is_measured(capture, monkeypatch):
    """What the device loses around an instantiation is the exec's."""
    free = iter(range(1 << 40, 0, -(1 << 20)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *a: (next(free), 1 << 41))
    x = torch.ones(4, device="cuda")
    graph, _ = capture(lambda: x * 2)
    for _ in range(10):
        graph.replay()
    report = gfxgraph.memory_report()
    (row,) = [row for row in report["graphs"] if row["n_replays"] == 10]
    assert row["driver_bytes"] == 1 << 20 and row["n_nodes"] == 1 and row["where"].startswith(__file__)
    assert report["driver_bytes"] >= 1 << 20 and report["pools"]
    assert gfxgraph.inspect(graph)[0].driver_nbytes == 1 << 20
