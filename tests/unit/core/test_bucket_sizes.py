"""core.bucket_sizes: what users see of a plan, and what is refused."""

import json

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
    assert str(plan) == plan.table()
    assert plan.table().splitlines() == [
        "        batch  calls  sizes served  padding",
        "            8      1          5..8     0.0%",
        "            4      8          1..4     6.2%",
        "above (eager)      5            20        -",
        "batch: explicit, 2 sizes; padding 1.4% of the work seen",
    ]


@pytest.mark.parametrize(
    "text, problem",
    [
        ("{", "Expecting property name"),
        ("[]", "version is None"),
        ('{"version": 99}', "version is 99"),
        ('{"version": 1}', "dims is missing"),
        (
            '{"version": 1, "seen": [], "dims": {"b": {"sizes": [0], "source": "x", "above": "eager"}}}',
            "not a whole number",
        ),
        (
            '{"version": 1, "seen": [{"sizes": [1, 2], "calls": 1}],'
            ' "dims": {"b": {"sizes": [8], "source": "x", "above": "eager"}}}',
            "does not have 1 sizes",
        ),
    ],
)
def test_a_plan_that_cannot_be_read_says_why(text, problem):
    """Another version, broken JSON and impossible sizes are refused with the path."""
    with pytest.raises(ConfigError) as caught:
        BucketPlan.from_json(text, "plan.json")
    assert caught.value.code == "bucket_plan_unreadable"
    assert "plan.json" in str(caught.value) and problem in str(caught.value)


def test_a_saved_plan_carries_its_version():
    """A later gfxgraph can tell."""
    assert json.loads(learn_plan(["batch"], {(3,): 1}).to_json())["version"] == 1


def test_two_dimensions_are_weighed_by_each_other():
    """Rows of the dimension that is padded far are dear: it gets the buckets."""
    seen = {(n, 1000): 10 for n in range(1, 9)} | {(8, m): 10 for m in (10, 20, 30)}
    plan = learn_plan(["batch", "seq"], seen)
    assert plan.pick((3, 1000)) is not None
    assert (
        plan.n_elements_padded < BucketPlan({"batch": explicit([8]), "seq": explicit([1000])}, seen).n_elements_padded
    )
