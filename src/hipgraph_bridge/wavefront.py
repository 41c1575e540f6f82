"""As ``gfxgraph.compat.waves``, under its path in 1.1.0."""

from gfxgraph.compat.waves import *  # noqa: F403
from gfxgraph.compat.waves import __all__ as __all__
