"""Engines that catch capture errors and go on by themselves: the call patterns, and what they find afterwards."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch

import gfxgraph
from tests.conformance.bench import Bench, ProcessState, reserved, same

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu/test_recovery.py does this on a GPU")


@pytest.fixture(params=["cuda", "hip"])
def bench(request):
    gfxgraph.enable(simulate=request.param, validate=False, on_unsafe="strict")
    gfxgraph.reset_stats()
    try:
        yield Bench()
    finally:
        gfxgraph.disable()


def escapes(bench):
    """A value read inside the capture goes into arithmetic, which "strict" refuses."""
    return bench.x * bench.x.abs().max().item()


def users_bug(bench):
    bench.x * 2
    raise ValueError("mine")


def wrong_shape(bench):
    return bench.x @ torch.randn(5, 5, device="cuda")


BODIES = {"escapes": escapes, "users_bug": users_bug, "wrong_shape": wrong_shape}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_context_manager_and_except(bench, body):
    """try: with torch.cuda.graph(g): ... except: run eagerly."""
    state, baseline = ProcessState(), reserved()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            body(bench)
    except (RuntimeError, ValueError) as error:
        text = str(error)
    state.check()
    assert "previous error during capture" not in text
    bench.assert_usable()
    del graph
    assert reserved() == baseline


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("dropped", [True, False], ids=["dropped", "kept"])
def test_raw_capture_without_finally(bench, body, dropped):
    """The exception flies past capture_end, which is never called; the graph object goes, or captures anew."""
    state, baseline = ProcessState(), reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(bench.stream):
        try:
            graph.capture_begin()
            body(bench)
            graph.capture_end()
        except (RuntimeError, ValueError):
            pass
        if dropped:
            del graph
        else:
            graph.reset()
    state.check()
    bench.assert_usable()
    if not dropped:
        bench.x.fill_(1)
        with torch.cuda.graph(graph, stream=bench.stream):
            y = bench.x + 1
        graph.replay()
        same([y], [bench.x + 1])
        del graph, y
    assert reserved() == baseline


@pytest.mark.parametrize("way", ["block", "reset", "dropped", "ended"])
def test_a_handled_error_keeps_nothing(bench, way):
    """With the error go its frames, and what they hold: no cycle keeps tensors and numbers until garbage is collected."""
    kept = []

    def body():
        made = bench.x.abs()
        kept.append(weakref.ref(made))
        bench.x * made.max().item()

    def engine():
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph) if way == "block" else torch.cuda.stream(bench.stream):
                if way != "block":
                    graph.capture_begin()
                try:
                    body()
                except RuntimeError:
                    if way != "ended":
                        raise
                    graph.capture_end()
        except RuntimeError:
            if way == "reset":
                graph.reset()
            del graph  # a frame of the traceback is this one

    gc.disable()
    try:
        engine()
        assert kept[0]() is None
    finally:
        gc.enable()


def test_raw_capture_that_failed_begins_again_on_the_same_object(bench):
    """A capture that has failed is over: capture_begin on the same object needs no capture_end before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(bench.stream):
        for _ in range(2):
            with pytest.raises(gfxgraph.CaptureError) as caught:
                graph.capture_begin()
                escapes(bench)
            assert caught.value.code == "host_value_escaped"
        graph.capture_begin()
        y = bench.x + 1
        graph.capture_end()
    graph.replay()
    same([y], [bench.x + 1])


def test_capture_end_in_finally_keeps_the_error(bench):
    """try/finally around a raw capture: the body's error comes out, not one of capture_end's."""
    for kill in (False, True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(bench.stream), pytest.raises(ValueError, match="mine"):
            graph.capture_begin()
            try:
                bench._opaque()
                if kill:
                    bench.die_at = bench.n_calls + 1
                    bench.device_call()
                raise ValueError("mine")
            finally:
                graph.capture_end()
        bench.assert_usable()


def test_with_block_keeps_the_error(bench):
    """A body that raises inside a capture that is dead already: the body's error comes out."""
    state = ProcessState()
    with pytest.raises(ValueError, match="mine"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            bench._opaque()
            bench.die_at = bench.n_calls + 1
            bench.device_call()
            raise ValueError("mine")
    state.check()
    bench.assert_usable()


def test_error_wrapped_inside_the_body(bench):
    """A library inside the body turns our error into its own: that one comes out."""
    with pytest.raises(LookupError, match="theirs") as caught:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            try:
                escapes(bench)
            except RuntimeError as error:
                raise LookupError("theirs") from error
    assert caught.value.__cause__.code == "host_value_escaped"
    bench.assert_usable()


def test_error_swallowed_inside_the_body(bench):
    """A body that catches the error and goes on learns of it at the end: its capture is over."""
    state = ProcessState()
    with pytest.raises(gfxgraph.CaptureError) as caught:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            try:
                escapes(bench)
            except RuntimeError:
                y = bench.x + 1
    assert caught.value.code == "host_value_escaped"
    same([y], [bench.x + 1])  # eager by then
    state.check()
    bench.assert_usable()


def test_users_own_error_swallowed_inside_the_body(bench):
    """An operation's own error that the body handles is none of ours: the capture goes on."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        try:
            wrong_shape(bench)
        except RuntimeError:
            y = bench.x + 1
    bench.x.fill_(3)
    graph.replay()
    same([y], [bench.x + 1])


def test_retry_inside_an_except_block(bench):
    """An engine that retries with a smaller batch while it still handles the first failure."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            escapes(bench)
    except RuntimeError:
        with pytest.raises(gfxgraph.CaptureError):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                try:
                    escapes(bench)
                except RuntimeError:
                    pass
        second = torch.cuda.CUDAGraph()
        with torch.cuda.graph(second):
            y = bench.x * 2
    second.replay()
    same([y], [bench.x * 2])


@pytest.mark.parametrize("body", ["escapes", "users_bug"])
def test_traceback_kept_alive(bench, body):
    """Exceptions, generators and closures that hold the failed capture's frames do not hold up the next one."""
    held = []

    def steps():
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=bench.stream):
            yield bench.x + 1
            BODIES[body](bench)

    running = steps()
    next(running)
    try:
        next(running)
    except (RuntimeError, ValueError) as error:
        held.append((error, sys.exc_info(), lambda kept=error: kept))
    bench.assert_usable()
    assert held[0][0].__traceback__ is not None


def test_generator_closed_inside_a_capture(bench):
    """A generator that is thrown away between capture_begin and capture_end ends its capture on the way."""
    state = ProcessState()

    def steps():
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=bench.stream):
            yield bench.x + 1

    running = steps()
    next(running)
    running.close()
    state.check()
    bench.assert_usable()


def test_object_dropped_by_the_collector(bench):
    """A failed capture in a reference cycle is ended when the collector finds it."""

    class Engine:
        pass

    engine = Engine()
    engine.me, engine.graph = engine, torch.cuda.CUDAGraph()
    with torch.cuda.stream(bench.stream):
        engine.graph.capture_begin()
        bench.x + 1
    del engine
    gc.collect()
    assert gc.isenabled()
    bench.assert_usable()


def test_graph_of_segments_dropped_inside_another_capture(bench):
    """Dropping a graph while another is captured breaks neither that capture nor the process."""
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        bench.split()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second):
        a = bench.x + 1
        del first
        gc.collect()
        y = a * 2
    assert bench.sim.crashes == []
    second.replay()
    same([y], [(bench.x + 1) * 2])


def test_out_of_memory_then_smaller(bench):
    """Out of memory caught inside the body: the capture goes on with what fits."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        try:
            torch.empty(1 << 40, device="cuda")
        except torch.cuda.OutOfMemoryError:
            y = bench.x + 1
    graph.replay()
    same([y], [bench.x + 1])


@pytest.mark.parametrize("where", ["inner begin", "inner body", "inner end", "inner ops", "outer after"])
def test_nested(bench, where):
    """A failure in a capture inside a capture: the outer one goes on and is right."""
    from gfxgraph_simulator import Faults

    state, baseline = ProcessState(), reserved()
    outer, inner = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    error = b = None
    with torch.cuda.graph(outer, stream=bench.stream):
        a = bench.x + 1
        bench.sim.faults = faults = Faults()
        faults.fail_nth("begin", 1, 1) if where == "inner begin" else None
        # The first is the outer segment's, which makes room.
        faults.fail_nth("end", 2, 901) if where == "inner end" else None
        faults.fail_nth("op", 1, 901) if where == "inner ops" else None
        try:
            with torch.cuda.stream(bench.side):
                inner.capture_begin()
                b = bench.x * 3
                if where == "inner body":
                    escapes(bench)
                inner.capture_end()
        except RuntimeError as caught:
            error = caught.with_traceback(None)
        bench.sim.faults = Faults()
        if where == "outer after":
            bench.die_at = bench.n_calls + 1
            bench.device_call()
        y = a * 2
    state.check()
    assert bench.sim.crashes == []
    assert (error is not None) == (where in ("inner begin", "inner body"))
    bench.x.fill_(5)
    outer.replay()
    same([y], [(bench.x + 1) * 2])
    if error is None:
        inner.replay()
        same([b], [bench.x * 3])
    bench.assert_usable()
    del outer, inner, a, b, y, error
    assert reserved() == baseline
