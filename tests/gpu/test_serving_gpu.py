"""Engines' adapters with what only a GPU has: Triton kernels, real refusals, timings that decide.

tests/engines and tests/conformance/adapters run on a GPU as they are; the cases here have no simulated twin.
MIGraphX is a stand-in throughout (tests/conformance/adapters/stand_ins).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

import gfxgraph  # noqa: E402
from gfxgraph.adapters.migraphx import GraphedProgram  # noqa: E402

pytestmark = pytest.mark.gpu

STAND_IN = Path(__file__).parents[1] / "conformance" / "adapters" / "stand_ins" / "migraphx"
N = 4096


@pytest.fixture
def migraphx(monkeypatch):
    monkeypatch.syspath_prepend(STAND_IN)
    import migraphx

    gfxgraph.enable(allow_cuda=True, validate=False)
    gfxgraph.reset_stats()
    yield migraphx
    torch.cuda.synchronize()
    gfxgraph.disable()
    del sys.modules["migraphx"]


def compiled(migraphx, fn):
    shape = migraphx.shape(type="float", lens=[N])
    program = migraphx.program(fn, {"x": shape}, [shape])
    program.compile(migraphx.get_target("gpu"), offload_copy=False)
    return program


def params(migraphx, seed):
    shape = migraphx.shape(type="float", lens=[N])
    return {
        "x": migraphx.to_gpu(migraphx.generate_argument(shape, seed)),
        "main:#output_0": migraphx.to_gpu(migraphx.generate_argument(shape, 0)),
    }


def many_launches(x):
    for _ in range(40):
        x = x * 1.001 + 0.001
    return [x]


def test_triton_launches_are_in_the_graph(migraphx):
    """A program whose launches torch knows nothing of: all of them are captured, and follow their inputs."""
    triton = pytest.importorskip("triton")
    tl = pytest.importorskip("triton.language")

    @triton.jit
    def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        tl.store(out_ptr + offsets, x * 3 + 1, mask=offsets < n)

    middle = torch.empty(N, device="cuda")
    out = torch.empty(N, device="cuda")

    def step(x):
        scale[(N // 256,)](x, middle, N, BLOCK=256)
        scale[(N // 256,)](middle, out, N, BLOCK=256)
        return [out]

    program = compiled(migraphx, step)
    program.run(params(migraphx, 0))  # compiles the kernel
    graphed = GraphedProgram(program, enabled=True, policy="graph")
    for seed in (1, 2, 3, 1):
        given = params(migraphx, seed)
        got = torch.tensor(migraphx.from_gpu(graphed.run(given)[-1]).tolist())
        x = torch.tensor(migraphx.from_gpu(given["x"]).tolist())
        assert torch.allclose(got, (x * 3 + 1) * 3 + 1, atol=1e-5)
    assert graphed.n_captures == 4 and graphed.why_eager == "" and gfxgraph.stats()["fallback_count"] == 0


def test_many_launches_are_decided_for_the_graph(migraphx, monkeypatch):
    """Forty small launches: measured both ways, the graph is chosen, every result on the way bit for bit eager's."""
    program = compiled(migraphx, many_launches)
    graphed = GraphedProgram(program, enabled=True)
    given = params(migraphx, 1)
    wanted = migraphx.from_gpu(program.run(given)[-1]).tolist()
    for _ in range(400):
        assert migraphx.from_gpu(graphed.run(given)[-1]).tolist() == wanted
        decision = graphed._timed().choice.decision
        if decision is not None:
            break
    assert decision is not None and decision.way == "graph", graphed.why()
    assert decision.speedup > 1.5, graphed.why()


@pytest.mark.parametrize("how", ["synchronize", "item"])
def test_a_wait_inside_the_program_is_survived(migraphx, how):
    """The driver refuses the capture for real; the result is right at once, and the process as it was."""

    def waits(x):
        torch.cuda.current_stream().synchronize() if how == "synchronize" else x[0].item()
        return many_launches(x)

    graphed = GraphedProgram(compiled(migraphx, waits), enabled=True, policy="graph")
    plain = compiled(migraphx, many_launches)
    given = params(migraphx, 1)
    wanted = migraphx.from_gpu(plain.run(given)[-1]).tolist()
    for _ in range(4):
        assert migraphx.from_gpu(graphed.run(given)[-1]).tolist() == wanted
    assert "cannot be captured" in graphed.why()
    again = GraphedProgram(plain, enabled=True, policy="graph")
    assert migraphx.from_gpu(again.run(given)[-1]).tolist() == wanted and again.n_captures == 1
    assert torch.rand(4, device="cuda").shape == (4,)
