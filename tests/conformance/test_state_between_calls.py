"""State changed at random between calls: every answer is eager's. ``state_programs`` plays more of them."""

from __future__ import annotations

import pytest

from tests.conformance import state_programs


@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_answers_and_state_are_eagers(platform, seed):
    """One random sequence of calls and changes."""
    state_programs.play(seed, n_calls=10)
