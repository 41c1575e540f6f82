"""Captures that end in unusual ways: a suspended block is closed or collected, a child leaves it, the program ends."""

from __future__ import annotations

import asyncio
import bdb
import gc
import io
import os
import pdb
import subprocess
import sys
import threading
import weakref

import pytest
import torch

import gfxgraph
from tests.conformance.conftest import HAS_GPU
from tests.property import faults
from tests.warm_python import warm_python

pytestmark = pytest.mark.skipif(HAS_GPU, reason="what is left is looked for in the simulator")


@pytest.fixture(autouse=True)
def whole_afterwards():
    """Later captures, replays and eager work are right."""
    gfxgraph.enable(simulate="hip", validate=False)
    yield
    try:
        gc.collect()
        x = torch.ones(8, device="cuda")
        assert faults.faults_left(x, faults.before(faults.capture, x)) == []
    finally:
        gfxgraph.disable()


def suspended(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        yield x * 2


@pytest.mark.parametrize("end", ["closed", "dropped", "collected", "thrown"])
def test_generator(end, recwarn, caplog):
    """A generator that is suspended inside a block goes; nothing is said of it but what the program throws."""
    held = [suspended(torch.ones(8, device="cuda"))]
    next(held[0])
    if end == "closed":
        held.pop().close()
    elif end == "dropped":
        held.clear()
    elif end == "collected":
        held.append(held)
        del held
        gc.collect()
    else:
        with pytest.raises(ValueError, match="mine"):
            held.pop().throw(ValueError("mine"))
    gc.collect()
    assert caplog.records == []


def test_collected_coroutine(monkeypatch):
    """The collector runs the graph's finalizer before the block of a coroutine that nobody awaits is left."""
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda said: ignored.append(said.exc_value))

    async def job():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.ones(8, device="cuda") * 2
            await asyncio.sleep(10)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(job())
    loop.run_until_complete(asyncio.sleep(0))
    del task
    loop.close()
    del loop
    gc.collect()
    assert ignored == []


def test_cancelled_task():
    async def job():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.ones(8, device="cuda") * 2
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(job(), 0.01))


def test_debugger_quits_inside_a_graphed_call():
    """BdbQuit is the program's: the call is not taken for one that cannot be captured."""
    asks = [False]

    def step(x):
        y = x * 2
        if asks[0]:
            debugger.set_trace()
        return y + 1

    made = gfxgraph.graphed(step, assume_pure=True)
    x = torch.ones(8, device="cuda")
    for n in range(6):
        asks[0] = n in (1, 2)
        debugger = pdb.Pdb(stdin=io.StringIO("n\nq\n"), stdout=io.StringIO())
        debugger.use_rawinput = False
        try:
            assert torch.equal(made(x), x * 2 + 1)
            assert not asks[0]
        except bdb.BdbQuit:
            assert asks[0]
        finally:
            sys.settrace(None)
    assert not gfxgraph.stats()["fallbacks"]


def test_child_leaves_the_block_by_an_error():
    """A forked child's own error reaches it; that the capture is its parent's does not mask it."""
    reading, writing = os.pipe()
    parent = os.getpid()
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            y = x * 2
            child = os.fork()
            if child == 0:
                raise ValueError("the child's")
    except BaseException as error:
        if os.getpid() == parent:
            raise
        os.write(writing, repr(error).encode())
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1000) == b'ValueError("the child\'s")'
    os.close(reading)
    os.waitpid(child, 0)
    graph.replay()
    assert torch.equal(y, x * 2)


def test_seeds_in_a_child_forked_in_a_capture():
    """As workers of a DataLoader seed: torch keeps the device's seed for later, since a runtime survives no fork."""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(8, device="cuda") * 2
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.manual_seed(3)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_block_left_after_its_thread_ended():
    """The error of the late end is one of the catalogue's."""
    held = []

    def begin():
        held.append(torch.cuda.graph(torch.cuda.CUDAGraph()))
        held[0].__enter__()

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    with pytest.raises(gfxgraph.CaptureError, match="capture_not_begun"):
        held.pop().__exit__(None, None, None)


@pytest.mark.parametrize("what", ["item", "capture", "error", "graphs"])
def test_finalizer_inside_a_capture(what, monkeypatch):
    """A weak reference's callback reads, captures, raises or drops graphs inside a capture, which goes on."""
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda said: ignored.append(said.exc_type))
    x = torch.ones(8, device="cuda")
    graphs = [faults.captured(lambda: x * 3)[0] for _ in range(2)]
    calls = {
        "item": lambda: x.sum().item(),
        "capture": lambda: faults.captured(lambda: x + 7)[0].replay(),
        "error": lambda: 1 / 0,
        "graphs": graphs.clear,
    }

    class Mortal:
        pass

    def body():
        y = x * 2
        mortal = Mortal()
        seen = weakref.ref(mortal, lambda _: calls[what]())
        del mortal
        return y + 1, seen

    graph, (out, _) = faults.captured(body)
    graph.replay()
    assert torch.equal(out, x * 2 + 1)
    assert ignored == ([ZeroDivisionError] if what == "error" else [])


OPEN = """
import torch, gfxgraph
gfxgraph.enable(simulate="hip", validate=False)
block = torch.cuda.graph(torch.cuda.CUDAGraph())
block.__enter__()
torch.ones(4, device="cuda") * 2
"""


def test_program_ends_inside_a_capture(tmp_path):
    """One warning says so; the clean-up comes before Python takes its modules apart."""
    program = tmp_path / "program.py"
    program.write_text(OPEN)
    done = subprocess.run([warm_python(), program], capture_output=True, text=True, timeout=100)
    said = [line for line in done.stderr.splitlines() if line.startswith("gfxgraph: ")]
    assert done.returncode == 0
    assert said == [f"gfxgraph: WARNING: the program ended inside the capture begun at {program}:5; it is given up"]
