"""Buckets: picking, learning and saving hold for any sizes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gfxgraph.core.bucket_sizes import best_sizes, Buckets, ladder, learn, powers

SIZES = st.sets(st.integers(1, 600), min_size=1, max_size=40)
HISTOGRAMS = st.dictionaries(st.integers(1, 600), st.integers(1, 50), min_size=1, max_size=60)
SMALL = st.dictionaries(st.integers(1, 40), st.integers(1, 9), min_size=1, max_size=7)


@given(SIZES, st.integers(1, 700))
def test_pick_gives_the_smallest_bucket_that_holds_the_size(sizes, n):
    """Every other bucket is smaller than the size or larger than the one picked."""
    holding = [size for size in sizes if size >= n]
    assert Buckets(tuple(sizes)).pick(n) == (min(holding) if holding else None)


@given(SIZES, st.integers(1, 5000))
def test_padding_is_never_negative(sizes, n):
    """A call runs at its own size or a larger one, whatever happens above the largest bucket."""
    assert Buckets(tuple(sizes)).padded(n) >= n


@given(st.integers(1, 3000))
def test_rules_hold_every_size_up_to_the_largest(largest):
    """Powers of two and vLLM's ladder leave nothing out."""
    for rule in (powers(largest), ladder(largest)):
        assert rule.pick(largest) is not None
        assert rule.pick(1) == 1
    assert powers(largest).largest < 2 * largest or largest == 1


def test_the_ladder_is_vllms():
    """Up to 512: 1, 2, 4, every 8 below 256, every 16 from there on."""
    assert ladder(512).sizes == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


@given(SMALL)
def test_learning_finds_the_best_set_of_every_number_of_buckets(histogram):
    """No set of as many buckets that holds the largest size pads less: all of them are tried."""
    largest = max(histogram)
    others = [size for size in histogram if size != largest]
    for n_buckets, found in enumerate(best_sizes(histogram, len(histogram)), 1):
        assert len(set(found)) == n_buckets
        least = min(
            Buckets((*chosen, largest)).padding(histogram) for chosen in itertools.combinations(others, n_buckets - 1)
        )
        assert Buckets(found).padding(histogram) == least


@given(HISTOGRAMS)
def test_learned_buckets_beat_the_ladder_at_its_own_number(histogram):
    """No more buckets than the ladder, and no more padding."""
    rule, learned = ladder(max(histogram)), learn(histogram)
    assert len(learned) <= len(rule)
    assert learned.padding(histogram) <= rule.padding(histogram)


@given(HISTOGRAMS, st.integers(1, 20))
def test_a_budget_of_buckets_is_kept(histogram, n):
    """Never more buckets than allowed, and every size seen is held."""
    learned = learn(histogram, n)
    assert len(learned) <= n
    assert learned.largest == max(histogram)


def test_above_the_largest_bucket():
    """Eagerly, at its own size."""
    assert Buckets((8, 16)).padded(37) == 37
