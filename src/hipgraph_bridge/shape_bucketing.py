"""``ShapeBucketPool``, under its path in 1.1.0."""

from gfxgraph.compat.graphs import ShapeBucketPool

__all__ = ["ShapeBucketPool"]
