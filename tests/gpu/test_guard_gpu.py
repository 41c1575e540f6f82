"""The guard on a real GPU: each fault in a process of its own, since most of them end the device for it.

Planted: an index out of range, a freed input, a Triton kernel writing past its buffer (far outside, and by one
byte or element into a red zone), a kernel that does not end. Two minutes together.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

SOURCE = str(Path(__file__).parents[2] / "src")
HEAD = """\
import ctypes, gc, os, sys
import torch
import triton
import triton.language as tl
import gfxgraph
from gfxgraph.errors import GfxGraphFault

@triton.jit
def add_kernel(k, out, n, block: tl.constexpr):
    at = tl.arange(0, block)
    value = tl.load(k + at, mask=at < n)
    tl.store(out + at, tl.load(out + at, mask=at < n) + value, mask=at < n)

def add(k, out):
    add_kernel[(1,)](k, out, out.numel(), block=triton.next_power_of_2(out.numel()))

@triton.jit
def shifted_kernel(k, out, n, shift, block: tl.constexpr):
    at = tl.arange(0, block)
    by = tl.load(shift)
    value = tl.load(k + at, mask=at < n)
    tl.store(out + at + by, value, mask=at < n)

def shifted(k, out, shift):
    shifted_kernel[(1,)](k, out, 8, shift, block=8)

@triton.jit
def poke_kernel(out, at):
    tl.store(out + tl.load(at), 7)

def graph_of(body, graph=None, **options):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        body()
    torch.cuda.synchronize()
    graph = graph or torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        results = body()
    return graph, results
"""


def gfxgraph_on_program(folder, environment, *command):
    """What ``gfxgraph COMMAND program.py`` gave, in ``folder``; printed for whoever reads a failure."""
    permission = [] if torch.version.hip else ["--allow-cuda"]
    made = subprocess.run(
        [sys.executable, "-m", "gfxgraph", *command, *permission, "program.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    print(made.stdout, made.stderr, sep="\n")
    return made


def run(folder, body, tier, *options):
    """The program's (status, stdout, stderr) under ``gfxgraph run --guard``."""
    (folder / "program.py").write_text(HEAD + body)
    environment = dict(
        os.environ, PYTHONPATH=SOURCE, XDG_STATE_HOME=str(folder / "state"), GFXGRAPH_LANG="en",
        TRITON_CACHE_DIR=str(folder / "triton"), GFXGRAPH_VALIDATE_REPLAYS="0",
    )  # fmt: skip
    made = gfxgraph_on_program(folder, environment, "run", "--guard", str(tier), *options)
    left = [path for path in (folder / "state").rglob("*") if path.is_file() and path.suffix != ".so"]
    assert not left, left
    return made


def line(text):
    """Number of the program's line that starts with ``text``."""
    return next(n for n, row in enumerate((HEAD + text[0]).splitlines(), 1) if row.strip().startswith(text[1]))


FREED = """
x = torch.arange(8.0, device="cuda")
kv = torch.ones(8, device="cuda")

def body():
    a = x * 2
    add(kv, a)
    return a + 1

graph, result = graph_of(body)
for _ in range(1000):
    graph.replay()
torch.cuda.synchronize()
assert result.tolist() == [2.0 * n + 2 for n in range(8)], result
stats = gfxgraph.stats()
assert not stats["events"] and stats["guard_unchecked_nodes"] == 0, stats
del kv, body
try:
    graph.replay()
except gfxgraph.ReplayError as error:
    print(error)
else:
    sys.exit("not refused")
torch.cuda.synchronize()     # nothing ran: the device is well
static = torch.ones(8, device="cuda")
pinned, y = graph_of(lambda: static * 3)
del static
gc.collect()
torch.cuda.empty_cache()
pinned.replay()
assert y.tolist() == [3.0] * 8
"""


def test_a_freed_input_is_refused_before_the_launch(tmp_path):
    """By kernel, line and tensor; what operations read is pinned and replays on."""
    made = run(tmp_path, FREED, 1)
    assert made.returncode == 0, made.stderr
    first, what, why, *_ = made.stdout.splitlines()
    assert first == "stale_pointer: the graph points at memory that has been freed"
    assert re.search(r"what: node 1 \(add_kernel\), launched by a call outside torch at \S+program\.py:\d+ to", what)
    assert "uses `kv` [8] float32 at 0x" in what
    assert re.search(rf"it was allocated at \S+program\.py:{line((FREED, 'kv ='))};", why)


INDEX = """
x = torch.arange(8.0, device="cuda")
index = torch.tensor([1, 2, 3], device="cuda")

def body():
    a = x * 2
    b = a.gather(0, index)
    return b + 1

graph, result = graph_of(body)
graph.replay()
torch.cuda.synchronize()
print(result.tolist())
index.fill_(1 << 40)
graph.replay()
print("not reached")
"""


def test_an_index_out_of_range_names_operation_and_line(tmp_path):
    """The report is in the uncaught exception, once; the status is the program's own."""
    made = run(tmp_path, INDEX, 2)
    assert made.stdout == "[3.0, 5.0, 7.0]\n"
    assert made.returncode in (1, -signal.SIGABRT)
    assert made.stderr.count("memory_fault: the GPU touched memory that it may not\n  what:") == 1
    where = rf"\S*program\.py:{line((INDEX, 'b = a.gather'))}"
    launched = rf"launched by aten::gather at {where}, ended replay 2"
    assert re.search(rf"what: node \d of \d \(.*gather.*\), {launched}", made.stderr)
    assert "`index` [3] int64 at 0x" in made.stderr


WILD = """
x = torch.arange(8.0, device="cuda")
k = torch.ones(8, device="cuda")
shift = torch.zeros((), dtype=torch.int64, device="cuda")

def body():
    a = x * 2
    shifted(k, a, shift)
    return a + 1

graph, result = graph_of(body)
shift.fill_(1 << 44)
try:
    graph.replay()
    torch.cuda.synchronize()
except GfxGraphFault as error:
    print(error)
    sys.stdout.flush()
    os._exit(7)
print("not reached")
"""


def test_a_triton_kernel_that_writes_far_outside_is_named(tmp_path):
    """A launch that torch did not make: kernel, lines and arguments; the status of a program that caught it."""
    made = run(tmp_path, WILD, 2)
    assert made.returncode in (7, -signal.SIGABRT)
    report = made.stdout + made.stderr
    launched = r"launched by a call outside torch at \S*program\.py"
    assert re.search(rf"what: node 1 of 3 \(shifted_kernel\), {launched}", report)
    assert "argument 0 `k` [8] float32 at 0x" in report


ZONES = """
k = torch.ones(8, device="cuda")
x = torch.arange(8.0, device="cuda")
shift = torch.zeros((), dtype=torch.int64, device="cuda")

def body():
    a = x * 2
    shifted(k, a, shift)
    b = torch.nn.functional.layer_norm(a @ torch.ones(8, 8, device="cuda"), (8,))
    return a + b

graph, result = graph_of(body)
for amount in (0, 1, -1, 0):
    shift.fill_(amount)
    try:
        graph.replay()
        torch.cuda.synchronize()
        print("fine", amount)
    except GfxGraphFault as error:
        print(error)
events = [event for event in gfxgraph.stats()["events"]]
assert not events, events
del graph, result
gc.collect()
"""


def test_a_write_of_one_element_past_a_buffer_is_found_in_its_red_zone(tmp_path):
    """Either side, with tensor, first replay and kernel; replays that stay inside are not touched."""
    made = run(tmp_path, ZONES, 3)
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("fine 0") == 2
    found = re.findall(
        r"what: (\d+) bytes changed around `?(.+?)`?, \[8\] float32, 32 bytes.*; the nearest at byte (-?\d+), "
        r"where 0 to 31 are its own; first seen after replay (\d)",
        made.stdout,
    )
    # A stored 1.0 is 00 00 80 3f: every byte of it differs from the pattern.
    assert [(n, offset, replay) for n, _, offset, replay in found] == [("4", "32", "2"), ("4", "-1", "3")]
    assert len(re.findall(r"why:  node 1 \(shifted_kernel\), launched by a call outside torch", made.stdout)) == 2


BYTES = """
x = torch.arange(8.0, device="cuda")
at = torch.zeros((), dtype=torch.int64, device="cuda")

def body():
    a = x * 2
    poke_kernel[(1,)](a.view(torch.uint8), at)
    return a + 1

graph, result = graph_of(body)
for offset in (31, 32, 0, -1):
    at.fill_(offset)
    try:
        graph.replay()
        torch.cuda.synchronize()
        print("fine", offset)
    except GfxGraphFault as error:
        print(error)
del graph, result
gc.collect()
"""


def test_one_byte_past_a_buffer_is_found_on_either_side(tmp_path):
    """The whole report, but for addresses and names of files."""
    made = run(tmp_path, BYTES, 3)
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("fine 31") == made.stdout.count("fine 0") == 1
    reports = re.split(r"(?=red_zone_overwritten: )", made.stdout.replace("fine 31\n", "").replace("fine 0\n", ""))
    reports = [re.sub(r"\S*program\.py:", "program.py:", report) for report in reports if report.strip()]
    place = f"program.py:{line((BYTES, 'a = x'))} to program.py:{line((BYTES, 'return a + 1'))}"
    assert [report.rstrip("\n").replace("`a`", "output of aten::mul") for report in reports] == [
        BYTE_REPORT.format(offset=offset, replay=replay, place=place, made=f"program.py:{line((BYTES, 'a = x'))}")
        for offset, replay in ((32, 2), (-1, 4))
    ]


BYTE_REPORT = """\
red_zone_overwritten: a kernel wrote outside its buffer
  what: 1 bytes changed around output of aten::mul, [8] float32, 32 bytes, allocated at {made}; the nearest at byte \
{offset}, where 0 to 31 are its own; first seen after replay {replay}
  why:  node 1 (poke_kernel), launched by a call outside torch at {place}, wrote them; without red zones it would \
have overwritten another tensor
  do:   check the sizes, offsets and masks of the stores in that kernel
  more: gfxgraph explain red_zone_overwritten"""


SLEEPS = """
x = torch.ones(8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    a = x * 2
    torch.cuda._sleep(int(40e9))
    b = a + 1
graph.replay()
print("not reached")
"""


def test_a_kernel_that_does_not_end_is_reported_and_the_program_ended(tmp_path):
    """After the limit, by the node that it is at."""
    made = run(tmp_path, SLEEPS, 2, "--guard-limit", "3")
    assert made.returncode in (-signal.SIGTERM, -signal.SIGKILL)
    assert made.stdout == ""
    assert re.search(r"replay_hang: .*\n  what: the graph captured at .*program\.py:\d+ was still running after 3 s; "
                     r"last node begun: 1 \(\S*spin\S*\)", made.stderr)  # fmt: skip


WALK = """
x = torch.randn(32, 32, device="cuda")
k = torch.ones(32 * 32, device="cuda")
count = torch.zeros((), device="cuda")

def body():
    count.add_(1)
    a = x @ x
    add(k, a.view(-1))
    b = torch.zeros(32, 32, device="cuda")
    b.copy_(a)
    return torch.softmax(b, -1)

graph, result = graph_of(body)
from gfxgraph.process import process
from gfxgraph.capture.replay import node_walk
driver = process.require().driver
print(sorted({str(driver.node_kind(n)) for n in driver.nodes(node_walk.raw_graph(graph))}))
count.zero_(); result.zero_()
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
torch.testing.assert_close(result, torch.softmax(x @ x + 1, -1))
assert count.item() == 3.0, count
assert not gfxgraph.stats()["events"], gfxgraph.stats()["events"]
"""


def test_the_walk_is_exact(tmp_path):
    """Triton, a BLAS kernel and a copy, each switched on for a launch of its own."""
    made = run(tmp_path, WALK, 2)
    assert made.returncode == 0, made.stderr
    assert {"kernel", "memcpy"} <= set(re.findall(r"\w+", made.stdout))
