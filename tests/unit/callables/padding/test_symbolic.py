"""A trace goes without functionalization until an operation writes; what is written is a result either way."""

from __future__ import annotations

import contextlib

import pytest
import torch

from gfxgraph.callables.padding import symbolic

X = torch.zeros(4, 3)


def traced(fn):
    return symbolic.traced(fn, [X], {0: {0: "n"}})


def refusing():
    raise AssertionError("functionalized")


def test_what_writes_nothing_is_not_functionalized(monkeypatch):
    """Three operations in their order; a module's own tensor is an input."""
    monkeypatch.setattr(symbolic, "FunctionalTensorMode", refusing)
    made = traced(lambda x: ((x + 1).transpose(0, 1) * 2).relu())
    assert [entry.op._schema.name for entry in made.tape] == [
        "aten::add",
        "aten::transpose",
        "aten::mul",
        "aten::relu",
    ]
    assert not made.written


@pytest.mark.parametrize("caught", [(), (Exception,), (BaseException,)])
def test_what_writes_is_traced_again(caught):
    """A write to an argument is a result; the function's own ``except`` does not hide it."""

    def fn(x):
        with contextlib.suppress(*caught):
            x.add_(1)
        return x * 2

    made = traced(fn)
    assert list(made.written) == ["argument 0"]
    assert [entry.op._schema.name for entry in made.tape] == ["aten::add", "aten::mul"]
    assert made.tape[1].args[0] is made.tape[0].out


def test_a_view_of_a_tensor_written_to_is_of_what_was_written():
    """What is read through a view after a write comes from the write."""

    def fn(x):
        y = x + 1
        rows = y[1:]
        y.mul_(3)
        return rows - 1

    made = traced(fn)
    names = [entry.op._schema.name for entry in made.tape]
    assert names.index("aten::mul") < len(names) - names[::-1].index("aten::slice") - 1 < names.index("aten::sub")
    assert not made.written
