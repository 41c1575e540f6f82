"""torch.cuda.CUDAGraph: texts, order of checks and life cycle, as in PyTorch's CUDAGraph.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gfxgraph_simulator as simulator

Install = Callable[..., simulator.Simulator]


def captured(keep_graph: bool = False) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
    graph, x = torch.cuda.CUDAGraph(keep_graph=keep_graph), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        y = x + 1
    return graph, x, y


def test_capture_on_the_default_stream_is_refused(sim: simulator.Simulator) -> None:
    """The documented text, and nothing is left capturing."""
    with pytest.raises(RuntimeError, match="CUDA graphs must be captured on a non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
    torch.rand(2, device="cuda")


def test_second_capture_into_one_graph_is_refused(sim: simulator.Simulator) -> None:
    """A graph that owns an exec must be reset first; after reset it captures again."""
    graph, x, _ = captured()
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
    graph.reset()
    with torch.cuda.graph(graph):
        y = x * 4
    graph.replay()
    assert y.tolist() == [4, 4, 4]


def test_calls_before_a_capture_are_refused(sim: simulator.Simulator) -> None:
    """replay(), pool() and the raw handles each say what is missing."""
    graph = torch.cuda.CUDAGraph()
    # From 2.14 replay() instantiates first, in Python.
    text = "Called CUDAGraph::replay without a preceding successful capture|must have been called before"
    with pytest.raises(RuntimeError, match=text):
        graph.replay()
    with pytest.raises(RuntimeError, match=r"Called CUDAGraph::pool\(\) without a preceding successful"):
        graph.pool()
    with pytest.raises(RuntimeError, match="until instantiate"):
        graph.raw_cuda_graph_exec()


@pytest.mark.parametrize(("profile", "label"), [("cuda", "cuda"), ("hip", "hip")])
def test_keep_graph_semantics(install: Install, profile: str, label: str) -> None:
    """Without keep_graph there is no template; with it instantiate() may be called again and again."""
    install(profile)
    graph, _, _ = captured()
    # The second is the text of 2.14 and later.
    text = f"raw {label}Graph_t instance unless CUDAGraph was initialized|No {label}Graph_t is available"
    with pytest.raises(RuntimeError, match=text):
        graph.raw_cuda_graph()
    with pytest.raises(RuntimeError, match="intended to be called by the user only when keep_graph=true"):
        graph.instantiate()
    kept, _, y = captured(keep_graph=True)
    with pytest.raises(RuntimeError, match=f"raw {label}GraphExec_t instance until instantiate"):
        kept.raw_cuda_graph_exec()
    kept.instantiate()
    first = kept.raw_cuda_graph_exec()
    kept.instantiate()
    assert kept.raw_cuda_graph_exec() != first and kept.raw_cuda_graph() > 0
    kept.replay()
    assert y.tolist() == [2, 2, 2]


def test_first_replay_instantiates_a_kept_graph(sim: simulator.Simulator) -> None:
    """replay() of a kept graph works without instantiate()."""
    graph, x, y = captured(keep_graph=True)
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [5, 5, 5]


def test_empty_capture_warns_and_does_not_raise(sim: simulator.Simulator) -> None:
    """An empty graph holds its pool, which cudagraph trees rely on."""
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        with torch.cuda.graph(graph):
            pass
    assert graph.pool() and sim.allocator.use_count(graph.pool()) == 1


@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_pool_whose_graphs_are_gone_is_refused(sim: simulator.Simulator, is_emptied: bool) -> None:
    """By the allocator, until its cache is emptied."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def capture() -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool)
            torch.ones(3, device="cuda").add_(1)
            graph.capture_end()
        return graph

    graph = capture()
    del graph
    if is_emptied:
        torch.cuda.empty_cache()
        again = capture()
        assert again.pool() == pool and sim.allocator.use_count(pool) == 1
    else:
        with pytest.raises(RuntimeError, match="use_count > 0 INTERNAL ASSERT FAILED at .*CUDACachingAllocator.cpp"):
            capture()


def test_capture_must_end_where_it_began(sim: simulator.Simulator) -> None:
    """Ending on another stream is refused by torch before the runtime is asked."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="Capture must end on the same stream it began on"):
        graph.capture_end()
    with torch.cuda.stream(stream), pytest.warns(UserWarning):
        graph.capture_end()


def test_pool_ids_have_their_two_shapes(sim: simulator.Simulator) -> None:
    """(0, n) from graph_pool_handle, (n, 0) from a graph of its own; sharing keeps the id."""
    handle = torch.cuda.graph_pool_handle()
    graph, x, _ = captured()
    assert handle[0] == 0 < handle[1] and graph.pool()[1] == 0 < graph.pool()[0]
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other, pool=handle):
        x + 1
    assert other.pool() == handle


def test_unknown_mode_is_refused(sim: simulator.Simulator) -> None:
    """capture_error_mode has three values."""
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="Unknown capture error"):
        torch.cuda.CUDAGraph().capture_begin(capture_error_mode="strict")


def test_subclasses_work_as_on_a_gpu(sim: simulator.Simulator) -> None:
    """A subclass made before or after install drives the base class through super()."""

    class Counting(torch.cuda.CUDAGraph):
        replays = 0

        def replay(self) -> None:
            self.replays += 1
            super().replay()

    graph, x = Counting(), torch.ones(2, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 3
    graph.replay()
    assert graph.replays == 1 and y.tolist() == [3, 3]


@pytest.mark.skipif(hasattr(torch._C, "_cuda_init"), reason="CUDA build: CUDAGraph's base has a C layout")
def test_class_made_before_install_is_covered() -> None:
    """CUDAGraph stays the same class object, so earlier subclasses capture too."""

    class Early(torch.cuda.CUDAGraph):
        pass

    with simulator.install():
        graph, x = Early(), torch.ones(2, device="cuda")
        with torch.cuda.graph(graph):
            y = x * 3
        graph.replay()
        assert y.tolist() == [3, 3]
        del graph


@pytest.mark.skipif(
    hasattr(torch._C._CUDAGraph, "capture_end_pre"), reason="torch 2.14: debug_dump needs cuda.bindings"
)
def test_debug_dump_writes_a_kept_graph(sim: simulator.Simulator, tmp_path: Path) -> None:
    """With debug mode and keep_graph the DOT file names the nodes."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    graph.enable_debug_mode()
    with torch.cuda.graph(graph):
        torch.ones(2, device="cuda") + 1
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert "sim::aten::add.Tensor" in (tmp_path / "graph.dot").read_text()


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_make_graphed_callables_trains(sim: simulator.Simulator) -> None:
    """torch's own make_graphed_callables gives forward and backward as eager does."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).cuda()
    x = torch.randn(3, 4, device="cuda", requires_grad=True)
    expected = model(x)
    expected.square().sum().backward()
    expected = expected.detach()  # torch 2.13 refuses to capture a backward while another ties leaves to the stream
    grads, x_grad = [p.grad.clone() for p in model.parameters()], x.grad.clone()
    model.zero_grad()
    x.grad = None
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn_like(x).requires_grad_(),))
    made = graphed(x)
    torch.testing.assert_close(made, expected)
    made.square().sum().backward()
    torch.testing.assert_close(x.grad, x_grad)
    for parameter, grad in zip(model.parameters(), grads):
        torch.testing.assert_close(parameter.grad, grad)


def test_poison_by_dtype(sim: simulator.Simulator) -> None:
    """Floats are NaN, integers extreme, until the first replay."""
    graph, x = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda")
    with torch.cuda.graph(graph):
        made = [x.half() + 1, x.bfloat16() + 1, x.int() + 1, x.long() + 1, x > 0]
    assert made[0].isnan().all() and made[1].isnan().all()
    assert made[2].tolist() == [-(2**31)] * 2 and made[3].tolist() == [-(2**63)] * 2
    graph.replay()
    assert [value.tolist() for value in made] == [[2, 2]] * 4 + [[True, True]]


def test_host_work_in_a_capture_runs_at_once_and_never_again(sim: simulator.Simulator) -> None:
    """CPU tensors are computed during the capture; a host scalar's value goes into the launch."""
    graph, x, scale = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda"), torch.tensor(2.0)
    with torch.cuda.graph(graph):
        scale += 1
        y = x * scale
    scale.fill_(100)
    graph.replay()
    assert scale.item() == 100 and y.tolist() == [3, 3]


def test_graph_freed_during_another_capture(install: Install) -> None:
    """ROCm's destructor synchronizes: the capture dies, and the process would."""
    sim = install("hip")
    graph, x, _ = captured()
    other = torch.cuda.CUDAGraph()
    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        with torch.cuda.graph(other):
            x + 1
            del graph
    assert [crash for crash in sim.crashes if "CUDAGraph" in crash]
    sim.crashes.clear()
