"""GPU time inside graphs on a GPU: kernels of a decode step by module, the sum against the graph's time, the cost."""

from __future__ import annotations

import time

import pytest
import torch
from tests.conformance.test_profile import Net

import gfxgraph

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture(autouse=True)
def enabled():
    gfxgraph.enable(allow_cuda=True, validate=False)
    gfxgraph.reset_stats()
    yield
    gfxgraph.disable()


def decode_step():
    """A decode step of about a billion parameters, as transformers has it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
        vocab_size=32000,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).half().cuda().eval()
    ids = torch.randint(0, 1000, (1, 1), device="cuda")
    return lambda: model(ids, use_cache=False).logits


def net_step():
    net, x = Net().cuda().eval(), torch.randn(4096, 192, device="cuda")
    return lambda: net(x)


@pytest.mark.parametrize("make", [net_step, decode_step])
def test_kernels_are_named_by_module_and_their_sum_agrees(make):
    """99 % of the kernels by module, within a tenth of the graph's own time; said with which way of measuring."""
    body = make()
    with torch.no_grad():
        for _ in range(2):
            body()
        torch.cuda.synchronize()
        with gfxgraph.profile() as found:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                body()
            for _ in range(20):
                graph.replay()
    (seen,) = found.graphs
    print(found)
    print(f"named {found.share_named:.4f}, sum {seen.sum_ms:.4f} + {seen.gap_ms:.4f} of {seen.ms:.4f} ms, {seen.how}")
    assert found.share_named >= 0.99
    assert seen.agrees or make is net_step  # kernels of a few microseconds are mostly launch


def test_nothing_is_paid_when_off():
    """A replay after a profile costs what it cost before, and twice that at most while one is on."""
    body = net_step()
    with torch.no_grad():
        body()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()

    def us(n=2000):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(n):
            graph.replay()
        took = time.perf_counter() - begun
        torch.cuda.synchronize()
        return 1e6 * took / n

    us()
    before = min(us() for _ in range(5))
    with gfxgraph.profile():
        during = min(us() for _ in range(5))
    after = min(us() for _ in range(5))
    print(f"{before:.2f} us before, {during:.2f} while on, {after:.2f} after")
    assert during < 2 * before and after < 1.5 * before
