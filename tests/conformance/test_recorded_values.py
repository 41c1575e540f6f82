"""Which tensor is which on a tape, though programs hold weak references of their own."""

from __future__ import annotations

import weakref

import pytest
import torch

pytestmark = pytest.mark.any_platform


def entries(graph):
    return graph._program.segments[0].tape.entries


@pytest.mark.parametrize("callback", [None, lambda _: None])
def test_a_programs_own_weak_references_hide_no_value(capture, callback):
    """Inputs and results are known again, and what is changed in place stays the same value."""
    x = torch.ones(3, device="cuda")
    held = []

    def body():
        y = x + 1
        held.extend(weakref.ref(each, callback) for each in (x, y))
        y.add_(x)
        return y * x

    graph, out = capture(body, warm=False)
    added, changed, product = entries(graph)
    assert added.args[0] is changed.args[1] is product.args[1]
    assert added.outputs is changed.args[0] is changed.outputs is product.args[0]
    assert list(graph._program.externals) == [added.args[0]]
    assert not graph._program.segments[0].tape.aliases
    x.fill_(4)
    graph.replay()
    assert out.tolist() == [36.0] * 3


def test_graphs_that_share_an_input_have_each_its_own_value(capture):
    """A later capture takes no value of an earlier one, nor an outer one the values of an inner one."""
    x = torch.ones(3, device="cuda")
    first, _ = capture(lambda: x + 1, warm=False)
    inner = torch.cuda.CUDAGraph()

    def body():
        y = x + 2
        with torch.cuda.graph(inner, stream=torch.cuda.Stream()):
            _ = x + 3
        return y * x

    outer, out = capture(body, warm=False)
    programs = [graph._program for graph in (first, outer, inner)]
    values = [
        [value for value, tensor in program.externals.items() if tensor.data_ptr() == x.data_ptr()]
        for program in programs
    ]
    assert [len(each) for each in values] == [1, 1, 1]
    assert len({value.owner for (value,) in values}) == 3
    rows = [entry for step in outer._program.segments for entry in step.tape.entries]
    assert [entry.name for entry in rows] == ["aten::add", "aten::mul"]
    assert rows[0].args[0] is rows[1].args[1] is values[1][0]
    x.fill_(4)
    outer.replay()
    assert out.tolist() == [24.0] * 3


def test_work_on_host_tensors_is_done_once(capture):
    """Operations on lists of host tensors belong to Python, as those on single ones do: no replay repeats them."""
    x = torch.ones(4, device="cuda")

    def body():
        steps = [torch.zeros(()), torch.ones(2).split(1)[0]]
        torch._foreach_add_(steps, 1.0)
        return x * steps[0].item(), steps

    graph, (y, steps) = capture(body)
    assert graph.validate() and y.tolist() == [1.0] * 4 and [step.item() for step in steps] == [1.0, 2.0]
    assert graph._program.is_plain and [entry.name for entry in entries(graph)] == ["aten::mul"]
