"""Events with times inside captures."""

from __future__ import annotations

import pytest
import torch


def captured(begun: torch.cuda.Event, ended: torch.cuda.Event) -> torch.cuda.CUDAGraph:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
    with torch.cuda.graph(graph):
        begun.record()
        x.add_(x.sum().item())
        ended.record()
    return graph


def test_external_events_are_recorded_by_each_replay(platform: str) -> None:
    """They are nodes of the graph."""
    if torch.version.hip is not None:
        pytest.skip("external events need CUDA")
    begun, ended = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    graph = captured(begun, ended)
    graph.replay()
    torch.cuda.synchronize()
    assert begun.elapsed_time(ended) > 0
