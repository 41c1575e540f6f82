"""As ``gfxgraph.compat.diagnosis``, under its path in 1.1.0."""

from gfxgraph.compat.diagnosis import *  # noqa: F403
from gfxgraph.compat.diagnosis import CODES
from gfxgraph.compat.diagnosis import __all__ as __all__

# What 1.1.0's own tests walk through: its conditions, their names first.
_TABLE = [(code,) for code in CODES]
