"""A part of faults.py: after a failure at any of these positions later captures, replays and eager work are right."""

from __future__ import annotations

import pytest
import torch

import gfxgraph
from tests.property import faults

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="failures are planted in the simulator")
EVERY = 7
"""Of the lines of a scenario one in so many is interrupted; faults.py run whole takes each."""


@pytest.fixture
def simulated():
    gfxgraph.enable(simulate="hip", validate=False)
    yield
    gfxgraph.disable()


@pytest.mark.parametrize("scenario", [faults.capture, faults.split, faults.graphed_replay], ids=lambda s: s.__name__)
def test_driver_calls(simulated, scenario):
    """Each call of the driver that a scenario makes fails once."""
    n_struck = 0
    for nth in range(1, 10_000):
        struck, bad = faults.with_failing_driver(scenario, nth)
        assert not bad, (nth, struck, bad)
        if not struck:
            break
        n_struck += 1
    assert n_struck or scenario is faults.graphed_replay


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_lines(simulated, kind):
    """An interrupt, or memory that runs out, at lines of a capture that splits."""
    lines = faults.lines_of(faults.split, most_hits=1)[::EVERY]
    struck = 0
    for line, nth in lines:
        was_struck, bad = faults.interrupted(faults.split, line, nth, kind)
        assert not bad, (line, bad)
        struck += was_struck
    assert struck > len(lines) // 2


def test_signals(simulated):
    """Real signals at random times."""
    found = faults.signals(25, 1000.0, seed=1)
    assert found["then"] == [] and found["survived"] == 25, found
