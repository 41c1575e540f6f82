"""What is traced are torch's operations on fake tensors; a write is one of them."""

from __future__ import annotations

import contextlib

import pytest
import torch

from gfxgraph.callables.padding import symbolic

X = torch.zeros(4, 3)


def names(fn):
    return [entry.op._schema.name for entry in symbolic.traced(fn, [X], {0: {0: "n"}}).tape]


def test_operations_are_in_their_order():
    """A module's own tensor is one among the arguments."""
    weight = torch.ones(4)
    made = names(lambda x: (x + 1).transpose(0, 1).mul(weight.shape[0]).relu())
    assert made == ["aten::add", "aten::transpose", "aten::mul", "aten::relu"]


@pytest.mark.parametrize("caught", [(), (Exception,), (BaseException,)])
def test_what_is_written_keeps_its_memory(caught):
    """The function's own ``except`` hides nothing; data are not touched."""

    def fn(x):
        with contextlib.suppress(*caught):
            x.add_(1)
        return x * 2

    made = symbolic.traced(fn, [X], {0: {0: "n"}})
    assert [entry.op._schema.name for entry in made.tape] == ["aten::add_", "aten::mul"]
    assert made.tape[1].args[0] is made.inputs[0]
    assert not X.any()


def test_a_tensor_that_is_no_argument_is_not_written_to():
    """Its memory is real."""
    own = torch.zeros(3)
    with pytest.raises(symbolic.NotTraced, match="no argument"):
        names(lambda x: x + own.add_(1))
    assert not own.any()
