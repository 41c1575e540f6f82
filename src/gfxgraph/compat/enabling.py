"""Switching on and off, counters, and the three classes of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gfxgraph.compat.graph_classes import ConditionalGraph, ShapeBucketPool
from gfxgraph.process import health
from gfxgraph.process.bridge import is_enabled
from gfxgraph.startup.activation import disable, enable

if TYPE_CHECKING:
    from torch.cuda import CUDAGraph as BridgedCUDAGraph

__all__ = [
    "BridgedCUDAGraph", "ConditionalGraph", "ShapeBucketPool", "disable", "enable", "health_check", "is_enabled",
    "stats",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name != "BridgedCUDAGraph":
        raise AttributeError(name)
    # lazily: it is the class of the torch, or simulator, now in force
    from gfxgraph.startup import graph_class

    return graph_class.BridgedCUDAGraph


def stats() -> dict[str, object]:
    """The counters of ``gfxgraph.stats``; the mean time is 0.0, not None, before a replay was timed."""
    found = health.stats()
    return {**found, "avg_replay_us": found["avg_replay_us"] or 0.0}


def health_check() -> dict[str, object]:
    """The answers of ``gfxgraph.health_check``, with "unknown" and 0 where that has None."""
    found = health.health_check()
    unknown = {"gpu": "unknown", "rocm": "unknown", "vram_total_mb": 0, "vram_free_mb": 0}
    return {name: unknown.get(name) if value is None else value for name, value in found.items()}
