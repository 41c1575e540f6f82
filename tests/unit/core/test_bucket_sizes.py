"""core.bucket_sizes: what users see of a plan, and what is refused."""

import pytest

from gfxgraph.core.bucket_sizes import BucketPlan, Buckets, explicit, learn, learn_plan
from gfxgraph.errors import ConfigError


def test_sizes_are_kept_ascending_and_once():
    """The order given does not matter."""
    assert explicit([8, 2, 8, 4]).sizes == (2, 4, 8)


@pytest.mark.parametrize("sizes", [(), (0,), (-4,), (True,), (2.5,), ("8",)])
def test_a_size_that_is_no_size_is_refused(sizes):
    """At once, with the value shown."""
    with pytest.raises(ConfigError) as caught:
        Buckets(sizes)
    assert caught.value.code == "bad_buckets"
    assert repr(sizes[0] if sizes else ()) in str(caught.value)


def test_a_rare_size_gets_no_bucket_of_its_own():
    """A bucket that would save less than its share of the work is not made."""
    histogram = {100: 10_000, 200: 10_000, 199: 1}
    assert learn(histogram).sizes == (100, 200)


def test_learning_from_nothing_is_refused():
    """There is no guess to fall back on."""
    with pytest.raises(ConfigError) as caught:
        learn({})
    assert caught.value.code == "bad_buckets"


def test_the_table_shows_calls_sizes_and_padding():
    """One row a bucket, largest first, and a line of totals; printing the plan shows it."""
    plan = BucketPlan({"batch": explicit([4, 8])}, {(3,): 2, (4,): 6, (8,): 1, (20,): 5})
    assert str(plan).splitlines() == [
        "8: 1 calls, padding 0.0%",
        "4: 8 calls, padding 6.2%",
        "eager: 5 calls",
        "batch: explicit, 2 sizes; padding 1.4% of the work seen",
    ]


def test_two_dimensions_are_weighed_by_each_other():
    """Rows of the dimension that is padded far are dear: it gets the buckets."""
    seen = {(n, 1000): 10 for n in range(1, 9)} | {(8, m): 10 for m in (10, 20, 30)}
    plan = learn_plan(["batch", "seq"], seen)
    assert plan.pick((3, 1000)) is not None
    assert (
        plan.n_elements_padded < BucketPlan({"batch": explicit([8]), "seq": explicit([1000])}, seen).n_elements_padded
    )
