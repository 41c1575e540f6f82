"""What only a GPU shows of inputs that a program replaces: memory, streams that run beside each other, and the cost.

The scenarios themselves run here too: ``pytest tests/conformance/test_living.py``. Written for torch 2.11.
"""

from __future__ import annotations

import gc
import statistics
import time

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

from torch import nn  # noqa: E402

import gfxgraph  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def bridge():
    gfxgraph.enable(allow_cuda=True, validate=False)
    gfxgraph.reset_stats()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        gfxgraph.disable()


def captured(net, x):
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        net(x)
    torch.cuda.current_stream().wait_stream(side)
    with torch.no_grad(), torch.cuda.graph(graph):
        graph.out = net(x)
    return graph


def linear(width):
    return nn.Linear(width, width, bias=False, device="cuda").requires_grad_(False)


def fresh(width):
    return nn.Parameter(torch.randn(width, width, device="cuda"), requires_grad=False)


def test_ten_reloads_of_a_weight_of_16_mib_keep_nothing():
    """Allocated memory, the weight's address and the result, after each."""
    net, x = linear(2048), torch.randn(16, 2048, device="cuda")
    graph = captured(net, x)
    graph.replay()
    net(x)  # eager's workspace of cuBLAS
    gc.collect()
    torch.cuda.synchronize()
    before, address = torch.cuda.memory_allocated(), net.weight.data_ptr()
    for _ in range(10):
        net.weight = fresh(2048)
        graph.replay()
        assert torch.allclose(graph.out, net(x), atol=1e-2)
        assert net.weight.data_ptr() == address
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what another stream has read is free once the allocator asks
        assert torch.cuda.memory_allocated() == before
    assert gfxgraph.stats()["reloads_followed"] == 10


def test_a_replay_that_still_runs_reads_the_old_weight():
    """It was launched on another stream before the change; the next one, here, reads the new."""
    net = nn.Sequential(*(linear(4096) for _ in range(8)))
    x = torch.randn(4096, 4096, device="cuda") / 64
    for each in net:
        each.weight.div_(64)
    graph = captured(net, x)
    expected = net(x).clone()
    side, after = torch.cuda.Stream(), torch.empty_like(expected)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            graph.replay()
        after.copy_(graph.out)
    new = [nn.Parameter(torch.randn_like(each.weight) / 64, requires_grad=False) for each in net]
    for each, weight in zip(net, new):
        each.weight = weight
    graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(after, expected, atol=1e-2)
    assert torch.allclose(graph.out, net(x), atol=1e-2)


def test_a_reload_without_a_wait_of_the_programs():
    """The new weights are made on another stream, which the replay's stream waits for, as eager does."""
    net, x = linear(2048), torch.randn(16, 2048, device="cuda")
    graph, source = captured(net, x), torch.cuda.Stream()
    for _ in range(20):
        source.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(source):
            net.weight = fresh(2048)
        torch.cuda.current_stream().wait_stream(source)
        graph.replay()
        with torch.cuda.stream(source):
            junk = [torch.full((2048, 2048), 7.0, device="cuda") for _ in range(4)]
        assert torch.allclose(graph.out, net(x), atol=1e-2)
        del junk


def test_what_300_inputs_cost_a_replay(record_property):
    """Against the same graph without the question: printed (4 us where nothing runs beside it), never a walk."""
    net = nn.Sequential(*(linear(64) for _ in range(300)))
    graph = captured(net, torch.randn(8, 64, device="cuda"))
    for _ in range(300):
        graph.replay()
    asking, rows = type(graph), []
    plain = next(kind for kind, other in asking._asking_classes.items() if other is asking)
    for _ in range(31):
        took = []
        for kind in (asking, plain):
            graph.__class__ = kind
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(200):
                graph._left = 1 << 30
                graph.replay()
            took.append((time.perf_counter() - begun) / 200 * 1e6)
        rows.append(took[0] - took[1])
    graph._left = graph._granted = 0
    median = statistics.median(rows)
    record_property("us", median)
    print(f"300 held inputs cost a replay {median:.2f} us")
    assert median < 10
