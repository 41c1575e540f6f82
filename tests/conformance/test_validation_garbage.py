"""Memory that a program takes and never writes is no difference between replay and eager."""

from __future__ import annotations

import torch


def test_unwritten_memory_is_no_mismatch(capture):
    """An output of empty() holds anything; validation passes over it, and only over it."""
    x = torch.randn(64, device="cuda")

    def body():
        scratch = torch.empty(64, device="cuda")
        view = scratch[:8]
        filled = torch.empty(64, device="cuda")
        filled.copy_(x * 2)
        return scratch, view, filled

    graph, (scratch, _, filled) = capture(body)
    for number in range(3):
        scratch.fill_(float(number))
        assert graph.validate()
    assert torch.equal(filled, x * 2)
