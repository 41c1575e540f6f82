"""``gfxgraph.BridgedCUDAGraph``: the class in use, or before ``enable`` one derived from torch's own."""

from __future__ import annotations

from gfxgraph import torch_names
from gfxgraph.process import bridge


def __getattr__(name: str) -> object:
    if name != "BridgedCUDAGraph":
        raise AttributeError(name)
    # lazily: all of these need torch
    import torch

    from gfxgraph.capture.graph import bridged_class
    from gfxgraph.guard import guard

    if bridge.is_enabled() or torch_names.why_off("capture"):
        return torch.cuda.CUDAGraph
    guard.fill()
    return bridged_class(torch.cuda.graphs.CUDAGraph)
