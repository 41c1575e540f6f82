"""Where this package's shared libraries are. Everything else is in gfxgraph itself."""

from __future__ import annotations

from pathlib import Path

LIBRARIES = ("gfxgraph_preload", "hipgraph_bridge", "cudagraph_compat")


def library_path(name: str = "gfxgraph_preload") -> Path | None:
    """Return the path of ``lib{name}.so``, or None where this installation has none."""
    path = Path(__file__).parent / f"lib{name}.so"
    return path if path.exists() else None
