"""Buckets: picking holds for any sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfxgraph.core.bucket_sizes import Buckets, ladder, Octaves

SIZES = st.sets(st.integers(1, 600), min_size=1, max_size=40)


@given(SIZES, st.integers(1, 700))
def test_pick_gives_the_smallest_bucket_that_holds_the_size(sizes, n):
    """Every other bucket is smaller than the size or larger than the one picked."""
    holding = [size for size in sizes if size >= n]
    assert Buckets(tuple(sizes)).pick(n) == (min(holding) if holding else None)


@given(st.integers(1, 3000))
def test_the_ladder_holds_every_size_up_to_the_largest(largest):
    """vLLM's ladder leaves nothing out."""
    assert ladder(largest).pick(largest) is not None and ladder(largest).pick(1) == 1


@given(st.integers(1, 1 << 40), st.sampled_from([1, 2, 4, 8]))
def test_octaves_hold_every_size_and_pad_little(n, parts):
    """A bucket is its own bucket, at most one row in so many is padding, and powers of two are buckets."""
    picked = Octaves(parts).pick(n)
    assert n <= picked <= 1 << (n - 1).bit_length() and Octaves(parts).pick(picked) == picked
    assert (picked - n) * (parts + 1) < picked


@pytest.mark.parametrize(("parts", "n_sizes"), [(1, 10), (4, 32)])
def test_octaves_are_few(parts, n_sizes):
    """For every size up to 512."""
    assert len({Octaves(parts).pick(n) for n in range(1, 513)}) == n_sizes


def test_the_ladder_is_vllms():
    """Up to 512: 1, 2, 4, every 8 below 256, every 16 from there on."""
    assert ladder(512).sizes == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
