"""``graph.explain()`` and ``gfxgraph.inspect``: captures as plain data, on every platform there is."""

import json

import pytest
import torch

import gfxgraph

pytestmark = pytest.mark.any_platform


def layers(x, w, n=3):
    for _ in range(n):
        x = torch.relu(x @ w)
    return x


def test_each_node_has_its_operation_and_line(capture):
    """Nodes come with kind, kernel, launch size, edges, and the operation and line that made them."""
    x, w = torch.randn(4, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    graph, _ = capture(lambda: layers(x, w))
    (seen,) = graph.explain()
    assert len(seen.steps) == 1 and seen.steps[0].kind == "graph"
    assert all(node.where for node in seen.nodes)
    assert [node.op for node in seen.nodes] == ["aten::mm", "aten::relu"] * 3
    assert {node.where.rpartition(":")[0] for node in seen.nodes} == {__file__}
    assert all(node.kind == "kernel" and node.kernel and node.grid and node.block for node in seen.nodes)
    assert [node.after for node in seen.nodes] == [(), (0,), (1,), (2,), (3,), (4,)]


def test_inputs_and_results_have_names_and_sizes(capture):
    """What a replay reads from outside is listed with its name, layout and bytes; what it leaves, likewise."""
    x, w = torch.randn(4, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    graph, result = capture(lambda: x @ w)
    (seen,) = graph.explain()
    read = {tensor.name: tensor for tensor in seen.externals}
    assert read["x"].nbytes == 128 and read["w"].layout == "[8, 8] float32" and read["x"].address == x.data_ptr()
    assert [(tensor.nbytes, tensor.address) for tensor in seen.outputs] == [(128, result.data_ptr())]
    assert seen.pool_nbytes >= 128 and seen.driver_nbytes is not None


def test_inputs_are_listed_with_the_places_that_hold_them(capture):
    """A weight by its module's, where no variable of the program's holds it."""
    net = torch.nn.ModuleList([torch.nn.Linear(8, 8)]).cuda()
    graph, _ = capture(lambda: net[0](torch.ones(4, 8, device="cuda")))
    (seen,) = graph.explain()
    assert {tensor.name.rpartition(".")[2] for tensor in seen.externals} == {"weight", "bias"}


def test_a_split_says_why_and_what_to_write_instead(capture):
    """A host step names its operation and line, the reason, and a rewrite."""
    x = torch.ones(4, device="cuda")

    def body():
        y = x * 2
        return y[y > 0] + 1

    graph, _ = capture(body)
    (seen,) = graph.explain()
    # What follows is a graph again, or a host step of its own where it moves with the count (capture/record/dynamic_shapes.py).
    assert [step.kind for step in seen.steps][:2] == ["graph", "operation"] and len(seen.steps) == 3
    host = seen.host_steps[0]
    assert host.op == "aten::index" and host.where.startswith(__file__)
    assert "depends on data" in host.why and "torch.where" in host.rewrite
    assert "aten::index" in str(graph.explain())


def test_json_holds_every_node(capture):
    """Both outputs can be read back, and have as many nodes and edges as the graph."""
    x, w = torch.randn(4, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    graph, _ = capture(lambda: layers(x, w))
    seen = graph.explain()
    table = json.loads(seen.json())
    assert len(table["captures"][0]["steps"][0]["nodes"]) == 6


def test_graphed_functions_are_inspected(platform):
    """A graphed function's captures are found, each under its signature; reasons for none are notes."""
    w = torch.randn(8, 8, device="cuda")

    @gfxgraph.graphed
    def step(x):
        return torch.relu(x @ w)

    for _ in range(4):
        step(torch.randn(4, 8, device="cuda"))
    found = gfxgraph.inspect(step)
    assert len(found) == 1 and "float32[4, 8]" in found[0].name
    assert found[0].n_nodes == 2 and found[0].n_replays >= 1
    line = step._fn.__code__.co_firstlineno + 2
    assert {node.where for node in found[0].nodes} == {f"{__file__}:{line}"}  # not the code that Dynamo wrote
    assert len(gfxgraph.inspect()) >= 1


def test_what_holds_no_graph_is_refused(platform):
    """The error says what was given and what can be."""
    with pytest.raises(TypeError, match=r"\(int\): it holds no captured graph"):
        gfxgraph.inspect(3)


def test_the_profiler_shows_the_parts_of_a_split_replay(capture):
    """Each step of a split replay is a range of its own in torch.profiler."""
    x = torch.ones(4, device="cuda")

    def body():
        y = x * 2
        return y[y > 0] + 1

    graph, _ = capture(body)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        graph.replay()
    ranges = [event.name for event in seen.events() if event.name.startswith("gfxgraph: ")]
    assert len(ranges) == 3 and "aten::index" in ranges[1]
