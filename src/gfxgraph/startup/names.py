"""``gfxgraph.BridgedCUDAGraph``: the class in force, or one over torch's own before ``enable``."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "BridgedCUDAGraph":
        raise AttributeError(name)
    import torch

    from gfxgraph.capture.graph import bridged_class
    from gfxgraph.process import activation

    if activation.is_enabled():
        return torch.cuda.CUDAGraph
    return bridged_class(torch.cuda.graphs.CUDAGraph)
