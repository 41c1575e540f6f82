"""Events with times inside captures: what the runtime refuses, what is said, and what replays record."""

from __future__ import annotations

import pytest
import torch

from gfxgraph import CaptureError


def captured(begun: torch.cuda.Event, ended: torch.cuda.Event) -> torch.cuda.CUDAGraph:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
    with torch.cuda.graph(graph):
        begun.record()
        x.add_(x.sum().item())
        ended.record()
    return graph


def test_an_event_of_a_capture_has_no_time(platform: str) -> None:
    """The error says where the event was recorded and what to do; recorded again outside, it has a time."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph = captured(begun, ended)
    graph.replay()
    with pytest.raises(CaptureError, match=r"(?s)event_has_no_time.*test_event_times.*external=True") as raised:
        begun.elapsed_time(ended)
    assert "error" in str(raised.value.__cause__)
    begun.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    assert begun.elapsed_time(ended) > 0


@pytest.mark.skipif(torch.version.hip is not None, reason="what HIP says there is not known")
@pytest.mark.parametrize("platform", ["gpu" if torch.cuda.is_available() else "cuda"], indirect=True)
@pytest.mark.parametrize("name", ["query", "synchronize", "wait"])
def test_an_event_of_another_capture(platform: str, name: str) -> None:
    """In a later capture it is refused with its line; recorded again there it is an event of that capture."""
    event, x = torch.cuda.Event(), torch.ones(4, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x + 1
        event.record()
    with pytest.raises(CaptureError, match=r"(?s)event_of_ended_capture.*test_event_times"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x + 1
            getattr(event, name)()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        event.record()
        getattr(event, name)()
        z = y * 2
    graph.replay()
    assert z.tolist() == [4.0] * 4


def test_external_events_are_recorded_by_each_replay(platform: str) -> None:
    """They are nodes of the graph."""
    if torch.version.hip is not None:
        pytest.skip("external events need CUDA")
    begun, ended = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    graph = captured(begun, ended)
    graph.replay()
    torch.cuda.synchronize()
    assert begun.elapsed_time(ended) > 0
