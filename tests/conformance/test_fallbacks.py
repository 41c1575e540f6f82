"""Replays that fail: the order of the steps down, right results at each, counted and logged."""

from __future__ import annotations

import logging

import pytest
import torch

import gfxgraph
from gfxgraph_simulator import Faults
from tests.conformance.bench import Bench, ProcessState, reserved, same

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="failures are planted in the simulator")
PROGRAMS = ["plain", "rng", "in_place", "forked", "split"]
OPAQUE = ["opaque_first", "opaque_last"]
INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS, INVALIDATED = 1, 2, 700, 901
TAPE = "graph launch failed; ran the tape"
NOTHING = "graph launch failed, and there is no fallback left"


@pytest.fixture(params=["cuda", "hip"])
def bench(request):
    gfxgraph.enable(simulate=request.param, validate=False)
    gfxgraph.reset_stats()
    try:
        yield Bench()
    finally:
        gfxgraph.disable()


def captured(bench, program, **kw):
    graph = torch.cuda.CUDAGraph(**kw)
    with torch.cuda.graph(graph, stream=bench.stream):
        outputs = getattr(bench, program)()
    return graph, outputs


def replay(bench, graph, outputs, program, plan=lambda faults: None):
    """One replay on new input with failures planted, against eager."""
    bench.x.copy_(torch.randn(8))
    want = bench.eager(getattr(bench, program))
    bench.sim.faults = faults = Faults()
    plan(faults)
    try:
        graph.replay()
    finally:
        bench.sim.faults = Faults()
    same(bench.observe(outputs), want)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("at", [1, 5])
def test_launch_fails(bench, program, at):
    """The first and later launches: the tape into the same outputs, and the next launch is one again."""
    graph, outputs = captured(bench, program)
    gfxgraph.reset_stats()
    state = ProcessState()
    for n in range(1, 7):
        fails = n == at
        replay(bench, graph, outputs, program, lambda f: fails and f.fail_nth("launch", 1, INVALID_VALUE))  # noqa: B023
    state.check()
    assert gfxgraph.stats()["fallbacks"] == {TAPE: 1}
    assert gfxgraph.stats()["replay_count"] == 6


def test_second_segment_launch_fails(bench):
    """The first part of a program is a launch, the second its tape."""
    graph, outputs = captured(bench, "split")
    replay(bench, graph, outputs, "split", lambda f: f.fail_nth("launch", 2, INVALID_VALUE))
    assert gfxgraph.stats()["fallbacks"] == {TAPE: 1}


@pytest.mark.parametrize("program", ["in_place", "rng", "opaque_first"])
def test_nothing_is_left(bench, program):
    """Every way fails: an error that lists them and quotes torch, state as before, counted; then it works again."""
    graph, outputs = captured(bench, program)
    external, rng = [t.clone() for t in bench.external], torch.cuda.get_rng_state()
    state = ProcessState()
    bench.sim.faults = faults = Faults()
    for n in range(1, 12):
        faults.fail_nth("launch", n, INVALID_VALUE)
    faults.fail_nth("op", len(bench.external), INVALID_VALUE)
    for n in range(1, 9):
        faults.fail_nth("op", n + 2, INVALID_VALUE)
    with pytest.raises(gfxgraph.ReplayError) as caught:
        graph.replay()
    bench.sim.faults = Faults()
    state.check()
    assert caught.value.code == "no_fallback_left"
    assert ("graph launch, tape" in str(caught.value)) is (program not in OPAQUE)
    assert "invalid argument" in str(caught.value)
    assert gfxgraph.stats()["fallbacks"] == {NOTHING: 1}
    same(bench.external, external)
    torch.cuda.set_rng_state(rng)
    replay(bench, graph, outputs, program)


def test_sticky_fault(bench):
    """After an illegal address every call fails: one error with torch's own words."""
    graph, _ = captured(bench, "plain")
    bench.sim.faults = faults = Faults()
    faults.fail_nth("launch", 1, ILLEGAL_ADDRESS)
    with pytest.raises(gfxgraph.ReplayError, match="an illegal memory access was encountered") as caught:
        graph.replay()
    assert caught.value.code == "no_fallback_left"
    bench.sim.device.sticky = 0
    bench.sim.faults = Faults()


def test_logged_once(bench, caplog):
    """Ten failures of one kind: ten counts, one line."""
    graph, outputs = captured(bench, "plain")
    with caplog.at_level(logging.INFO, logger="gfxgraph"):
        logging.getLogger("gfxgraph").propagate = True
        for _ in range(10):
            replay(bench, graph, outputs, "plain", lambda f: f.fail_nth("launch", 1, INVALID_VALUE))
    assert gfxgraph.stats()["fallback_count"] == 10
    lines = [r.getMessage() for r in caplog.records if "ran the tape" in r.getMessage()]
    assert len(lines) == 1 and "bench.py" in lines[0]


@pytest.mark.parametrize("call", ["end", "instantiate"])
def test_tape_of_a_failed_capture_is_counted_at_each_replay(bench, call):
    """A capture that had no graph at its end runs from the tape, and says so every time."""
    bench.sim.faults = faults = Faults()
    faults.fail_nth(call, 1, 901 if call == "end" else OUT_OF_MEMORY)
    graph, outputs = captured(bench, "in_place")
    bench.sim.faults = Faults()
    before = gfxgraph.stats()["fallback_count"]
    assert before == 1
    for _ in range(3):
        replay(bench, graph, outputs, "in_place")
    assert gfxgraph.stats()["fallback_count"] == before + 3
    assert len(gfxgraph.stats()["fallbacks"]) == 1


@pytest.mark.parametrize("by", ["user", "replay"])
@pytest.mark.parametrize("program", ["in_place", "opaque_first"])
def test_late_instantiation_fails(bench, by, program):
    """keep_graph=True: instantiated by the user or by the first replay; where that fails the tape runs."""
    graph, outputs = captured(bench, program, keep_graph=True)
    bench.sim.faults = faults = Faults()
    faults.fail_nth("instantiate", 1, OUT_OF_MEMORY)
    bench.x.copy_(torch.randn(8))
    if program == "opaque_first":
        with pytest.raises(gfxgraph.CaptureError, match="out of memory") as caught:
            graph.instantiate() if by == "user" else graph.replay()
        assert caught.value.code == "instantiate_failed"
        replay(bench, graph, outputs, program)  # the next attempt may find the memory
        return
    if by == "user":
        graph.instantiate()
    replay(bench, graph, outputs, program, lambda f: f.calls.update(faults.calls) or f.fail.update(faults.fail))
    assert list(gfxgraph.stats()["fallbacks"]) == ["the graph could not be instantiated; its tape runs instead"]


def test_memory_of_fallbacks_is_given_back(bench):
    """Nothing stays reserved once graph and outputs are gone."""
    baseline = reserved()
    graph, outputs = captured(bench, "split")
    for _ in range(3):
        replay(bench, graph, outputs, "split", lambda f: f.fail_nth("launch", 1, INVALID_VALUE))
    del graph, outputs
    assert reserved() == baseline


def relaid_input(x):
    first = x + 1
    x.t_()
    return first * 2 + x * torch.arange(4.0, device="cuda")


def relaid_result_of_a_product(x):
    y = torch.mm(x, x)
    y.t_()
    return y + torch.arange(4.0, device="cuda")


def relaid_argument(x):
    y = x * 1
    z = torch.mm(y, x)
    y.t_()
    return y + z


def one_row(x):
    return torch.nn.functional.linear(x[0], x).relu()


@pytest.mark.parametrize("body", [relaid_input, relaid_result_of_a_product, relaid_argument, one_row])
@pytest.mark.parametrize("dies_at", [0, 1, 2])
@pytest.mark.parametrize("launches", [True, False])
@pytest.mark.parametrize("bench", ["hip"], indirect=True)  # the tape knows no platform
def test_shapes_that_change_in_place(bench, body, dies_at, launches):
    """Replays, and tapes after a failure, go by the shape that a tensor had then, not by the one it got later."""
    x = torch.arange(16.0, device="cuda").reshape(4, 4)
    bench.sim.faults = faults = Faults()
    if dies_at:
        faults.fail_nth("op", dies_at, INVALIDATED)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            out = body(x)
    finally:
        bench.sim.faults = Faults()
    for seed in range(3):
        fresh = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)).cuda()
        x.copy_(fresh.t() if body is relaid_input else fresh)
        if not launches:
            bench.sim.faults.fail_nth("launch", 1, INVALID_VALUE)
        graph.replay()
        bench.sim.faults = Faults()
        torch.testing.assert_close(out, body(fresh))


def of_an_input(x):
    x.tolist()
    x.t_()


def of_what_the_host_has_read(x):
    y = x * 2
    y.tolist()
    y.t_()


@pytest.mark.parametrize("body", [of_an_input, of_what_the_host_has_read])
@pytest.mark.parametrize("bench", ["hip"], indirect=True)
def test_another_shape_in_place_is_refused_once_the_host_has_read(bench, body):
    """Steps on the host hold the tensor itself; it keeps its shape."""
    x = torch.ones(2, 3, device="cuda")
    with pytest.raises(gfxgraph.CaptureError, match="another shape in place") as caught:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            body(x)
    assert caught.value.code == "refused_in_capture" and x.shape == (2, 3)
