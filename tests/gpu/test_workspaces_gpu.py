"""cuBLAS' workspaces under graphs, on a real GPU: given back by Inductor's graph trees, and unmapped.

Each program runs in a process of its own, for a graph whose workspace is gone ends it.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

PROGRAM = """
import sys, torch, gfxgraph
from gfxgraph.capture.replay import runtime_workarounds

how = sys.argv[1]
if how == "enabled":
    gfxgraph.enable(allow_cuda=True, validate=False)
torch.manual_seed(0)
# Few rows and long sums: cuBLAS splits them, and adds the parts up in its workspace.
w = [torch.randn(8192, 256, device="cuda", dtype=torch.float16) / 90 for _ in range(2)]

def step(x):
    for each in w:
        x = (x @ each).repeat(1, 32)
    return x

x = torch.randn(32, 8192, device="cuda", dtype=torch.float16)
want = step(x)
if how == "enabled":
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step(x)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = step(x)
    call = lambda: (graph.replay(), out)[1]
else:
    g = gfxgraph.graphed(step)
    call = lambda: g(x)
    for _ in range(4):
        call()
for turn in range(3):
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    litter = [torch.full((8 << 20,), 7.0, device="cuda") for _ in range(4)]
    got = call().clone()
    torch.cuda.synchronize()
    assert torch.equal(got, want), (got - want).abs().max()
    assert all(bool((t == 7.0).all()) for t in litter), "a replay wrote to memory of others"
    del litter
    torch.mm(w[0].T, w[1])  # the default stream has its workspace again
print("held", runtime_workarounds.n_workspaces_held())
"""


@pytest.mark.parametrize("how", ["enabled", "graphed"])
def test_a_graph_outlives_its_workspaces_being_given_back(tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run([sys.executable, str(program), how], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) >= 1, f"no workspace was held: {done.stdout}"
