"""Streams, events, forks and joins as torch.cuda has them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

import gfxgraph_simulator as simulator


def test_streams_are_torch_streams(sim: simulator.Simulator) -> None:
    """torch.cuda.Stream keeps its class relations and has a handle of its own."""
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    assert isinstance(one, torch.Stream) and isinstance(one, torch.cuda.Stream)
    assert one != other and one.cuda_stream != other.cuda_stream
    assert torch.cuda.default_stream().cuda_stream == 0
    assert torch.cuda.ExternalStream(one.cuda_stream) == one


def test_thirty_third_stream_is_the_first_again(sim: simulator.Simulator) -> None:
    """c10 hands out 32 streams round robin; "a new stream" may be an old one."""
    handles = [torch.cuda.Stream().cuda_stream for _ in range(33)]
    assert len(set(handles)) == 32 and handles[32] == handles[0]


@pytest.mark.skipif(not hasattr(torch.Stream, "is_capturing"), reason="came with torch 2.13")
def test_streams_of_every_class_know_that_they_capture(sim: simulator.Simulator) -> None:
    """torch asks the generic stream, in C++, before an optimizer's step; after ``undo`` none captures."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        assert not torch.accelerator.current_stream().is_capturing()
        graph.capture_begin()
        current = torch.accelerator.current_stream()
        assert type(current) is torch.Stream and current.is_capturing() and stream.is_capturing()
        assert not torch.cuda.Stream().is_capturing()
        graph.capture_end()
        assert not current.is_capturing()


def test_current_stream_is_per_thread(sim: simulator.Simulator) -> None:
    """A new thread starts on the default stream."""
    seen = []
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        here = torch.cuda.current_stream()
        assert torch._C._cuda_getCurrentRawStream(0) == here.cuda_stream != 0
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.cuda.default_stream()] and torch.cuda.current_stream() == seen[0]


def test_fork_and_join_records_both_branches(sim: simulator.Simulator) -> None:
    """A side stream that waits for the capturing one takes part, with edges to show for it."""
    graph, side, x = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.Stream(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        a = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            b = a * 2
        c = a * 3
        torch.cuda.current_stream().wait_stream(side)
        d = b + c
    graph.instantiate()
    graph.replay()
    assert d.tolist() == [10, 10, 10]
    nodes = sim.device.handles.graphs[graph.raw_cuda_graph()].nodes
    assert [len(node.parents) for node in nodes] == [0, 1, 1, 2]
    with torch.cuda.stream(side):
        assert not torch.cuda.is_current_stream_capturing()


def test_unjoined_work_is_an_error(sim: simulator.Simulator) -> None:
    """A branch nobody waits for: 904 at the end."""
    graph, side, x = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.ones(3, device="cuda")
    with pytest.raises(torch.AcceleratorError, match="capturing stream has unjoined work"):
        with torch.cuda.graph(graph):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x + 1


OF_ENDED: dict[str, Callable[[torch.cuda.Event], object]] = {
    "wait": lambda event: torch.cuda.current_stream().wait_event(event),
    "query": lambda event: event.query(),
    "synchronize": lambda event: event.synchronize(),
    "elapsed_time": lambda event: event.elapsed_time(event),
}


@pytest.mark.parametrize("name", OF_ENDED)
def test_event_of_an_ended_capture(sim: simulator.Simulator, name: str) -> None:
    """What a finished capture recorded is no event outside it: 1, and in another capture, that one is dead."""
    graph, x, event = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda"), torch.cuda.Event(enable_timing=True)
    with torch.cuda.graph(graph):
        x + 1
        event.record()
    with pytest.raises(torch.AcceleratorError, match="invalid argument"):
        OF_ENDED[name](event)
    if name != "elapsed_time":
        with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(torch.AcceleratorError, match="argument"):
                OF_ENDED[name](event)


def test_two_captures_must_not_merge(sim: simulator.Simulator) -> None:
    """An event of one capture awaited in another: 902, and both are dead."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for stream in streams:
        sim.device.begin_capture(sim.device.stream(stream.stream_id), "relaxed")
    event = torch.cuda.Event()
    event.record(streams[0])
    with pytest.raises(torch.AcceleratorError, match="merge of separate capture sequences"):
        streams[1].wait_event(event)
    assert all(capture.invalidated for capture in sim.device.captures)


def test_other_threads_break_a_global_capture_only(sim: simulator.Simulator) -> None:
    """A new segment mapped by another thread kills a capture in global mode, no other."""

    def allocate_elsewhere() -> None:
        thread = threading.Thread(target=lambda: torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
        thread.start()
        thread.join()

    for mode, survives in (("thread_local", True), ("relaxed", True)):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            torch.ones(3, device="cuda")
            allocate_elsewhere()
        assert survives
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    hook, threading.excepthook = threading.excepthook, lambda args: None
    try:
        with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
            with torch.cuda.graph(graph):
                torch.ones(3, device="cuda")
                allocate_elsewhere()
    finally:
        threading.excepthook = hook


def test_timing_events(sim: simulator.Simulator) -> None:
    """Events measure wall time between their records."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    end.record()
    end.synchronize()
    assert begin.query() and begin.elapsed_time(end) >= 0
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(end)
