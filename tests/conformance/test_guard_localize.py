"""Guard tier 2: a fault in a replay names its node; the recorder goes with a clean end; the walk is exact."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.errors import GfxGraphFault
from gfxgraph.process import process
from gfxgraph.types import NodeKind
from tests.conformance.guarding import PROFILES, graph_of, guarded, line_of, triton

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the simulator stands in for the only card there is"
)
SOURCE = str(Path(gfxgraph.__file__).parents[1])


@pytest.fixture(params=PROFILES)
def localizing(request, tmp_path, monkeypatch):
    """Tier 2."""
    with guarded(request.param, 2, tmp_path, monkeypatch) as sim:
        yield sim


def gathering():
    x = torch.arange(8.0, device="cuda")
    idx = torch.tensor([1, 2, 3], device="cuda")

    def body():
        a = x * 2
        b = a.gather(0, idx)
        return b + 1

    return *graph_of(body), x, idx, body.__code__


FAULT = """\
memory_fault: the GPU touched memory that it may not
  what: node 1 of 3 (sim::aten::gather), launched by aten::gather at {where}, ended replay 2 with {status}
  why:  the address: (not known); it lies: (not known)
        the node works on:
        input [8] float32 at {a:#x} (32 bytes)
        input `idx` [3] int64 at {idx:#x} (24 bytes)
        output [3] float32 at {b:#x} (12 bytes)
  do:   check the indices that aten::gather is given, and that every tensor in it still lives
        look for the write itself: GFXGRAPH_GUARD=deep puts red zones around every allocation of the graph
  more: gfxgraph explain memory_fault"""


def test_an_index_out_of_range_names_node_line_and_tensors(localizing, tmp_path):
    """The whole text; the replay before it was right."""
    graph, result, _x, idx, code = gathering()
    graph.replay()
    assert result.tolist() == [3.0, 5.0, 7.0]
    nodes = graph._guard.infos(graph._program.segments[0])
    idx.fill_(100)
    with pytest.raises(GfxGraphFault) as caught:
        graph.replay()
    platform = "hip" if localizing.profile.platform == "hip" else "cuda"
    assert caught.value.text("en") == FAULT.format(
        where=line_of(code, 2),
        status=f"{platform}ErrorIllegalAddress (700)",
        a=nodes[0].tensors[-1].address,
        idx=idx.data_ptr(),
        b=nodes[1].tensors[-1].address,
    )
    assert isinstance(caught.value, gfxgraph.ReplayError)  # what engines catch
    assert gfxgraph.stats()["guard_faults"] == 1


def test_a_device_that_faulted_before_is_not_blamed_on_the_graph(localizing):
    """The sticky error was there before the first node."""
    graph, _, _x, idx, _ = gathering()
    other, *_ = gathering()
    idx.fill_(100)
    with pytest.raises(GfxGraphFault, match="memory_fault"):
        graph.replay()
    with pytest.raises(GfxGraphFault, match="fault_before_replay"):
        other.replay()


def test_a_graph_of_any_tier_can_be_localized(tmp_path, monkeypatch):
    """localize_fault(graph) at tier 0: the same report, and a good replay is just a replay."""
    with guarded("cuda", 0, tmp_path, monkeypatch):
        graph, result, x, idx, _ = gathering()
        x.add_(1)
        gfxgraph.localize_fault(graph)
        assert result.tolist() == [5.0, 7.0, 9.0]
        gfxgraph.localize_fault(graph.replay)
        assert graph.n_replays == 2
        idx.fill_(100)
        with pytest.raises(GfxGraphFault, match=r"node 1 of 3 \(sim::aten::gather\)"):
            gfxgraph.localize_fault(graph)
        with pytest.raises(TypeError, match="LAUNCH_BLOCKING=1"):
            gfxgraph.localize_fault(lambda: x)


def test_tensors_without_strides_are_no_obstacle(localizing):
    """A nested tensor that the process holds."""
    x = torch.arange(4.0, device="cuda")
    for layout in (torch.strided, torch.jagged):
        held = torch.nested.nested_tensor([x[:2], x], layout=layout)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = held.values() * 2 if layout is torch.jagged else x * 2
        graph.replay()
        assert y.tolist()[-1] == 6
        assert not gfxgraph.validate_layout(held).oddities


def test_replays_by_nodes_are_exact(localizing):
    """Random numbers, in-place state and a captured host copy come out as a plain replay's, many times."""
    x = torch.arange(6.0, device="cuda")
    count = torch.zeros((), device="cuda")
    pinned = torch.zeros(6).pin_memory()

    def body():
        count.add_(1)
        noise = torch.rand(6, device="cuda")
        y = torch.dropout(x + noise, 0.5, True) * count
        pinned.copy_(y, non_blocking=True)
        return y

    def run(level):
        gfxgraph.guard_level(level)
        torch.cuda.manual_seed(5)
        graph, y = graph_of(body)
        rows = []
        for _ in range(3):
            graph.replay()
            torch.cuda.synchronize()
            rows.append((y.tolist(), count.item(), pinned.tolist()))
        graph.reset()
        count.zero_()
        return rows

    assert run(2) == run(0)


@pytest.mark.parametrize("how", ["host", "child", "missing", "broken"])
def test_graphs_that_cannot_be_walked_run_whole(localizing, monkeypatch, how):
    """A node that no runtime can switch off, or no switches: each node runs once, in order, and it is reported."""
    state, kinds = process.require(), {"host": NodeKind.HOST, "child": NodeKind.CHILD_GRAPH}
    x, trace = torch.arange(4.0, device="cuda"), []
    if how == "missing":
        monkeypatch.setattr(state.driver, "missing", frozenset({"set_node_enabled", "node_enabled"}))
    elif how == "broken":  # as the defect table says for ROCm 7.2.4 to 10.0
        state.decisions = replace(state.decisions, node_walk=False)

    def note(name, scale):
        def run(*twins):
            trace.append(name)
            twins[-1].mul_(scale)

        return run

    def body():
        a = x + 1
        triton(note("kernel", 2), a)
        triton(note(how, 3), a, kind=kinds.get(how, NodeKind.KERNEL))
        return a + 1

    graph, result = graph_of(body)
    for n in range(1, 4):
        trace.clear()
        graph.replay()
        assert trace == ["kernel", how] and result.tolist() == [(v + n) * 6 + 1 for v in range(4)]
        x.add_(1)
    assert [event for event in gfxgraph.stats()["events"] if event["kind"] == "guard_not_localized"]


def test_a_node_that_the_program_disabled_stays_disabled(localizing):
    """Its switch is the program's."""
    from gfxgraph.capture.replay.node_walk import raw_exec, raw_graph

    x = torch.ones(4, device="cuda")
    graph, _ = graph_of(lambda: (x.add_(1), x.mul_(3)))
    driver = process.require().driver
    first, second = driver.nodes(raw_graph(graph))
    driver.set_node_enabled(raw_exec(graph), second, False)
    graph.replay()
    assert x.tolist() == [2.0] * 4
    assert driver.node_enabled(raw_exec(graph), first) and not driver.node_enabled(raw_exec(graph), second)


@pytest.mark.parametrize("place", ["", "state/gfxgraph/flight/run-1", "elsewhere"])
def test_files_are_written_for_a_supervisor_alone(tmp_path, monkeypatch, place):
    """Below the state directory, where ``gfxgraph run`` reads them; whatever a variable says, nowhere else."""
    monkeypatch.setenv("GFXGRAPH_FLIGHT", str(tmp_path / place) if place else "")
    with guarded("cuda", 2, tmp_path, monkeypatch):
        graph, _, _x, _, _ = gathering()
        graph.replay()
        left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
        assert left == ({"recorder", "graph-1-0.json", "memory.json"} if place.startswith("state") else set())


def test_a_state_directory_that_cannot_be_written_costs_the_recorder_only(tmp_path, monkeypatch):
    """Said once; replays and their reports go on."""
    (tmp_path / "state").write_text("a file where the folder should be")
    monkeypatch.setenv("GFXGRAPH_FLIGHT", str(tmp_path / "state/gfxgraph/flight/run-1"))
    with guarded("cuda", 2, tmp_path, monkeypatch):
        graph, _, _x, idx, _ = gathering()
        graph.replay()
        assert {e["kind"] for e in gfxgraph.stats()["events"]} == {"guard_without_recorder"}
        idx.fill_(100)
        with pytest.raises(GfxGraphFault, match="memory_fault"):
            graph.replay()


@pytest.mark.parametrize("tier", [1, 2, 3])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_guarded_graph_is_dropped_like_any_other(tmp_path, monkeypatch, profile, tier):
    """No cycle: dropping the last reference frees its memory at once."""
    with guarded(profile, tier, tmp_path, monkeypatch) as sim:
        x = torch.ones(1024, device="cuda")
        gc.collect()
        gc.disable()
        try:
            before = sim.allocator.stats["allocation"]["all"].current
            pools = len(sim.device.handles.execs)
            graph, y = graph_of(lambda: (x * 2).relu())
            graph.replay()
            assert y[0].item() == 2.0
            del graph, y
            assert sim.allocator.stats["allocation"]["all"].current == before
            assert len(sim.device.handles.execs) == pools
        finally:
            gc.enable()
        from gfxgraph.guard import redzone_pool

        redzone_pool.release_unused()
        assert not redzone_pool._pools and not sim.crashes
