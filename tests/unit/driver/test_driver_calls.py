"""The driver over a fake runtime: call order, answers, refusals, layouts."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pytest

from gfxgraph.driver import layouts, open_driver
from gfxgraph.driver.library import FoundLibrary
from gfxgraph.errors import DriverError
from gfxgraph.types import CaptureStatus, NodeKind

BACKENDS = ("hip", "cuda")
Make = Callable[..., Any]
LAYOUT = [(0, 4), (8, 8), (16, 1)]
POINTER = 0x1122334455667788


@pytest.mark.parametrize("backend", BACKENDS)
def test_structs_are_laid_out_as_the_compiler_does(fake: Make, backend: str) -> None:
    """Size and every member's offset equal those of the C struct."""
    made = fake(backend)
    ours = made.driver.node_struct
    assert ctypes.sizeof(ours) == made.library.fake_sizeof_params() == {"hip": 64, "cuda": 72}[backend]
    for member, *_ in ours._fields_:
        assert getattr(ours, member).offset == made.library.fake_offset(member.encode()), member


def test_the_runtimes_number_their_nodes(fake: Make) -> None:
    """0 is a kernel, 1 a copy; a copy from a symbol is HIP's alone; an unknown number is another kind."""
    assert layouts.HIP_NODE_KINDS[0] is layouts.CUDA_NODE_KINDS[0] is NodeKind.KERNEL
    assert layouts.HIP_NODE_KINDS[13] is NodeKind.MEMCPY and 13 not in layouts.CUDA_NODE_KINDS
    made = fake("hip")
    assert made.driver.node_kind(made.call("add", made.call("graph"), 1, None)) is NodeKind.MEMCPY
    assert made.driver.node_kind(made.call("add", made.call("graph"), 99, None)) is NodeKind.OTHER


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_capture_is_followed_while_it_runs(fake: Make, backend: str) -> None:
    """State, graph, frontier and node count of an active capture, then none."""
    made = fake(backend)
    driver, stream = made.driver, made.call("stream")
    assert driver.capture_info(stream).status is CaptureStatus.NONE
    driver.begin_capture(stream)
    info = driver.capture_info(stream)
    assert (info.status, info.capture_id) == (CaptureStatus.ACTIVE, 7)
    frontier = driver.frontier_reader(stream)
    assert frontier() == 0
    nodes = [made.call("record", stream, kind, 0) for kind in (0, 2, 1)]
    assert len(driver.nodes(info.graph)) == 3
    assert frontier() == nodes[2]
    graph = driver.end_capture(stream)
    assert graph == info.graph
    assert list(driver.nodes(graph)) == nodes
    assert [driver.node_kind(n) for n in nodes] == [NodeKind.KERNEL, NodeKind.MEMSET, NodeKind.MEMCPY]
    assert driver.edges(graph) == [(nodes[0], nodes[1]), (nodes[1], nodes[2])]
    assert driver.leaves(graph) == [nodes[2]]
    assert driver.capture_info(stream).graph == 0
    assert frontier() == 0


def test_a_frontier_is_read_as_the_runtime_left_it(monkeypatch: pytest.MonkeyPatch, fake: Make) -> None:
    """One node as a number, several as a tuple; none before the first, and none of a capture that has died."""
    driver = fake("cuda").driver
    nodes = (ctypes.c_size_t * 3)(POINTER, POINTER + 16, POINTER + 32)
    state = {"status": 1, "count": 0, "answer": 0}

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 6)
    def capture_info(stream: int, status: int, ident: None, graph: None, first: int, count: int) -> int:
        assert (stream, ident, graph) == (7, None, None)
        ctypes.c_int.from_address(status).value = state["status"]
        ctypes.c_size_t.from_address(first).value = ctypes.addressof(nodes)
        ctypes.c_size_t.from_address(count).value = state["count"]
        return state["answer"]

    monkeypatch.setattr(driver.table, "undeclared", lambda name: {"capture_info": capture_info}[name])
    frontier = driver.frontier_reader(7)
    assert frontier() == 0
    state["count"] = 1
    assert frontier() == POINTER
    state["count"] = 3
    assert frontier() == (POINTER, POINTER + 16, POINTER + 32)
    state["status"] = 2
    assert frontier() == 0
    state.update(status=1, answer=900)
    assert frontier() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_graphs_have_no_nodes_and_no_edges(fake: Make, backend: str) -> None:
    """No array of length zero is handed to the runtime."""
    made = fake(backend)
    graph = made.call("graph")
    assert list(made.driver.nodes(graph)) == []
    assert made.driver.edges(graph) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_legacy_stream_is_not_capturing(fake: Make, backend: str) -> None:
    """Asked about stream 0 while another captures, runtimes refuse; that means no."""
    made = fake(backend)
    symbol = made.driver.table.symbol("capture_info")
    made.refuse(symbol, 906)
    assert made.driver.capture_info(0).status is CaptureStatus.NONE
    made.refuse(symbol, 906)
    with pytest.raises(DriverError):
        made.driver.capture_info(made.call("stream"))


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_refused_call_says_which_and_why(fake: Make, backend: str) -> None:
    """The error carries the runtime's own names and the call's arguments."""
    made = fake(backend)
    symbol = made.driver.table.symbol("launch")
    made.refuse(symbol, 901)
    with pytest.raises(DriverError) as caught:
        made.driver.launch(0x1000, 0x2000)
    fields = caught.value.fields
    assert caught.value.code == "driver_call_failed"
    assert (fields["api"], fields["number"]) == (symbol, 901)
    assert "Invalidated".upper() in str(fields["status"]).upper()
    assert fields["detail"] == f"{symbol}(0x1000, 0x2000)"


def test_a_status_without_a_name_is_shown_as_a_number(fake: Make) -> None:
    """A newer runtime's unknown status does not hide the failure."""
    made = fake("cuda")
    made.refuse("cuStreamSynchronize", 4711)
    with pytest.raises(DriverError, match="status 4711"):
        made.driver.synchronize_stream(made.call("stream"))


def test_hip_forgets_the_error_that_we_raised(fake: Make) -> None:
    """torch reads HIP's last error after its next launch; ours must not be there."""
    made = fake("hip")
    made.refuse("hipGraphLaunch", 1)
    with pytest.raises(DriverError):
        made.driver.launch(0x1000, 0)
    assert made.library.fake_last_error() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_missing_symbols_are_named_and_refused(fake: Make, backend: str) -> None:
    """An old runtime opens; what it lacks is in ``missing`` and raises when asked for."""
    made = fake(backend, old=True)
    assert {"set_node_enabled", "node_enabled", "param_layout"} <= made.driver.missing
    with pytest.raises(DriverError) as caught:
        made.driver.set_node_enabled(1, 2, False)
    assert caught.value.code == "graph_api_missing"
    assert str(caught.value.fields["api"]).endswith("GraphNodeSetEnabled")
    assert fake(backend).driver.missing <= {"wait_for"}  # which the stand-in does not have


def test_a_library_without_graphs_is_refused_at_once() -> None:
    """The C library has none of the functions, and the error says so before any call."""
    with pytest.raises(DriverError) as caught:
        open_driver(FoundLibrary("hip", "libc.so.6", ctypes.CDLL("libc.so.6")))
    assert caught.value.code == "graph_api_missing"


# Kernels -----------------------------------------------------------------------------------------


def test_hip_names_stubs_and_functions(fake: Make) -> None:
    """A host stub is named from the map, and never followed as an object."""
    made = fake("hip")
    node = made.call("add", made.call("graph"), 0, None)
    made.call("set_kernel", node, made.call("stub"), 0)
    made.log()
    assert made.driver.kernel_name(node) == "stub_kernel"
    assert "hipKernelNameRef" not in made.log()
    made.call("set_kernel", node, made.call("function"), 0)
    assert made.driver.kernel_name(node) == "module_kernel"
    made.call("set_kernel", node, None, 0)
    assert made.driver.kernel_name(node) == ""


def test_cuda_names_functions_and_library_kernels(fake: Make) -> None:
    """Where func is null, kern has the name."""
    made = fake("cuda")
    node = made.call("add", made.call("graph"), 0, None)
    made.call("set_kernel", node, made.call("function"), 0)
    assert made.driver.kernel_name(node) == "func_kernel"
    made.call("set_kernel", node, None, 0)
    assert made.driver.kernel_name(node) == ""


@pytest.mark.parametrize("packed", [0, 1])
@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_are_read(fake: Make, backend: str, packed: int) -> None:
    """Geometry and arguments come out, in either form."""
    made = fake(backend)
    node = made.call("add", made.call("graph"), 0, None)
    made.call("set_kernel", node, made.call("function"), packed)
    seen = made.driver.node_params(node)
    assert (seen.grid, seen.block, seen.shared_nbytes) == ((2, 3, 4), (64, 5, 6), 4096)
    assert seen.func == made.call("function")
    assert seen.params == (struct.pack("<i", 0x01020304), struct.pack("<Q", POINTER), b"\x7f")


def test_a_stub_is_resolved_before_its_layout_is_asked_for(fake: Make) -> None:
    """HIP tells layouts of functions only; refusals on the way leave no last error."""
    made = fake("hip")
    node = made.call("add", made.call("graph"), 0, None)
    made.call("set_kernel", node, made.call("stub"), 0)
    assert made.driver.param_layout(node) == LAYOUT
    assert made.library.fake_last_error() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unknown_layout_is_said_and_can_be_given(fake: Make, backend: str) -> None:
    """Without the runtime's help nothing is guessed; with the caller's layout it works."""
    made = fake(backend, old=True)
    node = made.call("add", made.call("graph"), 0, None)
    made.call("set_kernel", node, made.call("function"), 0)
    seen = made.driver.node_params(node)
    assert seen.params is None
    assert made.driver.table.symbol("func_param") in seen.why_unknown
    given = made.driver.node_params(node, LAYOUT)
    assert given.params is not None and given.params[1] == struct.pack("<Q", POINTER)


# Graph execs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_nodes_are_switched_off_and_on(fake: Make, backend: str) -> None:
    """What was set is what is read."""
    made = fake(backend)
    graph = made.call("graph")
    node = made.call("add", graph, 0, None)
    graph_exec = made.driver.instantiate(graph)
    made.driver.set_node_enabled(graph_exec, node, False)
    assert made.driver.node_enabled(graph_exec, node) is False
    made.driver.set_node_enabled(graph_exec, node, True)
    assert made.driver.node_enabled(graph_exec, node) is True
    made.driver.destroy_exec(graph_exec)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_child_graph_is_opened(fake: Make, backend: str) -> None:
    """The node's inner graph comes out as a handle."""
    made = fake(backend)
    inner = made.call("graph")
    node = made.call("add", made.call("graph"), 4, None)
    made.call("set_inner", node, inner)
    assert made.driver.node_kind(node) is NodeKind.CHILD_GRAPH
    assert made.driver.child_graph(node) == inner


# Dead captures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_abandoning_nothing_does_nothing(fake: Make, backend: str) -> None:
    """A stream that does not capture is only asked."""
    made = fake(backend)
    stream = made.call("stream")
    made.log()
    made.driver.abandon_capture(stream)
    assert made.log() == [made.driver.table.symbol("capture_info")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_active_capture_is_ended_and_its_graph_destroyed(fake: Make, backend: str) -> None:
    """The stream is free again and nothing is left over."""
    made = fake(backend)
    stream = made.call("stream")
    made.driver.begin_capture(stream)
    graph = made.driver.capture_info(stream).graph
    made.call("record", stream, 0, 0)
    made.driver.abandon_capture(stream)
    assert made.driver.capture_info(stream).status is CaptureStatus.NONE
    assert made.call("graph_alive", graph) == 0


@pytest.mark.parametrize("ended_before", [False, True])
@pytest.mark.parametrize(("backend", "stuck"), [("hip", 0), ("hip", 1), ("cuda", 0)])
def test_an_invalidated_capture_frees_its_stream(fake: Make, backend: str, stuck: int, ended_before: bool) -> None:
    """Also where HIP before 7.14 leaves the stream invalidated and crashes at a second end."""
    made = fake(backend)
    stream = made.call("stream")
    made.driver.begin_capture(stream)
    made.call("invalidate", stream, stuck)
    if ended_before:
        with pytest.raises(DriverError):
            made.driver.end_capture(stream)
    made.log()
    made.driver.abandon_capture(stream, end_was_refused=ended_before)
    said = made.log()
    assert made.driver.capture_info(stream).status is CaptureStatus.NONE
    # The garbage handle of a refused end is not destroyed.
    assert said.count(made.driver.table.symbol("graph_destroy")) == stuck
    assert made.library.fake_last_error() == 0 or backend == "cuda"


def test_hip_joins_forks_before_it_ends(fake: Make) -> None:
    """EndCapture is called once, after the loose ends are tied, since refused it frees the graph."""
    made = fake("hip")
    stream = made.call("stream")
    made.driver.begin_capture(stream)
    graph = made.driver.capture_info(stream).graph
    for forked in (0, 1, 1):
        made.call("record", stream, 0, forked)
    made.log()
    made.driver.abandon_capture(stream)
    said = made.log()
    assert said.index("hipGraphAddEmptyNode") < said.index("hipStreamEndCapture")
    assert said.count("hipStreamEndCapture") == 1
    assert made.driver.capture_info(stream).status is CaptureStatus.NONE
    assert made.call("graph_alive", graph) == 0


def test_hip_never_ends_an_unjoined_capture_twice(fake: Make) -> None:
    """When its end was refused before, the stream is reported lost and nothing is called."""
    made = fake("hip")
    stream = made.call("stream")
    made.driver.begin_capture(stream)
    for forked in (0, 1):
        made.call("record", stream, 0, forked)
    with pytest.raises(DriverError):
        made.driver.end_capture(stream)
    made.log()
    with pytest.raises(DriverError) as caught:
        made.driver.abandon_capture(stream, end_was_refused=True)
    assert caught.value.code == "capture_not_abandoned"
    assert set(made.log()) == {"hipStreamGetCaptureInfo_v2"}


def test_cuda_ends_an_unjoined_capture_by_itself(fake: Make) -> None:
    """CUDA resets the stream with the refusal."""
    made = fake("cuda")
    stream = made.call("stream")
    made.driver.begin_capture(stream)
    for forked in (0, 1):
        made.call("record", stream, 0, forked)
    made.driver.abandon_capture(stream)
    assert made.driver.capture_info(stream).status is CaptureStatus.NONE


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_that_stays_captured_is_reported(fake: Make, backend: str) -> None:
    """A capture that another thread must end is an error, not a silent success."""
    made = fake(backend)
    stream = made.call("stream")
    made.driver.begin_capture(stream)
    made.refuse(made.driver.table.symbol("end_capture"), 904)
    with pytest.raises(DriverError) as caught:
        made.driver.abandon_capture(stream)
    assert caught.value.code == "capture_not_abandoned"
    assert hex(stream) in str(caught.value)


@pytest.mark.parametrize("call", ["end_capture", "instantiate"])
def test_a_refused_call_hands_out_no_handle(fake: Make, call: str) -> None:
    """The runtimes write garbage into the handle before they refuse."""
    made = fake("hip")
    stream = made.call("stream")
    made.driver.begin_capture(stream)
    made.refuse(made.driver.table.symbol(call), 1)
    with pytest.raises(DriverError):
        getattr(made.driver, call)(stream)


@pytest.mark.parametrize("backend", BACKENDS)
def test_child_graphs_are_added_with_their_edges(fake: Make, backend: str) -> None:
    """Two copies of captured graphs as nodes, one after the other."""
    made = fake(backend)
    driver = made.driver
    children = [made.call("graph") for _ in range(2)]
    for child, n_nodes in zip(children, (1, 2)):
        for _ in range(n_nodes):
            made.call("add", child, 0, None)
    graph = driver.create_graph()
    first = driver.add_child(graph, children[0])
    second = driver.add_child(graph, children[1], [first])
    assert driver.edges(graph) == [(first, second)]
    assert [driver.node_kind(node) for node in driver.nodes(graph)] == [NodeKind.CHILD_GRAPH] * 2
    assert driver.child_graph(first) not in (0, children[0])
    driver.launch(driver.instantiate(graph), made.call("stream"))


def _address(made: Any, name: str) -> int:
    function = made.library[name]
    function.restype = ctypes.c_void_p
    return int(function())
