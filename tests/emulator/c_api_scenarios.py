"""The C API and libcudagraph_compat on real HIP, one function a scenario; run under the emulator.

    rocjitsu --config gfx1030.json -- python c_api_scenarios.py NAME BUILD KERNELS.so KERNELS.hsaco

prints one line of JSON: what was seen. A scenario that fails raises.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

from gfxgraph.driver import locate
from gfxgraph.selftest.native.hip_calls import NBYTES, HipCalls, N

Facts = dict[str, Any]
Scenario = Callable[["CApi", HipCalls], Facts]
SCENARIOS: dict[str, Scenario] = {}

RECORD = CFUNCTYPE(c_int, c_void_p, c_void_p)
RECORD_SIZE = CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p)
NO_BRANCH = 0xFFFFFFFF


class Dim3(Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


class Kernel(Structure):
    """gfxg_kernel."""

    _fields_ = [
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_nbytes", c_uint),
        ("args", POINTER(c_void_p)),
        ("extra", c_void_p),
    ]


class CudaKernel(Structure):
    """cudaKernelNodeParams."""

    _fields_ = [
        ("func", c_void_p),
        ("grid", Dim3),
        ("block", Dim3),
        ("shared", c_uint),
        ("args", POINTER(c_void_p)),
        ("extra", c_void_p),
    ]


class CudaMemset(Structure):
    """cudaMemsetParams."""

    _fields_ = [
        ("dst", c_void_p),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class CApi:
    """gfxgraph.h through ctypes; an unexpected status raises with the library's own text."""

    def __init__(self, build: str) -> None:
        self.build = build
        self.library = ctypes.CDLL(f"{build}/libhipgraph_bridge.so")
        self.context = c_void_p()
        assert self.library.gfxg_open(None, byref(self.context)) == 0, "no runtime"
        self.library.gfxg_backend.restype = c_char_p

    def __call__(self, name: str, *args: Any, expect: str = "ok") -> None:
        wide = [c_void_p(a) if isinstance(a, int) and a > 0xFFFF else a for a in args]
        status = self.library[f"gfxg_{name}"](*wide)
        self.library.gfxg_status_name.restype = c_char_p
        got = self.library.gfxg_status_name(status).decode()
        assert got == expect, f"{name}: {self.text()}"

    def text(self) -> str:
        buffer = ctypes.create_string_buffer(2048)
        self.library.gfxg_error_text(self.context, b"en", buffer, c_size_t(2048))
        return buffer.value.decode()

    def capture(self, record: Callable[[int], None], expect: str = "ok") -> int:
        graph = c_void_p()
        self("capture", self.context, as_record(record), None, byref(graph), expect=expect)
        return graph.value or 0

    def make(self, kind: str, *args: Any) -> c_void_p:
        made = c_void_p()
        self(f"{kind}_create", self.context, *args, byref(made))
        return made

    def stats(self) -> list[int]:
        words = (c_ulonglong * 14)(14 * 8)
        self("get_stats", self.context, words)
        return list(words)


_kept: list[Any] = []  # callbacks that C holds


def as_record(record: Callable[[int], None]) -> Any:
    def call(stream: int, _user: int) -> int:
        record(stream)
        return 0

    _kept.append(RECORD(call))
    return _kept[-1]


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def chain(gpu: HipCalls, out: int, source: int, between: int, value: int) -> Callable[[int], None]:
    """A fill, a copy and a kernel: ``out = source + value``."""

    def record(stream: int) -> None:
        gpu.memset(between, 0, stream)
        gpu.copy(between, source, stream)
        gpu.add_by_module(out, between, value, stream)

    return record


def nodes_of(gpu: HipCalls, graph: int) -> dict[int, int]:
    """One node of each type."""
    nodes, n, kind = (c_void_p * 16)(), c_size_t(16), c_int()
    gpu("hipGraphGetNodes", graph, nodes, byref(n))
    found: dict[int, int] = {}
    for i in range(n.value):
        gpu("hipGraphNodeGetType", c_void_p(nodes[i]), byref(kind))
        found[kind.value] = nodes[i] or 0
    return found


def slots_of(*values: Any) -> Any:
    _kept.append(values)
    return (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))


@scenario
def conditional(api: CApi, gpu: HipCalls) -> Facts:
    """Branches captured and given, chosen by the host and by a flag in device memory; updated; left out."""
    stream, a, b, c, flag = gpu.stream(), gpu.buffer(20), gpu.buffer(), gpu.buffer(), gpu.buffer(1)
    o = api.make("conditional", 3)
    api("conditional_capture", o, 0, as_record(chain(gpu, c, a, b, 1)), None)
    graph = api.capture(chain(gpu, c, a, b, 2))
    api("conditional_set", o, 1, graph)
    api("graph_destroy", api.context, graph)
    taken = c_uint(9)
    api("conditional_launch", o, 0, stream)
    gpu("hipStreamSynchronize", stream)
    seen = [gpu.read(c)]
    for value in (1, 2, 77):  # a branch, one that was left out, none
        gpu.fill(flag, value)
        gpu("hipDeviceSynchronize")  # a copy from pageable memory may still be on its way when the call returns
        api("conditional_read", o, flag, stream)
        api("conditional_launch_read", o, stream, byref(taken))
        gpu("hipStreamSynchronize", stream)
        seen += [taken.value, gpu.read(c)]
    api("conditional_capture", o, 0, as_record(chain(gpu, c, a, b, 30)), None)
    api("conditional_launch", o, 0, stream)
    gpu("hipStreamSynchronize", stream)
    seen.append(gpu.read(c))
    assert seen == [21, 1, 22, 2, 22, NO_BRANCH, 22, 50], seen
    api("conditional_destroy", o)
    return {"seen": seen, "updates": api.stats()[6]}


@scenario
def pipeline(api: CApi, gpu: HipCalls) -> Facts:
    """Parameters changed between launches that are not waited for; a copy, a fill, a whole graph."""
    stream, a, b, c, other = gpu.stream(), gpu.buffer(20), gpu.buffer(), gpu.buffer(), gpu.buffer(5)
    graph = api.capture(chain(gpu, c, a, b, 1))
    nodes = nodes_of(gpu, graph)
    o = api.make("pipeline", graph)
    api("pipeline_launch", o, stream)
    out, source, n = c_void_p(c), c_void_p(b), c_int(N)
    for value in (2, 3, 4, 5):
        params = Kernel()
        api("pipeline_get_kernel", o, nodes[0], byref(params))
        params.func, params.extra = None, None
        params.args = slots_of(out, source, c_int(value), n)
        api("pipeline_set_kernel", o, nodes[0], byref(params))
        api("pipeline_launch", o, stream)
    api("pipeline_wait", o)
    seen = [gpu.read(c)]
    api("pipeline_set_copy", o, nodes[1], b, other, c_size_t(NBYTES), 3)
    api("pipeline_launch", o, stream)
    api("pipeline_wait", o)
    seen.append(gpu.read(c))
    api("pipeline_launch", o, stream)  # nothing changed: the same exec again
    api("pipeline_wait", o)
    seen.append(gpu.read(c))
    newer = api.capture(chain(gpu, c, a, b, 100))
    api("pipeline_update", o, newer)
    api("pipeline_launch", o, stream)
    api("pipeline_wait", o)
    seen.append(gpu.read(c))
    assert seen == [25, 10, 10, 120], seen
    api("pipeline_destroy", o)
    api("graph_destroy", api.context, graph)
    api("graph_destroy", api.context, newer)
    stats = api.stats()
    return {"seen": seen, "instantiations": stats[4], "rebuilds": stats[5], "updates": stats[6], "refused": stats[7]}


@scenario
def pool(api: CApi, gpu: HipCalls) -> Facts:
    """Buckets captured when needed and ahead, by a callback; one captured again."""
    stream, a, b, c = gpu.stream(), gpu.buffer(20), gpu.buffer(), gpu.buffer()
    captured, scale = [], [1]

    def record(on: int, size: int, _user: int) -> int:
        captured.append(size)
        chain(gpu, c, a, b, size * scale[0])(on)
        return 0

    _kept.append(RECORD_SIZE(record))
    o = api.make("pool", (c_size_t * 3)(2, 8, 4), c_size_t(3), _kept[-1], None)
    bucket, seen = c_size_t(), []

    def launch(size: int) -> None:
        api("pool_launch", o, c_size_t(size), stream, byref(bucket))
        gpu("hipStreamSynchronize", stream)
        seen.extend([bucket.value, gpu.read(c)])

    launch(3)
    api("pool_prepare", o)
    scale[0] = 10
    api("pool_update", o, c_size_t(4))
    launch(4)
    launch(7)
    api("pool_launch", o, c_size_t(9), stream, None, expect="native_no_bucket")
    assert (seen, captured) == ([4, 24, 4, 60, 8, 28], [4, 8, 2, 4]), (seen, captured)
    api("pool_destroy", o)
    return {"seen": seen, "captured": captured}


@scenario
def compositor(api: CApi, gpu: HipCalls) -> Facts:
    """Graphs in order; one replaced by its like, and by one of another shape."""
    stream, a, b, c, d = gpu.stream(), gpu.buffer(20), gpu.buffer(), gpu.buffer(), gpu.buffer()
    first = api.capture(chain(gpu, c, a, b, 1))
    second = api.capture(lambda on: gpu.add_by_module(d, c, 2, on))
    like = api.capture(lambda on: gpu.add_by_module(d, c, 5, on))
    other = api.capture(chain(gpu, d, c, b, 7))
    o, number = api.make("compositor"), c_uint()
    api("compositor_add", o, first, None, c_size_t(0), byref(number))
    api("compositor_add", o, second, byref(c_uint(0)), c_size_t(1), byref(number))
    seen = []
    for graph in (None, like, other):
        if graph:
            api("compositor_set", o, 1, graph)
        api("compositor_launch", o, stream)
        gpu("hipStreamSynchronize", stream)
        seen.append(gpu.read(d))
    assert seen == [23, 26, 28], seen
    api("compositor_destroy", o)
    for graph in (first, second, like, other):
        api("graph_destroy", api.context, graph)
    return {"seen": seen, "updates": api.stats()[6], "refused": api.stats()[7]}


@scenario
def nested(api: CApi, gpu: HipCalls) -> Facts:
    """A graph put into a capture, and a launch into a capture refused."""
    stream, a, b, c, d = gpu.stream(), gpu.buffer(20), gpu.buffer(), gpu.buffer(), gpu.buffer()
    inner = api.capture(chain(gpu, c, a, b, 1))
    o = api.make("pipeline", inner)
    gpu("hipStreamBeginCapture", stream, 1)
    api("pipeline_launch", o, stream, expect="native_invalid_argument")
    api("capture_graph", api.context, stream, inner)
    gpu.add_by_module(d, c, 1000, stream)
    outer = c_void_p()
    gpu("hipStreamEndCapture", stream, byref(outer))
    assert gpu.read(c) == 0, "something ran while it was captured"
    p = api.make("pipeline", outer)
    api("pipeline_launch", p, stream)
    api("pipeline_wait", p)
    assert gpu.read(d) == 1021, gpu.read(d)
    for each in (o, p):
        api("pipeline_destroy", each)
    return {"nodes": sorted(nodes_of(gpu, outer.value or 0))}


@scenario
def broken_captures(api: CApi, gpu: HipCalls) -> Facts:
    """What breaks a capture ends in its error, and the context goes on working."""
    stream, a, b, c = gpu.stream(), gpu.buffer(20), gpu.buffer(), gpu.buffer()
    side, event = gpu.stream(), gpu.event()
    texts = {}

    def loose(on: int) -> None:
        gpu.memset(b, 1, on)
        gpu("hipEventRecord", event, on)
        gpu("hipStreamWaitEvent", side, event, 0)
        gpu.add_by_module(c, a, 1, side)
        gpu.memset(b, 2, on)

    def synchronizing(on: int) -> None:
        gpu.memset(b, 1, on)
        gpu.status("hipStreamSynchronize", on)

    def elsewhere(_on: int) -> None:
        gpu.memset(b, 1, stream)

    def joined(on: int) -> None:
        gpu.memset(b, 1, on)
        gpu("hipEventRecord", event, on)
        gpu("hipStreamWaitEvent", side, event, 0)
        gpu.add_by_module(c, a, 1, side)
        gpu("hipEventRecord", event, side)
        gpu("hipStreamWaitEvent", on, event, 0)

    for name, record, expect in (
        ("loose", loose, "native_capture_failed"),
        ("synchronizing", synchronizing, "native_capture_failed"),
        ("elsewhere", elsewhere, "native_capture_empty"),
    ):
        assert api.capture(record, expect=expect) == 0
        texts[name] = api.text().splitlines()[1].strip()
        o = api.make("pipeline", api.capture(chain(gpu, c, a, b, 3)))
        api("pipeline_launch", o, stream)
        api("pipeline_wait", o)
        assert gpu.read(c) == 23
        api("pipeline_destroy", o)
    side = gpu.stream()
    o = api.make("pipeline", api.capture(joined))  # joined, with no node after it: a whole graph
    gpu.fill(c, 0)
    api("pipeline_launch", o, stream)
    api("pipeline_wait", o)
    assert gpu.read(c) == 21
    api("pipeline_destroy", o)
    assert "(904)" in texts["loose"] and "(901)" in texts["synchronizing"], texts
    return texts


@scenario
def compat(api: CApi, gpu: HipCalls) -> Facts:
    """A CUDA program's structs and arguments: built by hand, updated, captured, refused."""
    cuda = ctypes.CDLL(f"{api.build}/libcudagraph_compat.so")

    def call(name: str, *args: Any, expect: int = 0) -> None:
        wide = [c_void_p(a) if isinstance(a, int) and a > 0xFFFF else a for a in args]
        status = cuda[name](*wide)
        assert status == expect, f"{name} returned {status}, not {expect}"

    stream, a, c = gpu.stream(), gpu.buffer(20), gpu.buffer()
    graph, fill, kernel, run = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    call("cudaGraphCreate", byref(graph), 0)
    call("cudaGraphAddMemsetNode", byref(fill), graph, None, c_size_t(0), byref(CudaMemset(a, 0, 7, 4, N, 1)))
    value = c_int(5)
    params = CudaKernel(gpu.functions["add_to"], Dim3(2, 1, 1), Dim3(64, 1, 1), 0)
    params.args = slots_of(c_void_p(c), c_void_p(a), value, c_int(N))
    call("cudaGraphAddKernelNode", byref(kernel), graph, byref(fill), c_size_t(1), byref(params))
    back, kind, n = CudaKernel(), c_int(), c_size_t(4)
    call("cudaGraphKernelNodeGetParams", kernel, byref(back))
    call("cudaGraphNodeGetType", kernel, byref(kind))
    assert (back.block.x, back.grid.x, kind.value) == (64, 2, 0)
    call("cudaGraphGetEdges", graph, (c_void_p * 4)(), (c_void_p * 4)(), ctypes.create_string_buffer(32), byref(n))
    assert n.value == 1
    call("cudaGraphInstantiate", byref(run), graph, c_ulonglong(0))
    call("cudaGraphLaunch", run, stream)
    gpu("hipStreamSynchronize", stream)
    seen = [gpu.read(c)]
    value.value = 6
    call("cudaGraphExecKernelNodeSetParams", run, kernel, byref(params))
    call("cudaGraphExecMemsetNodeSetParams", run, fill, byref(CudaMemset(a, 0, 9, 4, N, 1)))
    call("cudaGraphLaunch", run, stream)
    gpu("hipStreamSynchronize", stream)
    seen.append(gpu.read(c))
    call("cudaGraphKernelNodeSetParams", kernel, byref(params))
    info = (c_ulonglong * 3)()
    call("cudaGraphExecUpdate", run, graph, info)
    call("cudaGraphLaunch", run, stream)
    gpu("hipStreamSynchronize", stream)
    seen.append(gpu.read(c))
    assert seen == [12, 15, 13], seen
    # Captured: a launch into it is refused, and what was recorded is told with edge data.
    call("cudaStreamBeginCapture", stream, 1)
    call("cudaGraphLaunch", run, stream, expect=900)
    gpu.memset(a, 1, stream)
    status, inside, last, edges, captured = c_int(), c_void_p(), c_void_p(), c_void_p(), c_void_p()
    told = [byref(status), byref(c_ulonglong()), byref(inside), byref(last), byref(edges), byref(n)]
    call("cudaStreamGetCaptureInfo", stream, *told)
    assert (status.value, n.value, bool(edges.value)) == (1, 1, True)
    call("cudaStreamEndCapture", stream, byref(captured))
    call("cudaGraphInstantiateWithFlags", byref(run), captured, c_ulonglong(4), expect=801)
    call("cudaGraphConditionalHandleCreate", byref(c_ulonglong()), graph, 1, 0, expect=801)
    report_size = cuda.gfxgraph_compat_report(None, c_size_t(0)) + 1024
    buffer = ctypes.create_string_buffer(report_size)
    cuda.gfxgraph_compat_report(buffer, c_size_t(report_size))
    symbols = json.loads(buffer.value)["symbols"]
    return {
        "seen": seen,
        "absent": sorted(name for name, facts in symbols.items() if facts.get("present") is False),
        **{how: sum(facts["how"] == how for facts in symbols.values()) for how in ("mapped", "bridged", "refused")},
    }


def main(name: str, build: str, kernels: str, code_object: str) -> None:
    driver = locate("hip")
    gpu = HipCalls(driver, kernels, code_object)
    api = CApi(build)
    version = api.library.gfxg_runtime_version(api.context)
    facts = SCENARIOS[name](api, gpu)
    assert api.library.gfxg_close(api.context) == 0, api.text()
    print(json.dumps({"scenario": name, "hip": version, "facts": facts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
