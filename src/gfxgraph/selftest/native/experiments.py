"""Things done inside a capture, on real HIP under the preload library: each call of the capture table, and more.

Each experiment begins a capture, records one fill, does its thing, records another and ends. Seen:
what the call answered, whether the stream works afterwards, and what a replay did.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_void_p
from typing import Any

from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.selftest.native.capture_table import CALLS, Answer, Trial, beside, fork
from gfxgraph.selftest.native.hip_calls import NBYTES, HipCalls

Seen = dict[str, Any]
JOINED_LAST = {"join_right_before_the_end"}
# HIP 7 keeps a graph's own memory in virtual memory, which the emulator does not have: a replay crashes there, with
# the preload library and without it.
NOT_REPLAYED_FROM_7 = {"allocation_in_stream_order"}
BLOCKING = {"null_stream_beside_a_blocking_stream"}  # captured on a stream that waits for the null stream


def stream_callback(trial: Trial) -> int:
    trial.kept = ctypes.CFUNCTYPE(None, c_void_p, ctypes.c_int, c_void_p)(lambda stream, status, data: None)
    return trial.ask("hipStreamAddCallback", trial.stream, trial.kept, None, 0)


def join(trial: Trial) -> int:
    trial.gpu("hipEventRecord", trial.on_side, trial.side)
    return trial.ask("hipStreamWaitEvent", trial.stream, trial.on_side, 0)


def exchanged_mode(trial: Trial) -> int:
    mode = ctypes.c_int(2)
    trial.gpu("hipThreadExchangeStreamCaptureMode", byref(mode))
    trial.gpu("hipMalloc", byref(c_void_p()), c_size_t(64))
    return trial.ask("hipDeviceSynchronize")


def kernel_on_another_stream_and_wait(trial: Trial) -> int:
    trial.gpu.double_by_stub(trial.b, trial.side)
    return trial.ask("hipStreamSynchronize", trial.side)


def end_from_another_thread(trial: Trial) -> int:
    graph = c_void_p(0xDEAD)
    status = beside(lambda trial: trial.ask("hipStreamEndCapture", trial.stream, byref(graph)))(trial)
    # Where it was taken, the program has its graph; begin again, so that what follows is as elsewhere.
    if not status:
        trial.gpu("hipGraphDestroy", graph)
        trial.gpu("hipStreamBeginCapture", trial.stream, 2)
        trial.gpu.memset(trial.a, 1, trial.stream)
    return status


def kernel_attributes(trial: Trial) -> int:
    stub = c_void_p.in_dll(trial.gpu.stubs, "add_to")  # type: ignore[arg-type]
    attributes = ctypes.create_string_buffer(256)
    return trial.ask("hipFuncGetAttributes", attributes, c_void_p(ctypes.addressof(stub)))


def allocation_in_stream_order(trial: Trial) -> int:
    made = c_void_p()
    status = trial.ask("hipMallocAsync", byref(made), c_size_t(NBYTES), trial.stream)
    trial.gpu.memset(made.value or 0, 3, trial.stream)
    return status or trial.ask("hipFreeAsync", made.value, trial.stream)


def null_stream_beside_a_blocking_stream(trial: Trial) -> int:
    """Work on the null stream is neither refused nor recorded, and nothing is said."""
    status = trial.gpu.double(trial.b, 1, None)
    status = status or trial.ask("hipMemcpyAsync", trial.spare, trial.b, c_size_t(NBYTES), 3, None)
    return status or trial.ask("hipStreamSynchronize", None)


def null_kernel(trial: Trial) -> int:
    return trial.gpu.double(trial.b, 1, None)


_MORE = (
    stream_callback, exchanged_mode, kernel_on_another_stream_and_wait, end_from_another_thread, kernel_attributes,
    allocation_in_stream_order, null_stream_beside_a_blocking_stream, null_kernel,
)  # fmt: skip
EXPERIMENTS: dict[str, Answer] = {
    "nothing": lambda trial: 0,
    **CALLS,
    **{function.__name__: function for function in _MORE},
    "graph_launch_on_another_stream": lambda trial: trial.ask("hipGraphLaunch", trial.graph_exec, trial.side),
    "fork_and_join": lambda trial: fork(trial) or join(trial),
    "join_right_before_the_end": fork,  # perform() joins it, once the origin has gone on
    "copy_of_no_bytes": lambda trial: trial.ask("hipMemcpyAsync", trial.b, trial.a, c_size_t(0), 3, trial.stream),
    "copy_from_host": lambda trial: trial.ask("hipMemcpy", trial.b, bytes(NBYTES), c_size_t(NBYTES), 1),
    "another_thread_synchronizes_the_stream": beside(CALLS["stream_synchronize"]),
    "another_thread_uses_the_null_stream": beside(null_kernel),
    "pageable_copy": lambda trial: trial.ask(
        "hipMemcpyAsync", trial.b, trial.host, c_size_t(NBYTES), 1, trial.stream
    ),
    "refused_kernel": lambda trial: trial.gpu.double(trial.b, 0, trial.stream),  # a grid of no blocks
}


def perform(driver: GraphDriver, gpu: HipCalls, name: str, mode: int) -> Seen:
    """One experiment in one capture mode, and what is seen afterwards."""
    trial = Trial(driver, gpu, mode)
    trial.stream = gpu.stream(blocking=True) if name in BLOCKING else trial.stream
    gpu("hipStreamBeginCapture", trial.stream, mode)
    gpu.memset(trial.a, 1, trial.stream)
    seen: Seen = {"status": EXPERIMENTS[name](trial)}
    gpu.status("hipMemsetAsync", trial.a, 2, c_size_t(NBYTES), trial.stream)
    if name in JOINED_LAST:
        seen["join"] = join(trial)
    graph = c_void_p(0xDEAD)
    seen["end"] = gpu.status("hipStreamEndCapture", trial.stream, byref(graph))
    seen["graph"] = bool(graph.value)
    if seen["end"]:
        seen["end again"] = gpu.status("hipStreamEndCapture", trial.stream, byref(graph))
    if graph.value:
        seen["nodes"] = len(driver.nodes(graph.value))
        graph_exec = driver.instantiate(graph.value)
        seen["replayed"] = None
        if name not in NOT_REPLAYED_FROM_7 or driver.version < (7,):
            driver.launch(graph_exec, trial.stream)
            driver.synchronize_stream(trial.stream)
            seen["replayed"] = gpu.read(trial.a) == 0x02020202
    gpu.fill(trial.a, 0)
    gpu.memset(trial.a, 5, trial.stream)
    gpu.status("hipStreamSynchronize", trial.stream)
    seen["stream works"] = gpu.read(trial.a) == 0x05050505
    return seen
