"""capture/patches/optimizers.py: which optimizers a capture looks at."""

from __future__ import annotations

import torch

from gfxgraph.capture.patches import optimizers


class Own(torch.optim.Optimizer):
    """As users write one: a step of its own."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        pass


def test_one_that_was_made_before_is_known() -> None:
    """Whatever its class."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    made = [Own([parameter], {"lr": 0.1}), torch.optim.Rprop([parameter]), type("Sub", (Own,), {})([parameter], {})]
    for each in made:
        optimizers._known.discard(each)
    optimizers.noted(torch.optim.Optimizer.__init__)
    assert all(each in optimizers._known for each in made)
