"""Arguments read where they lie: right answers at every address, and a named reason where they are copied."""

from __future__ import annotations

import pytest
import torch

import gfxgraph
from gfxgraph import simulator
from gfxgraph.callables import relocation
from gfxgraph.driver.params import KernelParams
from gfxgraph.process import process

needs_simulator = pytest.mark.skipif(torch.cuda.is_available(), reason="failures are planted in the simulator")
ROWS, COLUMNS = 16, 64


@pytest.fixture(autouse=True)
def _platform(platform, monkeypatch):
    """Arguments of 4 KiB count as large, and tiny tensors are computed by one thread."""
    monkeypatch.setattr(relocation, "LEAST_NBYTES", 4 << 10)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield platform
    torch.set_num_threads(n_threads)


@pytest.fixture
def faults():
    sim = simulator.active()
    sim.faults = simulator.Faults()
    yield sim.faults
    sim.faults = simulator.Faults()


def step(x, y):
    for _ in range(3):
        x = x * 1.5 + y
    return x.relu(), x.sum(0)


def run(g, fn, n=8, make=None, check=torch.equal):
    """n calls at n addresses, each as eager."""
    y, kept = torch.randn(COLUMNS, device="cuda"), []
    for i in range(n):
        kept.append(make(i) if make is not None else torch.randn(ROWS, COLUMNS, device="cuda"))
        assert all(check(a, b) for a, b in zip(g(kept[-1], y), fn(kept[-1].clone(), y))), i
    return kept


def moving_of(g):
    (entry,) = g._entries.values()
    return entry.first.moving


def test_a_large_argument_is_read_in_place():
    """Seven addresses, seven moves, and the buffer is never written again."""
    g = gfxgraph.graphed(step, moved="relocate")
    kept = run(g, step, 3)
    (entry,) = g._entries.values()
    home = entry.statics[0].tensor.clone()
    kept += run(g, step, 5)
    assert torch.equal(entry.statics[0].tensor, home)
    assert g.stats()["replays"] == 7 and moving_of(g).n_moves >= 7, g.explain()
    assert "1 argument(s) read in place by" in g.explain()


def test_addresses_that_come_again_cost_nothing():
    """The same tensor twice is one move; a small argument is copied as ever."""
    g = gfxgraph.graphed(step, moved="relocate")
    x = run(g, step, 2)[-1]
    n = moving_of(g).n_moves
    for i in range(5):
        y = torch.full((COLUMNS,), float(i), device="cuda")
        assert all(map(torch.equal, g(x, y), step(x, y)))
    assert moving_of(g).n_moves <= n + 1 and list(moving_of(g).places) == [0]


def called_where_it_writes():
    """A callable that writes to its large argument, called six times: results and argument as eager's."""

    def writes(x, y):
        x.mul_(2).add_(y)
        return (x + 1,)

    g = gfxgraph.graphed(writes, moved="relocate")
    y = torch.randn(COLUMNS, device="cuda")
    for _ in range(6):
        x = torch.randn(ROWS, COLUMNS, device="cuda")
        mine, twin = x.clone(), x.clone()
        assert torch.equal(g(mine, y)[0], writes(twin, y)[0]) and torch.equal(mine, twin)
    return g


def test_what_is_written_to_an_argument_is_the_callers():
    """In place, in the caller's own memory, once."""
    g = called_where_it_writes()
    assert moving_of(g) is not None and g.stats()["replays"] == 5, g.explain()


def test_what_is_written_is_given_back_where_nothing_can_be_moved(monkeypatch):
    """A proof that fails leaves copies, and copies go back."""
    from gfxgraph.callables import relocation

    def prove(*args):
        raise relocation.NotRelocatable("planted")

    monkeypatch.setattr(relocation, "_prove", prove)
    g = called_where_it_writes()
    assert moving_of(g) is None and g.stats()["replays"] == 5, g.explain()


def test_another_alignment_is_copied():
    """A view that begins elsewhere in a line of memory: kernels were chosen for how the first lay."""
    g = gfxgraph.graphed(step, moved="relocate")
    whole = torch.randn(ROWS * COLUMNS + 64, device="cuda")
    run(g, step, 6, lambda i: whole[i : i + ROWS * COLUMNS].view(ROWS, COLUMNS))
    moving = moving_of(g)
    assert moving.places[0].address == moving.places[0].home and g.stats()["replays"] == 5


@needs_simulator
def test_the_budget_of_changes():
    """After as many changes as the runtime stands, the graph is instantiated anew; with none it is not begun."""
    process.require().decisions = decisions = _with(process.require().decisions, 4)
    g = gfxgraph.graphed(step, moved="relocate")
    run(g, step, 12)
    assert moving_of(g).n_renewed >= 2 and g.stats()["replays"] == 11
    process.require().decisions = _with(decisions, 0)
    h = gfxgraph.graphed(step, moved="relocate")
    run(h, step, 3)
    assert moving_of(h) is None and "must not change graph execs" in h.explain()


def _with(decisions, budget):
    from dataclasses import replace

    return replace(decisions, update_budget=budget)


@needs_simulator
@pytest.mark.parametrize("n", range(1, 7))
def test_a_change_that_is_refused(faults, n):
    """Whichever change the runtime refuses, no launch reads half of the old and half of the new address."""

    def twice(x, y):
        return (x * 2 + y) @ x.t(), x.sum(1)

    g = gfxgraph.graphed(twice, moved="relocate")
    faults.fail_nth("exec_params", n, 1)
    run(g, twice, 8, check=lambda a, b: torch.allclose(a, b, rtol=1e-4, atol=1e-3))
    assert faults.calls["exec_params"] >= n


@needs_simulator
def test_a_launch_that_fails_is_not_made_good_from_the_buffer(faults):
    """The tape reads the buffer, where the call's data is not: nodes, or the function itself, answer instead."""
    g = gfxgraph.graphed(step, moved="relocate")
    run(g, step, 3)
    faults.fail_nth("launch", 1, 999)
    faults.fail_nth("launch", 3, 999)
    run(g, step, 4)


def a_copy(x, y):
    made = torch.empty_like(x)
    made.copy_(x)
    return (made + y,)


def by_address(x, y):
    return (x + (x.data_ptr() >> 12) % 1000 + y,)


@needs_simulator
@pytest.mark.parametrize(
    ("fn", "said"),
    [(a_copy, "only kernels can be given another address"), (by_address, "gives a different result")],
)
def test_what_is_not_understood_is_copied_and_named(fn, said):
    """A copy node; a number computed from the address, which no promise of purity covers."""
    g = gfxgraph.graphed(fn, moved="relocate", assume_pure=True)
    x, y = torch.randn(ROWS, COLUMNS, device="cuda"), torch.zeros(COLUMNS, device="cuda")
    for _ in range(3):
        g(x, y)
    assert moving_of(g) is None and said in g.explain()
    assert "a_copy" not in fn.__name__ or "aten::copy_ at" in g.explain()


@needs_simulator
def test_an_unknown_layout_is_named(monkeypatch):
    """Where the runtime does not tell what a kernel's arguments are, the kernel and the reason are said."""
    real = simulator.SimDriver.node_params

    def unknown(self, node, layout=None):
        found = real(self, node, layout)
        return KernelParams(
            found.grid, found.block, 0, found.func, None, why_unknown="hipKernelGetParamInfo is missing"
        )

    monkeypatch.setattr(simulator.SimDriver, "node_params", unknown)
    g = gfxgraph.graphed(step, moved="relocate")
    run(g, step, 4)
    assert moving_of(g) is None and g.stats()["replays"] == 3
    assert "hipKernelGetParamInfo is missing" in g.explain() and "aten::mul" in g.explain()


@pytest.mark.parametrize(
    ("options", "said"), [({"mode": "hot"}, "in hot mode"), ({"buckets": [ROWS + 1]}, "smaller than its bucket")]
)
def test_where_it_is_not_tried(options, said):
    """Hot mode and padded calls copy, and say so."""
    g = gfxgraph.graphed(step, moved="relocate", dynamic={"x": {0: "n"}} if "buckets" in options else None, **options)
    run(g, lambda x, y: step(x, y), 4, check=lambda a, b: torch.allclose(a, b, rtol=1e-4, atol=1e-3))
    assert said in g.explain() or "padding refused" in g.explain()


def test_small_arguments_are_copied():
    """A kilobyte is copied faster than two kernels are changed."""
    g = gfxgraph.graphed(lambda x: x * 2, moved="relocate")
    for i in range(4):
        x = torch.full((256,), float(i), device="cuda")
        assert torch.equal(g(x), x * 2)
    assert f"no argument has {relocation.LEAST_NBYTES >> 10} KiB" in g.explain() and g.stats()["replays"] == 3
