"""rocm: the runtime half of a port; small things a ported program calls.

    from gfxgraph.rocm import attention, fp8_dtype, set_visible_devices

They are in ``gfxgraph_port.rocm``.
"""

from __future__ import annotations

from gfxgraph.errors import naming_a_missing_package

with naming_a_missing_package():
    from gfxgraph_port.rocm import *  # noqa: F403
    from gfxgraph_port.rocm import __all__ as __all__
