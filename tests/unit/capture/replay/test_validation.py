"""One rule says how near two runs must be: by dtype, over the whole tensor or by row."""

from __future__ import annotations

import math

import pytest
import torch

from gfxgraph.capture.replay.validation import RELATIVE_TOLERANCE, compare, is_close


def test_a_giant_row_hides_others_only_in_the_whole_tensor() -> None:
    """An error of a small row is allowed beside a giant one, and refused by row."""
    right = torch.tensor([[1e6, 1e6], [1.0, 1.0]])
    wrong = right.clone()
    wrong[1, 0] = 5.0
    assert compare(wrong, right, False).is_match
    small = torch.tensor([[4.0, 4.0], [1.0, 1.0]])
    off = small.clone()
    off[1, 0] += 3.0 * RELATIVE_TOLERANCE[torch.float32]
    assert compare(off, small, False).is_match and not is_close(off, small)


@pytest.mark.parametrize("by_row", (False, True))
def test_nan_and_infinity_agree_with_themselves_alone(by_row: bool) -> None:
    """NaN with NaN, an infinity with the same one; with anything else nothing is near enough."""
    one = torch.tensor([1.0, math.nan, math.inf])
    assert compare(one, one.clone(), False, by_row=by_row).is_match
    for other in ([1.0, 2.0, math.inf], [1.0, math.nan, -math.inf], [1.0, math.nan, 3.0]):
        assert not compare(one, torch.tensor(other), False, by_row=by_row).is_match


def test_exact_allows_nothing_and_what_is_no_float_nothing_either() -> None:
    """A last bit is a difference where bits were asked for; integers, sizes and dtypes have to be the same."""
    one = torch.ones(3)
    next_one = torch.nextafter(one, torch.tensor(2.0))
    assert compare(next_one, one, False).is_match and not compare(next_one, one, True).is_match
    assert not compare(torch.tensor([1]), torch.tensor([2]), False).is_match
    assert not is_close(torch.ones(3), torch.ones(4)) and not is_close(torch.ones(3), torch.ones(3).double())


@pytest.mark.parametrize("dtype", RELATIVE_TOLERANCE, ids=str)
def test_the_allowance_is_the_dtypes_share_of_the_largest_magnitude(dtype: torch.dtype) -> None:
    """Half of it passes, the double does not."""
    one = torch.tensor([100.0, 1.0], dtype=torch.float64)
    for share, is_match in ((0.5, True), (2.0, False)):
        off = one.clone()
        off[0] *= 1 + share * RELATIVE_TOLERANCE[dtype]
        found = compare(off.to(dtype), one.to(dtype), False)
        assert found.is_match is is_match, (share, found)
