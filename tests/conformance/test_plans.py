"""Buckets learned from the sizes of calls, handed on; captures dropped by the program."""

from __future__ import annotations

import pytest
import torch

import gfxgraph
from gfxgraph.callables.buckets import LEARN_AFTER

pytestmark = pytest.mark.any_platform
SIZES = (33, 40)


@pytest.fixture(autouse=True)
def _platform(platform):
    with torch.no_grad():
        yield


def step(x):
    return x * 2 + 1


def learned():
    """A callable whose calls have had two sizes, often enough."""
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets="auto")
    for i in range(LEARN_AFTER + 4):
        x = torch.randn(SIZES[i % 2], 3, device="cuda")
        assert torch.equal(g(x), step(x))
    return g


def test_sizes_are_learned():
    """After some calls the buckets are the sizes that came, and what was captured for others is dropped."""
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets="auto")
    for _ in range(4):
        g(torch.ones(SIZES[0], 3, device="cuda"))
    assert g.plan().dims["n"].sizes == (64,) and "64" in str(g.plan())
    g = learned()
    assert g.plan().dims["n"].sizes == SIZES and sum(g.plan().seen.values()) >= LEARN_AFTER
    assert any(each["reason"] == "another plan of buckets was learned" for each in gfxgraph.stats()["events"])


def test_a_plan_is_handed_on():
    """What one callable has learned another begins with, and learns no further."""
    g = learned()
    again = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=g.plan())
    for _ in range(3):
        x = torch.randn(35, 3, device="cuda")
        assert torch.equal(again(x), step(x))
    assert again.plan().dims == g.plan().dims and again.stats()["replays"] >= 1


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
