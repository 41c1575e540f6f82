"""What the driver room does on real HIP, one function a scenario: it returns what was seen, and raises where it fails."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_void_p
from functools import partial
from typing import Any

from gfxgraph.driver import hiprtc
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.driver.small_copies import MOST
from gfxgraph.errors import DriverError
from gfxgraph.selftest.native.hip_calls import ADD_LAYOUT, NBYTES, HipCalls, N
from gfxgraph.types import CaptureStatus, NodeKind

Facts = dict[str, Any]
Scenario = Callable[[GraphDriver, HipCalls], Facts]


def refusal(call: Callable[[], object]) -> DriverError:
    try:
        call()
    except DriverError as error:
        return error
    raise AssertionError("the call was not refused")


def ran(driver: GraphDriver, graph_exec: int, stream: int) -> None:
    """Launch and wait."""
    driver.launch(graph_exec, stream)
    driver.synchronize_stream(stream)


def captured(driver: GraphDriver, stream: int, *work: Callable[[], object]) -> int:
    """The graph of a capture of ``work``."""
    driver.begin_capture(stream)
    for each in work:
        each()
    return driver.end_capture(stream)


def works_again(driver: GraphDriver, gpu: HipCalls, stream: int) -> None:
    """``stream`` executes work and captures anew."""
    assert driver.capture_info(stream).status is CaptureStatus.NONE
    buffer = gpu.buffer(0)
    gpu.memset(buffer, 1, stream)
    driver.synchronize_stream(stream)
    assert gpu.read(buffer) == 0x01010101, "work sent to the stream vanished"
    graph = captured(driver, stream, lambda: gpu.memset(buffer, 2, stream))
    assert len(driver.nodes(graph)) == 1
    graph_exec = driver.instantiate(graph)
    ran(driver, graph_exec, stream)
    assert gpu.read(buffer) == 0x02020202
    driver.destroy_exec(graph_exec)
    driver.destroy_graph(graph)


def identity(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """Which runtime, which device; also what the result file records."""
    count = ctypes.c_int()
    gpu("hipGetDeviceCount", byref(count))
    properties = ctypes.create_string_buffer(4096)  # only the name at the start is looked for
    name = ""
    if gpu.status("hipDeviceGetName", properties, 4096, 0) == 0:
        name = properties.value.decode()
    missing = sorted(driver.missing)
    return {
        "hip": ".".join(map(str, driver.version)),
        "devices": count.value,
        "name": name,
        "missing": missing,
    }


def capture_without_kernels(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """Copies and memsets: state, count, kinds and order while the capture runs."""
    a, b, stream = gpu.buffer(), gpu.buffer(), gpu.stream()
    assert driver.capture_info(stream).status is CaptureStatus.NONE
    driver.begin_capture(stream)
    info = driver.capture_info(stream)
    assert info.status is CaptureStatus.ACTIVE and info.graph
    counts = [len(driver.nodes(info.graph))]
    gpu.memset(a, 3, stream)
    counts.append(len(driver.nodes(info.graph)))
    gpu.copy(b, a, stream)
    counts.append(len(driver.nodes(info.graph)))
    assert counts == [0, 1, 2]
    middle = driver.nodes(info.graph)
    assert driver.frontier_reader(stream)() == middle[-1]
    graph = driver.end_capture(stream)
    assert graph == info.graph
    nodes = driver.nodes(graph)
    assert [driver.node_kind(node) for node in nodes] == [NodeKind.MEMSET, NodeKind.MEMCPY]
    assert driver.edges(graph) == [(nodes[0], nodes[1])]
    assert driver.leaves(graph) == [nodes[1]]
    graph_exec = driver.instantiate(graph)
    ran(driver, graph_exec, stream)
    assert gpu.read(b) == 0x03030303
    return {"counts": counts}


def capture_with_kernels(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """Kernels launched by stub, by function and packed are all recorded and named."""
    a, b, c, stream = gpu.buffer(), gpu.buffer(), gpu.buffer(), gpu.stream()
    driver.begin_capture(stream)
    gpu.memset(a, 0, stream)
    gpu.add_by_stub(b, a, 5, stream)
    gpu.add_by_module(c, b, 7, stream)
    gpu.add_packed(a, c, 11, stream)
    gpu.double_by_stub(a, stream)
    graph = driver.end_capture(stream)
    nodes = driver.nodes(graph)
    kinds = [str(driver.node_kind(node)) for node in nodes]
    assert kinds == ["memset", *["kernel"] * 4]
    names = [driver.kernel_name(node) for node in nodes[1:]]
    assert ["add_to" in names[0], "add_to" in names[1], "add_to" in names[2], "times_two" in names[3]] == [
        True
    ] * 4, names
    graph_exec = driver.instantiate(graph)
    ran(driver, graph_exec, stream)
    assert gpu.read(a) == 2 * (5 + 7 + 11)
    return {"kinds": kinds, "names": names}


def node_walk(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """All nodes off: nothing happens. One at a time, in order: what a replay gives."""
    a, b, c, stream = gpu.buffer(9), gpu.buffer(), gpu.buffer(), gpu.stream()
    driver.begin_capture(stream)
    gpu.memset(a, 0, stream)
    gpu.add_by_stub(b, a, 5, stream)
    gpu.copy(c, b, stream)
    gpu.add_packed(b, c, 3, stream)
    gpu.double_by_stub(b, stream)
    graph = driver.end_capture(stream)
    graph_exec, nodes = driver.instantiate(graph), driver.nodes(graph)
    for node in nodes:
        assert driver.node_enabled(graph_exec, node)
        driver.set_node_enabled(graph_exec, node, False)
    ran(driver, graph_exec, stream)
    assert (gpu.read(a), gpu.read(b), gpu.read(c)) == (9, 0, 0)
    seen = []
    for node in nodes:
        driver.launch(graph_exec, stream)  # every node off: HIP 7.2.4 would run the last one again
        driver.set_node_enabled(graph_exec, node, True)
        ran(driver, graph_exec, stream)
        driver.set_node_enabled(graph_exec, node, False)
        assert not driver.node_enabled(graph_exec, node)
        seen.append((gpu.read(a), gpu.read(b), gpu.read(c)))
    assert seen == [(0, 0, 0), (0, 5, 0), (0, 5, 5), (0, 8, 5), (0, 16, 5)]
    for node in nodes:
        driver.set_node_enabled(graph_exec, node, True)
    gpu.fill(b, 0)
    ran(driver, graph_exec, stream)
    assert gpu.read(b) == 16
    return {"steps": seen}


def switched_nodes(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """Sets of as many nodes each, one launch after the other: 7.2.4 alone runs the first set again."""
    b, stream = gpu.buffer(), gpu.stream()
    driver.begin_capture(stream)
    for value in (1, 10, 100):
        gpu.add_by_stub(b, b, value, stream)
    graph = driver.end_capture(stream)
    graph_exec, nodes = driver.instantiate(graph), driver.nodes(graph)
    facts: Facts = {}
    for name, resets in (("at_once", False), ("after_a_launch_of_none", True)):
        gpu.fill(b, 0)
        totals = []
        for chosen in ({0}, {1}, {0, 2}, {1, 2}):
            if resets:
                for node in nodes:
                    driver.set_node_enabled(graph_exec, node, False)
                driver.launch(graph_exec, stream)
            for at, node in enumerate(nodes):
                driver.set_node_enabled(graph_exec, node, at in chosen)
            ran(driver, graph_exec, stream)
            totals.append(gpu.read(b))
        facts[name] = totals
    assert facts["after_a_launch_of_none"] == [1, 11, 112, 222]
    assert facts["at_once"] in ([1, 11, 112, 222], [1, 2, 103, 204])
    return facts


def arguments(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """Geometry and arguments of each way to launch."""
    facts: Facts = {}
    for how in ("add_by_stub", "add_by_module", "add_packed"):
        source, out, stream = gpu.buffer(1), gpu.buffer(), gpu.stream()
        graph = captured(driver, stream, partial(getattr(gpu, how), out, source, 4, stream))
        (node,) = driver.nodes(graph)
        seen = driver.node_params(node)
        assert (seen.grid, seen.block, seen.shared_nbytes) == ((2, 1, 1), (64, 1, 1), 0)
        facts[how] = {
            "layout_told": seen.params is not None,
            "why_unknown": seen.why_unknown.rpartition("/")[2],
        }
        if seen.params is None:
            seen = driver.node_params(node, ADD_LAYOUT)
        assert seen.params is not None
        assert seen.params[:3] == (struct.pack("<Q", out), struct.pack("<Q", source), struct.pack("<i", 4))
    return facts


def child_graphs(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """The inner graph can be read; its node cannot be switched off, and that leaves no last error."""
    a, b, stream = gpu.buffer(), gpu.buffer(), gpu.stream()
    inner = captured(driver, stream, lambda: gpu.memset(a, 1, stream), lambda: gpu.copy(b, a, stream))
    outer, node = c_void_p(), c_void_p()
    gpu("hipGraphCreate", byref(outer), 0)
    gpu("hipGraphAddChildGraphNode", byref(node), outer, None, ctypes.c_size_t(0), inner)
    assert node.value and outer.value
    assert driver.node_kind(node.value) is NodeKind.CHILD_GRAPH
    kinds = [driver.node_kind(each) for each in driver.nodes(driver.child_graph(node.value))]
    assert kinds == [NodeKind.MEMSET, NodeKind.MEMCPY]
    graph_exec = driver.instantiate(outer.value)
    refused = refusal(lambda: driver.set_node_enabled(graph_exec, node.value or 0, False))
    assert int(gpu.hip.hipGetLastError()) == 0
    ran(driver, graph_exec, stream)
    assert gpu.read(b) == 0x01010101
    return {"switching_it_off": refused.fields["status"]}


def composed_graphs(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """Copies of captured graphs as nodes in the order of their edges; upload."""
    one, data, stream = gpu.buffer(1), gpu.buffer(), gpu.stream()

    first = captured(driver, stream, lambda: gpu.add_by_stub(data, one, 4, stream))  # data = 1 + 4
    last = captured(driver, stream, lambda: gpu.double_by_stub(data, stream))
    seen = {}
    for order in ("first last", "last first"):
        graph = driver.create_graph()
        nodes: dict[str, int] = {}
        for name in order.split():
            nodes[name] = driver.add_child(graph, {"first": first, "last": last}[name], list(nodes.values()))
        graph_exec = driver.instantiate(graph)
        gpu.fill(data, 0)
        ran(driver, graph_exec, stream)
        seen[order] = gpu.read(data)
    assert seen == {"first last": 10, "last first": 5}
    driver.destroy_exec(graph_exec)
    driver.destroy_graph(graph)
    return {**seen}


def abandon_active(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """A capture that nobody wants is ended; what it recorded never runs."""
    for mode in (0, 1, 2):
        buffer, stream = gpu.buffer(0), gpu.stream()
        driver.begin_capture(stream, mode)
        gpu.memset(buffer, 1, stream)
        driver.abandon_capture(stream)
        works_again(driver, gpu, stream)
        assert gpu.read(buffer) == 0
    return {}


def abandon_invalidated(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """After a forbidden call the stream is used again, with and without somebody's own EndCapture."""
    facts: Facts = {}
    for mode in (0, 1, 2):
        for ended_before in (False, True):
            buffer, stream = gpu.buffer(0), gpu.stream()
            driver.begin_capture(stream, mode)
            gpu.memset(buffer, 1, stream)
            refused = refusal(partial(driver.synchronize_stream, stream))
            state = driver.capture_info(stream)
            assert state.status is CaptureStatus.INVALIDATED
            if ended_before:
                ended = refusal(partial(driver.end_capture, stream))
                facts["end"] = ended.fields["status"]
                facts["state after the refused end"] = driver.capture_info(stream).status.name
            driver.abandon_capture(stream, end_was_refused=ended_before)
            works_again(driver, gpu, stream)
            assert gpu.read(buffer) == 0
            # Nothing global stays behind either: allocation, other streams, other captures.
            works_again(driver, gpu, gpu.stream())
            facts["synchronize"] = refused.fields["status"]
    return facts


def read_a_dead_capture(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """Until its stream's capture is ended, the graph of a dead capture can be asked for its nodes."""
    for mode in (0, 1, 2):
        buffer, stream = gpu.buffer(0), gpu.stream()
        driver.begin_capture(stream, mode)
        graph = driver.capture_info(stream).graph
        gpu.memset(buffer, 1, stream)
        seen = driver.frontier_reader(stream)()
        gpu.memset(buffer, 2, stream)
        refusal(partial(driver.synchronize_stream, stream))
        assert driver.capture_info(stream).status is CaptureStatus.INVALIDATED
        nodes = driver.nodes(graph)
        assert len(nodes) == 2 and driver.leaves(graph) == [node for node in nodes if node != seen]
        driver.abandon_capture(stream)
        works_again(driver, gpu, stream)
    return {}


def abandon_unjoined_fork(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """A side stream left open: both streams work afterwards, and nothing dangling is touched."""
    for mode in (0, 1, 2):
        a, b, origin, side, event = gpu.buffer(), gpu.buffer(), gpu.stream(), gpu.stream(), gpu.event()
        driver.begin_capture(origin, mode)
        gpu.memset(a, 1, origin)
        gpu("hipEventRecord", event, origin)
        gpu("hipStreamWaitEvent", side, event, 0)
        gpu.memset(b, 1, side)
        gpu.memset(a, 2, origin)
        info = driver.capture_info(origin)
        assert len(driver.leaves(info.graph)) == 2
        driver.abandon_capture(origin)
        driver.abandon_capture(origin)
        works_again(driver, gpu, origin)
        works_again(driver, gpu, side)
        assert (gpu.read(a), gpu.read(b)) == (0, 0)
    return {}


def give_up_a_lost_stream(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """After a refused end of an unjoined fork the stream is reported lost; everything else works."""
    a, b, origin, side, event = gpu.buffer(), gpu.buffer(), gpu.stream(), gpu.stream(), gpu.event()
    driver.begin_capture(origin, 2)
    gpu.memset(a, 1, origin)
    gpu("hipEventRecord", event, origin)
    gpu("hipStreamWaitEvent", side, event, 0)
    gpu.memset(b, 1, side)
    gpu.memset(a, 2, origin)
    ended = refusal(lambda: driver.end_capture(origin))
    lost = refusal(lambda: driver.abandon_capture(origin, end_was_refused=True))
    assert lost.code == "capture_not_abandoned"
    works_again(driver, gpu, gpu.stream())
    return {"end": ended.fields["status"]}


def abandon_from_another_thread(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """A thread-local capture cannot be ended by another thread: that is said, and its own thread can."""
    buffer, stream = gpu.buffer(), gpu.stream()
    driver.begin_capture(stream, 1)
    gpu.memset(buffer, 1, stream)
    seen: list[DriverError] = []
    other = threading.Thread(target=lambda: seen.append(refusal(lambda: driver.abandon_capture(stream))))
    other.start()
    other.join()
    assert [error.code for error in seen] == ["capture_not_abandoned"]
    assert driver.capture_info(stream).status is CaptureStatus.ACTIVE
    driver.abandon_capture(stream)
    works_again(driver, gpu, stream)
    return {"refused": seen[0].fields["status"]}


def waiting_beside_a_capture(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """A plain wait is refused and ends another thread's global capture; ours is not refused, and that goes on."""
    buffer, stream, other = gpu.buffer(), gpu.stream(), gpu.stream()
    seen: dict[str, str] = {}
    for way, wait in (
        ("ours", lambda: driver.synchronize_stream(other)),
        ("plain", lambda: seen.update(status=str(gpu.status("hipStreamSynchronize", other)))),
    ):
        driver.begin_capture(stream, 0)
        gpu.memset(buffer, 1, stream)
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        seen[way] = driver.capture_info(stream).status.name
        driver.abandon_capture(stream)
        works_again(driver, gpu, stream)
    assert (seen["ours"], seen["plain"], seen["status"]) == ("ACTIVE", "INVALIDATED", "900"), seen
    return seen


def legacy_stream(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """Stream 0 is not capturing, also while a blocking stream is."""
    made = c_void_p()
    gpu("hipStreamCreate", byref(made))
    stream = made.value or 0
    assert driver.capture_info(0).status is CaptureStatus.NONE
    driver.begin_capture(stream, 0)
    assert driver.capture_info(0).status is CaptureStatus.NONE
    driver.abandon_capture(stream)
    works_again(driver, gpu, stream)
    refused = refusal(lambda: driver.begin_capture(0))
    return {"begin on stream 0": refused.fields["status"]}


def copy_kernel(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """Compiled by hiprtc, the kernel copies to and from whatever addresses it is given, in one launch."""
    stream = gpu.stream()
    begun = time.perf_counter()
    kernel = driver.copy_kernel("gfx1030")
    took = time.perf_counter() - begun
    sources, targets = [gpu.buffer(i) for i in range(1, 4)], [gpu.buffer() for _ in range(3)]
    copies = kernel.prepare([(to, 0, NBYTES) for to in targets], 0)
    copies.on(stream)
    for i in range(3):
        copies.words[i] = sources[i]
    assert copies.launch() == 0
    for i in range(3):
        copies.words[i] = sources[2 - i]  # the runtime has its own copy of the arguments
    driver.synchronize_stream(stream)
    assert [gpu.read(b) for b in targets] == [1, 2, 3]
    assert copies.launch() == 0
    driver.synchronize_stream(stream)
    assert [gpu.read(b) for b in targets] == [3, 2, 1]
    other = gpu.buffer()
    copies.words[MOST] = other
    assert copies.launch() == 0
    driver.synchronize_stream(stream)
    assert gpu.read(other) == 3
    odd = kernel.prepare([(other + 5, sources[1] + 2, 11)], stream)
    assert odd.launch() == 0
    driver.synchronize_stream(stream)
    data = ctypes.create_string_buffer(NBYTES)
    gpu("hipMemcpy", data, other, ctypes.c_size_t(NBYTES), 2)
    wanted = bytearray(struct.pack("<i", 3) * N)
    wanted[5:16] = (struct.pack("<i", 2) * 4)[2:13]
    assert data.raw == bytes(wanted)
    return {"compiled_s": round(took, 2)}


def joined_graph(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """A graph with copies before and after it runs as one; its addresses change from launch to launch.

    What is joined by the runtime room is CUDA's only: whether a launch under way keeps its addresses is not shown.
    """
    stream = gpu.stream()
    kernel = driver.copy_kernel("gfx1030")
    a, b = gpu.buffer(), gpu.buffer()
    given, taken = [gpu.buffer(i) for i in range(1, 4)], [gpu.buffer() for _ in range(3)]
    graph = driver.create_graph()
    driver.add_copies(kernel, graph, [(b, a, NBYTES)], [])
    joined = driver.joined(kernel, graph, [(a, given[0], NBYTES)], [(taken[0], b, NBYTES)], 0)
    driver.destroy_graph(graph)
    joined.on(stream)
    assert joined.into is not None and joined.back is not None
    for i in range(3):
        joined.into.words[0], joined.back.words[MOST] = given[i], taken[i]
        assert joined.into.apply() == 0 and joined.back.apply() == 0 and joined.launch() == 0
        driver.synchronize_stream(stream)
    assert [gpu.read(buffer) for buffer in taken] == [1, 2, 3]
    assert len(driver.nodes(joined._graph)) == 3 and len(driver.edges(joined._graph)) == 2
    joined.close()
    return {}


def a_part_of_a_workgroup(driver: GraphDriver, gpu: HipCalls) -> Facts:
    """hipExtModuleLaunchKernel counts threads: eagerly 4 of a workgroup of 64 run, and in a graph not 4.

    HIP 6.4.3 refuses the launch in a capture; 7.2.4 takes it, and each replay runs all 64. The adapter of MIGraphX,
    whose programs launch so, makes no graph of one that has such a launch.
    """
    out, source, stream = gpu.buffer(), gpu.buffer(1), gpu.stream()
    arguments = [c_void_p(out), c_void_p(source), ctypes.c_int(0), ctypes.c_int(N)]
    slots = (c_void_p * 4)(*(ctypes.addressof(argument) for argument in arguments))

    def launch() -> int:
        shape = (4, 1, 1, 64, 1, 1, ctypes.c_size_t(0))
        return gpu.status(
            "hipExtModuleLaunchKernel", gpu.functions["add_to"], *shape, stream, slots, None, None, None, 0
        )

    def threads() -> int:
        driver.synchronize_stream(stream)
        data = ctypes.create_string_buffer(NBYTES)
        gpu("hipMemcpy", data, out, ctypes.c_size_t(NBYTES), 2)
        return sum(struct.unpack(f"<{N}i", data.raw))

    eager = (launch(), threads())
    assert eager == (0, 4)
    gpu.fill(out, 0)
    driver.begin_capture(stream)
    status = launch()
    graph = driver.end_capture(stream)
    driver.launch(driver.instantiate(graph), stream)
    facts = {"status": status, "threads": threads()}
    assert facts in ({"status": 1, "threads": 0}, {"status": 0, "threads": 64}), facts
    return facts


_ALL: tuple[Scenario, ...] = (
    identity, capture_without_kernels, capture_with_kernels, node_walk, switched_nodes, arguments, child_graphs,
    composed_graphs, abandon_active, abandon_invalidated, read_a_dead_capture, abandon_unjoined_fork,
    give_up_a_lost_stream, abandon_from_another_thread, waiting_beside_a_capture, legacy_stream, copy_kernel,
    joined_graph, a_part_of_a_workgroup,
)  # fmt: skip
SCENARIOS = {function.__name__: function for function in _ALL}
NEED_KERNELS = {"capture_with_kernels", "node_walk", "switched_nodes", "arguments", "composed_graphs", "a_part_of_a_workgroup"}
