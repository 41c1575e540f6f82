"""``BridgedCUDAGraph``, under its path in 1.1.0."""

from hipgraph_bridge import __getattr__ as __getattr__  # lazily: the class of the torch, or simulator, now in force

__all__ = ["BridgedCUDAGraph", "ShapeBucketPool"]  # noqa: F822  (by __getattr__)
