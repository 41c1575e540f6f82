"""Copies of a call on a real GPU: the kernel itself, launched and as nodes of a call's graph. Skips without one."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.callables.joined_launch import copy_kernel, joins
from gfxgraph.driver.joined import JoinedExec
from gfxgraph.driver.small_copies import MOST
from gfxgraph.process.bridge import process_for_callables

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture(params=["enabled", "alone"], autouse=True)
def bridge(request):
    if request.param == "enabled":
        gfxgraph.enable(allow_cuda=True, validate=False)
    with torch.no_grad():
        yield request.param
    gfxgraph.disable()


def state():
    return process_for_callables()


@pytest.fixture(params=["joined", "launched"])
def way(bridge, request):
    """The copies as nodes of one graph exec, and as launches of their own."""
    if torch.version.hip is not None:
        pytest.skip("on AMD's runtime nothing is joined")
    assert joins(state(), torch.cuda.current_device()), state().why_not_joined
    if request.param == "launched":
        state().joins[torch.cuda.current_device()] = False
    yield request.param
    state().joins.clear()


def short_way(g):
    """How the last call was made: "joined", "launched", or "" for neither."""
    names = getattr(g._fast, "__globals__", {})
    if {"go", "go0"} & set(names):
        return "joined"
    return "launched" if any(name.startswith(("in0", "back0")) for name in names) else ""


def events():
    return {event["kind"] for event in state().counters.snapshot()["events"]}


def test_every_length_and_alignment():
    """Thirty-two stretches a launch, at offsets 0 to 17, lengths from a byte to a mebibyte; nothing around them."""
    torch.manual_seed(0)
    given = torch.randint(0, 256, (2 << 20,), dtype=torch.uint8, device="cuda")
    lengths = [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 255, 4095, 4096, 4097, 65_536, 1 << 20, (1 << 20) - 3]
    cases = [(a, b, n) for a in (0, 1, 4, 8, 16, 17) for b in (0, 2, 4, 16) for n in lengths]
    kernel = copy_kernel(state(), torch.cuda.current_device())
    assert kernel is not None, state().counters.snapshot()["events"]
    stream = torch.cuda.current_stream().cuda_stream
    for at in range(0, len(cases), MOST):
        these = cases[at : at + MOST]
        targets = [torch.zeros(b + n + 32, dtype=torch.uint8, device="cuda") for _, b, n in these]
        parts = [(t.data_ptr() + b, given.data_ptr() + a, n) for t, (a, b, n) in zip(targets, these)]
        copies = kernel.prepare(parts, stream)
        assert copies.launch() == 0
        for target, (a, b, n) in zip(targets, these):
            want = torch.zeros_like(target)
            want[b : b + n] = given[a : a + n]
            assert torch.equal(target, want), (a, b, n)


@pytest.mark.parametrize("mode", ["standard", "hot"])
def test_calls_in_flight_keep_their_addresses(way, mode):
    """Two hundred calls queued behind a busy device, each at another address: each has its own arguments."""
    g = gfxgraph.graphed(lambda x, y, z: (x * 2 + y, z + 1), mode=mode)
    twos = [[torch.full((257,), float(i), device="cuda") for _ in range(2)] for i in range(200)]
    sets = [(x, y, torch.arange(i, i + 9, device="cuda")) for i, (x, y) in enumerate(twos)]
    for given in sets[:6]:
        g(*given)
    torch.cuda.synchronize()
    torch.cuda._sleep(1 << 24)
    got = [[t.clone() for t in g(*given)] for given in sets]
    torch.cuda.synchronize()
    for i, (a, b) in enumerate(got):
        assert a.unique().tolist() == [3.0 * i] and b.tolist() == list(range(i + 1, i + 10)), i
    assert short_way(g) == way


def test_ten_thousand_calls(way):
    """Owned results at whatever addresses torch's allocator gives, some kept and some not: all right."""
    g = gfxgraph.graphed(lambda x, y: (x + y, x - y))
    torch.manual_seed(1)
    pool = [torch.randn(1000, device="cuda") for _ in range(37)]
    kept = []
    for i in range(10_000):
        x, y = pool[i * 7 % 37], pool[i * 11 % 37]
        got = g(x, y)
        if i % 97 == 0:
            kept.append((x, y, got))
        if i % 193 == 0:
            pool[i % 37] = torch.randn(1000, device="cuda")
    assert all(torch.equal(a, x + y) and torch.equal(b, x - y) for x, y, (a, b) in kept)
    assert short_way(g) == way and g.stats()["replays"] >= 9_990


def attention(q, k, v, mask):
    return nn.functional.scaled_dot_product_attention(q, k, v) * mask


def library_calls(x, ids, w):
    y = nn.functional.layer_norm(x @ w, (x.shape[-1],)).softmax(-1)
    return y.cumsum(0), y.sort(-1).values, y[ids], y.sum(), (y > y.mean()).sum()


CASES = {
    "attention": (attention, lambda: (*(torch.randn(2, 4, 16, 32, device="cuda").half() for _ in range(3)),
                                      torch.rand(2, 4, 16, 1, device="cuda").half())),
    "library_calls": (library_calls, lambda: (torch.randn(64, 64, device="cuda"), torch.randperm(64, device="cuda"),
                                              torch.randn(64, 64, device="cuda"))),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["standard", "hot"])
@pytest.mark.parametrize("name", CASES)
def test_torchs_kernels_as_a_child_graph(way, name, mode):
    """cuBLAS, attention, CUB and reductions give to the bit what the same graph gives launched by torch."""
    fn, args_of = CASES[name]
    g = gfxgraph.graphed(fn, mode=mode)
    torch.manual_seed(2)
    sets = [args_of() for _ in range(8)]
    flat = lambda r: [r] if isinstance(r, torch.Tensor) else list(r)  # noqa: E731
    for given in sets[:4]:
        g(*given)
    (entry,) = g._entries.values()
    for given in sets:
        got = [t.clone() for t in flat(g(*given))]
        assert short_way(g) == way
        entry.capture.inputs.fill(given)
        entry.capture.first.graph.replay()
        want = [r.made.clone() for r in entry.capture.first.outputs.results]
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        for a, b in zip(got, flat(fn(*given))):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_random_numbers(way):
    """A graph that draws goes by torch's own replay: after a seed it draws eager's numbers."""
    fn = lambda x: nn.functional.dropout(x, 0.5) + torch.rand_like(x)  # noqa: E731
    x = torch.ones(1000, device="cuda")
    for mode in ("standard", "hot"):
        g = gfxgraph.graphed(fn, mode=mode)
        for _ in range(4):
            g(x)
        torch.manual_seed(3)
        got = [g(x).clone() for _ in range(3)]
        torch.manual_seed(3)
        assert all(torch.equal(a, fn(x)) for a in got)
        assert short_way(g) != "joined"


def test_streams_in_turn(way):
    """Each call is on its own stream, behind the work that made its arguments."""
    g = gfxgraph.graphed(lambda x, y: x * 2 + y)
    streams = [torch.cuda.Stream() for _ in range(3)]
    warm = torch.ones(1000, device="cuda")
    for _ in range(4):
        g(warm, warm)
    torch.cuda.synchronize()
    got = []
    for i in range(60):
        with torch.cuda.stream(streams[i // 3 % 3]):
            torch.cuda._sleep(200_000)
            a, b = torch.full((1000,), float(i), device="cuda"), torch.full((1000,), 0.5, device="cuda")
            got.append(g(a, b) + 1)
    torch.cuda.synchronize()
    assert [t.unique().tolist() for t in got] == [[2.0 * i + 1.5] for i in range(60)]
    assert short_way(g) == way


def test_threads_in_turn(way):
    """Four threads call the same graph; the first call of CUDA that each of them makes is that one."""
    g = gfxgraph.graphed(lambda x, y: x * 2 + y)
    sets = [torch.full((100,), float(i), device="cuda") for i in range(400)]
    for _ in range(4):
        g(sets[0], sets[0])
    torch.cuda.synchronize()
    wrong = []

    def calls(k):
        with torch.no_grad():
            for i in range(k, 400, 4):
                if g(sets[i], sets[i]).unique().tolist() != [3.0 * i]:
                    wrong.append(i)

    threads = [threading.Thread(target=calls, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and short_way(g) == way and "join_refused" not in events()


def test_loading_and_joining_leave_another_threads_capture_alone():
    """The kernel is loaded, and a graph joined and destroyed, while another thread captures in the default mode."""
    driver = state().driver
    begun, over, problems = threading.Event(), threading.Event(), []
    a, b = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    place = (b.data_ptr(), a.data_ptr(), 256)

    def load():
        begun.wait(30)
        try:
            torch.zeros(1, device="cuda")  # gives the thread a context
            kernel = driver.copy_kernel("")
            graph = driver.create_graph()
            driver.add_copies(kernel, graph, [place], [])
            joined = driver.joined(kernel, graph, [place], [place], torch.cuda.current_stream().cuda_stream)
            joined.close()
            driver.destroy_graph(graph)
        except gfxgraph.GfxGraphError as error:
            problems.append(error)
        over.set()

    thread = threading.Thread(target=load)
    x = torch.ones(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    thread.start()
    with torch.cuda.graph(graph):
        y = x + 1
        begun.set()
        over.wait(30)
        z = y * 2
    thread.join()
    graph.replay()
    assert not problems and z.unique().tolist() == [4.0]


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_results_are_allocated_past_the_dispatcher(guard):
    """By torch's function for compiled code, which takes what we hand it; the tensors are of eager's kind."""
    f = lambda x: (x.t() * 2).half()  # noqa: E731
    g = gfxgraph.graphed(f)
    with guard():
        for i in range(6):
            x = torch.full((2, 3), float(i), device="cuda")
            got, want = g(x), f(x)
            assert torch.equal(got, want) and got.stride() == want.stride() and got.dtype is want.dtype
            assert got.is_inference() == want.is_inference() and not got.requires_grad
    assert "empty_strided" in g._fast.__globals__


def test_execs_are_given_back(monkeypatch):
    """Twenty signatures, each joined and forgotten: every exec and graph is destroyed, and CUDA agrees."""
    table, answers = process_for_callables().driver.table, []
    real = table.function

    def function(name):
        call = real(name)
        if name not in ("exec_destroy", "graph_destroy"):
            return call

        def noted(*given):
            answers.append((name, call(*given)))
            return answers[-1][1]

        return noted

    monkeypatch.setattr(table, "function", function)
    n_before = sum(type(found) is JoinedExec for found in gc.get_objects())
    for i in range(20):
        g = gfxgraph.graphed(lambda x, i=i: x + i)
        x = torch.ones(10 + i, device="cuda")
        for _ in range(4):
            g(x)
        assert short_way(g) == "joined", g.explain()
        del g
    gc.collect()
    assert sum(type(found) is JoinedExec for found in gc.get_objects()) <= n_before
    for name in ("exec_destroy", "graph_destroy"):
        assert answers.count((name, 0)) >= 20 and not [a for a in answers if a[0] == name and a[1]]


def test_nothing_was_refused(way):
    """On the way that counts: no launch and no change was refused, and the kernel is there."""
    g = gfxgraph.graphed(lambda x: x + 1)
    for i in range(50):
        assert g(torch.full((10,), float(i), device="cuda")).tolist() == [i + 1.0] * 10
    assert short_way(g) == way
    assert not {"copy_refused", "no_copy_kernel", "join_refused", "not_joined"} & events()
