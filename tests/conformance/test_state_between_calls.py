"""State changed at random between calls: every answer is eager's. ``state_programs`` plays more of them."""

from __future__ import annotations

import pytest

from tests.conformance import state_programs


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
