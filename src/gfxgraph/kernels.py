"""kernels: the operations of a decode step in Triton, and swapping them into models: ``gfxgraph_kernels``.

torch and Triton are imported when a name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gfxgraph.errors import naming_a_missing_package

if TYPE_CHECKING:
    from gfxgraph_kernels import *  # noqa: F403

with naming_a_missing_package():
    import gfxgraph_kernels

__all__ = gfxgraph_kernels.__all__


def __getattr__(name: str) -> object:
    return getattr(gfxgraph_kernels, name)
