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
from gfxgraph.selftest.native.hip_calls import NBYTES, HipCalls
from gfxgraph.types import CaptureStatus

MODES = ("global", "thread_local", "relaxed")
NOT_READY = 600
Cell = dict[str, Any]
Answer = Callable[["Trial"], int]


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

    def ask(self, symbol: str, *args: object) -> int:
        """The status of a call; that work has not ended yet is an answer, no refusal."""
        status = self.gpu.status(symbol, *args)
        return 0 if status == NOT_READY else status


def beside(ask: Answer) -> Answer:
    """The same call by a thread that captures nothing."""

    def in_a_thread(trial: Trial) -> int:
        said: list[int] = []
        thread = threading.Thread(target=lambda: said.append(ask(trial)))
        thread.start()
        thread.join()
        return said[0]

    return in_a_thread


def _about_captured(trial: Trial, symbol: str) -> int:
    trial.gpu("hipEventRecord", trial.captured, trial.stream)
    return trial.ask(symbol, trial.captured)


def _graph_destroy(trial: Trial) -> int:
    """As torch destroys a graph on ROCm: it synchronizes the device then."""
    return (
        trial.ask("hipGraphExecDestroy", trial.graph_exec)
        or trial.ask("hipGraphDestroy", trial.graph)
        or trial.ask("hipDeviceSynchronize")
    )


def fork(trial: Trial) -> int:
    """Work on a side stream that nothing joins."""
    trial.gpu("hipEventRecord", trial.captured, trial.stream)
    trial.gpu("hipStreamWaitEvent", trial.side, trial.captured, 0)
    trial.gpu.memset(trial.b, 3, trial.side)
    return 0


_BY_EITHER_THREAD: dict[str, Answer] = {
    "device_synchronize": lambda trial: trial.ask("hipDeviceSynchronize"),
    "event_query": lambda trial: trial.ask("hipEventQuery", trial.on_side),
    "event_query_own_stream": lambda trial: trial.ask("hipEventQuery", trial.own),
    "event_synchronize": lambda trial: trial.ask("hipEventSynchronize", trial.on_side),
    "malloc": lambda trial: trial.ask("hipMalloc", byref(c_void_p()), c_size_t(64)),
    "free": lambda trial: trial.ask("hipFree", trial.spare),
    "host_malloc": lambda trial: trial.ask("hipHostMalloc", byref(c_void_p()), c_size_t(64), 0),
    "memcpy_sync": lambda trial: trial.ask("hipMemcpy", trial.b, trial.a, c_size_t(NBYTES), 3),
    "memset_sync": lambda trial: trial.ask("hipMemset", trial.b, 1, c_size_t(NBYTES)),
    "module_load": lambda trial: trial.ask("hipModuleLoadData", byref(c_void_p()), trial.gpu.code),
    "module_unload": lambda trial: trial.ask("hipModuleUnload", trial.module),
    "instantiate": lambda trial: trial.ask(
        "hipGraphInstantiateWithFlags", byref(c_void_p()), trial.graph, c_ulonglong(0)
    ),
    "graph_destroy": _graph_destroy,
}
_OTHER_STREAM: dict[str, Answer] = {
    "stream_synchronize": lambda trial: trial.ask("hipStreamSynchronize", trial.side),
    "stream_query": lambda trial: trial.ask("hipStreamQuery", trial.side),
}
_ON_THE_STREAM: dict[str, Answer] = {
    "launch": lambda trial: trial.gpu.double(trial.a, 1, trial.stream),
    "launch_host_func": lambda trial: trial.ask("hipLaunchHostFunc", trial.stream, trial.nothing, None),
    "memcpy_async": lambda trial: trial.ask("hipMemcpyAsync", trial.b, trial.a, c_size_t(NBYTES), 3, trial.stream),
    "memset_async": lambda trial: trial.ask("hipMemsetAsync", trial.b, 1, c_size_t(NBYTES), trial.stream),
    "stream_synchronize": lambda trial: trial.ask("hipStreamSynchronize", trial.stream),
    "stream_query": lambda trial: trial.ask("hipStreamQuery", trial.stream),
    "memcpy_with_stream": lambda trial: trial.ask(
        "hipMemcpyWithStream", trial.host, trial.a, c_size_t(NBYTES), 2, trial.stream
    ),
    "graph_launch": lambda trial: trial.ask("hipGraphLaunch", trial.graph_exec, trial.stream),
    "wait_event_from_outside": lambda trial: trial.ask("hipStreamWaitEvent", trial.stream, trial.on_side, 0),
    # About an event of a capture: one that has ended, and one that runs.
    "wait_event_of_ended": lambda trial: trial.ask("hipStreamWaitEvent", trial.stream, trial.ended, 0),
    "event_query_of_ended": lambda trial: trial.ask("hipEventQuery", trial.ended),
    "event_synchronize_of_ended": lambda trial: trial.ask("hipEventSynchronize", trial.ended),
    "event_query_captured": lambda trial: _about_captured(trial, "hipEventQuery"),
    "event_synchronize_captured": lambda trial: _about_captured(trial, "hipEventSynchronize"),
}
_AFTER_A_REFUSED_END: dict[str, Answer] = {
    "begin_again": lambda trial: trial.ask("hipStreamBeginCapture", trial.stream, trial.mode),
    "fork_not_joined": fork,
}
OF_CAPTURE = tuple(_AFTER_A_REFUSED_END)
"""Not of a profile's [calls] but of its [capture]."""
CALLS: dict[str, Answer] = {
    **_ON_THE_STREAM,
    **{f"{name}_other": ask for name, ask in _OTHER_STREAM.items()},
    "launch_other": lambda trial: trial.gpu.double(trial.b, 1, trial.side),
    **_BY_EITHER_THREAD,
    **{f"thread_{name}": beside(ask) for name, ask in (_OTHER_STREAM | _BY_EITHER_THREAD).items()},
    **_AFTER_A_REFUSED_END,
}
"""Every call of a profile, by its name there. ``thread_`` is the same call by a thread that captures nothing."""


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


def rule(cell: Mapping[str, object]) -> str:
    """A cell in the words of a profile."""
    if cell["status"]:
        return f"refuses {cell['status']}" + ("" if cell["lives"] else " and invalidates")
    return "records" if cell.get("nodes") else "runs" if cell["lives"] else "invalidates"


def cells() -> list[tuple[str, str]]:
    return [(name, mode) for name in CALLS for mode in MODES]
