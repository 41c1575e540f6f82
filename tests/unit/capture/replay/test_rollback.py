"""What work changes is saved before it and put back after."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import gfxgraph_simulator as simulator
from gfxgraph.capture.replay.graph_tensors import Layout
from gfxgraph.capture.replay.rollback import Rollback


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """A device whose stream can be waited for."""
    with simulator.install():
        yield


def test_tensors_and_draws_are_put_back() -> None:
    """Tensors and random states are as they were, as often as it is asked for."""
    x = torch.arange(4.0)
    before = Rollback([x], [torch.default_generator])
    for _ in range(2):
        x += 1
        torch.rand(3)
        assert before.has_drawn()
        before.restore()
        assert x.tolist() == [0, 1, 2, 3] and not before.has_drawn()


def test_what_was_saved_first_is_put_back() -> None:
    """A tensor saved twice keeps its older content; so do views that overlap."""
    x = torch.zeros(4)
    before = Rollback()
    assert not before
    before.save([x])
    x.fill_(1)
    before.save([x, x[1:3]])
    assert before and len(before.tensors) == 2
    x.fill_(2)
    before.restore()
    assert x.tolist() == [0, 0, 0, 0]


def test_the_same_place_as_another_type_is_another_place() -> None:
    """Four bytes saved as bytes do not stand for four numbers at the same address."""
    x = torch.zeros(4)
    before = Rollback([x.view(torch.uint8)[:4], x])
    x.fill_(3)
    before.restore()
    assert x.tolist() == [0, 0, 0, 0] and not isinstance(before.tensors[0], Layout)


def test_one_that_cannot_be_put_back_keeps_no_other_from_it() -> None:
    """The error is raised when all else is as it was, what somebody else puts back included."""
    good, shrunk, called = torch.zeros(2), torch.zeros(2), []
    before = Rollback([good, shrunk])
    before.save_other(lambda: called.append(1))
    good.fill_(1)
    shrunk.resize_(3)
    with pytest.raises(RuntimeError):
        before.restore()
    assert good.tolist() == [0, 0] and called == [1]


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.to_sparse(),
        lambda t: t.to_sparse_csr(),
        lambda t: t.to_sparse_csc(),
        lambda t: torch.quantize_per_tensor(t, 0.5, 0, torch.quint8),
        lambda t: torch.nested.as_nested_tensor([t, t[:1]]),
        lambda t: torch.nested.as_nested_tensor([t, t[:1]], layout=torch.jagged),
    ],
    ids=["coo", "csr", "csc", "quantized", "nested", "jagged"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_without_a_layout_are_restored(make):
    """Sparse, quantized and nested ones, sparse ones with another number of elements in between."""
    from gfxgraph.capture.replay.graph_tensors import overwrite, parts_of

    def contents(tensor):
        return [(part.dequantize() if part.is_quantized else part).tolist() for part in parts_of(tensor)]

    before, after = torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([[3.0, 1.0], [1.5, 2.0]])
    held, want = make(before), contents(make(before))
    saved = Rollback([held])
    for _ in range(2):
        overwrite(held, make(after))
        assert contents(held) == contents(make(after))
        saved.restore()
        assert contents(held) == want
