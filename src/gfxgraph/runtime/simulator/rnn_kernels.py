"""Fused recurrent cells: CUDA has kernels for them, CPU builds do not.

Enters: gates, already multiplied by the weights.
Stays out: autograd; the backward cells are kernels too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gfxgraph.runtime.simulator.kernels import Kernels


def rnn_kernels(kernels: Kernels) -> dict[str, Callable[..., Any]]:
    return {}
