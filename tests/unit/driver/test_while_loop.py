"""Captured steps that run in turn in one launch, over a fake runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from gfxgraph.errors import DriverError

Make = Callable[..., Any]
N = 24


class Case:
    """Steps that hand a row of flags round, each without the first: buffer to buffer, and back to the first."""

    def __init__(self, made: Any, n_buffers: int) -> None:
        self.driver, self.rows = made.driver, [(ctypes.c_ubyte * N)() for _ in range(n_buffers)]
        self.left = ctypes.c_uint()
        kernel = self.driver.copy_kernel("")
        places = [ctypes.addressof(row) for row in self.rows]
        self.steps = []
        for here, there in zip(places, [*places[1:], places[0]]):
            graph = self.driver.create_graph()
            self.driver.add_copies(kernel, graph, [(there, here + 1, N - 1)], [])
            self.steps.append((graph, there))

    def loop(self) -> Any:
        return self.driver.while_loop(self.steps, ctypes.addressof(self.left), 0)


@pytest.mark.parametrize("most, n", [(5, 5), (6, 6), (1, 1), (20, 9)])
@pytest.mark.parametrize("n_buffers", [2, 3])
def test_steps_run_in_turn_until_a_flag_falls_or_none_is_left(fake: Make, n_buffers: int, most: int, n: int) -> None:
    """Each reads what the one before wrote; afterwards it is known how many there were, and the last flag."""
    made = fake("cuda")
    case = Case(made, n_buffers)
    loop = case.loop()
    made.log()
    for _ in range(2):
        case.rows[0][:] = [1] * 9 + [0] * (N - 9)
        case.left.value = 2 * most
        assert loop.launch() == 0
        assert (most - (case.left.value >> 1), case.left.value & 1) == (n, int(n < 9))
        assert list(case.rows[n % n_buffers])[: 9 - n] == [1] * (9 - n)
    assert made.log() == ["cuGraphLaunch"] * 2


def test_a_refusal_leaves_nothing_behind(fake: Make) -> None:
    """A step that a conditional node cannot hold is an error, and the graph is destroyed."""
    made = fake("cuda")
    case = Case(made, 2)
    case.loop()
    made.refuse("cuGraphAddChildGraphNode", 801)
    made.log()
    with pytest.raises(DriverError) as caught:
        case.loop()
    assert caught.value.code == "driver_call_failed" and "cuGraphDestroy" in made.log()


@pytest.mark.parametrize("backend, old", [("hip", False), ("cuda", True)])
def test_runtimes_without_conditional_nodes_say_so(fake: Make, backend: str, old: bool) -> None:
    """HIP has none, and CUDA had none before 12.3."""
    assert not fake(backend, old=old).driver.has_while_loop
