"""Plain graph programs and what may go wrong around them, in the simulator; on a GPU tests/gpu/scenarios.py runs them."""

from __future__ import annotations

import pytest

from tests.conformance.plain_scenarios import SCENARIOS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.usefixtures("nothing_compiled")
def test_scenario(name, platform):
    """Replays are eager's or are refused where they may be, and the process is usable afterwards."""
    SCENARIOS[name][1]()
