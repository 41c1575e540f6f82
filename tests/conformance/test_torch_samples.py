"""What running PyTorch's databases of sample inputs has found, and a slice of that run (tools/torch_samples.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.callables.buffers import copy_all
from tests.conformance.conftest import HAS_GPU

pytestmark = pytest.mark.any_platform
ROOT = Path(__file__).parent.parent.parent


class Cube(torch.autograd.Function):
    """Computed on the host from what the forward kept there."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.detach().cpu()
        return (ctx.kept**3).to(x.device)

    @staticmethod
    def backward(ctx, grad):
        return grad * (3 * ctx.kept**2).to(grad.device)


HOST_TENSORS = {
    "what a Function keeps": (lambda x: Cube.apply(x), lambda v: 3 * v * v),
    "a scalar that autograd keeps": (lambda x: x * x.detach().sum().cpu(), lambda v: v),
}


@pytest.mark.parametrize("wrap", ["graphed", "make_graphed_callables"])
@pytest.mark.parametrize("kept", HOST_TENSORS)
def test_a_backward_reads_the_host_tensor_of_its_own_forward(platform, kept, wrap):
    """Forward and backward are two captures; what the first writes to host memory moves with each call."""
    function, gradient = HOST_TENSORS[kept]
    if wrap == "graphed":
        step = gfxgraph.graphed(function)
    else:
        step = torch.cuda.make_graphed_callables(function, (torch.ones(1, device="cuda", requires_grad=True),))
    for value in (2.0, 3.0, 4.0, 5.0, 6.0):
        x = torch.full((1,), value, device="cuda", requires_grad=True)
        (found,) = torch.autograd.grad(step(x).sum(), x)
        assert found.item() == gradient(value)


def test_a_graph_reads_the_host_tensor_that_another_graph_fills(platform):
    """A replay of the second graph computes with what the first one's replay has just read."""
    x, y = torch.full((1,), 2.0, device="cuda"), torch.ones(1, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        n = x.sum().cpu()
    with torch.cuda.graph(second):
        result = y * n
    for value in (3.0, 4.0):
        x.fill_(value)
        first.replay()
        second.replay()
        assert result.item() == value


def test_what_is_written_through_an_unsafe_view_is_written(platform):
    """``kron(out=)`` writes through aten::_unsafe_view, whose schema does not say that it is a view."""
    function = gfxgraph.graphed(lambda a, b, out: torch.kron(a, b, out=out))
    for value in range(1, 6):
        a, b = torch.full((2, 3), float(value), device="cuda"), torch.ones(3, 4, device="cuda")
        out = torch.zeros(6, 12, device="cuda")
        function(a, b, out)
        assert (out == value).all()
    assert function.stats()["replays"]


def test_an_infinite_argument(platform):
    """The warm call compares it with itself."""
    function = gfxgraph.graphed(torch.norm)
    for value in range(1, 6):
        x = torch.full((3,), float(value), device="cuda")
        assert function(x, float("inf")).item() == value
        assert function(x, float("-inf")).item() == value


def test_a_result_that_is_an_argument_seen_in_another_dtype(platform):
    """Also of an argument without dims, and of one with gaps: each call's own memory."""
    function = gfxgraph.graphed(torch.view_as_real)
    for layout in (lambda t: t[1], lambda t: t[::2], lambda t: t):
        for _ in range(4):
            x = layout(torch.randn(4, device="cuda", dtype=torch.complex64))
            found, wanted = function(x), torch.view_as_real(x)
            assert torch.equal(found, wanted)
            assert found.data_ptr() == wanted.data_ptr()


def test_dtypes_that_torch_cannot_copy_together(platform, monkeypatch):
    """torch has no such kernel for complex halves on a GPU; one by one it copies them."""

    def refuse(*args, **kwargs):
        raise NotImplementedError('"foreach_tensor_copy" not implemented')

    monkeypatch.setattr(torch, "_foreach_copy_", refuse)
    targets, sources = torch.zeros(2, 3, device="cuda"), torch.ones(2, 3, device="cuda")
    copy_all(list(targets), list(sources))
    assert torch.equal(targets, sources)


@pytest.mark.parametrize("n", [0, 4])
def test_an_out_that_is_resized_on_the_way(platform, n):
    """``lu_factor(out=)`` resizes an empty tensor that it makes inside: there is nothing to put back."""
    x = torch.randn(4, 4, device="cuda")
    out = torch.zeros(n, n, device="cuda"), torch.zeros(n, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.linalg.lu_factor(x, out=out)
    x.normal_()
    graph.replay()
    assert all(torch.equal(found, wanted) for found, wanted in zip(out, torch.linalg.lu_factor(x)))


def test_a_backward_that_traces(platform):
    """A higher-order operator may trace its backward when that first runs: with fake tensors, inside the capture."""
    invoke = torch._higher_order_ops.invoke_quant_packed
    x = torch.ones(3, device="cuda", requires_grad=True)

    def step():
        result = invoke(lambda t: (torch.sin(t),), x)[0]
        return torch.autograd.grad(result.sum(), x)[0]

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        x.fill_(2)
    graph.replay()
    assert torch.equal(found, step())


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_an_out_of_what_ones_are_no_input_for(platform):
    """The simulator tries an operation on ones; where these are refused (a singular matrix) shapes still count."""
    x, out = 4 * torch.eye(5, device="cuda"), torch.zeros(5, 5, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cholesky(x, out=out)
    assert out.shape == (5, 5)
    graph.replay()
    assert torch.equal(out, 2 * torch.eye(5, device="cuda"))


@pytest.mark.skipif(HAS_GPU, reason="on a GPU the whole is run, not this slice")
def test_a_slice_of_torchs_samples(tmp_path):
    """The runner itself: no sample of these goes wrong, and most go through a graph."""
    out = tmp_path / "found.json"
    names = ["NumpyCubeNotComposableAutogradFunction", "SelectAutogradFunction", "ScaleGradGenVmapAutogradFunction"]
    command = [sys.executable, str(ROOT / "tools" / "torch_samples.py"), "--simulate", "cuda", "--samples", "1"]
    command += ["--database", "autograd_function_db", "--only", *names, "--out", str(out)]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=120)
    found = json.loads(out.read_text())
    assert found["entries"] == len(names)
    assert set(found["outcomes"]) <= {"right", "near", "guarded", "skipped"}, found["not_right"]
    assert found["outcomes"]["right"] >= 6
