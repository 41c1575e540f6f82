"""Copies of tensors inside a graph: nodes that each replay runs; the first layer that differs is found by comparing."""

from __future__ import annotations

import numpy
import pytest
import torch

import gfxgraph
from gfxgraph.reporting.dump import differences
from tests.conformance.test_profile import Net, captured, model  # noqa: F401  # a fixture

pytestmark = pytest.mark.any_platform


def test_modules_are_read_after_each_replay(model, tmp_path):  # noqa: F811
    """The results of matching modules, as of the last replay, equal to eager's on the same input."""
    net, x = model
    with gfxgraph.dump("layers.*.mlp", "head") as inside:
        graph, _ = captured(net, x)
    for factor in (1.0, 2.0):
        x.mul_(factor)
        graph.replay()
        with gfxgraph.dump("layers.*.mlp", "head") as eager, torch.no_grad():
            net(x)
        want, found = eager.read(), inside.read()
        assert list(found) == list(want) == ["layers.0.mlp", "layers.1.mlp", "layers.2.mlp", "head"]
        for name in want:
            torch.testing.assert_close(found[name], want[name])
    assert not torch.nn.modules.module._global_forward_hooks
    inside.save(tmp_path / "a.npz")
    assert list(numpy.load(tmp_path / "a.npz").files) == list(found)


def test_lines_are_copied(platform):
    """The result of a line, in a capture that is replayed."""
    x = torch.ones(4, device="cuda")
    with gfxgraph.dump("test_dump.py:41") as found:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 3
            y.add_(1)
    x.fill_(2)
    graph.replay()
    (name,) = found.read()
    assert name == "test_dump.py:41" and found.read()[name].tolist() == [6.0] * 4


def test_the_first_difference_comes_first():
    """In the order of execution; equal infinities and NaN are no difference; a missing name or shape is one."""
    one = {"a": numpy.array([1.0, numpy.inf, numpy.nan]), "b": numpy.ones(3), "c": numpy.ones(2), "d": numpy.ones(1)}
    other = {**one, "b": numpy.array([1.0, 1.0, 1.5]), "c": numpy.ones(3)}
    del other["d"]
    found = {name: (most, what) for name, most, _, what in differences(one, other)}
    assert list(found) == ["a", "b", "c", "d"] and found["a"] == (0.0, "") and found["b"] == (0.5, "")
    assert "shapes" in found["c"][1] and "only in one" in found["d"][1]
