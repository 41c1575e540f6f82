"""``ConditionalGraph``, under its path in 1.1.0."""

from gfxgraph.compat.graphs import ConditionalGraph

__all__ = ["ConditionalGraph"]
