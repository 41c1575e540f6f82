"""Conditionals, loops, compositions and training steps on a real GPU: the conformance files' scenarios, and what
only a GPU shows: kernels in parallel, driver child graphs, no stall at a flag, 50 training steps bit for bit.

Written for torch 2.11; under 40 s on one H200.
"""

from __future__ import annotations

import statistics
import time

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

from tests.conformance import test_training_graphed as training  # noqa: E402

import gfxgraph  # noqa: E402
from gfxgraph.callables.control.compose import Composition  # noqa: E402
from gfxgraph.callables.control.conditional import Conditional  # noqa: E402
from gfxgraph.callables.control.loops import Unrolled, WhileLoop  # noqa: E402
from gfxgraph.process import process  # noqa: E402

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


def test_a_flag_costs_its_own_wait_only(bridge):
    """The device has 30 ms of other work queued behind the flag: the call returns long before that is done."""
    chosen = Conditional({True: lambda x: x + 1, False: lambda x: x - 1})
    x = torch.randn(1024, device="cuda")
    with torch.no_grad():
        for value in (1.0, -1.0) * 4:
            chosen(torch.tensor(value, device="cuda") > 0, x)
        torch.cuda.synchronize()
        flag = x.sum() > 1e9
        answer = chosen.ask(flag)
        spin(30)
        queued = torch.cuda.Event()
        queued.record()
        begun = time.perf_counter()
        got = chosen(answer, x)
        took_ms = (time.perf_counter() - begun) * 1e3
        was_busy = not queued.query()
        torch.cuda.synchronize()
    assert was_busy and took_ms < 10, took_ms
    assert torch.equal(got, x - 1)


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


def test_while_loop_runs_ahead_and_ends_right(bridge):
    """Newton's iteration to convergence: Python's number of steps, at most a few launches more."""

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
            assert loop.n_launches <= n + 4
    assert loop.runs_ahead


def test_unrolled_steps_are_fewer_launches_and_less_time(bridge):
    """64 tiny steps, 16 to a launch: eager's state, and less wall time than one launch a step."""

    def step(x, y):
        return (y * 1.01 + 0.1).tanh(), (x - y).sin()

    start = (torch.randn(64, device="cuda"), torch.randn(64, device="cuda"))
    with torch.no_grad():
        want = start
        for _ in range(64):
            want = step(*want)
        both = {k: Unrolled(step, k) for k in (1, 16)}
        times = {k: [] for k in both}
        for steps in both.values():
            steps(64, *start)
            steps.upload()
        for _ in range(40):  # in turn, and the best of each: other processes have their share of the device
            for k, steps in both.items():
                torch.cuda.synchronize()
                begun = time.perf_counter()
                got = steps(64, *start)
                torch.cuda.synchronize()
                times[k].append(time.perf_counter() - begun)
                assert all(torch.equal(g, w) for g, w in zip(got, want))
        assert both[1].n_launches == 64 and both[16].n_launches == 4
    assert min(times[16]) < min(times[1]), times


# -- compositions ---------------------------------------------------------------------------------------------


def test_child_graphs_of_the_driver(bridge):
    """One launch through the driver's child-graph nodes, an update in the exec, the order of the edges."""
    x, y = torch.zeros(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda")
    parts = {
        "add": capture(lambda: x.add_(1))[0],
        "double": capture(lambda: x.mul_(10))[0],
        "other": capture(lambda: y.add_(1))[0],
    }
    both = Composition(parts, after={"double": ["add"]})
    both.upload()
    x.zero_()
    y.zero_()
    for _ in range(3):
        x.zero_()
        both.replay()
    torch.cuda.synchronize()
    assert both.is_one_launch, both.explain()
    assert (x == 10).all() and (y == 3).all()
    again, _ = capture(lambda: x.mul_(3))
    captures = gfxgraph.stats()["capture_count"]
    both.update("double", again)
    x.zero_()
    both.replay()
    assert (x == 3).all() and gfxgraph.stats()["capture_count"] == captures


def test_independent_graphs_run_side_by_side(bridge):
    """Two chains of 1500 tiny kernels: without an edge between them they take less than one after the other."""

    def chain(mark):
        for _ in range(1500):
            mark.add_(1)

    graphs = [capture(lambda mark=mark: chain(mark))[0] for mark in (torch.zeros(8, device="cuda") for _ in "ab")]

    def timed(after):
        both = Composition(graphs, after=after)
        times = []
        for _ in range(6):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            both.replay()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        assert both.is_one_launch and both.edges == {(b, a) for a, those in after.items() for b in those}
        return min(times)

    in_order, beside = timed({"1": ["0"]}), timed({})
    assert beside < in_order * 0.8, (beside, in_order)


def test_a_composition_costs_little_more_than_its_parts(bridge):
    """Eight tiny graphs: one launch takes the host less than 1.5 times as long as eight (H200: 22.4 and 21.3 us)."""
    x = [torch.zeros(64, device="cuda") for _ in range(8)]
    graphs = [capture(lambda t=t: t.add_(1))[0] for t in x]
    both = Composition(graphs)
    both.replay()
    both.replay()
    assert both.is_one_launch

    def timed(call):
        times = []
        for _ in range(50):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(10):  # the first launch to an idle device takes as long as four others
                call()
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    one = timed(both.replay)
    each = timed(lambda: [graph.replay() for graph in graphs])
    assert one < 1.5 * each, (one, each)
    assert process.require().driver is not None


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
