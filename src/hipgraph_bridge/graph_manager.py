"""``BridgedCUDAGraph``, under its path in 1.1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gfxgraph.compat.graphs import ShapeBucketPool

if TYPE_CHECKING:
    from torch.cuda import CUDAGraph as BridgedCUDAGraph

__all__ = ["BridgedCUDAGraph", "ShapeBucketPool"]


def __getattr__(name: str) -> Any:
    if name != "BridgedCUDAGraph":
        raise AttributeError(f"module 'hipgraph_bridge.graph_manager' has no attribute {name!r}")
    # lazily: it is the class of the torch, or simulator, now in force
    from gfxgraph.startup import graph_class

    return graph_class.BridgedCUDAGraph
