"""``torch.ops.gfxgraph.conditional_select(pred, a, b)``, under its path in 1.1.0; importing it registers it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["LIBRARY", "conditional_select"]

LIBRARY = torch.library.Library("gfxgraph", "FRAGMENT")
LIBRARY.define("conditional_select(Tensor pred, Tensor a, Tensor b) -> Tensor")


def conditional_select(pred: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where ``pred`` is not zero, else ``b``; on any device, traced and differentiable."""
    return torch.where(pred.to(torch.bool), a, b)


LIBRARY.impl("conditional_select", conditional_select, "CompositeImplicitAutograd")
