"""hipgraph_bridge: the module paths of gfxgraph 1.1.0.

    from hipgraph_bridge.guard import make_safe

Each module here hands on what ``gfxgraph.compat`` has. docs/older-names.md says what differs.
"""

from __future__ import annotations

from typing import Any

from gfxgraph import __version__

__all__ = ["BridgedCUDAGraph", "ShapeBucketPool", "__version__", "init", "shutdown"]


def __getattr__(name: str) -> Any:
    if name not in ("BridgedCUDAGraph", "ShapeBucketPool"):
        raise AttributeError(f"module 'hipgraph_bridge' has no attribute {name!r}")
    # lazily: they need torch
    from gfxgraph import compat

    return getattr(compat, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def init() -> int:
    """Initialize the native library as C programs do, ``hgb_init``; -1 where there is none, which loses nothing."""
    # lazily: it is ctypes' room
    from gfxgraph import _native

    return _native.call_older("hgb_init")


def shutdown() -> int:
    """The end of ``init``; -1 where there is no native library."""
    # lazily: it is ctypes' room
    from gfxgraph import _native

    return _native.call_older("hgb_shutdown")
