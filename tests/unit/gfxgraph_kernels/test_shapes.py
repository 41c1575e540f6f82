"""Sizes of workgroups that were measured on NVIDIA's GPUs."""

from __future__ import annotations

import itertools

import pytest

from gfxgraph_kernels import shapes
from gfxgraph_kernels.shapes import Linear, Target

H200, RTX = Target("sm_90", n_units=132), Target("sm_86", n_units=84)


def shared_nbytes(how: Linear, is_pair: bool) -> int:
    """What a tile's loads underway take."""
    return 0 if how.is_vector else 2 * how.block_k * how.num_stages * (how.block_n * (1 + is_pair) + how.block_m)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8, 16, 17, 32, 100])
def test_tiles_fit(m):
    """At sizes between and beyond the measured ones: powers of two, and within the shared memory of the target."""
    for n, k, is_pair in itertools.product((1, 77, 1024, 5000, 200_000), (300, 1024, 9000, 50_000), (False, True)):
        how = shapes.linear(m, n, k, H200, is_pair=is_pair)
        assert shared_nbytes(how, is_pair) <= 227 << 10
        for size in (how.block_m, how.block_n, how.block_k, how.splits, how.num_warps):
            assert size == shapes.power_of_two(size)
        assert how.is_vector or how.block_m >= 16 <= how.block_n
        assert shared_nbytes(shapes.linear(m, n, k, RTX, is_pair=is_pair), is_pair) <= 99 << 10


def test_a_measured_layer_has_its_own_sizes():
    """The nearest point of one that was measured is itself, and a gate's are not a layer's."""
    layers = {rows: points for rows, points in shapes.measured().items() if rows != "attention"}
    for rows, points in layers.items():
        for n, k, is_vector, block_n, block_k, *rest in points:
            how = shapes.linear(int(rows.split()[0]), n, k, H200, is_pair="gate" in rows)
            made = (how.is_vector, how.block_n, how.block_k, how.splits, how.num_warps, how.num_stages)
            assert made == (bool(is_vector), block_n, min(block_k, shapes.power_of_two(k)), *rest)


def test_small_weights_of_one_row_are_fetched_ahead():
    """Not those of more rows, nor weights that would push each other out of the cache."""
    assert shapes.linear(1, 1024, 1024, H200).ahead == 512
    assert shapes.linear(8, 1024, 1024, H200).ahead == 0
    assert shapes.linear(1, 8192, 8192, H200).ahead == 0


def test_keys_are_divided_where_heads_are_few():
    """As many workgroups as units and some more, never a part without keys, never more than fit."""
    assert shapes.attention(1, 16, 4, 1024, 64, H200).splits == 16
    assert shapes.attention(32, 64, 16, 1024, 64, H200).splits == 1
    assert shapes.attention(1, 16, 16, 256, 64, H200).splits == 1
    for width, length in itertools.product((64, 128, 256, 512), (100, 600, 5000)):
        how = shapes.attention(1, 8, 2, length, width, H200)
        assert how.splits * 64 <= max(length, 64) and 10.4 * how.block * how.width <= 227 << 10
