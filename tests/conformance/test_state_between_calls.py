"""State changed at random between calls: every answer is eager's. ``state_programs`` plays more of them."""

from __future__ import annotations

import functools

import pytest
import torch

import gfxgraph
from tests.conformance import state_programs

pytestmark = pytest.mark.any_platform


@pytest.mark.parametrize("seed", range(6))
def test_answers_and_state_are_eagers(platform, seed):
    """One random program, called in two sequences with changes between the calls."""
    played, how = state_programs.play(seed, 2)
    assert played == 2 and how["calls"] == 16


@pytest.mark.parametrize("name", ["global_hook", "buffer", "defaults", "tensor_of_object", "stored"])
def test_a_kind_of_state_on_its_own(platform, name):
    """What only its own changes bring to light; between them there are replays."""
    _, how = state_programs.play(74, 3, (name,))
    assert how["replays"] >= 1


@pytest.mark.parametrize(
    "names",
    [
        ("kept_by_lru_cache",),
        ("kept_by_lru_cache", "partial"),
        ("kept_by_lru_cache_of_method",),
        ("workspace_kept_by_lru_cache",),
    ],
    ids=" ".join,
)
def test_what_a_cache_keeps_stays_kept(platform, names):
    """Also what was stale before the first call, and what is seen only in pieces."""
    replays = 0
    for seed in (8, 15, 28):
        _, how = state_programs.play(seed, 1, names)
        replays += how["replays"]
    assert replays >= 3


def test_a_cached_function_of_constants_stays_in_the_graph(platform):
    @functools.lru_cache
    def groups(n):
        return n // 2

    graphed = gfxgraph.graphed(lambda x: x * groups(x.shape[0]))
    x = torch.ones(6, device="cuda")
    assert all(torch.equal(graphed(x), x * 3) for _ in range(3))
    assert graphed.stats()["replays"] == 2 and not graphed.stats()["pieces"]


LIST_CHANGES = {
    "an item": lambda factors: factors.__setitem__(1, 5.0),
    "one more": lambda factors: factors.append(7.0),
    "one less": lambda factors: factors.pop(),
    "none left": lambda factors: factors.clear(),
    "another order": lambda factors: factors.reverse(),
    "all others": lambda factors: factors.__setitem__(slice(None), [4.0, 3.0]),
    "longer than its room": lambda factors: factors.extend([2.0] * 100),
}


@pytest.mark.parametrize("change", LIST_CHANGES.values(), ids=list(LIST_CHANGES))
@pytest.mark.parametrize("begin", [[2.0, 3.0], []], ids=["two", "none"])
def test_every_change_of_a_list(platform, change, begin):
    """A list of a closure is watched by words of its memory: each change is seen, and an unchanged list replays."""
    factors = list(begin)

    def scaled(x):
        for factor in factors:
            x = x * factor
        return x + len(factors)

    graphed, x = gfxgraph.graphed(scaled), torch.ones(4, device="cuda")
    for _ in range(3):
        assert torch.equal(graphed(x), scaled(x))
    assert graphed.stats()["replays"] == 2
    if begin or change in (LIST_CHANGES["one more"], LIST_CHANGES["all others"]):
        change(factors)
    assert torch.equal(graphed(x), scaled(x))


def test_what_a_capture_puts_in_place_of_torchs_is_no_change(platform):
    """A function that names a method which captures replace is traced once."""

    def step(x):
        if x.dim() > 5:
            return x.item()
        return x * 2

    graphed, x = gfxgraph.graphed(step), torch.ones(4, device="cuda")
    for _ in range(4):
        assert torch.equal(graphed(x), x * 2)
    stats = graphed.stats()
    assert (stats["captures"], stats["replays"], sum(stats["eager"].values())) == (1, 3, 1)
