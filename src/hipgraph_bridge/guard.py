"""As ``gfxgraph.compat.guard``, under its path in 1.1.0."""

from gfxgraph.compat.guard import *  # noqa: F403
from gfxgraph.compat.guard import __all__ as __all__
