"""``torch.compile(model, backend="hipgraph_bridge")``, under its path in 1.1.0; importing it makes the name known."""

from gfxgraph.compile.backend import gfxgraph as hipgraph_bridge_backend
from gfxgraph.compile.backend import register

__all__ = ["hipgraph_bridge_backend"]

register()
