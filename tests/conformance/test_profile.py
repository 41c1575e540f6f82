"""GPU time inside graphs: every node has its module, line and kernel, and the sum agrees with the graph's own time."""

from __future__ import annotations

import json
import time
import types

import pytest
import torch

import gfxgraph
from gfxgraph.reporting.origins import plain
from gfxgraph.reporting.profile import TimedGraphs, matched

WIDTH = 192


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(3)])
        self.head = torch.nn.Linear(WIDTH, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


MODULES = {f"layers.{i}{part}" for i in range(3) for part in (".norm", ".mlp.0", ".mlp.1", ".mlp.2", "")} | {"head"}


@pytest.fixture
def model(platform):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Net().cuda().eval(), torch.randn(256, WIDTH, device="cuda")
    torch.set_num_threads(before)


@pytest.fixture
def processor_time(monkeypatch):
    """The simulated device's clock counts what the processor did for it: other processes do not."""
    from gfxgraph_simulator import runtime

    clock = types.SimpleNamespace(**{**vars(time), "perf_counter": time.thread_time})
    monkeypatch.setattr(runtime, "time", clock)


def captured(net, x):
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = net(x)
    return graph, y


@pytest.mark.any_platform
def test_every_node_is_named_and_the_sum_agrees(model, processor_time):
    """In a profiled block: all nodes by module, within a tenth of the graph's time, and results as before."""
    net, x = model
    with gfxgraph.profile() as found:
        graph, y = captured(net, x)
        for _ in range(4):
            graph.replay()
        want = y.clone()
    (seen,) = found.graphs
    assert {node.module for node in seen.nodes} == MODULES and found.share_named == 1.0
    found_at = [(node.where.rpartition(":")[0], node.kernel or node.kind) for node in seen.nodes]
    assert all(where == __file__ and what != "kernel" for where, what in found_at), found_at  # a memset has no name
    tries = [seen, *(graph.profile().graphs[0] for _ in range(3))]  # a busy machine spoils one now and then
    assert seen.n_replays == 4 and any(each.agrees for each in tries), [(t.sum_ms, t.gap_ms, t.ms) for t in tries]
    assert torch.equal(y, want) and graph.n_replays == 4
    shares = {name: ms for name, ms, _ in found.by("module")}
    assert shares["layers.1.mlp.0"] > shares["layers.1.norm"] > 0
    table = str(found)
    assert "layers.*.mlp.*" in table and "4 replays" in table
    from gfxgraph.process import process

    assert process.note_module is process.no_note


@pytest.mark.any_platform
def test_what_dynamo_traced_has_its_modules(model):
    """A graphed module's nodes have paths of the FX graph, without profiling while it was captured."""
    net, x = model
    with torch.no_grad():
        step = gfxgraph.graphed(net)
        for _ in range(3):
            step(x)
        found = gfxgraph.profile.of(step)
    assert {node.module for graph in found.graphs for node in graph.nodes} == MODULES
    assert plain("L['self']._modules['layers']._modules['0'].mlp") == plain("L['fn'].layers.0.mlp") == "layers.0.mlp"


@pytest.mark.any_platform
def test_profiling_changes_nothing(platform):
    """What timed runs write, and the random numbers that they draw, are put back."""
    x, total = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total.add_(x * torch.rand(8, device="cuda"))
    torch.manual_seed(1)
    graph.replay()
    graph.replay()
    want = total.clone()
    torch.manual_seed(1)
    total.zero_()
    graph.replay()
    graph.profile()
    graph.replay()
    assert torch.equal(total, want)


@pytest.mark.any_platform
def test_a_trace_opens_in_perfetto(model, tmp_path):
    """Chrome's format: kernels named by line, modules that enclose them."""
    net, x = model
    with gfxgraph.profile() as found:
        graph, _ = captured(net, x)
        graph.replay()
    found.chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [each for each in events if each["ph"] == "X" and each["tid"] == 1]
    modules = {each["name"]: each for each in events if each["ph"] == "X" and each["tid"] == 0}
    assert len(kernels) == len(found.graphs[0].nodes) and kernels[0]["name"].startswith("test_profile.py:")
    inner, outer = modules["layers.1.mlp.0"], modules["layers.1"]
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-6


def test_events_are_matched_to_nodes():
    """By kernel name in order, whatever streams did to it; by place for other names; not at all with one missing."""
    nodes = [types.SimpleNamespace(kernel=kernel, kind="kernel") for kernel in ("a", "b", "a")]
    nodes.append(types.SimpleNamespace(kernel="", kind="memset"))
    events = [("Memset (Device)", 4.0), ("a", 1.0), ("a", 3.0), ("void b", 2.0)]
    assert matched(events, nodes) == [1.0, 2.0, 3.0, 4.0]
    assert matched([(f"other {i}", float(i)) for i in range(4)], nodes) == [0.0, 1.0, 2.0, 3.0]
    assert matched(events[1:], nodes) is None
    assert str(TimedGraphs()) == "no graph was replayed"
