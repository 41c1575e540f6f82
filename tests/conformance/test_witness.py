"""Values that torch's operations assert on are seen on the host, before they end the process's use of the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from gfxgraph.callables.padding.witness import ChecksValues, WouldFault
from tests.conformance.conftest import PLATFORMS


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="cuda")


def floats(*size: int) -> torch.Tensor:
    return torch.rand(*size, device="cuda")


# What each does with a value that is allowed and with one that is not.
RULES: dict[str, tuple[Callable[[int], object], int, int]] = {
    "embedding": (lambda i: F.embedding(ints(0, i), floats(4, 2)), 3, 4),
    "index": (lambda i: floats(4, 2)[ints(0, i)], -4, -5),
    "index_put": (lambda i: floats(4, 2).index_put((ints(0, i),), floats(2, 2)), 3, 4),
    "index_select": (lambda i: floats(4, 2).index_select(0, ints(0, i)), 3, -1),
    "gather": (lambda i: floats(4).gather(0, ints(0, i)), 3, 4),
    "scatter": (lambda i: floats(4).scatter(0, ints(0, i), floats(2)), 3, 4),
    "index_add": (lambda i: floats(4).index_add(0, ints(0, i), floats(2)), 3, 4),
    "take": (lambda i: floats(2, 2).take(ints(0, i)), -4, 4),
    "nll_loss": (lambda i: F.nll_loss(floats(2, 3), ints(0, i)), -100, 3),
    "multi_margin_loss": (lambda i: F.multi_margin_loss(floats(2, 3), ints(0, i)), 2, 3),
    "binary_cross_entropy": (lambda i: F.binary_cross_entropy(floats(2) * 0 + i, floats(2)), 1, 2),
    "multinomial": (lambda i: torch.multinomial(ints(1, 1, i).float(), 1), 0, -1),
    "masked_scatter": (lambda i: floats(5).masked_scatter(ints(0, 1, 2, 3, 4) < i, floats(3)), 3, 4),
    "max_unpool": (lambda i: F.max_unpool2d(floats(1, 1, 1, 1), ints(i).view(1, 1, 1, 1), 2), 3, 4),
}


@pytest.mark.parametrize("platform", PLATFORMS[:1], indirect=True)
@pytest.mark.parametrize("name", RULES)
def test_a_value_that_is_not_allowed_is_seen_before_its_operation(name: str, platform: str) -> None:
    """One that is allowed passes; one that is not stops the run in Python."""
    step, allowed, forbidden = RULES[name]
    with ChecksValues():
        step(allowed)
    with pytest.raises(WouldFault, match=r"is|asks|are"), ChecksValues():
        step(forbidden)
