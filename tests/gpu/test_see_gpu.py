"""What runs in graphs, on a GPU: counts against a profiler's, lines of a real model, times, memory of graph execs."""

from __future__ import annotations

import pytest
import torch

import gfxgraph

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture(autouse=True)
def enabled():
    gfxgraph.enable(allow_cuda=True, validate=False)
    gfxgraph.reset_stats()
    yield
    gfxgraph.disable()


def captured(body):
    for _ in range(2):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()
    return graph, out


@pytest.fixture
def step():
    """A graph of ten layers, and sampling outside of it."""
    w = [torch.randn(256, 256, device="cuda", dtype=torch.float16) / 16 for _ in range(10)]
    x = torch.randn(4, 256, device="cuda", dtype=torch.float16)

    def body():
        h = x
        for each in w:
            h = torch.nn.functional.gelu(torch.nn.functional.layer_norm(h @ each, (256,)))
        return h

    graph, out = captured(body)

    def run():
        graph.replay()
        torch.softmax(out.float(), -1).topk(4).indices.sum()

    run.graph = graph
    return run


def test_nodes_have_kernels_lines_and_sizes(step):
    """Every node has its kernel, launch size and source line, read through the runtime."""
    (seen,) = step.graph.explain()
    assert len(seen.nodes) >= 30 and all(node.where for node in seen.nodes)
    assert all(node.kernel and node.grid and node.block for node in seen.nodes if node.kind == "kernel")
    assert any("layer_norm" in node.name for node in seen.nodes)
    assert not any(node.kernel.startswith("_Z") for node in seen.nodes)


def test_memory_of_many_graph_execs_shows():
    """Twenty execs of a thousand nodes take memory that torch does not count, and the report has it."""
    x = torch.zeros(64, device="cuda")
    kept = []
    for _ in range(20):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(1000):
                x.add_(1)
        kept.append(graph)
    report = gfxgraph.memory_report()
    print(report["driver_bytes"])
    assert report["driver_bytes"] > 0


def test_lines_of_a_llama():
    """The source line of 99 % of a transformers Llama's nodes is known, and lies in its modelling file."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, vocab_size=1000
    )
    model = transformers.LlamaForCausalLM(config).half().cuda().eval()
    ids = torch.randint(0, 1000, (1, 16), device="cuda")
    with torch.no_grad():
        graph, _ = captured(lambda: model(ids, use_cache=False).logits)
    seen = graph.explain()[0]
    n_with_line = sum(bool(node.where) for node in seen.nodes)
    print(f"{n_with_line} of {seen.n_nodes} nodes with a line")
    assert n_with_line >= 0.99 * len(seen.nodes)
