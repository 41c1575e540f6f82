"""Padding, buckets and the measured choice on a real GPU. Skips without one."""

from __future__ import annotations

import os
import random

import pytest
import torch
from tests.conformance.padding_cases import CASES
from tests.conformance.test_padding import HARMFUL, HARMLESS, play
from torch import nn

import gfxgraph

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture(autouse=True)
def bridge(tmp_path, monkeypatch):
    """On, and with a state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    gfxgraph.enable(allow_cuda=True, validate=False)
    gfxgraph.reset_stats()
    with torch.no_grad():
        yield
    gfxgraph.disable()


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_padding_is_found_harmless(name):
    """Graphs serve sizes that come and go, with eager's results and effects."""
    _, g = play(name)
    assert not g._padding.refusals, g.explain()
    assert g.stats()["replays"] >= 4, g.explain()


@pytest.mark.parametrize("name", HARMFUL)
def test_padding_that_matters_is_refused_with_the_operation(name):
    """Results and effects are eager's all the same; the operation is named."""
    case, g = play(name)
    events = [e for e in gfxgraph.stats()["events"] if e["kind"] == "padding_refused"]
    assert events, g.explain()
    named = [e["op"] for e in events if "::" in e["op"]]
    assert all(any(op.startswith(start) for start in CASES[name]().op.split("|")) for op in named), events
    assert case.op is not None


def test_an_index_out_of_range_does_not_reach_the_device():
    """It is judged before anything runs padded; a device assertion would fail every later call of the process."""
    table = torch.randn(8, 4, device="cuda")
    g = gfxgraph.graphed(lambda i: table[i * 3 - 7], dynamic={"i": {0: "n"}}, buckets=[8])
    for _ in range(3):
        i = torch.randint(3, 5, (5,), device="cuda")
        assert torch.equal(g(i), table[i * 3 - 7])
    torch.cuda.synchronize()


def test_random_numbers_are_those_of_eager_or_it_stays_eager():
    """Dropout over many sizes: with the same seed, results and the generator's state are eager's."""
    step = lambda x: nn.functional.dropout(x, 0.5, True) + torch.rand_like(x)  # noqa: E731
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[64, 4096, 65536])
    data = [torch.randn(n, 97, device="cuda") for n in (3, 60, 3, 64, 2000, 3, 60, 2000, 60000, 60000, 3)]
    torch.manual_seed(1)
    want = [step(x) for x in data]
    state = torch.cuda.get_rng_state()
    torch.manual_seed(1)
    got = [g(x) for x in data]
    assert all(map(torch.equal, got, want))
    assert torch.equal(torch.cuda.get_rng_state(), state)


@pytest.mark.skipif(os.name == "nt", reason="no compiler for torch.compile")
def test_compiled_code_is_padded_too():
    """A compiled model's buckets are judged as the function's own; one with a mean over the batch is refused."""
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda().eval()
    good = torch.compile(lambda x: net(x).relu() * 2, dynamic=True)
    bad = torch.compile(lambda x: net(x) - net(x).mean(0), dynamic=True)
    for fn, is_refused in ((good, False), (bad, True)):
        g = gfxgraph.graphed(fn, dynamic={"x": {0: "n"}}, buckets=[8, 16])
        for n in (5, 5, 7, 5, 8, 12, 12, 7):
            x = torch.randn(n, 64, device="cuda")
            torch.testing.assert_close(g(x), fn(x), rtol=1e-4, atol=1e-5)
        assert bool(g._padding.refusals) is is_refused, g.explain()


def test_a_model_that_is_slower_as_a_graph_ends_up_eager():
    """One pass over 256 MB, where a graph needs a copy in and one out as well."""
    step = lambda x: x + 1  # noqa: E731
    g = gfxgraph.graphed(step, mode="adaptive")
    x = torch.randn(64 << 20, device="cuda")
    for _ in range(140):
        g(x)
        if "undecided" not in g.explain() and "pairs" in g.explain():
            break
    assert "eager: the graph is slower" in g.explain(), g.explain()
    assert torch.equal(g(x), x + 1)


def test_a_model_that_is_faster_as_a_graph_ends_up_there():
    """Sixty tiny kernels: launching them is what takes the time."""

    def step(x):
        for _ in range(60):
            x = x * 1.0001 + 1
        return x

    g = gfxgraph.graphed(step, mode="adaptive")
    x = torch.randn(64, device="cuda")
    for _ in range(140):
        assert torch.equal(g(x), step(x))
        if "undecided" not in g.explain() and "pairs" in g.explain():
            break
    assert "graph: the graph is faster" in g.explain(), g.explain()


def test_buckets_that_nobody_named_serve_a_stream_of_sizes():
    """2,000 calls over 100 sizes: few graphs, eager's answers."""
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda().eval()
    rng = random.Random(4)
    sizes = rng.choices(rng.sample(range(1, 257), 100), k=2000)
    g = gfxgraph.graphed(net, dynamic={"input": {0: "batch"}}, buckets="auto")
    data = torch.randn(256, 64, device="cuda")
    for n in sizes:
        x = data[256 - n :]
        torch.testing.assert_close(g(x), net(x), rtol=1e-4, atol=1e-4)
    assert g.stats()["captures"] <= 28
    assert g.stats()["replays"] > 1700, g.explain()
