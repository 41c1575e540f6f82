"""The driver room against the runtime of a real GPU, through torch's captures."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

from gfxgraph.driver import locate  # noqa: E402
from gfxgraph.driver.graphs import GraphDriver  # noqa: E402
from gfxgraph.driver.library import find_mapped  # noqa: E402
from gfxgraph.errors import DriverError  # noqa: E402
from gfxgraph.types import CaptureStatus, NodeKind  # noqa: E402

pytestmark = pytest.mark.gpu

BACKEND = "hip" if torch.version.hip else "cuda"
WIDTH = 256


@pytest.fixture(scope="module")
def driver() -> GraphDriver:
    torch.zeros(1, device="cuda")
    return locate(BACKEND)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
    torch.cuda.synchronize()


def captured(body: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Warm ``body`` up, capture it, and instantiate; the graph itself is kept."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        body()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        body()
    graph.instantiate()
    return graph


def current_stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def mlp() -> tuple[Callable[[], None], torch.Tensor, torch.Tensor]:
    """A chain with one node per op: matmul, layer norm, gelu, twice."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH, device="cuda", generator=generator) / 16 for _ in range(2)]
    x = torch.randn(4, WIDTH, device="cuda", generator=generator)
    out = torch.zeros(4, WIDTH, device="cuda")

    def body() -> None:
        y = x
        for weight in weights:
            y = torch.nn.functional.gelu(torch.nn.functional.layer_norm(y @ weight, (WIDTH,)))
        out.copy_(y)

    return body, x, out


def test_the_runtime_of_torch_is_found_mapped(driver: GraphDriver) -> None:
    """The driver stands on the library that torch loaded, and knows its version."""
    found = find_mapped(BACKEND)
    assert found is not None
    assert driver.library == found.path
    assert driver.version > ((6, 2) if BACKEND == "hip" else (12, 0))


def test_capture_state_and_node_count_follow_each_op(driver: GraphDriver) -> None:
    """Not capturing, then active; every op adds its node; the count is what the graph holds at the end."""
    x = torch.ones(WIDTH, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    assert driver.capture_info(current_stream()).status is CaptureStatus.NONE
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        info = driver.capture_info(current_stream())
        assert info.status is CaptureStatus.ACTIVE and info.graph and info.capture_id
        counts = [len(driver.nodes(info.graph))]
        for _ in range(3):
            x.add_(1)
            counts.append(len(driver.nodes(info.graph)))
        frontier = driver.frontier_reader(current_stream())()
    assert [b - a for a, b in zip(counts, counts[1:])] == [1, 1, 1]
    nodes = driver.nodes(graph.raw_cuda_graph())
    assert len(nodes) == counts[-1]
    assert frontier == nodes[-1]
    assert driver.leaves(graph.raw_cuda_graph()) == [nodes[-1]]
    assert len(driver.edges(graph.raw_cuda_graph())) == len(nodes) - 1


def test_the_legacy_stream_is_not_capturing(driver: GraphDriver) -> None:
    """Asked about stream 0, also while another stream captures."""
    x = torch.ones(8, device="cuda")
    assert driver.capture_info(0).status is CaptureStatus.NONE
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
        assert driver.capture_info(0).status is CaptureStatus.NONE


def test_kinds_and_kernel_names(driver: GraphDriver) -> None:
    """Kernels have names that tell what they do, and a copy is not a kernel."""
    body, _, _ = mlp()
    target, source = torch.empty(64, device="cuda"), torch.ones(64, device="cuda")

    def mixed() -> None:
        body()
        target.copy_(source)

    graph = captured(mixed)
    nodes = driver.nodes(graph.raw_cuda_graph())
    kinds = [driver.node_kind(node) for node in nodes]
    assert kinds[-1] is NodeKind.MEMCPY
    assert NodeKind.OTHER not in kinds
    names = [driver.kernel_name(n) for n, kind in zip(nodes, kinds) if kind is NodeKind.KERNEL]
    assert all(names)
    assert any("layer_norm" in name.lower() or "layernorm" in name.lower() for name in names)
    assert any("elementwise" in name for name in names)


def test_walking_node_by_node_equals_replay(driver: GraphDriver) -> None:
    """With every node off a launch does nothing; one at a time they give replay's bits."""
    if "set_node_enabled" in driver.missing:
        pytest.skip("this runtime has no GraphNodeSetEnabled")
    body, _, out = mlp()
    graph = captured(body)
    graph.replay()
    torch.cuda.synchronize()
    wanted = out.clone()
    graph_exec, stream = graph.raw_cuda_graph_exec(), current_stream()
    nodes = driver.nodes(graph.raw_cuda_graph())
    out.zero_()
    torch.cuda.synchronize()
    for node in nodes:
        driver.set_node_enabled(graph_exec, node, False)
    assert not any(driver.node_enabled(graph_exec, node) for node in nodes)
    driver.launch(graph_exec, stream)
    driver.synchronize_stream(stream)
    assert int(torch.count_nonzero(out)) == 0
    for node in nodes:
        driver.set_node_enabled(graph_exec, node, True)
        driver.launch(graph_exec, stream)
        driver.synchronize_stream(stream)
        driver.set_node_enabled(graph_exec, node, False)
    assert torch.equal(out, wanted)
    for node in nodes:
        driver.set_node_enabled(graph_exec, node, True)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)


def test_arguments_are_read(driver: GraphDriver) -> None:
    """The tensor's address is found among the arguments."""
    x = torch.zeros(WIDTH, device="cuda")
    graph = captured(lambda: x.add_(1))
    (node,) = driver.nodes(graph.raw_cuda_graph())
    seen = driver.node_params(node)
    if seen.params is None:
        pytest.skip(f"this runtime does not tell argument layouts: {seen.why_unknown}")
    assert min(seen.grid) >= 1 and min(seen.block) >= 1
    address = struct.pack("<Q", x.data_ptr())
    assert any(address in param for param in seen.params), "the tensor's address is among the arguments"


def test_child_graphs_are_opened(driver: GraphDriver) -> None:
    """The graph inside a child-graph node has the nodes of the one it was made from."""
    body, _, _ = mlp()
    inner = captured(body)
    empty = torch.cuda.CUDAGraph(keep_graph=True)
    x = torch.zeros(8, device="cuda")
    with torch.cuda.graph(empty):
        x.add_(1)
    outer = empty.raw_cuda_graph()
    add = driver.table.found.handle["hipGraphAddChildGraphNode" if BACKEND == "hip" else "cuGraphAddChildGraphNode"]
    add.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    node = ctypes.c_void_p()
    assert add(ctypes.byref(node), outer, None, 0, inner.raw_cuda_graph()) == 0
    assert node.value is not None
    assert driver.node_kind(node.value) is NodeKind.CHILD_GRAPH
    assert len(driver.nodes(driver.child_graph(node.value))) == len(driver.nodes(inner.raw_cuda_graph()))


def test_an_invalidated_capture_is_abandoned(driver: GraphDriver) -> None:
    """After a synchronize inside a capture the stream records and runs again."""
    stream = torch.cuda.Stream()
    handle = int(stream.cuda_stream)
    x = torch.zeros(WIDTH, device="cuda")
    torch.cuda.synchronize()
    driver.begin_capture(handle, 1)
    with pytest.raises(DriverError):
        driver.synchronize_stream(handle)
    if BACKEND == "cuda":
        assert driver.capture_info(handle).status is CaptureStatus.INVALIDATED
    driver.abandon_capture(handle)
    assert driver.capture_info(handle).status is CaptureStatus.NONE
    with torch.cuda.stream(stream):
        x.add_(1)
    torch.cuda.synchronize()
    assert float(x.sum()) == WIDTH
    _capture_again(driver, handle)


def test_an_unjoined_fork_is_abandoned(driver: GraphDriver) -> None:
    """Both streams work afterwards, and a second abandon finds nothing to do."""
    origin, side = torch.cuda.Stream(), torch.cuda.Stream()
    x, y = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    event = torch.cuda.Event()
    driver.begin_capture(int(origin.cuda_stream), 2)
    with torch.cuda.stream(origin):
        x.add_(1)
        event.record(origin)
    with torch.cuda.stream(side):
        side.wait_event(event)
        y.add_(1)
    with torch.cuda.stream(origin):
        x.add_(1)
    for _ in range(2):
        driver.abandon_capture(int(origin.cuda_stream))
    for stream in (origin, side):
        assert driver.capture_info(int(stream.cuda_stream)).status is CaptureStatus.NONE
        _capture_again(driver, int(stream.cuda_stream))
    with torch.cuda.stream(side):
        y.add_(1)
    torch.cuda.synchronize()
    assert (float(x.sum()), float(y.sum())) == (0.0, 8.0)


def test_a_wrong_handle_raises_and_torch_goes_on(driver: GraphDriver) -> None:
    """The refusal is ours alone: torch's next launch does not see it."""
    graph = captured(lambda: torch.ones(4, device="cuda"))
    with pytest.raises(DriverError) as caught:
        driver.launch(0, current_stream())
    assert caught.value.fields["number"]
    graph.replay()
    assert float(torch.ones(4, device="cuda").sum()) == 4.0


def _capture_again(driver: GraphDriver, stream: int) -> None:
    driver.begin_capture(stream, 1)
    assert driver.capture_info(stream).status is CaptureStatus.ACTIVE
    driver.destroy_graph(driver.end_capture(stream))
