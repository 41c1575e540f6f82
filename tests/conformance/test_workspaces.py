"""Who gives cuBLAS' workspaces back must not take them from under a graph.

The workspaces here are stand-ins, made and given back as torch does it: one a stream, at the first use there, all
of them given back at once. tests/gpu/test_workspaces_gpu.py has cuBLAS' own.
"""

from __future__ import annotations

import gc

import pytest
import torch

import gfxgraph
from gfxgraph.capture.replay import runtime_workarounds

NBYTES = 8 << 20


@pytest.fixture
def library(platform):
    """workspace() for the current stream, as a library has it."""
    held = {}
    runtime_workarounds.release_workspaces()
    own = torch._C._cuda_clearCublasWorkspaces
    torch._C._cuda_clearCublasWorkspaces = lambda: held.clear()
    runtime_workarounds.keep_workspaces()

    def workspace():
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in held:
            held[stream] = torch.empty(NBYTES, dtype=torch.uint8, device="cuda")
        return held[stream]

    yield workspace
    runtime_workarounds.release_workspaces()
    torch._C._cuda_clearCublasWorkspaces = own
    runtime_workarounds.keep_workspaces()
    held.clear()
    gc.collect()


def is_free(address, stream):
    """True where a new allocation could get the address."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with torch.cuda.stream(stream):
        fresh = [torch.empty(NBYTES, dtype=torch.uint8, device="cuda") for _ in range(4)]
    return any(t.data_ptr() <= address < t.data_ptr() + NBYTES for t in fresh) or not any(
        block["state"] == "active_allocated" and start <= address < start + block["size"] for start, block in blocks()
    )


def blocks():
    for segment in torch.cuda.memory._snapshot()["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            yield address, block
            address += block["size"]


def captured_by_hand(body, stream):
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        body()
    return graph


def test_a_workspace_stays_as_long_as_its_graphs(library):
    stream, x, seen = torch.cuda.Stream(), torch.ones(8, device="cuda"), []

    def body():
        seen.append(library().data_ptr())
        return x + 1

    graph = captured_by_hand(body, stream)
    assert len(set(seen)) == 1
    torch._C._cuda_clearCublasWorkspaces()
    assert not is_free(seen[0], stream), "the graph's workspace can be had by others"
    assert runtime_workarounds.n_workspaces_held(stream) == 1
    torch._C._cuda_clearCublasWorkspaces()
    assert runtime_workarounds.n_workspaces_held(stream) == 1, "held twice"
    del graph
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    assert runtime_workarounds.n_workspaces_held(stream) == 0 and is_free(seen[0], stream), "held for nobody"


def test_workspaces_without_graphs_are_given_back(library):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        address = library().data_ptr()
    x = torch.ones(8, device="cuda")
    graph = captured_by_hand(lambda: x + 1, torch.cuda.Stream())
    torch._C._cuda_clearCublasWorkspaces()
    assert runtime_workarounds.n_workspaces_held(stream) == 0 and is_free(address, stream)
    del graph


def test_a_graphed_callables_workspace_stays(library):
    """The second signature has its workspace from the callables' pool where the first one's was given back."""
    seen = []

    def step(x):
        if torch.cuda.is_current_stream_capturing():
            seen.append((library().data_ptr(), torch.cuda.current_stream()))
        return x + 1

    g = gfxgraph.graphed(step, warmup=0, assume_pure=True)  # for what it reads of the library
    for n in (8, 16):
        x = torch.ones(n, device="cuda")
        for _ in range(3):
            assert torch.equal(g(x), x + 1)
        torch._C._cuda_clearCublasWorkspaces()
    assert seen and runtime_workarounds.n_workspaces_held(seen[0][1]) >= len({address for address, _ in seen})
    for address, stream in seen:
        assert not is_free(address, stream)


def test_disable_puts_torchs_own_function_back(platform):
    x = torch.ones(8, device="cuda")
    graph = captured_by_hand(lambda: x + 1, torch.cuda.Stream())
    assert hasattr(torch._C._cuda_clearCublasWorkspaces, "__wrapped__")
    gfxgraph.disable()
    assert not hasattr(getattr(torch._C, "_cuda_clearCublasWorkspaces", None), "__wrapped__")
    del graph
