"""Keys: equal exactly for the same call; bytes of budgets never promise more room than there is."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gfxgraph.core.eviction import Held, to_evict
from gfxgraph.core.constants import constant_key
from gfxgraph.core.bucket_sizes import Buckets, Octaves
from gfxgraph.callables.buckets import Dims
from gfxgraph.callables.buffers import builder
from gfxgraph.callables.signature import flatten, replace

constants = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=True, width=16), st.text("ab", max_size=2)
)
tensors = st.integers(1, 4).map(lambda n: torch.zeros(n))
trees = st.recursive(
    st.one_of(constants, tensors),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3),
    ),
    max_leaves=8,
)


def same(a, b):
    """Whether a captured function could not tell them apart."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return True
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float):
        return a.hex() == b.hex()
    return a == b


@given(constants, constants)
def test_constants_are_equal_exactly_if_they_are_the_same(a, b):
    """1, True and 1.0 are three; 0.0 and -0.0 two; nan is itself."""
    assert (constant_key(a) == constant_key(b)) == same(a, b)


@settings(deadline=None)
@given(trees, trees)
def test_structures_are_equal_exactly_if_the_trees_are(a, b):
    """The structure leaves out what tensors hold and nothing else."""
    one, two = [], []
    assert (flatten(a, one) == flatten(b, two)) == same(a, b)
    assert hash(flatten(a, [])) == hash(flatten(a, []))


@settings(deadline=None)
@given(trees)
def test_a_tree_is_built_again_around_other_tensors(tree):
    """``builder`` and ``replace`` keep everything but the tensors, in the order of ``flatten``."""
    found: list[torch.Tensor] = []
    structure = flatten(tree, found)
    others = [t + 1 for t in found]
    left = iter(others)
    for made in (builder(tree)(iter(others)), replace(tree, lambda _: next(left))):
        again: list[torch.Tensor] = []
        assert flatten(made, again) == structure
        assert all(x is y for x, y in zip(again, others, strict=True))


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.integers(1, 250))
def test_buckets_hold_what_they_are_picked_for(sizes, n):
    """The smallest that fits; None only above the largest; padding is never negative."""
    picked = Buckets(tuple(sizes)).pick(n)
    assert picked == min((s for s in sizes if s >= n), default=None)
    power = Octaves(1).pick(n)
    assert n <= power < 2 * n or power == n == 1
    assert n <= Octaves(4).pick(n) <= power


def test_dims_may_be_counted_from_the_last():
    """For calls, and for all buckets; a dim that a tensor has not is none."""
    dims, x = Dims({"x": {-1: "n"}}, Buckets((4, 8))), [torch.zeros(2, 3)]
    assert dims.bucketed("tree", x, lambda: ["x"]).sizes == ((2, 4),)
    assert [each.sizes for each in dims.all_buckets("tree", x, lambda: ["x"])] == [((2, 8),), ((2, 4),)]
    for dim in (2, -3):
        assert Dims({"x": {dim: "n"}}, Buckets((4,))).bucketed("tree", x, lambda: ["x"]) is None


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_inferred_dims_are_those_that_changed(a, b, c):
    """Dims that went from the same size to the same size are one dim; the others stay as they are."""
    dims = Dims(None, Octaves(4))
    first = [torch.zeros(a, 5), torch.zeros(5, a)]
    assert dims.bucketed("tree", first, list) is None
    second = dims.bucketed("tree", [torch.zeros(b, 5), torch.zeros(5, b)], list)
    if a == b:
        assert second is None
        return
    assert set(second.actual.values()) == {b} and len(second.actual) == 1
    assert second.sizes == ((Octaves(4).pick(b), 5), (5, Octaves(4).pick(b)))
    odd = dims.bucketed("tree", [torch.zeros(b, 5), torch.zeros(5, c)], list)
    assert (odd is None) == (b != c)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=8), st.integers(0, 200), st.integers(-50, 100)
)
def test_eviction_takes_the_oldest_and_no_more_than_needed(rows, needed, room):
    """Least recently used first; stops as soon as the need fits."""
    held = [Held(i, nbytes, used) for i, (nbytes, used) in enumerate(rows)]
    gone = list(to_evict(held, needed, room))
    freed = sum(held[i].nbytes for i in gone)
    left = [item for item in held if item.key not in gone]
    assert needed <= room + freed or not left
    if gone:
        assert needed > room + freed - held[gone[-1]].nbytes
        assert all(held[i].used_at <= item.used_at for i in gone for item in left)
