"""Every point at which a capture or a replay can fail: the process is left as it was, and results are right."""

from __future__ import annotations

import itertools

import pytest
import torch

import gfxgraph
from gfxgraph.runtime import simulator
from gfxgraph.runtime.simulator import Faults
from tests.conformance.bench import Bench, ProcessState, reserved, same, stripped

PROFILES = ["cuda", "hip", "hip-6.4", "hip-7.14"]
PROGRAMS = ["plain", "rng", "in_place", "forked", "split", "opaque_first", "opaque_last"]
INVALID_VALUE, OUT_OF_MEMORY, NOT_PERMITTED, INVALIDATED, UNJOINED = 1, 2, 900, 901, 904

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="failures are planted in the simulator")


@pytest.fixture(params=PROFILES)
def bench(request):
    gfxgraph.enable(simulate=request.param, validate=False)
    gfxgraph.reset_stats()
    try:
        yield Bench()
    finally:
        gfxgraph.disable()


def attempt(bench, body, plan, pool=None, graph=None):
    """Capture ``body`` with failures planted: (graph, outputs, error), everything checked but the results."""
    graph = graph if graph is not None else torch.cuda.CUDAGraph()
    rng = torch.cuda.get_rng_state()
    external = [t.clone() for t in bench.external]
    state = ProcessState()
    faults = Faults()
    bench.sim.faults = faults
    plan(faults)
    outputs = error = None
    try:
        with torch.cuda.graph(graph, stream=bench.stream, pool=pool):
            outputs = body()
    except RuntimeError as caught:
        error = stripped(caught)
    struck = not any(faults.fail.values()) and (
        faults.oom_at_allocation is None or faults.calls["allocate"] >= faults.oom_at_allocation
    )
    bench.sim.faults = Faults()
    state.check()
    same(bench.external, external)
    assert torch.equal(torch.cuda.get_rng_state(), rng)
    return graph, outputs, error, struck


def run(bench, program, plan, pool=None):
    """One planted failure, and all that must hold after it. Gives (error, whether the failure happened)."""
    body = getattr(bench, program)
    bench.deaths = 0
    baseline = reserved()
    graph, outputs, error, struck = attempt(bench, body, plan, pool)
    if error is None:
        bench.assert_replay_is_eager(graph, outputs, body)
    bench.assert_usable(pool=pool)
    # The very same object captures again once it is reset.
    graph.reset()
    _, outputs, again, _ = attempt(bench, body, lambda faults: None, pool, graph)
    assert again is None
    bench.assert_replay_is_eager(graph, outputs, body, 1)
    del graph, outputs, again
    assert reserved() == baseline
    return error, struck


def every_n(bench, program, plan, pool=None):
    """Run with the first, second, third... call failing, until there is no such call. Gives the errors by n."""
    errors = {}
    for n in itertools.count(1):
        error, struck = run(bench, program, lambda faults: plan(faults, n), pool)
        if not struck:
            assert n > 1
            return errors
        errors[n] = error


def text_of(code, profile):
    return str(simulator.codes.torch_error(code, "cuda" if profile == "cuda" else "hip")).splitlines()[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_begin(bench, program):
    """A capture that cannot begin raises torch's own error."""
    for pool in (None, bench.pool):
        error, _ = run(bench, program, lambda faults: faults.fail_nth("begin", 1, INVALID_VALUE), pool)
        assert "invalid argument" in str(error)


@pytest.mark.parametrize("program", PROGRAMS)
def test_op_that_ends_the_capture(bench, program):
    """Whichever operation ends the capture, the tape recovers it; after opaque launches an error names the op."""
    errors = every_n(bench, program, lambda faults, n: faults.fail_nth("op", n, INVALIDATED))
    for n, error in errors.items():
        if error is None:
            continue
        assert "opaque" in program, n
        assert "operation failed due to a previous error during capture" in str(error), n
    if "opaque" not in program:
        assert len(errors) >= 3


@pytest.mark.parametrize("program", PROGRAMS)
def test_op_that_is_refused(bench, program):
    """An operation's own failure reaches the caller as torch worded it; the capture lives on until then."""
    errors = every_n(bench, program, lambda faults, n: faults.fail_nth("op", n, INVALID_VALUE))
    for n, error in errors.items():
        assert "invalid argument" in str(error).splitlines()[0], n


@pytest.mark.parametrize("program", PROGRAMS)
def test_silent_death(bench, program):
    """A driver call that nobody saw ends the capture; the next operation, or the end, notices."""
    body_errors = {}
    for n in itertools.count(1):
        bench.die_at = n
        error, _ = run(bench, program, lambda faults: None)
        if bench.deaths < n:
            break
        body_errors[n] = error
    bench.die_at = 0
    for n, error in body_errors.items():
        if program == "opaque_first":
            assert error is not None and error.code in ("capture_failed", "end_failed")
        else:
            assert error is None, (n, error)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("code", [INVALIDATED, UNJOINED])
def test_end(bench, program, code):
    """A capture that cannot be ended runs from its tape; with opaque launches it is an error."""
    for pool in (None, bench.pool):
        error, _ = run(bench, program, lambda faults: faults.fail_nth("end", 1, code), pool)
        if "opaque" in program:
            assert error.code == "end_failed" and "capture" in error.quote
        else:
            assert error is None


@pytest.mark.parametrize("program", PROGRAMS)
def test_instantiate(bench, program):
    """A graph that cannot be made executable runs from its tape; with opaque launches it is an error."""
    error, _ = run(bench, program, lambda faults: faults.fail_nth("instantiate", 1, OUT_OF_MEMORY))
    if "opaque" in program:
        assert error.code == "instantiate_failed" and "out of memory" in str(error)
    else:
        assert error is None
        assert "the graph could not be instantiated; its tape runs instead" in gfxgraph.stats()["fallbacks"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_out_of_memory(bench, program):
    """Out of memory inside a capture is torch's own exception, which programs catch by its type."""
    errors = every_n(bench, program, lambda faults, n: faults.oom_nth(n))
    for n, error in errors.items():
        assert type(error) is torch.OutOfMemoryError, (n, error)


@pytest.mark.parametrize("call", ["begin", "end", "instantiate"])
def test_second_segment(bench, call):
    """A split whose second segment fails at its begin, end or instantiation."""
    for pool in (None, bench.pool):
        code = UNJOINED if call == "end" else INVALID_VALUE
        error, struck = run(bench, "split", lambda faults: faults.fail_nth(call, 2, code), pool)
        assert struck
        if call == "begin":
            assert "invalid argument" in str(error)
        else:
            assert error is None
