"""Wrong use of graphs: each an error that says what, why and what to do, with torch's words where it has any.

Nothing of the user's changes: state, generator, streams, and the captures and graphs that were right before.
"""

from __future__ import annotations

import re
import subprocess
import threading

import pytest
import torch

import gfxgraph
from tests.conformance.bench import Bench, ProcessState, same
from tests.warm_python import warm_python

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the texts are those of the simulated card")


@pytest.fixture(params=["cuda", "hip"])
def bench(request):
    gfxgraph.enable(simulate=request.param, validate=False)
    try:
        yield Bench()
    finally:
        gfxgraph.disable()


def captured(bench, **kw):
    graph = torch.cuda.CUDAGraph(**kw)
    with torch.cuda.graph(graph):
        bench.y = bench.x + 1
    return graph


def on_default_stream(bench):
    torch.cuda.CUDAGraph().capture_begin()


def replay_before_capture(bench):
    torch.cuda.CUDAGraph().replay()


def replay_after_a_failed_capture(bench):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            torch.linalg.cholesky(-torch.eye(3, device="cuda"))
    except RuntimeError:
        pass
    graph.replay()


def use_after_reset(bench):
    graph = captured(bench)
    graph.reset()
    graph.replay()


def pool_after_reset(bench):
    graph = captured(bench)
    graph.reset()
    graph.pool()


def end_without_begin(bench):
    torch.cuda.CUDAGraph().capture_end()


def end_twice(bench):
    captured(bench).capture_end()


def capture_twice(bench):
    graph = captured(bench)
    with torch.cuda.graph(graph):
        bench.x + 2


def instantiate_before_capture(bench):
    torch.cuda.CUDAGraph(keep_graph=True).instantiate()


def instantiate_without_keeping(bench):
    captured(bench).instantiate()


def raw_graph_without_keeping(bench):
    captured(bench).raw_cuda_graph()


def raw_exec_before_capture(bench):
    torch.cuda.CUDAGraph(keep_graph=True).raw_cuda_graph_exec()


def pool_before_capture(bench):
    torch.cuda.CUDAGraph().pool()


def pool_of_two_numbers(bench):
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=(5, 7)):
        bench.x + 1


def pool_is_a_string(bench):
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool="mine"):
        bench.x + 1


def pool_of_a_graph_object(bench):
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=captured(bench).pool):
        bench.x + 1


TORCHS_WORDS = {
    on_default_stream: "CUDA graphs must be captured on a non-default stream.",
    replay_before_capture: "Called CUDAGraph::replay without a preceding successful capture.",
    replay_after_a_failed_capture: "Called CUDAGraph::replay without a preceding successful capture.",
    use_after_reset: "Called CUDAGraph::replay without a preceding successful capture.",
    pool_after_reset: "Called CUDAGraph::pool() without a preceding successful capture.",
    end_without_begin: "Capture must end on the same stream it began on.",
    end_twice: "Capture must end on the same stream it began on.",
    capture_twice: "This CUDAGraph instance already owns a captured graph.",
    instantiate_before_capture: "capture_end() must have been called before calling instantiate",
    instantiate_without_keeping: "instantiate() is intended to be called by the user only when keep_graph=true",
    raw_graph_without_keeping: "keep_graph=",
    raw_exec_before_capture: "instance until instantiate() has been called",
    pool_before_capture: "Called CUDAGraph::pool() without a preceding successful capture.",
    pool_of_two_numbers: "",
    pool_is_a_string: "",
    pool_of_a_graph_object: "",
}
CODES = {
    on_default_stream: "capture_on_default_stream",
    replay_after_a_failed_capture: "replay_before_capture",
    pool_after_reset: "use_after_reset",
    end_without_begin: "capture_not_begun",
    end_twice: "capture_not_begun",
    capture_twice: "already_captured",
    instantiate_before_capture: "nothing_captured",
    instantiate_without_keeping: "graph_not_kept",
    raw_graph_without_keeping: "graph_not_kept",
    raw_exec_before_capture: "nothing_captured",
    pool_before_capture: "nothing_captured",
    pool_of_two_numbers: "wrong_pool",
    pool_is_a_string: "wrong_pool",
    pool_of_a_graph_object: "wrong_pool",
}


@pytest.mark.parametrize("misuse", TORCHS_WORDS, ids=lambda f: f.__name__)
def test_misuse(bench, misuse):
    """The error names the line, quotes torch, and changes nothing; graphs made before still replay."""
    good = captured(bench)
    y = bench.y
    external, rng = [t.clone() for t in bench.external], torch.cuda.get_rng_state()
    state = ProcessState()
    with pytest.raises(gfxgraph.GfxGraphError) as caught:
        misuse(bench)
    text = str(caught.value)
    assert caught.value.code == CODES.get(misuse, misuse.__name__)
    assert [line[2:7].strip() for line in text.splitlines() if line[:2] == "  " and line[2] != " "] == [
        "what:",
        "why:",
        "do:",
        "more:",
    ]
    assert TORCHS_WORDS[misuse] in text
    assert "(not known)" not in text
    if "pool_" not in misuse.__name__ or misuse in (pool_after_reset, pool_before_capture):
        assert f"test_bad_input.py:{misuse.__code__.co_firstlineno}"[:-2] in text
    caught.value.__traceback__ = None
    state.check()
    same(bench.external, external)
    assert torch.equal(torch.cuda.get_rng_state(), rng)
    bench.x.fill_(4)
    good.replay()
    same([y], [bench.x + 1])
    bench.assert_usable()


def test_capture_end_on_another_stream(bench):
    """The capture is given up, and both streams are usable."""
    state = ProcessState()
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(bench.stream):
        graph.capture_begin()
        bench.x + 1
    with torch.cuda.stream(other), pytest.raises(gfxgraph.CaptureError) as caught:
        graph.capture_end()
    assert caught.value.code == "capture_ended_elsewhere"
    assert "Capture must end on the same stream it began on." in str(caught.value)
    state.check()
    bench.assert_usable()
    bench.assert_usable(stream=other)


def test_begin_twice(bench):
    """A second capture_begin on the same object is refused, and the first capture goes on."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(bench.stream):
        graph.capture_begin()
        with pytest.raises(gfxgraph.CaptureError) as caught:
            graph.capture_begin()
        y = bench.x + 1
        graph.capture_end()
    assert caught.value.code == "overlapping_captures"
    graph.replay()
    same([y], [bench.x + 1])


def test_ended_out_of_order(bench):
    """Ending the outer capture first is refused; in the right order both are right."""
    outer, inner = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(bench.stream):
        outer.capture_begin()
        a = bench.x + 1
        inner.capture_begin()
        b = bench.x * 2
        with pytest.raises(gfxgraph.CaptureError) as caught:
            outer.capture_end()
        inner.capture_end()
        c = a * 3
        outer.capture_end()
    assert caught.value.code == "overlapping_captures"
    bench.x.fill_(2)
    outer.replay()
    inner.replay()
    same([b, c], [bench.x * 2, (bench.x + 1) * 3])


def in_another_thread(act):
    """The error that ``act`` raises in a thread of its own, None where it raises none."""
    errors = []

    def run():
        try:
            act()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors[0] if errors else None


@pytest.mark.parametrize("what", ["same stream", "same object", "end", "same pool"])
def test_from_two_threads(bench, what):
    """What another thread does to a capture under way is refused there, and the capture is right."""
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()

    def same_stream():
        with torch.cuda.stream(bench.stream):
            other.capture_begin()

    def same_object():
        with torch.cuda.stream(bench.side):
            graph.capture_begin()

    def end():
        with torch.cuda.stream(bench.stream):
            graph.capture_end()

    def same_pool():
        with torch.cuda.stream(bench.side):
            other.capture_begin(pool=pool)

    cases = {
        "same stream": (same_stream, "overlapping_captures"),
        "same object": (same_object, "overlapping_captures"),
        "end": (end, "capture_ended_elsewhere"),
        "same pool": (same_pool, "wrong_pool"),
    }
    act, code = cases[what]
    state = ProcessState()
    with torch.cuda.stream(bench.stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        y = bench.x + torch.rand(8, device="cuda")
        error = in_another_thread(act)
        z = y * 2
        graph.capture_end()
    state.check()
    assert error.code == code
    if what == "same pool":
        assert "already recording to mempool_id" in str(error) and "test_bad_input.py" in str(error)
    bench.x.fill_(3)
    graph.replay()
    same([z], [y * 2])
    assert gfxgraph.stats()["fallback_count"] == 0
    bench.assert_usable(pool=pool)


def test_two_captures_in_two_threads(bench):
    """Captures on their own streams in two threads at once are no mistake."""
    results, barrier = {}, threading.Barrier(2, timeout=30)

    def run(name):
        graph, x = torch.cuda.CUDAGraph(), torch.full((4,), float(name), device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            barrier.wait()
            graph.capture_begin(capture_error_mode="thread_local")
            barrier.wait()
            y = x * 2
            barrier.wait()
            graph.capture_end()
        barrier.wait()
        results[name] = (graph, x, y)

    state = ProcessState()
    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state.check()
    for name, (graph, x, y) in results.items():
        x.fill_(name + 10.0)
        graph.replay()
        same([y], [x * 2])


def test_instantiate_twice(bench):
    """A kept graph may be instantiated again, as in torch."""
    graph = captured(bench, keep_graph=True)
    graph.instantiate()
    first = graph.raw_cuda_graph_exec()
    graph.instantiate()
    assert graph.raw_cuda_graph_exec() != first
    bench.x.fill_(5)
    graph.replay()
    same([bench.y], [bench.x + 1])


FORKED = """
import os, sys, torch, gfxgraph
gfxgraph.enable(simulate="hip", validate=False)
x = torch.ones(4, device="cuda")
graph, kept = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(keep_graph=True)
with torch.cuda.graph(graph):
    y = x + 1
with torch.cuda.graph(kept):
    z = x + 2
for _ in range(6):
    graph.replay()
child = os.fork()
if child == 0:
    codes = []
    def new():
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.CUDAGraph().capture_begin()
    for act in (graph.replay, new, graph.capture_end, kept.instantiate, graph.reset, graph.validate):
        try:
            act()
            codes.append("none")
        except RuntimeError as error:
            codes.append(getattr(error, "code", repr(error)))
            assert str(os.getpid()) in str(error) and str(os.getppid()) in str(error)
    print(*codes, flush=True)
    del graph, kept
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
graph.replay()
assert y.tolist() == [2.0] * 4
print("parent fine")
"""


def test_forked_child():
    """Every use of the parent's graphs in a forked child is refused with both process ids; the parent goes on."""
    done = subprocess.run([warm_python(), "-c", FORKED], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    refused, parent = done.stdout.splitlines()
    assert refused.split() == ["graph_in_forked_child"] * 6
    assert parent == "parent fine"


SNAPSHOT = {
    capture_twice: """\
already_captured: the graph already holds a capture
  what: capture_begin was called at HERE on a graph that was captured before
  why:  a second capture would take the memory that tensors of the first still use [This CUDAGraph instance already \
owns a captured graph. To capture a new graph, create a new instance.]
  do:   make a new torch.cuda.CUDAGraph(), or call reset() first, which gives the first capture's memory back
  more: gfxgraph explain already_captured""",
    end_without_begin: """\
capture_not_begun: capture_end without a capture
  what: capture_end was called at HERE on a graph whose capture had not been begun
  why:  capture_begin was never called on this object, it failed, or the capture was ended already [Capture must end \
on the same stream it began on.]
  do:   call capture_begin first, on the same object and stream; with torch.cuda.graph(g): does both
  more: gfxgraph explain capture_not_begun""",
    instantiate_without_keeping: """\
graph_not_kept: this call is for graphs made with keep_graph=True
  what: instantiate() was called at HERE on a graph made without it
  why:  without keep_graph=True torch keeps the driver's graph to itself and instantiates it when the capture ends \
[instantiate() is intended to be called by the user only when keep_graph=true]
  do:   make the graph with torch.cuda.CUDAGraph(keep_graph=True)
  more: gfxgraph explain graph_not_kept""",
    use_after_reset: """\
use_after_reset: a graph was used after reset()
  what: replay() was called at HERE on a graph whose capture had been released
  why:  reset() destroys the graph and frees its pool; the addresses it used may belong to other tensors now [Called \
CUDAGraph::replay without a preceding successful capture.]
  do:   capture again before replaying, or keep the graph until the last replay
  more: gfxgraph explain use_after_reset""",
    pool_of_two_numbers: """\
wrong_pool: this is not a memory pool that a capture can use
  what: pool=(5, 7) was passed to the capture: one of the two numbers of a pool id is always 0
  why:  a pool is a handle made by torch.cuda.graph_pool_handle(), by MemPool.id, or by another graph's pool(); a \
pool whose capture failed must not be used again
  do:   pass pool=other_graph.pool() of a living graph, or leave pool out to get a new one
  more: gfxgraph explain wrong_pool""",
}


@pytest.mark.parametrize("misuse", SNAPSHOT, ids=lambda f: f.__name__)
def test_text(bench, misuse, monkeypatch):
    """The whole text, as people read it; in Chinese it has the same lines."""
    monkeypatch.setenv("GFXGRAPH_LANG", "en")
    with pytest.raises(gfxgraph.GfxGraphError) as caught:
        misuse(bench)
    shown = re.sub(r"\S*test_bad_input\.py:\d+", "HERE", str(caught.value))
    assert shown == SNAPSHOT[misuse]
    assert len(caught.value.text("zh").splitlines()) == len(shown.splitlines())


def _linear():
    return torch.nn.Linear(4, 4).cuda()


NO_ARGUMENTS = {
    "enable(simulate=3)": lambda: gfxgraph.enable(simulate=3),
    "enable(validate='no')": lambda: gfxgraph.enable(validate="no"),
    "enable(allow_cuda=1)": lambda: gfxgraph.enable(allow_cuda=1),
    "enable(debug='x')": lambda: gfxgraph.enable(debug="x"),
    "enable(guard=2.7)": lambda: gfxgraph.enable(guard=2.7),
    "enable(on_unsafe=1)": lambda: gfxgraph.enable(on_unsafe=1),
    "guard_level(1.5)": lambda: gfxgraph.guard_level(1.5),
    "guard_level(9)": lambda: gfxgraph.guard_level(9),
    "CUDAGraph(on_unsafe='hope')": lambda: torch.cuda.CUDAGraph(on_unsafe="hope"),
    "graphed(strict='yes')": lambda: gfxgraph.graphed(_linear(), strict="yes"),
    "graphed(assume_pure='no')": lambda: gfxgraph.graphed(_linear(), assume_pure="no"),
    "graphed(max_graphs=1.5)": lambda: gfxgraph.graphed(_linear(), max_graphs=1.5),
    "graphed(warmup='x')": lambda: gfxgraph.graphed(_linear(), warmup="x"),
    "graphed(moved=1)": lambda: gfxgraph.graphed(_linear(), moved=1),
    "graphed(ranks=2)": lambda: gfxgraph.graphed(_linear(), ranks=2),
    "graphed(buckets=['4'])": lambda: gfxgraph.graphed(_linear(), buckets=["4"]),
    "graphed(buckets={1: 2})": lambda: gfxgraph.graphed(_linear(), buckets={1: 2}),
    "graphed(buckets=[1e9])": lambda: gfxgraph.graphed(_linear(), buckets=[1e9]),
    "graphed(dynamic={'input': 3})": lambda: gfxgraph.graphed(_linear(), dynamic={"input": 3}),
    "graphed(dynamic={'input': {True: 'b'}})": lambda: gfxgraph.graphed(_linear(), dynamic={"input": {True: "b"}}),
    "graphed(dynamic={0: ...})": lambda: gfxgraph.graphed(_linear(), dynamic={0: {0: "b"}}),
    "adapters.install(3)": lambda: gfxgraph.adapters.install(3),
    "RedZone(-1)": lambda: gfxgraph.RedZone(-1),
    "RedZone('x')": lambda: gfxgraph.RedZone("x"),
    "RedZone(4, 'f')": lambda: gfxgraph.RedZone(4, "f"),
    "validate_layout(3)": lambda: gfxgraph.validate_layout(3),
    "device_info(-1)": lambda: gfxgraph.device_info(-1),
    "device_info('x')": lambda: gfxgraph.device_info("x"),
    "graphed(3)": lambda: gfxgraph.graphed(3),
    "graphed(Linear)": lambda: gfxgraph.graphed(torch.nn.Linear),
    "inspect('x')": lambda: gfxgraph.inspect("x"),
}


@pytest.mark.parametrize("call", NO_ARGUMENTS)
def test_a_wrong_argument_is_refused_where_it_is_given(platform, call):
    """By an error that shows it or says what is taken, raised by gfxgraph's own code, and never accepted."""
    with pytest.raises((gfxgraph.GfxGraphError, TypeError, ValueError)) as caught:
        NO_ARGUMENTS[call]()
    if isinstance(caught.value, gfxgraph.GfxGraphError):
        assert caught.value.code in ("bad_argument", "bad_setting", "bad_buckets", "engine_unknown")
    else:
        assert re.search(r"take|need|Give it|module", str(caught.value)), caught.value
        frame = caught.traceback[-1].frame.code.raw
        assert "/gfxgraph/" in frame.co_filename


def test_pool_whose_graphs_are_gone(platform):
    """torch refuses such a pool half-way into its begin; random numbers and the next capture work afterwards."""
    pool = torch.cuda.graph_pool_handle()
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        kept = x + 1  # its memory stays in the pool when the graph has gone
    del graph
    before = torch.cuda.get_rng_state()
    with pytest.raises(RuntimeError, match="use_count > 0"), torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool):
        x + 1
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.rand(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + torch.rand(4, device="cuda")
    graph.replay()
    assert kept.shape == y.shape and bool((y >= 1).all())
