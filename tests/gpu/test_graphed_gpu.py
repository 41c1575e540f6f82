"""Graphed callables on a real GPU: asynchronous work, compiled code, memory, threads. Skips without a GPU."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

import gfxgraph

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture(params=["enabled", "alone"], autouse=True)
def bridge(request):
    """With the bridge on, and without: graphed callables need nothing patched."""
    if request.param == "enabled":
        gfxgraph.enable(allow_cuda=True, validate=False)
    with torch.no_grad():
        yield request.param
    gfxgraph.disable()


def chain(x):
    for _ in range(60):
        x = x * 1.0001 + 1
    return x


def test_nothing_of_torchs_graphs_is_patched(bridge):
    """Alone, a graphed callable leaves torch.cuda's names as they are."""
    if bridge == "enabled":
        pytest.skip("the bridge is on")
    before = (torch.cuda.CUDAGraph, torch.cuda.graph.__enter__, torch.Tensor.item, torch.cuda.synchronize)
    g = gfxgraph.graphed(chain)
    for i in range(4):
        x = torch.full((64,), float(i), device="cuda")
        assert torch.equal(g(x), chain(x))
    assert g.stats()["replays"] == 3
    assert before == (torch.cuda.CUDAGraph, torch.cuda.graph.__enter__, torch.Tensor.item, torch.cuda.synchronize)


@pytest.mark.parametrize("mode", ["standard", "hot"])
@pytest.mark.parametrize("k", [1, 2, 6])
def test_many_calls_without_waiting(mode, k):
    """Inputs are dropped at once and results kept: nothing is overwritten or read too late."""

    def f(*xs):
        total = chain(xs[0])
        for x in xs[1:]:
            total = total + x
        return total

    g = gfxgraph.graphed(f, mode=mode)
    kept = []
    for i in range(300):
        xs = [torch.full((1 << 14,), float(i + j), device="cuda") for j in range(k)]
        kept.append((i, g(*xs)[::97]))
        del xs
    for i, got in kept:
        xs = [torch.full((1 << 14,), float(i + j), device="cuda") for j in range(k)]
        assert torch.equal(got, f(*xs)[::97]), i
    assert g.stats()["replays"] == 299


def test_five_slices_in_hot():
    """The program that the older gfxgraph answered with 3, 4, 2, 3, 4."""
    g = gfxgraph.graphed(lambda x: x * 1, mode="hot")
    for _ in range(3):
        g(torch.zeros(4, device="cuda"))
    kept = [g(torch.full((4,), float(i), device="cuda"))[0:2] for i in range(5)]
    assert [int(k[0].item()) for k in kept] == [0, 1, 2, 3, 4]


def test_the_fast_path_copies_in_its_launch():
    """One small input: torch's copy is never called, and the answer is right for values that change in place."""
    g = gfxgraph.graphed(chain)
    x = torch.zeros(256, device="cuda")
    for _ in range(3):
        g(x)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for i in range(20):
            x.fill_(i)
            y = g(x)
    assert torch.equal(y, chain(x))
    assert not any(e.key == "aten::copy_" for e in seen.key_averages())


def test_compiled_functions():
    """A compiled function stays compiled, and is captured for each shape it was compiled for."""

    def f(x, w):
        return torch.nn.functional.layer_norm(torch.relu(x @ w) * 2, (64,))

    compiled = torch.compile(f)
    g = gfxgraph.graphed(compiled)
    w = torch.randn(64, 64, device="cuda")
    for n in (8, 16, 8, 16, 8, 16, 32, 32, 32):
        x = torch.randn(n, 64, device="cuda")
        torch.testing.assert_close(g(x, w), f(x, w), rtol=1e-3, atol=1e-3)
    # Dynamo compiles the second shape with sizes as symbols, and both are captured anew for that code.
    assert g.stats()["replays"] >= 4, g.explain()


def test_models_in_buckets():
    """A small transformer layer over random batch sizes, padded to buckets, equal to eager."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().eval()
    g = gfxgraph.graphed(model, dynamic={"src": {0: "batch"}}, buckets=[1, 2, 4, 8, 16])
    generator = torch.Generator().manual_seed(0)
    for _ in range(80):
        n = int(torch.randint(1, 17, (1,), generator=generator))
        x = torch.randn(n, 12, 64, device="cuda")
        torch.testing.assert_close(g(x), model(x), rtol=1e-3, atol=1e-3)
    assert g.stats()["replays"] >= 30, g.explain()


def test_memory_of_buckets():
    """32 buckets of a 60-node chain in at most 4 MB."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    g = gfxgraph.graphed(chain, dynamic={"x": {0: "n"}}, buckets=[64 * i for i in range(1, 33)])
    done = g.capture_all(torch.zeros(2048, device="cuda"))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    taken = torch.cuda.memory_reserved() - before
    assert done["n_captured"] == 32, done
    assert taken <= 4 << 20, f"{taken / 2**20:.1f} MB; {gfxgraph.memory_report()}"
    for n in (2048, 64, 1024, 128):
        x = torch.randn(n, device="cuda")
        assert torch.equal(g(x), chain(x))


def test_dropped_callables_give_their_memory_back():
    """Fifty callables made and dropped leave nothing behind."""

    def once():
        g = gfxgraph.graphed(lambda x: chain(x) @ x.t())
        for _ in range(3):
            g(torch.ones(256, 256, device="cuda"))

    for _ in range(3):
        once()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(50):
        once()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before <= 4 << 20


def test_out_of_memory_in_a_capture():
    """A capture that the device has no room for leaves the function running eagerly, with right results."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    n = 1 << 28  # 1 GiB in float32

    def f(x):
        return (x + 1).sum() + (x * 2).max()

    x = torch.ones(n, device="cuda")
    g = gfxgraph.graphed(f)
    room = torch.cuda.memory_reserved() + (1200 << 20)
    try:
        torch.cuda.set_per_process_memory_fraction(min(1.0, room / total))
        for _ in range(6):
            assert g(x).item() == f(x).item()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(chain(torch.ones(3, device="cuda")), chain(torch.ones(3, device="cuda")))
    small = gfxgraph.graphed(chain)
    for i in range(3):
        y = torch.full((8,), float(i), device="cuda")
        assert torch.equal(small(y), chain(y))
    assert small.stats()["replays"] == 2


def test_value_guards():
    """A value read inside steers the capture; where it changes the function itself runs."""

    def f(x, log):
        log.add_(1)
        return x - 1 if x.sum().item() > 10 else x + 1

    g = gfxgraph.graphed(f)
    mine, eager = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    for value in (1.0, 1.0, 2.0, 9.0, 1.0, 9.0, 2.0):
        x = torch.full((4,), value, device="cuda")
        assert torch.equal(g(x, mine), f(x, eager)) and torch.equal(mine, eager)
    assert g.stats()["replays"] >= 3


@pytest.mark.parametrize("mode", ["standard", "hot"])
def test_threads(mode):
    """Four threads on streams of their own."""
    g = gfxgraph.graphed(chain, mode=mode)
    g(torch.zeros(4096, device="cuda"))
    wrong = []

    def work(k):
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for i in range(60):
                x = torch.full((4096,), float(100 * k + i), device="cuda")
                y = g(x)
                if not torch.equal(y, chain(x)):
                    wrong.append((k, i))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not wrong and not any(w.is_alive() for w in workers)


def test_random_numbers_and_dropout():
    """Replays draw what eager would have drawn."""
    drop = nn.Dropout(0.5).cuda().train()
    g = gfxgraph.graphed(lambda x: drop(x) + torch.rand_like(x))
    x = torch.ones(512, device="cuda")
    torch.manual_seed(5)
    mine = [g(x) for _ in range(5)]
    torch.manual_seed(5)
    eager = [drop(x) + torch.rand_like(x) for _ in range(5)]
    assert all(torch.equal(a, b) for a, b in zip(mine, eager))
    assert g.stats()["replays"] == 4
