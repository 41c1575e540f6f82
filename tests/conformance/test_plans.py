"""Buckets that nobody named; captures dropped by the program."""

from __future__ import annotations

import pytest
import torch

import gfxgraph

pytestmark = pytest.mark.any_platform


@pytest.fixture(autouse=True)
def _platform(platform):
    with torch.no_grad():
        yield


def step(x):
    return x * 2 + 1


def test_auto_has_four_buckets_an_octave():
    """Captured when a call first needs one."""
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets="auto")
    for n in (33, 40, 39, 33, 41, 48, 40, 47):
        x = torch.randn(n, 3, device="cuda")
        assert torch.equal(g(x), step(x))
    assert "n=40: " in g.explain() and "n=48: " in g.explain() and g.stats()["signatures"] == 2


def test_reset_drops_every_capture():
    """The next calls begin anew, with the same results; replays so far stay counted."""
    g = gfxgraph.graphed(step)
    x = torch.randn(4, device="cuda")
    for _ in range(3):
        g(x)
    before = g.stats()
    g.reset()
    assert g.stats() == {**before, "signatures": 0} and before["replays"] >= 1
    assert torch.equal(g(x), step(x)) and torch.equal(g(x), step(x))
    assert g.stats()["captures"] == before["captures"] + 1 and "1 signatures" in repr(g)
