"""As ``gfxgraph.compat.devices``, under its path in 1.1.0."""

from gfxgraph.compat.devices import *  # noqa: F403
from gfxgraph.compat.devices import __all__ as __all__
