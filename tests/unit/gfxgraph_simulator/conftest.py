"""One simulator per test, undone afterwards whatever happened."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

import gfxgraph_simulator as simulator  # noqa: E402
from gfxgraph.core.replaced import Replaced  # noqa: E402


@pytest.fixture
def install() -> Iterator[Callable[..., simulator.Simulator]]:
    """Install a profile for the rest of the test."""
    undos: list[Replaced] = []

    def start(profile: str = "cuda", **options: int) -> simulator.Simulator:
        undos.append(simulator.install(profile, **options))
        active = simulator.active()
        assert active is not None
        return active

    yield start
    active = simulator.active()
    if active is not None and active.allocator.live:
        gc.collect()
    for undo in undos:
        undo.undo()


@pytest.fixture
def sim(install: Callable[..., simulator.Simulator]) -> simulator.Simulator:
    """The simulated CUDA card."""
    return install("cuda")
