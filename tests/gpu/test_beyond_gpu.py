"""Conditionals, loops, compositions and training steps on a real GPU: the conformance files' scenarios, and what
only a GPU shows: kernels in parallel, driver child graphs, no stall at a flag, 50 training steps bit for bit.

Written for torch 2.11; under 40 s on one H200.
"""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

from tests.conformance import test_training_graphed as training  # noqa: E402

import gfxgraph  # noqa: E402
from gfxgraph.callables.control.conditional import Conditional  # noqa: E402
from gfxgraph.callables.control.loops import WhileLoop  # noqa: E402
from gfxgraph.process.bridge import process_for_callables as bridge_state  # noqa: E402

pytestmark = pytest.mark.gpu

MODEL = {"width": 128, "heads": 4, "layers": 3, "length": 32}


@pytest.fixture
def bridge():
    gfxgraph.enable(allow_cuda=True, validate=False)
    gfxgraph.reset_stats()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield gfxgraph
    finally:
        torch.cuda.synchronize()
        torch.use_deterministic_algorithms(deterministic)
        gfxgraph.disable()


def capture(body, **kw):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **kw):
        out = body()
    return graph, out


def spin(ms):
    """Keep the device busy."""
    torch.cuda._sleep(int(ms * 1e6))


# -- training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_fifty_steps_bit_for_bit(bridge, scaler, fused):
    """A transformer with dropout, AdamW capturable, 50 steps, with and without a scaler that overflows."""
    kw = {"scaler": scaler, "overflow_at": (7, 20, 21, 35) if scaler else (), "fused": fused, **MODEL}
    want, _ = training.run(50, graphed=False, **kw)
    again, _ = training.run(50, graphed=False, **kw)
    training.assert_same_bits(again, want)  # eager itself repeats its bits, or nothing can be said
    gfxgraph.reset_stats()
    got, step = training.run(50, graphed=True, **kw)
    training.assert_same_bits(got, want)
    assert step.why_eager == "" and step.n_captures == 1
    stats = gfxgraph.stats()
    assert stats["replay_count"] == 47 and stats["split_count"] == stats["fallback_count"] == 0, stats["events"]


def test_graphed_callables_fifty_steps(bridge):
    """make_graphed_callables: forward and backward as graphs, 50 losses, every bit."""
    training.test_graphed_callables_train_with_eagers_bits("gpu")


def test_a_step_is_one_launch(bridge):
    """Replayed steps make fewer driver calls than eager ones: the wall clock shows it on a small model."""
    seconds = {}
    for graphed in (False, True):
        begun = time.perf_counter()
        training.run(60, graphed=graphed, **MODEL)
        torch.cuda.synchronize()
        seconds[graphed] = time.perf_counter() - begun
    assert seconds[True] < seconds[False], seconds


# -- conditionals ---------------------------------------------------------------------------------------------


def test_branches_take_the_memory_of_one(bridge):
    """Eight branches in one conditional against eight conditionals."""

    def body(k):
        return lambda x: ((x + k).cos() @ (x - k).sin()).relu() @ x

    x = torch.randn(1024, 1024, device="cuda")

    def reserved(make):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        kept = make()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() - before, kept

    def together():
        one = Conditional([body(k) for k in range(8)])
        one.capture(x)
        return one

    def apart():
        made = [Conditional([body(k)]) for k in range(8)]
        for one in made:
            one.capture(x)
        return made

    taken_apart, _kept = reserved(apart)
    taken, chosen = reserved(together)
    assert taken * 3 < taken_apart, (taken, taken_apart)
    with torch.no_grad():
        for k in range(8):
            assert torch.allclose(chosen(k, x), body(k)(x), rtol=1e-4, atol=1e-3)


def test_while_loop_ends_where_python_does(bridge):
    """Newton's iteration to convergence: Python's number of steps, by replays."""

    def far(x, a):
        return (x * x / a - 1).abs().max() > 1e-5

    def eagerly(x, a):
        n = 0
        while far(x, a) and n < 100:
            x, n = (x + a / x) / 2, n + 1
        return x, n

    loop = WhileLoop(far, lambda x, a: ((x + a / x) / 2, a), max_steps=100)
    with torch.no_grad():
        for scale in (1.0, 50.0, 1e4, 3.0, 1e-3):
            a = torch.rand(4096, device="cuda") * scale + 0.5
            x, _ = loop(torch.ones_like(a), a)
            want, n = eagerly(torch.ones_like(a), a)
            assert torch.allclose(x, want) and loop.n_steps == n and not loop.hit_bound
    assert loop.stats()["captures"] == 2 and not loop.why_eager


@pytest.mark.parametrize("nbytes, most", [(1 << 12, 3000), (64 << 20, 60)], ids=["4 KiB", "64 MiB"])
def test_a_loop_is_one_launch_where_the_driver_has_conditional_nodes(bridge, nbytes, most):
    """Eager's values and number of steps, odd and even, for thousands of steps too."""
    state = bridge_state()
    if state.driver is None or not state.driver.has_while_loop:
        pytest.skip("the driver has no conditional nodes")

    def body(x, y, n):
        return x * 0.75 + y * 0.25, y, n - 1

    loop = WhileLoop(lambda x, y, n: n > 0, body, max_steps=most)
    with torch.no_grad():
        for steps in (most, 7, 8, 1, 2, 0, most + 9, most - 1):
            x, y = (torch.randn(nbytes // 4, device="cuda") for _ in range(2))
            n = torch.tensor(steps, device="cuda")
            got = loop(x, y, n)
            want, made = (x, y, n), min(steps, most)
            for _ in range(made):
                want = body(*want)
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), steps
            assert loop.n_steps == made and loop.hit_bound == (steps > most)
    (step,) = loop._step._entries.values()
    assert step._ring is not None and not step._ring.why_not and step._ring._exec is not None
    stats = loop._step.stats()
    assert stats["replays"] + sum(stats["eager"].values()) == 3 * most - 1 + 7 + 8 + 1 + 2


def test_a_capture_leaves_the_random_numbers_of_other_graphs_alone(bridge):
    """torch writes a seed of its own on the capture's stream, late where that is busy, for every graph to read."""
    x = torch.zeros(4, device="cuda")

    def slow():
        spin(40)
        x.copy_(torch.rand(4, device="cuda"))

    draws = capture(slow)[0]
    side = torch.cuda.Stream()
    torch.cuda.manual_seed(21)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        spin(20)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        x + 1
        graph.capture_end()
    torch.cuda.manual_seed(5)
    draws.replay()
    torch.cuda.manual_seed(5)
    assert torch.equal(x, torch.rand(4, device="cuda"))
