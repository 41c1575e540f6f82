"""A graph with copies before and after it, over a fake runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from gfxgraph.driver.small_copies import MOST
from gfxgraph.errors import DriverError

BACKENDS = ("hip", "cuda")
Make = Callable[..., Any]
SET = {"hip": "hipGraphExecKernelNodeSetParams", "cuda": "cuGraphExecKernelNodeSetParams_v2"}
LAUNCH = {"hip": "hipGraphLaunch", "cuda": "cuGraphLaunch"}


def block(value: int = 0, nbytes: int = 48) -> Any:
    return ctypes.create_string_buffer(bytes([value]) * nbytes, nbytes)


def at(buffer: Any) -> int:
    return ctypes.addressof(buffer)


class Case:
    """A graph that copies ``a`` to ``b``, joined: an argument goes to ``a``, and ``b`` to a result."""

    def __init__(self, made: Any) -> None:
        self.driver = made.driver
        self.kernel = made.driver.copy_kernel("gfx942")
        self.a, self.b = block(), block()
        self.kept: list[Any] = []
        self.graph = self.driver.create_graph()
        self.driver.add_copies(self.kernel, self.graph, [(at(self.b), at(self.a), 48)], [])

    def joined(self, given: Any, taken: Any, stream: int = 0) -> Any:
        self.kept += [given, taken]
        into, back = [(at(self.a), at(given), 48)], [(at(taken), at(self.b), 48)]
        return self.driver.joined(self.kernel, self.graph, into, back, stream)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_launch_runs_all_three(fake: Make, backend: str) -> None:
    """The argument goes in, the graph runs, the result comes out; two changes and one launch for other addresses."""
    made = fake(backend)
    case, given, taken = Case(made), [block(1), block(2)], [block(), block()]
    joined = case.joined(given[0], taken[0])
    assert joined.launch() == 0 and taken[0].raw == given[0].raw
    joined.into.words[0], joined.back.words[MOST] = at(given[1]), at(taken[1])
    made.log()
    assert joined.launch() == 0 and taken[1].raw == bytes(48)  # not applied yet
    assert joined.into.apply() == 0 and joined.back.apply() == 0 and joined.launch() == 0
    assert taken[1].raw == given[1].raw
    assert made.log() == [LAUNCH[backend], SET[backend], SET[backend], LAUNCH[backend]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_copies_stand_before_and_after(fake: Make, backend: str) -> None:
    """Edges: the copy of the arguments, the child, the copy of the results; only what there is."""
    made = fake(backend)
    case = Case(made)
    joined = case.joined(block(), block())
    first, child, last = made.driver.nodes(joined._graph)
    assert (first, last) == (joined.into.node, joined.back.node)
    assert made.driver.edges(joined._graph) == [(first, child), (child, last)]
    alone = made.driver.joined(case.kernel, case.graph, [], [(at(case.a), at(case.b), 48)], 0)
    assert alone.into is None and len(made.driver.edges(alone._graph)) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_launched_on_the_stream_it_is_told(fake: Make, backend: str) -> None:
    """At first, and after ``on``."""
    made = fake(backend)
    made.library.fake_launched_on.restype = ctypes.c_void_p
    case = Case(made)
    joined = case.joined(block(), block(), stream=0x7F0000000010)
    joined.launch()
    assert made.library.fake_launched_on() == 0x7F0000000010
    joined.on(0)
    joined.launch()
    assert made.library.fake_launched_on() is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_refusals_are_statuses(fake: Make, backend: str) -> None:
    """Of a change, and of a launch."""
    made = fake(backend)
    case = Case(made)
    joined = case.joined(block(), block())
    made.refuse(SET[backend], 910)
    assert joined.into.apply() == 910
    made.refuse(LAUNCH[backend], 700)
    assert joined.launch() == 700


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_joined_leaves_nothing(fake: Make, backend: str) -> None:
    """A child that is refused, one that lost a node, an exec that is refused: the built graph is destroyed."""
    prefix = {"hip": "hip", "cuda": "cu"}[backend]
    for symbol in (f"{prefix}GraphAddChildGraphNode", f"{prefix}GraphInstantiateWithFlags", ""):
        made = fake(backend)
        case = Case(made)
        if symbol:
            made.refuse(symbol, 1)
        else:
            made.library.fake_lose_a_node()
        made.log()
        with pytest.raises(DriverError) as caught:
            case.joined(block(), block())
        assert caught.value.code == ("driver_call_failed" if symbol else "child_graph_incomplete")
        assert f"{prefix}GraphDestroy" in made.log()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_exec_goes_with_its_owner(fake: Make, backend: str) -> None:
    """Exec and graph are destroyed once, under the mode that leaves other threads' captures alone."""
    made = fake(backend)
    joined = Case(made).joined(block(), block())
    made.log()
    del joined
    prefix = {"hip": "hip", "cuda": "cu"}[backend]
    exchange = f"{prefix}ThreadExchangeStreamCaptureMode"
    assert made.log() == [exchange, f"{prefix}GraphExecDestroy", f"{prefix}GraphDestroy", exchange]
