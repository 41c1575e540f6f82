"""Planted wrong replays: found, named, put right, the graph retired; and what cannot be compared is not 'passed'."""

from __future__ import annotations

import pytest
import torch

import gfxgraph
import gfxgraph_simulator as simulator
from gfxgraph.capture.replay import node_walk
from gfxgraph.process import process
from gfxgraph_simulator import Faults, WrongReplay
from tests.conformance.bench import Bench, ProcessState, reserved, same

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="wrong replays are planted in the simulator")
DIFFERED = "replay differed from eager; the eager result was returned"
RETIRED = "the graph replayed wrongly and is no longer used; its tape runs instead"


@pytest.fixture(params=["cuda", "hip"])
def bench(request):
    gfxgraph.enable(simulate=request.param, validate=False)
    gfxgraph.reset_stats()
    try:
        yield Bench()
    finally:
        gfxgraph.disable()


def captured(bench, body):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=bench.stream):
        outputs = body()
    return graph, outputs


def lie(bench, node, replay=0, graph=None):
    bench.sim.faults = Faults(wrong_replays=[WrongReplay(node=node, replay=replay, graph=graph)])


def culprits():
    return [e["op"] for e in gfxgraph.stats()["events"] if e["reason"] == DIFFERED]


# program -> for each node of its graph that lies, the operation to be named: whose result is the first wrong one
NODES = {
    "plain": {0: "aten::relu", 1: "aten::relu", 2: "aten::relu", -1: "aten::relu"},
    "forked": {0: "aten::add", 1: "aten::add", 2: "aten::add", 3: "aten::add"},
    "in_place": {0: "aten::add_", 1: "aten::sum"},
    "rng": {0: "aten::add"},
}


@pytest.mark.parametrize(("program", "node"), [(p, n) for p, nodes in NODES.items() for n in nodes])
def test_wrong_node(bench, program, node):
    """The operation of the first wrong result is named; outputs, external state and generator are eager's; it retires."""
    body = getattr(bench, program)
    graph, outputs = captured(bench, body)
    bench.x.copy_(torch.rand(8) + 1)
    want = bench.eager(body)
    state = ProcessState()
    lie(bench, node)
    assert graph.validate() is False
    state.check()
    same(bench.observe(outputs), want)
    assert culprits() == [NODES[program][node]]
    stats = gfxgraph.stats()
    assert (stats["validation_failures"], stats["validations"], stats["graphs_retired"]) == (1, 0, 1)
    # Retired: the lie is still planted, and the replays are right.
    for n in range(3):
        bench.x.copy_(torch.rand(8) + 1)
        want = bench.eager(body)
        graph.replay()
        same(bench.observe(outputs), want)
        assert gfxgraph.stats()["fallbacks"][RETIRED] == n + 2
    bench.sim.faults = Faults()


def test_the_message_names_op_and_line(bench, caplog):
    """The log says what differed, where it was captured, by how much."""
    import logging

    graph, _ = captured(bench, bench.plain)
    bench.x.fill_(2)  # not hidden by the relu
    lie(bench, 1)
    logging.getLogger("gfxgraph").propagate = True
    with caplog.at_level(logging.ERROR, logger="gfxgraph"):
        graph.validate()
    bench.sim.faults = Faults()
    (text,) = [r.getMessage() for r in caplog.records if "validation_mismatch" in r.getMessage()]
    assert "aten::relu" in text and "bench.py" in text and "1.0" in text


@pytest.mark.parametrize("segment", [0, 1])
def test_program_of_several_segments(bench, segment):
    """The segment that lies is found, whichever it is, and the result is eager's."""
    graph, outputs = captured(bench, bench.split)
    bench.x.copy_(torch.rand(8) + 1)
    want = bench.eager(bench.split)
    executables = [node_walk.raw_exec(step.graph) for step in graph._program.segments]
    index = bench.sim.device.handles.execs[executables[segment]].index
    lie(bench, 0, graph=index)
    assert graph.validate() is False
    same(bench.observe(outputs), want)
    assert gfxgraph.stats()["validation_failures"] == 1
    bench.sim.faults = Faults()


def redirect(graph, position, operand, tensor):
    """Have an operand of a node be ``tensor`` from the next launch on."""
    sim = simulator.active()
    handle = process.require().driver.nodes(node_walk.raw_graph(graph))[position]
    container, key = sim.device.handles.nodes[handle].slots()[operand]
    here = container[key]
    container[key] = sim.arena.twin_at(tensor.data_ptr(), here.size(), here.stride(), here.dtype)


def test_redirected_input(bench):
    """A node that reads from another address than the one captured."""
    graph, outputs = captured(bench, bench.plain)
    bench.x.fill_(2)
    other = torch.rand(8, device="cuda") + 3
    redirect(graph, 0, 0, other)
    want = bench.eager(bench.plain)
    assert graph.validate() is False
    same(bench.observe(outputs), want)
    assert culprits() == ["aten::relu"]


def test_redirected_output(bench):
    """A node that writes to another address: what it should have written is missing."""
    elsewhere = torch.zeros(8, device="cuda")
    graph, outputs = captured(bench, bench.plain)
    redirect(graph, 2, -1, elsewhere)
    bench.x.copy_(torch.rand(8) + 1)
    want = bench.eager(bench.plain)
    assert graph.validate() is False
    same(bench.observe(outputs), want)
    assert culprits() == ["aten::relu"]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_disabled_node(bench, position):
    """A node that somebody switched off."""
    graph, outputs = captured(bench, bench.plain)
    bench.x.copy_(torch.arange(8.0) + 1)
    graph.replay()
    driver = process.require().driver
    node = driver.nodes(node_walk.raw_graph(graph))[position]
    driver.set_node_enabled(node_walk.raw_exec(graph), node, False)
    bench.x.copy_(torch.arange(8.0) + 5)
    want = bench.eager(bench.plain)
    assert graph.validate() is False
    same(bench.observe(outputs), want)
    assert culprits() == ["aten::relu"]
    assert not driver.node_enabled(node_walk.raw_exec(graph), node)  # theirs to switch on again


@pytest.mark.parametrize("program", ["opaque_first", "opaque_last"])
def test_opaque_launches_are_compared_with_the_node_walk(bench, program):
    """A whole launch that differs from its own nodes one by one: the walk's result is returned."""
    body = getattr(bench, program)
    graph, outputs = captured(bench, body)
    bench.x.copy_(torch.rand(8) + 1)
    assert graph.validate() is True
    assert gfxgraph.stats()["validations"] == 1
    want = bench.eager(body)
    index = bench.sim.device.handles.execs[node_walk.raw_exec(graph)]
    n_walked = len(index.nodes) * (1 + process.require().decisions.node_walk_resets)
    # The launch after the walk's own; in opaque_last the opaque node, which has no output to corrupt, is the last.
    lie(bench, {"opaque_first": -1, "opaque_last": -2}[program], replay=index.launches + n_walked + 2)
    assert graph.validate() is False
    same(bench.observe(outputs), want)
    assert gfxgraph.stats()["validation_failures"] == 1
    bench.sim.faults = Faults()
    graph.replay()
    same(bench.observe(outputs), bench.eager(body))


def test_what_cannot_be_compared_is_skipped(bench, monkeypatch):
    """Opaque launches whose nodes cannot be run singly: counted as skipped, with the reason, never as passed."""
    graph, outputs = captured(bench, bench.opaque_first)
    driver = process.require().driver
    monkeypatch.setattr(driver, "missing", frozenset({"set_node_enabled"}))
    bench.x.copy_(torch.rand(8) + 1)
    want = bench.eager(bench.opaque_first)
    graph.validate()
    same(bench.observe(outputs), want)
    stats = gfxgraph.stats()
    assert (stats["validations"], stats["validation_failures"], stats["validations_skipped"]) == (0, 0, 1)
    (event,) = [e for e in stats["events"] if e["kind"] == "validation_skipped"]
    assert "bench.py" in event["where"] and "1 launches" in event["reason"]


@pytest.mark.parametrize("program", ["in_place", "rng", "opaque_first"])
def test_out_of_memory_for_the_reference(bench, program):
    """Wherever memory runs out: skipped, the replay is right, and state is as one replay leaves it."""
    body = getattr(bench, program)
    graph, outputs = captured(bench, body)
    for n in range(1, 40):
        gfxgraph.reset_stats()
        bench.x.copy_(torch.rand(8) + 1)
        want = bench.eager(body)
        bench.sim.faults = faults = Faults()
        faults.oom_nth(n)
        graph.validate()
        struck = faults.calls["allocate"] >= n
        bench.sim.faults = Faults()
        same(bench.observe(outputs), want)
        stats = gfxgraph.stats()
        assert (stats["validations"], stats["validations_skipped"]) == ((0, 1) if struck else (1, 0))
        if not struck:
            break
    assert n > 3


def test_a_program_without_graphs_is_not_validated(bench):
    """Where the tape runs there is nothing to compare, and nothing is said to have passed."""
    bench.sim.faults = faults = Faults()
    faults.fail_nth("instantiate", 1, 2)
    graph, outputs = captured(bench, bench.in_place)
    bench.sim.faults = Faults()
    want = bench.eager(bench.in_place)
    graph.validate()
    same(bench.observe(outputs), want)
    assert gfxgraph.stats()["validations"] == 0


def test_launch_fails_during_validation(bench):
    """A launch that fails while it is validated falls back once; results and state are eager's."""
    for program in ("in_place", "rng", "plain"):
        gfxgraph.reset_stats()
        body = getattr(bench, program)
        graph, outputs = captured(bench, body)
        bench.x.copy_(torch.rand(8) + 1)
        want = bench.eager(body)
        bench.sim.faults = faults = Faults()
        faults.fail_nth("launch", 1, 1)
        graph.validate()
        bench.sim.faults = Faults()
        same(bench.observe(outputs), want)
        assert gfxgraph.stats()["fallback_count"] == 1
        assert gfxgraph.stats()["validation_failures"] == 0
        assert gfxgraph.stats()["validations"] == 0


def test_registered_generator(bench):
    """Generators that the program registered are put back as well: no false alarm."""
    mine = torch.Generator(device="cuda")
    mine.manual_seed(3)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(mine)
    with torch.cuda.graph(graph):
        y = torch.rand(8, device="cuda", generator=mine) + bench.x
    state = mine.get_state()
    want = torch.rand(8, device="cuda", generator=mine) + bench.x
    after = mine.get_state()
    mine.set_state(state)
    assert graph.validate() is True
    same([y, mine.get_state()], [want, after])


def test_memory_of_a_retired_graph_is_given_back(bench):
    """A retired graph frees what it held like any other."""
    baseline = reserved()
    graph, outputs = captured(bench, bench.plain)
    lie(bench, 0)
    graph.validate()
    bench.sim.faults = Faults()
    del graph, outputs
    assert reserved() == baseline


@pytest.mark.parametrize(
    ("profile", "environment", "argument", "n_validated"),
    [
        ("hip", {}, None, 3),
        ("hip", {}, False, 0),
        ("hip", {"GFXGRAPH_VALIDATE_REPLAYS": "1"}, None, 1),
        ("cuda", {}, None, 0),
        ("cuda", {"GFXGRAPH": "validate"}, None, 6),
        ("hip", {"GFXGRAPH": "validate"}, None, 6),
        ("cuda", {}, True, 3),
        ("cuda", {"GFXGRAPH_VALIDATE_REPLAYS": "5"}, None, 5),
    ],
)
def test_which_replays_are_validated(monkeypatch, profile, environment, argument, n_validated):
    """The first three of every graph by default on HIP, each with GFXGRAPH=validate, or as many as are asked for."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    gfxgraph.enable(simulate=profile, validate=argument)
    try:
        bench = Bench()
        for _ in range(2):
            gfxgraph.reset_stats()
            graph, outputs = captured(bench, bench.in_place)
            for _ in range(6):
                bench.x.copy_(torch.rand(8) + 1)
                want = bench.eager(bench.in_place)
                graph.replay()
                same(bench.observe(outputs), want)
            stats = gfxgraph.stats()
            assert stats["validations"] == n_validated and stats["replay_count"] == 6
            assert stats["fallback_count"] == stats["validation_failures"] == 0
    finally:
        gfxgraph.disable()


def test_wrong_from_the_second_replay(bench, monkeypatch):
    """The default of HIP catches a replay that goes wrong within its first three."""
    gfxgraph.disable()
    gfxgraph.enable(simulate="hip")
    again = Bench()
    assert simulator.active() is again.sim
    graph, outputs = captured(again, again.plain)
    again.sim.faults = Faults(wrong_replays=[WrongReplay(node=2, replay=2)])
    for _ in range(4):
        again.x.copy_(torch.rand(8) + 1)
        want = again.eager(again.plain)
        graph.replay()
        same(again.observe(outputs), want)
    assert gfxgraph.stats()["validation_failures"] == 1
    assert gfxgraph.stats()["validations"] == 1


def test_running_statistics_are_updated_once_by_a_validated_replay(platform):
    """Batch norm writes its statistics without its schema saying so: they are put back between reference and graph."""
    norm, eager = (torch.nn.BatchNorm1d(4).cuda() for _ in range(2))
    x = torch.randn(6, 4, device="cuda") + 3
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        with torch.cuda.graph(graph):
            norm(x)
        for _ in range(2):
            assert graph.validate()
            eager(x)
    assert torch.allclose(norm.running_mean, eager.running_mean)
    assert torch.allclose(norm.running_var, eager.running_var)
