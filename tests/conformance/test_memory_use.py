"""Memory that torch does not count."""

import torch

import gfxgraph


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
