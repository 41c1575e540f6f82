"""As ``gfxgraph.compat.engines``, under its path in 1.1.0."""

from gfxgraph.compat.engines import *  # noqa: F403
from gfxgraph.compat.engines import __all__ as __all__
