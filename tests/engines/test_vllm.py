"""vLLM's own graph wrappers, unmodified: full, piecewise and breakable, and a capture that fails in each."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

import gfxgraph
from gfxgraph import adapters
from tests.engines import surroundings
from tests.engines.conftest import SIZES
from tests.engines.surroundings import BatchDescriptor, Mode

CONFIG = SimpleNamespace(compilation_config=SimpleNamespace(), use_cumem_cudagraph_pool=False)


@contextlib.contextmanager
def forward(mode, n):
    """What vLLM's runner sets round each forward pass."""
    import vllm.forward_context as contexts

    contexts.holder.current = SimpleNamespace(batch_descriptor=BatchDescriptor(n), cudagraph_runtime_mode=mode)
    try:
        yield
    finally:
        contexts.holder.current = None


class Runner:
    """Captures every size as vLLM's model runner does: a warm-up, then the capture, largest first, on one stream."""

    def __init__(self, mode, call):
        self.mode, self.call = mode, call
        self.stream = torch.cuda.Stream()

    def capture(self):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for n in SIZES:
                with forward(Mode.NONE, n):
                    self.call(n)
                with forward(self.mode, n):
                    self.call(n)
        torch.cuda.current_stream().wait_stream(self.stream)
        torch.cuda.synchronize()
        return self

    def __call__(self, n):
        with forward(self.mode, n):
            return self.call(n)


def full(model):
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    wrapper = CUDAGraphWrapper(model.step, CONFIG, Mode.FULL)
    return Runner(Mode.FULL, lambda n: wrapper(model.x[:n]))


def piecewise(model):
    from vllm.compilation.cuda_graph import CUDAGraphOptions, CUDAGraphWrapper

    before = CUDAGraphWrapper(model.before, CONFIG, Mode.PIECEWISE, CUDAGraphOptions(weak_ref_output=False))
    after = CUDAGraphWrapper(model.after, CONFIG, Mode.PIECEWISE, CUDAGraphOptions(gc_disable=True))

    def call(n):
        h = before(model.x[:n])
        out = model.hidden[:n]
        model.attention(h, out)
        return after(out)

    return Runner(Mode.PIECEWISE, call)


def two_pieces(model):
    """Without a static buffer between them: the second graph reads where the first one left its result."""
    from vllm.compilation.cuda_graph import CUDAGraphOptions, CUDAGraphWrapper

    before = CUDAGraphWrapper(model.before, CONFIG, Mode.PIECEWISE, CUDAGraphOptions(weak_ref_output=False))
    after = CUDAGraphWrapper(model.after, CONFIG, Mode.PIECEWISE, CUDAGraphOptions(gc_disable=True))

    def call(n):
        h = before(model.x[:n])
        model.attention(h, h)
        return after(h)

    return Runner(Mode.PIECEWISE, call)


def breakable(model):
    from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper, eager_break_during_capture

    attention = eager_break_during_capture(model.attention)

    def step(x):
        h = model.before(x)
        out = model.hidden[: x.shape[0]]
        attention(h, out)
        return model.after(out)

    wrapper = BreakableCUDAGraphWrapper(step, CONFIG)
    return Runner(Mode.PIECEWISE, lambda n: wrapper(model.x[:n]))


KINDS = {"full": full, "piecewise": piecewise, "two_pieces": two_pieces, "breakable": breakable}


@pytest.mark.parametrize("with_adapter", [False, True], ids=["bridge", "adapter"])
@pytest.mark.parametrize("kind", KINDS)
def test_wrappers(vllm, kind, with_adapter):
    """Every size captured and replayed through vLLM's own wrapper gives what eager execution gives."""
    if with_adapter:
        adapters.install("vllm")
    run = KINDS[kind](vllm).capture()
    n_runs = vllm.n_runs
    for seed, n in enumerate((1, 8, 2, 4, 8, 1), 1):
        vllm.check(run, n, seed)
    assert vllm.n_runs == n_runs + 6  # the eager runs of the check, none of the wrapper's
    stats = gfxgraph.stats()
    n_graphs = {"full": 1, "piecewise": 2, "two_pieces": 2, "breakable": 2}[kind] * len(SIZES)
    assert (stats["capture_count"], stats["fallback_count"], stats["split_count"]) == (n_graphs, 0, 0)


@pytest.mark.parametrize("part", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_that_fails_ends_the_engine_without_the_adapter(vllm, kind, part):
    """What the adapter is for: vLLM itself lets the error of a capture out of its start."""
    vllm.fail_in = part
    with pytest.raises(gfxgraph.CaptureError):
        KINDS[kind](vllm).capture()


@pytest.mark.parametrize("part", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_that_fails_becomes_eager(vllm, kind, part):
    """With the adapter those graphs run eagerly, right each time, and what follows them reads the right memory."""
    adapters.install("vllm")
    vllm.fail_in = part
    run = KINDS[kind](vllm).capture()
    vllm.fail_in = ""
    for seed, n in enumerate((1, 8, 2, 4, 8, 1, 2), 1):
        vllm.check(run, n, seed)
    stats = gfxgraph.stats()
    assert stats["fallback_count"] == len(SIZES)
    assert all("vLLM" in event["reason"] for event in stats["events"] if event["kind"] == "fallback")


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_graph_that_failed_becomes_eager(vllm, kind):
    """One size fails; the others have their graphs, captured before and after it."""
    adapters.install("vllm")
    runner = KINDS[kind](vllm)
    call = runner.call

    def failing(n):
        vllm.fail_in = "after" if n == 4 else ""
        return call(n)

    runner.call = failing
    runner.capture()
    runner.call, vllm.fail_in = call, ""
    n_runs = vllm.n_runs
    for seed, n in enumerate((8, 2, 1, 8), 1):
        vllm.check(runner, n, seed)
    assert vllm.n_runs == n_runs + 4
    vllm.check(runner, 4, 9)
    assert vllm.n_runs == n_runs + 6
    assert gfxgraph.stats()["fallback_count"] == 1


def test_graphs_cleared_are_tried_again(vllm):
    """After vLLM drops its graphs, as it does between profiling and serving, eager ones may be captured."""
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    adapters.install("vllm")
    vllm.fail_in = "after"
    runner = full(vllm).capture()
    vllm.fail_in = ""
    CUDAGraphWrapper.clear_all_graphs()
    runner.capture()
    n_runs = vllm.n_runs
    vllm.check(runner, 4, 1)
    assert vllm.n_runs == n_runs + 1


def test_a_capture_out_of_season_is_still_refused(vllm):
    """vLLM's own check that nothing is captured while serving is not swallowed."""
    from vllm.compilation.monitor import set_cudagraph_capturing_enabled

    adapters.install("vllm")
    set_cudagraph_capturing_enabled(False)
    with pytest.raises(RuntimeError, match="inappropriate"):
        full(vllm).capture()


def test_an_error_of_the_models_own_comes_out(vllm):
    """A model that fails eagerly too is not made to look like a graph that failed."""
    adapters.install("vllm")

    def broken(x):
        raise RuntimeError("the model's own")

    vllm.step = broken
    with pytest.raises(RuntimeError, match="the model's own"):
        full(vllm).capture()


def test_breakable_begins_again_after_a_begin_that_failed(vllm):
    """A first segment that cannot be begun leaves no capture "active" behind."""
    from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphCapture

    adapters.install("vllm")
    runner = breakable(vllm)
    begin = BreakableCUDAGraphCapture._begin_segment
    failures = [RuntimeError("cannot begin")]

    def failing(self):
        if failures:
            raise failures.pop()
        begin(self)

    BreakableCUDAGraphCapture._begin_segment = failing
    runner.capture()
    for seed, n in enumerate(SIZES, 1):
        vllm.check(runner, n, seed)
    stats = gfxgraph.stats()
    assert (stats["fallback_count"], stats["capture_count"]) == (1, 2 * (len(SIZES) - 1))


def test_the_files_are_the_published_ones(vllm):
    """Every file that ran here has the hash that vLLM's package states for it."""
    assert surroundings.changed("vllm") == []
