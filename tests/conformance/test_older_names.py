"""The names of gfxgraph 1.x: their signatures, what they were said to do, and the right results."""

from __future__ import annotations

import importlib
import inspect
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.process import process

pytestmark = pytest.mark.any_platform


def randn(*size):
    return torch.randn(*size, device="cuda")


@pytest.fixture
def model(platform):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).cuda()


def close(one, other):
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=1e-6)


# -- BridgedCUDAGraph.capture and .replay ---------------------------------------------------------------------


def test_signatures_are_those_of_1x(platform):
    """Keyword by keyword."""
    graph = torch.cuda.CUDAGraph()
    names = list(inspect.signature(graph.capture).parameters)
    assert names == ["dynamic_shapes", "buckets", "conditional_branches", "model_fn"]
    assert list(inspect.signature(gfxgraph.ShapeBucketPool).parameters) == ["model_fn", "buckets", "warmup"]
    assert list(inspect.signature(gfxgraph.ConditionalGraph().run).parameters) == ["branch", "input_tensor"]
    with pytest.raises(TypeError):
        graph.replay(batchsize=3)


def test_capture_and_replay_a_block(model):
    """A block captured as it stands; replay() runs it on what its static input holds now."""
    x = randn(4, 8)
    with torch.no_grad():
        model(x)
        graph = gfxgraph.BridgedCUDAGraph()
        with graph.capture():
            y = model(x)
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        for _ in range(3):
            x.copy_(randn(4, 8))
            assert graph.replay() is None
            assert close(y, model(x))


def test_replay_gives_the_models_result(model):
    """With model_fn, replay(input_tensor=x) gives model_fn(x); 1.x returned None."""
    graph = gfxgraph.BridgedCUDAGraph()
    x = randn(4, 8)
    with torch.no_grad(), graph.capture(model_fn=model):
        model(x)
    for _ in range(4):
        x = randn(4, 8)
        assert close(graph.replay(input_tensor=x), model(x))


def test_dynamic_shapes_pick_a_bucket(model):
    """replay(batch_size=, input_tensor=) at many sizes, in three captures; above the largest bucket eagerly."""
    graph = gfxgraph.BridgedCUDAGraph()
    static = randn(32, 8)
    with torch.no_grad(), graph.capture(dynamic_shapes=True, buckets=[4, 8, 32], model_fn=model):
        model(static)
    for n in (1, 3, 4, 7, 12, 31, 2, 5, 12, 40):
        x = randn(n, 8)
        assert close(graph.replay(input_tensor=x), model(x))
    assert close(graph.replay(batch_size=5, input_tensor=x), model(x[:5]))
    assert close(graph.replay(batch_size=3), model(x[:3]))
    assert graph._older.pool.captured_buckets == [4, 8, 32]


def test_branches_by_name_and_index(model):
    """replay(branch=, input_tensor=): by name or index, one input for all."""
    graph = gfxgraph.BridgedCUDAGraph()
    branches = {"half": lambda x: x / 2, "model": model}
    with torch.no_grad(), graph.capture(conditional_branches=branches):
        pass
    for _ in range(3):
        x = randn(4, 8)
        assert close(graph.replay(branch="half", input_tensor=x), x / 2)
        assert close(graph.replay(branch=1, input_tensor=x), model(x))
    with pytest.raises(gfxgraph.ReplayError) as caught:
        graph.replay(branch="third", input_tensor=x)
    assert caught.value.code == "no_such_branch"


def test_what_lacks_something_says_what(platform):
    """Other sizes of a block without its function, and branches nobody captured, are refused at the start."""
    graph = gfxgraph.BridgedCUDAGraph()
    with pytest.raises(gfxgraph.CaptureError, match="model_fn"):
        graph.capture(dynamic_shapes=True)
    with pytest.raises(gfxgraph.CaptureError) as caught:
        graph.replay(branch="a")
    assert caught.value.code == "older_capture"
    with pytest.raises(gfxgraph.ReplayError) as caught:
        graph.replay()
    assert caught.value.code == "replay_before_capture"


def test_a_block_that_fails_leaves_the_stream_and_the_process(platform):
    """An error in the block comes out as it is; the next capture works."""
    graph = gfxgraph.BridgedCUDAGraph()
    x = randn(4)
    with pytest.raises(ZeroDivisionError):
        with graph.capture():
            x.add(1)
            raise ZeroDivisionError
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    graph = gfxgraph.BridgedCUDAGraph()
    with graph.capture():
        y = x + 1
    graph.replay()
    assert torch.equal(y, x + 1)


# -- ShapeBucketPool ------------------------------------------------------------------------------------------


def test_kept_slices_are_not_overwritten(platform):
    """Slices of five results, kept: 0, 1, 2, 3, 4. (1.x gave 3, 4, 2, 3, 4.)"""
    pool = gfxgraph.ShapeBucketPool(lambda x: x * 1.0, buckets=[4])
    kept = [pool(torch.full((4, 2), float(i), device="cuda"))[0:2] for i in range(5)]
    assert [int(t[0, 0].item()) for t in kept] == [0, 1, 2, 3, 4]


def test_pool_routes_warms_and_reports(model):
    """States of buckets before and after, all captured by warmup=True, bytes taken, a size in place of a tensor."""
    pool = gfxgraph.ShapeBucketPool(model, buckets=[8, 2, 4], warmup=True)
    assert pool.buckets == [2, 4, 8]
    assert [pool.route_bucket(n) for n in (1, 3, 8, 9)] == [(2, 1), (4, 1), (8, 1), (-1, 2)]
    x = randn(3, 8)
    with torch.no_grad():
        assert close(pool(x), model(x))
        assert pool.captured_buckets == [2, 4, 8] and pool.failed_buckets == []
        assert pool.route_bucket(3) == (4, 0) and pool.select_bucket(5) == 8
        assert pool.memory_overhead > 0
        assert close(pool(2), model(x[:2]))
    with pytest.raises(TypeError):
        pool("x")
    with pytest.raises(gfxgraph.CaptureError):
        pool(7)


def test_padding_that_would_show_is_not_used(platform):
    """A mean over the batch: eager's result at every size, and the bucket is among the failed. (1.x was wrong.)"""
    pool = gfxgraph.ShapeBucketPool(lambda x: x - x.mean(0), buckets=[4, 8])
    for n in (3, 3, 4, 6, 8, 6, 3):
        x = randn(n, 2)
        assert close(pool(x), x - x.mean(0))
    assert set(pool.failed_buckets) == {4, 8}


# -- ConditionalGraph -----------------------------------------------------------------------------------------


def test_conditional_graph(model):
    """Branches added, captured for an example, run by name on new inputs or the last one; failures by name."""
    chosen = gfxgraph.ConditionalGraph()
    chosen.add_branch("training", lambda x: model(x) * 2)
    chosen.add_branch("inference", model)
    chosen.add_branch("value", lambda x: x * x.sum().item())
    with pytest.raises(gfxgraph.ReplayError) as caught:
        chosen.run("inference")
    assert caught.value.code == "replay_before_capture"
    x = randn(4, 8)
    chosen.capture(x)
    assert chosen.branches == ["training", "inference", "value"]
    assert chosen.failed_branches == ["value"]
    with torch.no_grad():
        assert close(chosen.run("inference"), model(x))
        for _ in range(3):
            y = randn(4, 8)
            assert close(chosen.run("training", y), model(y) * 2)
            assert close(chosen.run("value", y), y * y.sum())
    with pytest.raises(TypeError):
        chosen.capture([1])


def test_a_branch_that_raises_at_its_capture_fails_alone(model):
    """It is named, the other branches are captured, and running it raises its own error."""
    chosen, x = gfxgraph.ConditionalGraph(), randn(4, 8)

    def broken(x):
        raise KeyError("its own")

    chosen.add_branch("broken", broken)
    chosen.add_branch("inference", model)
    chosen.capture(x)
    assert chosen.failed_branches == ["broken"] and chosen._chosen.captured_branches == ["inference"]
    with torch.no_grad():
        assert close(chosen.run("inference", x), model(x))
    with pytest.raises(KeyError, match="its own"):
        chosen.run("broken", x)


# -- a class that documents write -----------------------------------------------------------------------------


def test_cuda_graph_wrapper(platform, model):
    """The class that documents on graphs under ROCm have programs write: warm up, capture, copy, replay, clone."""

    class CUDAGraphWrapper:
        def __init__(self, model):
            self.model, self.pool = model, torch.cuda.graph_pool_handle()

        def capture(self, *static):
            with torch.no_grad():
                self.model(*static)
            torch.cuda.synchronize()
            self.static, self.graph = static, torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(self.graph, pool=self.pool):
                self.output = self.model(*static)
            torch.cuda.synchronize()

        def replay(self, *new):
            for static, given in zip(self.static, new):
                static.copy_(given)
            self.graph.replay()
            return self.output.clone()

    wrapper = CUDAGraphWrapper(model)
    wrapper.capture(randn(4, 8))
    for _ in range(3):
        x = randn(4, 8)
        with torch.no_grad():
            assert close(wrapper.replay(x), model(x))


def test_the_pages_benchmark_takes_the_pages_options(platform, monkeypatch, tmp_path):
    """``--run-count 3 --output FILE``: each workload in each run, whether it fell back, and the commit."""
    program = Path(__file__).parents[2] / "benchmarks/bench_readme_public.py"
    monkeypatch.syspath_prepend(str(program.parent))
    bench = importlib.import_module("measuring")
    written = tmp_path / "results/latest.json"
    monkeypatch.setattr(gfxgraph, "enable", lambda **asked: None)  # it is on
    monkeypatch.setattr(bench, "WAYS", {"eager": bench.WAYS["eager"], "graph": bench.WAYS["graph"]})
    monkeypatch.setattr(
        bench, "WORKLOADS", (bench.Workload("sine", "one", sine), bench.Workload("waits", "a", waits))
    )
    arguments = ["--rounds", "1", "--run-count", "3", "--output", str(written)]
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    runpy.run_path(str(program), run_name="__main__")
    table = json.loads(written.read_text())
    found = [[(one["workload"], one["fallback"]) for one in run] for run in table["runs"]]
    assert found == 3 * [[("sine", False), ("waits", True)]]
    assert {"commit_sha", "runtime", "hip", "variables", "device"} <= table["provenance"].keys()
    assert all(len(way["ms"]) == 1 and not way["error"] for one in table["results"] for way in one["ways"])


def sine():
    return torch.sin, [torch.ones(8, device="cuda")]


def waits():
    process.require().report("fallback", "a reason", "a graph")
    return torch.sin, [torch.ones(8, device="cuda")]
