"""core.eager_or_graph: the faster way wins, surely, and says why."""

import math
import random

import pytest

from gfxgraph.core.eager_or_graph import Choice, Way


def run(speedup, noise, seed, choice=None, outliers=0.0):
    """Feed pairs until a decision; a graph takes 100 us, eager ``speedup`` times that."""
    rng = random.Random(seed)
    choice = choice or Choice()
    for i in range(10_000):
        way = choice.next_way(i)
        us = 100 * math.exp(rng.gauss(0, noise)) * (speedup if way is Way.EAGER else 1)
        decision = choice.add(way, us * (10 if rng.random() < outliers else 1))
        if decision is not None:
            return decision
    raise AssertionError("never decided")


@pytest.mark.parametrize("speedup, way", [(0.5, Way.EAGER), (0.9, Way.EAGER), (1.1, Way.GRAPH), (4.0, Way.GRAPH)])
def test_the_faster_way_wins(speedup, way):
    """Under 5 % of noise and one outlier in fifty, a tenth of difference is found every time."""
    assert {run(speedup, 0.05, seed, outliers=0.02).way for seed in range(100)} == {way}


def test_no_difference_goes_to_the_graph():
    """It takes less CPU; noise of a half makes no decision for eager more than once in a hundred times."""
    decision = run(1.0, 0.003, 1)
    assert decision.way is Way.GRAPH and "no difference" in decision.reason
    assert sum(run(1.0, 0.5, seed).way is Way.EAGER for seed in range(300)) <= 9


def test_pairs_alternate_in_order():
    """Neither way is always the first of its pair, where caches are cold."""
    choice = Choice()
    assert [choice.next_way(i) for i in range(4)] == [Way.EAGER, Way.GRAPH, Way.GRAPH, Way.EAGER]


def test_timings_that_are_none_are_left_out():
    """Zero, negative and infinite times are no evidence."""
    choice = Choice()
    for us in (0.0, -5.0, math.inf, math.nan):
        choice.add(Way.EAGER, us)
        choice.add(Way.GRAPH, us)
    assert choice.n_pairs == 0


def test_it_says_why():
    """Both times, the ratio, its interval and the number of pairs."""
    choice = Choice()
    assert choice.why() == "undecided: 0 pairs of timings, 32 needed"
    for _ in range(40):
        choice.add(Way.EAGER, 50.0)
        if choice.add(Way.GRAPH, 100.0):
            break
    assert choice.why() == (
        "eager: the graph is slower (eager 50.0 us, graph 100.0 us; graph 0.50x as fast, 0.50 to 0.50, 32 pairs)"
    )
