"""Things done inside a capture, on real HIP under the preload library.

Each experiment begins a capture, records one fill, does its thing, records another and ends. Seen:
what the calls answered, whether the stream works afterwards, and what a replay did.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_size_t, c_void_p
from typing import Any

from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.selftest.native.machine import NBYTES, HipCalls

Seen = dict[str, Any]
EXPERIMENTS: dict[str, Callable[[CaptureBench], Seen]] = {}
JOINED_LAST = {"join_right_before_the_end"}
# HIP 7 keeps a graph's own memory in virtual memory, which the emulator does not have: a replay crashes there, with
# the preload library and without it.
NOT_REPLAYED_FROM_7 = {"allocation_in_stream_order"}
BLOCKING = {"null_stream_beside_a_blocking_stream"}  # captured on a stream that waits for the null stream


def experiment(function: Callable[[CaptureBench], Seen]) -> Callable[[CaptureBench], Seen]:
    EXPERIMENTS[function.__name__] = function
    return function


class CaptureBench:
    """One capture and what it needs, all made before it begins."""

    def __init__(self, gpu: HipCalls, blocking: bool = False) -> None:
        self.gpu = gpu
        self.stream, self.other = gpu.stream(blocking), gpu.stream()
        self.a, self.b, self.c, self.spare = gpu.buffer(), gpu.buffer(), gpu.buffer(), gpu.buffer()
        self.host: object = None
        self.module = gpu.load() if gpu.code_object else None
        self.event = gpu.event()
        self.ran: list[int] = []
        self.host_function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: self.ran.append(1))
        self.callback = ctypes.CFUNCTYPE(None, c_void_p, ctypes.c_int, c_void_p)(
            lambda stream, status, data: self.ran.append(1)
        )
        # A graph that fills c, to be launched.
        gpu("hipStreamBeginCapture", self.stream, 1)
        gpu.memset(self.c, 7, self.stream)
        graph, self.exec = c_void_p(), c_void_p()
        gpu("hipStreamEndCapture", self.stream, byref(graph))
        gpu("hipGraphInstantiateWithFlags", byref(self.exec), graph, ctypes.c_ulonglong(0))


@experiment
def nothing(bench: CaptureBench) -> Seen:
    return {}


@experiment
def stream_synchronize(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipStreamSynchronize", bench.stream)}


@experiment
def device_synchronize(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipDeviceSynchronize")}


@experiment
def synchronous_copy(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipMemcpy", bench.b, bench.a, c_size_t(NBYTES), 3)}


@experiment
def copy_with_stream(bench: CaptureBench) -> Seen:
    given = (bench.b, bench.a, c_size_t(NBYTES), 3, bench.stream)
    return {"status": bench.gpu.status("hipMemcpyWithStream", *given)}


@experiment
def module_unload(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipModuleUnload", bench.module)}


@experiment
def allocation(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipMalloc", byref(c_void_p()), c_size_t(64))}


@experiment
def graph_launch(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipGraphLaunch", bench.exec.value, bench.stream)}


@experiment
def graph_launch_on_another_stream(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipGraphLaunch", bench.exec.value, bench.other)}


@experiment
def host_function(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipLaunchHostFunc", bench.stream, bench.host_function, None)}


@experiment
def stream_callback(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipStreamAddCallback", bench.stream, bench.callback, None, 0)}


@experiment
def null_kernel(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.double(bench.b, 1, None)}


@experiment
def kernel_on_another_stream(bench: CaptureBench) -> Seen:
    bench.gpu.double_by_stub(bench.b, bench.other)
    return {"status": 0}


@experiment
def wait_for_an_outside_event(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipStreamWaitEvent", bench.stream, bench.event, 0)}


@experiment
def fork_and_join(bench: CaptureBench) -> Seen:
    fork_without_join(bench)
    return {"status": join(bench)}


def join(bench: CaptureBench) -> int:
    bench.gpu("hipEventRecord", bench.event, bench.other)
    return bench.gpu.status("hipStreamWaitEvent", bench.stream, bench.event, 0)


@experiment
def join_right_before_the_end(bench: CaptureBench) -> Seen:
    return fork_without_join(bench)  # main joins it, once the origin has gone on


@experiment
def fork_without_join(bench: CaptureBench) -> Seen:
    bench.gpu("hipEventRecord", bench.event, bench.stream)
    status = bench.gpu.status("hipStreamWaitEvent", bench.other, bench.event, 0)
    bench.gpu.memset(bench.b, 3, bench.other)
    return {"status": status}


@experiment
def begin_again(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipStreamBeginCapture", bench.stream, 0)}


@experiment
def copy_of_no_bytes(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipMemcpyAsync", bench.b, bench.a, c_size_t(0), 3, bench.stream)}


# Refused while a capture is active, and with it the capture is lost -------------------------------------


@experiment
def another_stream_synchronized(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipStreamSynchronize", bench.other)}


@experiment
def copy_from_host(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipMemcpy", bench.b, bytes(NBYTES), c_size_t(NBYTES), 1)}


@experiment
def synchronous_fill(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipMemset", bench.b, 1, c_size_t(NBYTES))}


@experiment
def event_query(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipEventQuery", bench.event)}


@experiment
def captured_event_query(bench: CaptureBench) -> Seen:
    bench.gpu("hipEventRecord", bench.event, bench.stream)
    return {"status": bench.gpu.status("hipEventQuery", bench.event)}


@experiment
def captured_event_synchronize(bench: CaptureBench) -> Seen:
    bench.gpu("hipEventRecord", bench.event, bench.stream)
    return {"status": bench.gpu.status("hipEventSynchronize", bench.event)}


@experiment
def event_of_another_stream(bench: CaptureBench) -> Seen:
    bench.gpu("hipEventRecord", bench.event, bench.other)
    return {"status": bench.gpu.status("hipEventSynchronize", bench.event)}


@experiment
def stream_query(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipStreamQuery", bench.stream)}


@experiment
def another_stream_queried(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipStreamQuery", bench.other)}


@experiment
def free(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipFree", bench.spare)}


@experiment
def pinned_allocation(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipHostMalloc", byref(c_void_p()), c_size_t(64), 0)}


@experiment
def exchanged_mode(bench: CaptureBench) -> Seen:
    mode = ctypes.c_int(2)
    bench.gpu("hipThreadExchangeStreamCaptureMode", byref(mode))
    bench.gpu("hipMalloc", byref(c_void_p()), c_size_t(64))
    return {"status": bench.gpu.status("hipDeviceSynchronize"), "mode before": mode.value}


@experiment
def kernel_on_another_stream_and_wait(bench: CaptureBench) -> Seen:
    bench.gpu.double_by_stub(bench.b, bench.other)
    return {"status": bench.gpu.status("hipStreamSynchronize", bench.other)}


# The same from a thread that captures nothing.


def _elsewhere(call: Callable[[], int]) -> Seen:
    with ThreadPoolExecutor(1) as pool:
        return {"status": pool.submit(call).result()}


@experiment
def another_thread_copies(bench: CaptureBench) -> Seen:
    return _elsewhere(lambda: bench.gpu.status("hipMemcpy", bench.b, bench.c, c_size_t(NBYTES), 3))


@experiment
def another_thread_allocates(bench: CaptureBench) -> Seen:
    return _elsewhere(lambda: bench.gpu.status("hipMalloc", byref(c_void_p()), c_size_t(64)))


@experiment
def another_thread_synchronizes_the_device(bench: CaptureBench) -> Seen:
    return _elsewhere(lambda: bench.gpu.status("hipDeviceSynchronize"))


@experiment
def another_thread_synchronizes_the_stream(bench: CaptureBench) -> Seen:
    return _elsewhere(lambda: bench.gpu.status("hipStreamSynchronize", bench.stream))


@experiment
def another_thread_queries_an_event(bench: CaptureBench) -> Seen:
    return _elsewhere(lambda: bench.gpu.status("hipEventQuery", bench.event))


@experiment
def another_thread_uses_the_null_stream(bench: CaptureBench) -> Seen:
    return _elsewhere(lambda: bench.gpu.double(bench.b, 1, None))


@experiment
def end_from_another_thread(bench: CaptureBench) -> Seen:
    graph = c_void_p(0xDEAD)
    seen = _elsewhere(lambda: bench.gpu.status("hipStreamEndCapture", bench.stream, byref(graph)))
    # Where it was taken, the program has its graph; begin again, so that what follows is as elsewhere.
    if not seen["status"]:
        bench.gpu("hipGraphDestroy", graph)
        bench.gpu("hipStreamBeginCapture", bench.stream, 2)
        bench.gpu.memset(bench.a, 1, bench.stream)
    return seen | {"handle": bool(graph.value)}


# Of no harm ---------------------------------------------------------------------------------------------


@experiment
def memory_information(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipMemGetInfo", byref(c_size_t()), byref(c_size_t()))}


@experiment
def new_stream(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipStreamCreate", byref(c_void_p()))}


@experiment
def new_event(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipEventCreate", byref(c_void_p()))}


@experiment
def pageable_copy(bench: CaptureBench) -> Seen:
    bench.host = ctypes.create_string_buffer(NBYTES)
    return {"status": bench.gpu.status("hipMemcpyAsync", bench.b, bench.host, c_size_t(NBYTES), 1, bench.stream)}


@experiment
def device_properties(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.status("hipGetDeviceProperties", ctypes.create_string_buffer(8192), 0)}


@experiment
def kernel_attributes(bench: CaptureBench) -> Seen:
    stub = c_void_p.in_dll(bench.gpu.stubs, "add_to")  # type: ignore[arg-type]
    attributes = ctypes.create_string_buffer(256)
    return {"status": bench.gpu.status("hipFuncGetAttributes", attributes, c_void_p(ctypes.addressof(stub)))}


@experiment
def refused_kernel(bench: CaptureBench) -> Seen:
    return {"status": bench.gpu.double(bench.b, 0, bench.stream)}  # a grid of no blocks


@experiment
def allocation_in_stream_order(bench: CaptureBench) -> Seen:
    made = c_void_p()
    status = bench.gpu.status("hipMallocAsync", byref(made), c_size_t(NBYTES), bench.stream)
    bench.gpu.memset(made.value or 0, 3, bench.stream)
    return {"status": status, "free": bench.gpu.status("hipFreeAsync", made.value, bench.stream)}


# Work on the null stream is neither refused nor recorded, and nothing is said.


@experiment
def null_stream_beside_a_blocking_stream(bench: CaptureBench) -> Seen:
    status = bench.gpu.double(bench.b, 1, None)
    copied = bench.gpu.status("hipMemcpyAsync", bench.spare, bench.b, c_size_t(NBYTES), 3, None)
    return {"status": status, "copy": copied, "synchronize": bench.gpu.status("hipStreamSynchronize", None)}


def perform(driver: GraphDriver, gpu: HipCalls, name: str, mode: int) -> Seen:
    """One experiment in one capture mode, and what is seen afterwards."""
    bench = CaptureBench(gpu, name in BLOCKING)
    gpu("hipEventRecord", bench.event, bench.other)
    gpu("hipStreamBeginCapture", bench.stream, mode)
    gpu.memset(bench.a, 1, bench.stream)
    seen = EXPERIMENTS[name](bench)
    gpu.status("hipMemsetAsync", bench.a, 2, c_size_t(NBYTES), bench.stream)
    if name in JOINED_LAST:
        seen["join"] = join(bench)
    graph = c_void_p(0xDEAD)
    seen["end"] = gpu.status("hipStreamEndCapture", bench.stream, byref(graph))
    seen["graph"] = bool(graph.value)
    if seen["end"]:
        seen["end again"] = gpu.status("hipStreamEndCapture", bench.stream, byref(graph))
    if graph.value:
        seen["nodes"] = len(driver.nodes(graph.value))
        graph_exec = driver.instantiate(graph.value)
        seen["replayed"] = None
        if name not in NOT_REPLAYED_FROM_7 or driver.version < (7,):
            driver.launch(graph_exec, bench.stream)
            driver.synchronize_stream(bench.stream)
            seen["replayed"] = gpu.read(bench.a) == 0x02020202
    gpu.fill(bench.a, 0)
    gpu.memset(bench.a, 5, bench.stream)
    gpu.status("hipStreamSynchronize", bench.stream)
    seen["stream works"] = gpu.read(bench.a) == 0x05050505
    return seen
