"""What each call does in a capture, on the HIP that is there: the table that the simulator's profiles are made from.

Problem: what HIP answers to a call beside a capture differs by release, by the capture's mode and by the thread that
calls, and no text of AMD's says it all. Idea: one process a cell begins a capture, records one fill, makes the call
and ends the capture. What the call answered, whether the capture lives and whether its graph grew make the cell:
``records``, ``runs``, ``refuses CODE``, ``refuses CODE and invalidates``, or how the process ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, byref, c_int, c_size_t, c_ulonglong, c_void_p, create_string_buffer
from typing import Any

from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.selftest.native.machine import NBYTES, HipCalls
from gfxgraph.types import CaptureStatus

MODES = ("global", "thread_local", "relaxed")
NOT_READY = 600
Cell = dict[str, Any]
Answer = Callable[["Trial"], int]
CALLS: dict[str, Answer] = {}
"""Every call of a profile, by its name there. ``thread_`` is the same call by a thread that captures nothing."""


class Trial:
    """One capture, and beforehand everything that a call of the table may need."""

    def __init__(self, driver: GraphDriver, gpu: HipCalls, mode: int) -> None:
        self.driver, self.gpu, self.mode = driver, gpu, mode
        self.stream, self.side, self.third = gpu.stream(), gpu.stream(), gpu.stream()
        self.a, self.b, self.spare = gpu.buffer(1), gpu.buffer(2), gpu.buffer(3)
        self.host, self.kept = create_string_buffer(NBYTES), object()
        self.nothing = CFUNCTYPE(None, c_void_p)(lambda _: None)
        self.on_side, self.own, self.captured, self.ended = (gpu.event() for _ in range(4))
        gpu("hipEventRecord", self.on_side, self.side)
        gpu("hipEventRecord", self.own, self.stream)
        driver.begin_capture(self.third)
        gpu.memset(self.spare, 7, self.third)
        gpu("hipEventRecord", self.ended, self.third)
        self.graph = driver.end_capture(self.third)
        self.graph_exec = driver.instantiate(self.graph)
        self.module = gpu.load() if gpu.code else None
        driver.synchronize_stream(self.stream)
        driver.synchronize_stream(self.side)

    def ask(self, symbol: str, *args: Any) -> int:
        """The status of a call; that work has not ended yet is an answer, no refusal."""
        status = self.gpu.status(symbol, *args)
        return 0 if status == NOT_READY else status


def call(function: Answer) -> Answer:
    CALLS[function.__name__] = function
    return function


def everywhere(function: Answer) -> Answer:
    CALLS[f"thread_{function.__name__}"] = lambda trial: in_a_thread(lambda: function(trial))
    return call(function)


def in_a_thread(ask: Callable[[], int]) -> int:
    said: list[int] = []
    thread = threading.Thread(target=lambda: said.append(ask()))
    thread.start()
    thread.join()
    return said[0]


# On the capturing stream.


@call
def launch(trial: Trial) -> int:
    return trial.gpu.double(trial.a, 1, trial.stream)


@call
def launch_host_func(trial: Trial) -> int:
    return trial.ask("hipLaunchHostFunc", trial.stream, trial.nothing, None)


@call
def memcpy_async(trial: Trial) -> int:
    return trial.ask("hipMemcpyAsync", trial.b, trial.a, c_size_t(NBYTES), 3, trial.stream)


@call
def memset_async(trial: Trial) -> int:
    return trial.ask("hipMemsetAsync", trial.b, 1, c_size_t(NBYTES), trial.stream)


@call
def stream_synchronize(trial: Trial) -> int:
    return trial.ask("hipStreamSynchronize", trial.stream)


@call
def stream_query(trial: Trial) -> int:
    return trial.ask("hipStreamQuery", trial.stream)


@call
def memcpy_with_stream(trial: Trial) -> int:
    return trial.ask("hipMemcpyWithStream", trial.host, trial.a, c_size_t(NBYTES), 2, trial.stream)


@call
def graph_launch(trial: Trial) -> int:
    return trial.ask("hipGraphLaunch", trial.graph_exec, trial.stream)


@call
def wait_event_from_outside(trial: Trial) -> int:
    return trial.ask("hipStreamWaitEvent", trial.stream, trial.on_side, 0)


# About an event of a capture: one that runs, and one that has ended.


@call
def wait_event_of_ended(trial: Trial) -> int:
    return trial.ask("hipStreamWaitEvent", trial.stream, trial.ended, 0)


@call
def event_query_of_ended(trial: Trial) -> int:
    return trial.ask("hipEventQuery", trial.ended)


@call
def event_synchronize_of_ended(trial: Trial) -> int:
    return trial.ask("hipEventSynchronize", trial.ended)


@call
def event_query_captured(trial: Trial) -> int:
    trial.gpu("hipEventRecord", trial.captured, trial.stream)
    return trial.ask("hipEventQuery", trial.captured)


@call
def event_synchronize_captured(trial: Trial) -> int:
    trial.gpu("hipEventRecord", trial.captured, trial.stream)
    return trial.ask("hipEventSynchronize", trial.captured)


# About something that does not capture, by the capturing thread and by another.


@call
def stream_synchronize_other(trial: Trial) -> int:
    return trial.ask("hipStreamSynchronize", trial.side)


@call
def stream_query_other(trial: Trial) -> int:
    return trial.ask("hipStreamQuery", trial.side)


CALLS["thread_stream_synchronize"] = lambda trial: in_a_thread(lambda: stream_synchronize_other(trial))
CALLS["thread_stream_query"] = lambda trial: in_a_thread(lambda: stream_query_other(trial))


@call
def launch_other(trial: Trial) -> int:
    return trial.gpu.double(trial.b, 1, trial.side)


@everywhere
def device_synchronize(trial: Trial) -> int:
    return trial.ask("hipDeviceSynchronize")


@everywhere
def event_query(trial: Trial) -> int:
    return trial.ask("hipEventQuery", trial.on_side)


@everywhere
def event_query_own_stream(trial: Trial) -> int:
    return trial.ask("hipEventQuery", trial.own)


@everywhere
def event_synchronize(trial: Trial) -> int:
    return trial.ask("hipEventSynchronize", trial.on_side)


@everywhere
def malloc(trial: Trial) -> int:
    return trial.ask("hipMalloc", byref(c_void_p()), c_size_t(64))


@everywhere
def free(trial: Trial) -> int:
    return trial.ask("hipFree", trial.spare)


@everywhere
def host_malloc(trial: Trial) -> int:
    return trial.ask("hipHostMalloc", byref(c_void_p()), c_size_t(64), 0)


@everywhere
def memcpy_sync(trial: Trial) -> int:
    return trial.ask("hipMemcpy", trial.b, trial.a, c_size_t(NBYTES), 3)


@everywhere
def memset_sync(trial: Trial) -> int:
    return trial.ask("hipMemset", trial.b, 1, c_size_t(NBYTES))


@everywhere
def module_load(trial: Trial) -> int:
    return trial.ask("hipModuleLoadData", byref(c_void_p()), trial.gpu.code)


@everywhere
def module_unload(trial: Trial) -> int:
    return trial.ask("hipModuleUnload", trial.module)


@everywhere
def instantiate(trial: Trial) -> int:
    return trial.ask("hipGraphInstantiateWithFlags", byref(c_void_p()), trial.graph, c_ulonglong(0))


@everywhere
def graph_destroy(trial: Trial) -> int:
    """As torch destroys a graph on ROCm: it synchronizes the device then."""
    for symbol, *given in (
        ("hipGraphExecDestroy", trial.graph_exec),
        ("hipGraphDestroy", trial.graph),
        ("hipDeviceSynchronize",),
    ):
        if status := trial.ask(str(symbol), *given):
            return status
    return 0


# Not of [calls] but of [capture]: what is left after an end that was refused.


@call
def begin_again(trial: Trial) -> int:
    return trial.ask("hipStreamBeginCapture", trial.stream, trial.mode)


@call
def fork_not_joined(trial: Trial) -> int:
    trial.gpu("hipEventRecord", trial.captured, trial.stream)
    trial.gpu("hipStreamWaitEvent", trial.side, trial.captured, 0)
    trial.gpu.memset(trial.b, 3, trial.side)
    return 0


OF_CAPTURE = ("begin_again", "fork_not_joined")


def measure(driver: GraphDriver, gpu: HipCalls, name: str, mode: str) -> Cell:
    """One cell: begin, a fill, the call, end."""
    trial = Trial(driver, gpu, MODES.index(mode))
    driver.begin_capture(trial.stream, trial.mode)
    gpu.memset(trial.a, 1, trial.stream)
    graph = driver.capture_info(trial.stream).graph
    before = len(driver.nodes(graph))
    status = CALLS[name](trial)
    lives = driver.capture_info(trial.stream).status is CaptureStatus.ACTIVE
    cell: Cell = {"status": status, "lives": lives}
    if lives:
        cell["nodes"] = len(driver.nodes(graph)) - before
    cell["end"] = gpu.status("hipStreamEndCapture", trial.stream, byref(c_void_p()))
    after = c_int()
    gpu("hipStreamIsCapturing", trial.stream, byref(after))
    cell["after"] = after.value
    cell["rule"] = rule(cell)
    return cell


def rule(cell: Mapping[str, Any]) -> str:
    """A cell in the words of a profile."""
    if cell["status"]:
        return f"refuses {cell['status']}" + ("" if cell["lives"] else " and invalidates")
    return "records" if cell.get("nodes") else "runs" if cell["lives"] else "invalidates"


def cells() -> list[tuple[str, str]]:
    return [(name, mode) for name in CALLS for mode in MODES]
