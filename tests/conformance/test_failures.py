"""Every point at which a capture or a replay can fail: the process is left as it was, and results are right."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

import pytest
import torch

import gfxgraph
from gfxgraph.callables.arena import arena_of
from gfxgraph.capture.function_capture import SharedPool
from gfxgraph.capture.patches import deferred_calls
from gfxgraph.process import process
from gfxgraph_simulator import Faults
from tests.conformance.bench import Bench, ProcessState, reserved, same, stripped

PROFILES = ["cuda", "hip"]
OTHERS = ["hip-6.4", "hip-7.14"]
PROGRAMS = ["plain", "rng", "in_place", "forked", "split", "opaque_first", "opaque_last"]
ALL = [*itertools.product(PROFILES, PROGRAMS), *itertools.product(OTHERS, ["split", "opaque_last"])]
"""Every program on the two platforms; where runtimes differ, in how a capture ends, a program of either kind."""
with_programs = pytest.mark.parametrize(("bench", "program"), ALL, indirect=["bench"])
INVALID_VALUE, OUT_OF_MEMORY, NOT_PERMITTED, INVALIDATED, UNJOINED = 1, 2, 900, 901, 904


@pytest.fixture(params=PROFILES + OTHERS)
def bench(request):
    if torch.cuda.is_available():
        pytest.skip("these failures are planted in the simulator, which needs a machine without a GPU")
    gfxgraph.enable(simulate=request.param, validate=False)
    gfxgraph.reset_stats()
    # Else the first call planted would be one that makes this thread's BLAS handles, on HIP.
    deferred_calls.prepare_device(0)
    try:
        yield Bench()
    finally:
        gfxgraph.disable()


@dataclass
class Plan(Faults):
    """Failures that remember whether the one that struck met a capturing stream."""

    in_capture: bool = True

    def strike(self, call):
        code = Faults.strike(self, call)
        if code:
            self.in_capture = torch.cuda.is_current_stream_capturing()
        return code


def attempt(bench, body, plan, pool=None, graph=None):
    """Capture ``body`` with failures planted: (graph, outputs, error), everything checked but the results."""
    graph = graph if graph is not None else torch.cuda.CUDAGraph()
    rng = torch.cuda.get_rng_state()
    external = [t.clone() for t in bench.external]
    state = ProcessState()
    faults = Plan()
    bench.sim.faults = faults
    bench.n_calls = 0
    plan(faults)
    outputs = error = None
    try:
        with torch.cuda.graph(graph, stream=bench.stream, pool=pool):
            outputs = body()
    except RuntimeError as caught:
        error = stripped(caught)
    struck = not any(faults.fail.values()) and not bench.die_at
    if faults.oom_at_allocation is not None:
        struck = faults.calls["allocate"] >= faults.oom_at_allocation
    bench.in_capture = faults.in_capture
    bench.sim.faults = Faults()
    bench.die_at = 0
    state.check()
    assert bench.sim.crashes == []
    if "effects_not_undone" in [event["kind"] for event in gfxgraph.stats()["events"]]:
        assert error is not None  # the very call failed that puts things back: said, and one tensor stays changed
        gfxgraph.reset_stats()
        for tensor, old in zip(bench.external, external):
            tensor.copy_(old)
    same(bench.external, external)
    assert torch.equal(torch.cuda.get_rng_state(), rng)
    return graph, outputs, error, struck


def run(bench, program, plan, pool=None):
    """One planted failure, and all that must hold after it. Gives (error, whether the failure happened)."""
    body = getattr(bench, program)
    baseline = reserved()
    first = bench.first_in(pool) if pool is not None else None
    graph, outputs, error, struck = attempt(bench, body, plan, pool)
    in_capture = bench.in_capture
    if error is None:
        bench.assert_replay_is_eager(graph, outputs, body)
    bench.replace_lost_stream()
    bench.assert_usable(pool=pool)
    # The very same object captures again once it is reset.
    graph.reset()
    _, outputs, again, _ = attempt(bench, body, lambda faults: None, pool, graph)
    assert again is None
    bench.assert_replay_is_eager(graph, outputs, body, 1)
    del graph, outputs, again, first
    assert reserved() == baseline
    bench.in_capture = in_capture
    return error, struck


def every_n(bench, program, plan, pool=None):
    """Run with the first, second, third... call failing, until there is no such call.

    Gives by n: the error, and whether the call that failed was one of the capture.
    """
    outcomes = {}
    for n in itertools.count(1):
        error, struck = run(bench, program, partial(plan, n=n), pool)
        if not struck:
            assert n > 1
            return outcomes
        outcomes[n] = (error, bench.in_capture)


@with_programs
def test_begin(bench, program):
    """A capture that cannot begin raises torch's own error."""
    for pool in (None, bench.pool):
        error, _ = run(bench, program, lambda faults: faults.fail_nth("begin", 1, INVALID_VALUE), pool)
        assert "invalid argument" in str(error)


@with_programs
def test_op_that_ends_the_capture(bench, program):
    """Whichever operation ends the capture, the tape recovers it; after opaque launches an error names the op."""
    outcomes = every_n(bench, program, lambda faults, n: faults.fail_nth("op", n, INVALIDATED))
    assert len(outcomes) >= 3
    for n, (error, in_capture) in outcomes.items():
        assert error is None or "opaque" in program or not in_capture, n
        assert error is None or "operation failed due to a previous error during capture" in str(error), n


@with_programs
def test_op_that_is_refused(bench, program):
    """An operation's own failure reaches the caller as torch worded it; the capture lives on until then."""
    outcomes = every_n(bench, program, lambda faults, n: faults.fail_nth("op", n, INVALID_VALUE))
    assert outcomes[1][0] is not None
    for n, (error, _) in outcomes.items():
        # None where it was a call of ours, made to join a fork that is joined already.
        assert error is None or "invalid argument" in str(error).splitlines()[0], n


@with_programs
def test_silent_death(bench, program):
    """A driver call that nobody saw ends the capture; the next operation, or the end, notices."""
    outcomes = every_n(bench, program, lambda _, n: setattr(bench, "die_at", n))
    for n, (error, _) in outcomes.items():
        if program == "opaque_first":
            assert error is not None and error.code in ("capture_failed", "end_failed")
        else:
            assert error is None, (n, error)


@with_programs
@pytest.mark.parametrize("code", [INVALIDATED, UNJOINED])
def test_end(bench, program, code):
    """A capture that cannot be ended runs from its tape; an error after opaque launches, or on a lost stream.

    Torch 2.12 ends none twice, so there an end that is refused without a warning is an error, too.
    """
    is_lost = code == UNJOINED and torch.version.hip is not None
    is_lost = is_lost or bench.sim.profile.ends_a_capture_once
    for pool in (None, bench.pool):
        error, _ = run(bench, program, lambda faults: faults.fail_nth("end", 1, code), pool)
        if "opaque" in program or is_lost:
            assert error.code == "end_failed" and "captur" in error.quote
        else:
            assert error is None


@with_programs
def test_instantiate(bench, program):
    """A graph that cannot be made executable runs from its tape; with opaque launches it is an error."""
    error, _ = run(bench, program, lambda faults: faults.fail_nth("instantiate", 1, OUT_OF_MEMORY))
    if "opaque" in program:
        assert error.code == "instantiate_failed" and "out of memory" in str(error)
    else:
        assert error is None
        assert "the graph could not be instantiated; its tape runs instead" in gfxgraph.stats()["fallbacks"]


@with_programs
def test_out_of_memory(bench, program):
    """Out of memory inside a capture is torch's own exception, which programs catch by its type."""
    outcomes = every_n(bench, program, lambda faults, n: faults.oom_nth(n))
    for n, (error, _) in outcomes.items():
        assert type(error) is torch.OutOfMemoryError, (n, error)


@pytest.mark.parametrize("call", ["begin", "end", "instantiate"])
def test_second_segment(bench, call):
    """A split whose second segment fails at its begin, end or instantiation."""
    code = UNJOINED if call == "end" else INVALID_VALUE
    for pool in (None, bench.pool):
        error, struck = run(bench, "split", lambda faults: faults.fail_nth(call, 2, code), pool)
        assert struck
        if call == "begin":
            assert "invalid argument" in str(error)
        elif call == "end" and torch.version.hip is not None:
            assert error.code == "end_failed"
        else:
            assert error is None


def test_interrupt_inside_torchs_capture_begin(platform, monkeypatch, caplog):
    """torch then knows no device yet, and its capture_end names that in an error which is no text."""
    base = process.require().base

    def struck(*_, **__):
        raise KeyboardInterrupt

    def unnamed(*_):
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    x, stream = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with monkeypatch.context() as planted:
        planted.setattr(base, "capture_begin", struck)
        planted.setattr(base, "capture_end", unnamed)
        with pytest.raises(KeyboardInterrupt), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            pass
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
    with torch.cuda.stream(stream):
        assert not torch.cuda.is_current_stream_capturing()
        (x + torch.rand_like(x)).sum().item()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        doubled = x * 2 + torch.rand_like(x) * 0
    graph.replay()
    assert doubled.tolist() == [2.0] * 4


def test_a_capture_that_had_ended(platform, monkeypatch, caplog):
    """What fails after torch's own end finds nothing to clean up, says no error, and leaves generators and pool free."""
    base = process.require().base
    real = base.capture_end

    def failing(graph):
        real(graph)
        raise KeyboardInterrupt

    x = torch.ones(4, device="cuda")
    pool = SharedPool(process.require(), torch.cuda.Stream())
    with monkeypatch.context() as planted:
        planted.setattr(base, "capture_end", failing)
        with pytest.raises(KeyboardInterrupt):
            arena_of(process.require(), 0).capture(lambda: x + 1, pool)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
    (x + torch.rand_like(x)).sum().item()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        doubled = x * 2 + torch.rand_like(x) * 0
    graph.replay()
    assert doubled.tolist() == [2.0] * 4
