"""callables/effects.py: which tensors hold something else after a call."""

from __future__ import annotations

import pytest
import torch

import gfxgraph
from gfxgraph.callables import effects
from gfxgraph.callables.effects import ArgumentWrites


@pytest.fixture(autouse=True)
def _simulated():
    gfxgraph.enable(simulate="cuda", validate=False)
    yield
    gfxgraph.disable()


DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.int64, torch.uint8,
    torch.bool, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_changed_is_found(dtype, large, monkeypatch):
    """One element of one tensor, whatever its type; a write of the same bits is none."""
    if large:
        monkeypatch.setattr(effects, "LARGEST_NBYTES", 8)
    tensors = [torch.ones(4, 6, device="cuda").to(dtype) for _ in range(3)]
    looked = ArgumentWrites([*tensors, torch.ones(3)])
    tensors[1][2, 3] = 0
    tensors[2][0, 0] = 1
    assert looked.found() == {1}


def test_no_number_hides_a_change():
    """NaN equals itself by its bits, -0.0 is not 0.0, and a view with gaps or conjugated is looked at as it is."""
    nan, zero = torch.full((3,), torch.nan, device="cuda"), torch.zeros(3, device="cuda")
    gaps, conjugated = (
        torch.zeros(4, 6, device="cuda")[:, ::2],
        torch.ones(3, dtype=torch.complex64, device="cuda").conj(),
    )
    looked = ArgumentWrites([nan, zero, gaps, conjugated, torch.empty(0, device="cuda")])
    assert looked.found() == set()
    zero.neg_()
    gaps[3, 2] = 1
    conjugated.mul_(1j)
    assert looked.found() == {1, 2, 3}
