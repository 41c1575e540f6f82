"""SimDriver: the GraphDriver of the simulated runtime."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import gfxgraph_simulator as simulator
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.errors import DriverError
from gfxgraph.types import CaptureStatus, NodeKind


@pytest.fixture(params=["cuda", "hip-6.4", "hip-7.2"])
def driver(request: pytest.FixtureRequest, install: Callable[..., simulator.Simulator]) -> GraphDriver:
    return simulator.SimDriver(install(request.param))


def graph_of(work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = work()
    graph.instantiate()
    return graph, y


def test_capture_info_follows_a_capture(driver: GraphDriver) -> None:
    """Status, id and graph of a capturing stream; its nodes are listed while it grows."""
    stream, graph, x = (
        torch.cuda.Stream(),
        torch.cuda.CUDAGraph(keep_graph=True),
        torch.ones(2, device="cuda"),
    )
    assert driver.capture_info(stream.cuda_stream).status is CaptureStatus.NONE
    with torch.cuda.stream(stream):
        graph.capture_begin()
        info = driver.capture_info(stream.cuda_stream)
        assert info.status is CaptureStatus.ACTIVE and not driver.nodes(info.graph)
        x.mul(2).t().view(1, 2)
        assert len(driver.nodes(info.graph)) == 1, "views record no node"
        x.zero_()
        assert len(driver.nodes(info.graph)) == 2
        graph.capture_end()
    assert graph.raw_cuda_graph() == info.graph
    kinds = [driver.node_kind(node) for node in driver.nodes(info.graph)]
    assert kinds == [NodeKind.KERNEL, NodeKind.MEMSET]


def test_node_walk_replays_one_node_at_a_time(driver: GraphDriver) -> None:
    """With all nodes off, enabling and launching each in turn gives the whole graph's result."""
    x = torch.ones(3, device="cuda")
    graph, y = graph_of(lambda: (x + 1) * 3 - 2)
    made, stream = graph.raw_cuda_graph_exec(), torch.cuda.current_stream().cuda_stream
    nodes = driver.nodes(graph.raw_cuda_graph())
    for node in nodes:
        driver.set_node_enabled(made, node, False)
    driver.launch(made, stream)
    assert y.isnan().all()
    for node in nodes:
        driver.launch(made, stream)  # every node off: HIP 7.2.4 would run the last one again
        driver.set_node_enabled(made, node, True)
        assert driver.node_enabled(made, node)
        driver.launch(made, stream)
        driver.synchronize_stream(stream)
        driver.set_node_enabled(made, node, False)
    assert y.tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("profile", "resets", "totals"),
    [
        ("hip-6.4", False, [1, 11, 112, 222]),
        ("hip-7.2", False, [1, 2, 103, 204]),
        ("hip-7.2", True, [1, 11, 112, 222]),
        ("hip-7.14", False, [1, 11, 112, 222]),
    ],
)
def test_switched_nodes_go_stale_on_one_version(
    install: Callable[..., simulator.Simulator], profile: str, resets: bool, totals: list[int]
) -> None:
    """As measured under the emulator: HIP 7.2.4 runs the last set again where as many nodes are enabled."""
    driver, total = simulator.SimDriver(install(profile)), torch.zeros(1, device="cuda")

    def add() -> torch.Tensor:
        for value in (1, 10, 100):
            total.add_(value)
        return total

    graph, _ = graph_of(add)
    made, nodes = graph.raw_cuda_graph_exec(), driver.nodes(graph.raw_cuda_graph())
    seen = []
    for chosen in ({0}, {1}, {0, 2}, {1, 2}):
        for states in ([set()] if resets else []) + [chosen]:
            for at, node in enumerate(nodes):
                driver.set_node_enabled(made, node, at in states)
            driver.launch(made, 0)
        seen.append(int(total.item()))
    assert seen == totals


def test_dead_handles_are_refused(driver: GraphDriver) -> None:
    """Handles of destroyed objects give hipErrorInvalidValue, not somebody else's graph."""
    graph, _ = graph_of(lambda: torch.ones(2, device="cuda") + 1)
    made, template = graph.raw_cuda_graph_exec(), graph.raw_cuda_graph()
    del graph
    for call in (lambda: driver.launch(made, 0), lambda: driver.nodes(template)):
        with pytest.raises(DriverError) as caught:
            call()
        assert caught.value.fields["number"] == 1


def test_node_of_another_graph_is_refused(driver: GraphDriver) -> None:
    """Switching a node in an exec that does not have it is an error."""
    one, _ = graph_of(lambda: torch.ones(2, device="cuda") + 1)
    other, _ = graph_of(lambda: torch.ones(2, device="cuda") + 1)
    (node, *_) = driver.nodes(other.raw_cuda_graph())
    with pytest.raises(DriverError):
        driver.set_node_enabled(one.raw_cuda_graph_exec(), node, False)


def test_child_graphs_run_in_the_order_of_their_edges_only(driver: GraphDriver) -> None:
    """Without an edge the graph added last runs first; with one it waits."""
    x = torch.ones(2, device="cuda")
    add, _ = graph_of(lambda: x.add_(1))
    double, _ = graph_of(lambda: x.mul_(10))
    for after, expected in (([], 11.0), ([0], 20.0)):
        x.fill_(1)
        built = driver.create_graph()
        nodes = [driver.add_child(built, add.raw_cuda_graph())]
        nodes.append(driver.add_child(built, double.raw_cuda_graph(), [nodes[at] for at in after]))
        made = driver.instantiate(built)
        driver.destroy_graph(built)
        driver.launch(made, 0)
        assert x.tolist() == [expected, expected]
        driver.destroy_exec(made)
        with pytest.raises(DriverError):
            driver.launch(made, 0)


def test_nothing_of_the_runtimes_is_inherited_but_what_stands_on_other_calls() -> None:
    """A call of the driver that the simulator does not answer would ask for a library."""
    inherited = {name for name in vars(GraphDriver) if not name.startswith("_")} - set(vars(simulator.SimDriver))
    there_is_none = {"has_while_loop", "while_loop"}
    assert inherited == {"add_copies", "end_capture", "frontier", "joined", "leaves"} | there_is_none
    assert not simulator.SimDriver.has_while_loop
