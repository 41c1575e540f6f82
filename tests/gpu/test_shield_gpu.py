"""What kills captures without being an operation, on a real GPU: each in a process that has done none of it before.

Every program captures plain graphs under the bridge, in the two modes that refuse such calls, and checks
replays. What another thread does is in test_threads_gpu.py.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

PROLOGUE = """
import ctypes, gc, os, sys
import torch
import gfxgraph

gfxgraph.enable(allow_cuda=True, validate=False)
x = torch.arange(8.0, device="cuda")
x2 = x.view(2, 4).clone()
torch.cuda.synchronize()


def capture(body, mode):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        y = x * 2
        out = body(y)
    for value in (1.0, 3.0):
        x.fill_(value)
        graph.replay()
        yield graph, out, torch.full((8,), 2 * value, device="cuda")


def is_plain(graph):
    events = [e for e in gfxgraph.stats()["events"] if e["kind"] in ("fallback", "split", "capture_failed")]
    assert graph._program.is_plain and not events, events


MODE = sys.argv[1]
"""

PROGRAMS = {
    # Kernels of torch's own that nothing has loaded, where modules are loaded at a kernel's first launch.
    "lazy_loading": """
def body(y):
    return torch.roll(y.flip(0).cumsum(0), 1) + torch.sinc(y)

for graph, out, y in capture(body, MODE):
    assert torch.equal(out, body(y))
    is_plain(graph)
""",
    # torch compiles these at their first launch, and loads what it has compiled.
    "jiterator": """
jitted = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T a) { return a * a + 1; }")

def body(y):
    return jitted(y) + torch.special.bessel_j0(y) + torch.gcd(y.long(), y.long() + 2)

for graph, out, y in capture(body, MODE):
    assert torch.equal(out, body(y))
    is_plain(graph)
""",
    "triton": """
import triton
import triton.language as tl

@triton.jit
def twice(source, target, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, at < n) * 2, at < n)

def body(y):
    target = torch.empty_like(y)
    twice[(1,)](y, target, 8, BLOCK=16)
    return target + 1

for graph, out, y in capture(body, MODE):
    assert torch.equal(out, y * 2 + 1)
    is_plain(graph)
""",
    # Compiled and opened inside the capture.
    "extension": """
from torch.utils import cpp_extension

def body(y):
    source = "torch::Tensor thrice(torch::Tensor t) { return t * 3; }"
    made = cpp_extension.load_inline("thrice_" + MODE, source, functions=["thrice"])
    return made.thrice(y)

for graph, out, y in capture(body, MODE):
    assert torch.equal(out, y * 3)
    is_plain(graph)
""",
    # The handle of this thread and the workspace of the capture's own stream, nothing of which is there.
    "blas_handle": """
import threading

def work():
    w = torch.eye(8, device="cuda")
    torch.cuda.current_stream().synchronize()
    for graph, out, y in capture(lambda y: torch.addmm(y, w, w) @ w, MODE):
        torch.cuda.current_stream().synchronize()
        assert torch.equal(out, y + w)
        is_plain(graph)
    found.append(True)

found = []
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert found
""",
    # Memory of another library's, given back by its owner's finalizer: by the collector in relaxed mode, by the
    # last reference in the mode of the capture, which the driver may end for it; the result is right all the same.
    "free_by_a_finalizer": """
cuda = ctypes.CDLL("libcuda.so.1")
statuses = []

class Owner:
    def __init__(self):
        self.at = ctypes.c_uint64()
        assert cuda.cuMemAlloc_v2(ctypes.byref(self.at), 1 << 20) == 0
        self.me = self

    def __del__(self):
        statuses.append(cuda.cuMemFree_v2(self.at))

bag = [Owner(), Owner()]
bag[1].me = None

def collected(y):
    del bag[0]
    gc.collect()
    return y + 1

for graph, out, y in capture(collected, MODE):
    assert torch.equal(out, y + 1) and statuses == [0], statuses
    is_plain(graph)

def dropped(y):
    bag.clear()
    return y + 1

for graph, out, y in capture(dropped, MODE):
    assert torch.equal(out, y + 1)
print("by the last reference:", statuses[1], "plain" if graph._program.is_plain else "tape")
for graph, out, y in capture(lambda y: y + 5, MODE):
    assert torch.equal(out, y + 5) and graph._program.is_plain
""",
    "graph_destroyed_by_the_collector": """
class Owner:
    pass

def make():
    owner = Owner()
    owner.me, owner.graph = owner, torch.cuda.CUDAGraph()
    with torch.cuda.graph(owner.graph):
        owner.out = x + 7
    owner.graph.replay()
    torch.cuda.synchronize()

make()

def body(y):
    gc.collect()
    return y + 1

for graph, out, y in capture(body, MODE):
    assert torch.equal(out, y + 1)
    is_plain(graph)
""",
    # Collectives under way, at whose events the watchdog looks every 100 ms while captures run.
    "watchdog": """
import tempfile, time
import torch.distributed as dist

store = dist.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
dist.init_process_group("nccl", store=store, rank=0, world_size=1)
big = torch.ones(64 << 20, device="cuda")
dist.all_reduce(big)

def body(y):
    dist.all_reduce(y)
    until = time.monotonic() + 0.15
    while time.monotonic() < until:
        pass
    return y + 1

for _ in range(8):
    works = [dist.all_reduce(big, async_op=True) for _ in range(20)]
    for graph, out, y in capture(body, MODE):
        assert torch.equal(out, y + 1)
        is_plain(graph)
    for work in works:
        work.wait()
torch.cuda.synchronize()
dist.destroy_process_group()
""",
    # The first collective makes its communicator inside the capture and ends it: it runs from the tape then.
    "communicator": """
import tempfile
import torch.distributed as dist

store = dist.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
dist.init_process_group("nccl", store=store, rank=0, world_size=1)

def body(y):
    dist.all_reduce(y)
    return y + 1

for graph, out, y in capture(body, MODE):
    assert torch.equal(out, y + 1)
torch.cuda.synchronize()
dist.destroy_process_group()
""",
}


def missing(name):
    """Why a program cannot run here; "" where it can."""
    if name == "triton" and importlib.util.find_spec("triton") is None:
        return "needs Triton"
    if name == "extension" and not (shutil.which("ninja") and shutil.which("c++")):
        return "needs ninja and a C++ compiler"
    if name in ("watchdog", "communicator") and not torch.distributed.is_nccl_available():
        return "needs NCCL"
    return ""


@pytest.mark.parametrize("mode", ["global", "thread_local"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_capture_lives(tmp_path, name, mode):
    """Captured whole, replayed right, and the process captures on."""
    if why := missing(name):
        pytest.skip(why)
    program = tmp_path / "program.py"
    program.write_text(PROLOGUE + textwrap.dedent(PROGRAMS[name]))
    command = [sys.executable, str(program), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
