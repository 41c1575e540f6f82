"""One scenario on every platform there is: the GPU where there is one, else the simulator as CUDA and as HIP."""

from __future__ import annotations

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
PLATFORMS = ["gpu"] if HAS_GPU else ["cuda", "hip"]


@pytest.fixture(params=PLATFORMS)
def platform(request):
    """The bridge enabled; everything put back afterwards."""
    import gfxgraph

    if request.param == "gpu":
        gfxgraph.enable(allow_cuda=True, validate=False)
    else:
        gfxgraph.enable(simulate=request.param, validate=False)
    gfxgraph.reset_stats()
    try:
        yield request.param
    finally:
        gfxgraph.disable()


@pytest.fixture
def capture(platform):
    """capture(body, **kw) -> (graph, result): a plain torch.cuda.graph capture after one warm-up."""

    def do(body, graph=None, warm=True, **kw):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        if warm:
            saved = torch.cuda.get_rng_state()
            with torch.cuda.stream(stream):
                warm() if callable(warm) else body()
            torch.cuda.set_rng_state(saved)
        torch.cuda.current_stream().wait_stream(stream)
        graph = graph if graph is not None else torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, **kw):
            result = body()
        return graph, result

    return do
