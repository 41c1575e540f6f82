"""What runs beside captures: forked children, full disks, and an undo that fails, in the simulator."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import gfxgraph
from gfxgraph.capture import capture_lock
from gfxgraph.process import bridge, process
from tests.conformance.bench import attributes, patched
from tests.property import faults

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator's processes are forked")


@pytest.fixture(autouse=True)
def off_afterwards(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield
    gfxgraph.disable()


def test_undo_fails():
    """An undo that always fails is told, and keeps none of the others from being done."""
    stock = attributes()
    gfxgraph.enable(simulate="hip", validate=False)

    def fail():
        raise OSError("a file of ours")

    bridge.undo.append(fail)
    with pytest.raises(OSError, match="a file of ours"):
        gfxgraph.disable()
    assert not gfxgraph.is_enabled() and patched(stock) == []


# -- forks ----------------------------------------------------------------------------------------------------


def in_child(what: Callable[[], object]) -> str:
    """What a forked child answers; "hangs" or how it died if it does not."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = repr(what())
        except BaseException as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    answers, _, _ = select.select([reading], [], [], 20)
    text = os.read(reading, 1 << 20).decode() if answers else "hangs"
    if not answers:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(reading)
    return text if answers else f"hangs ({status})"


def child_state() -> list[str]:
    """What a child inherited that is its parent's business, and whether it can work."""
    bad = []
    if not gc.isenabled():
        bad.append("the collector is off")
    if torch.Tensor.item is not faults.STOCK[0]:
        bad.append("torch's names are replaced")
    if torch._C._len_torch_dispatch_stack():
        bad.append("a mode is left on")
    if capture_lock.is_owned_here():
        bad.append("the parent's turn is held")
    if not torch.autograd.is_multithreading_enabled():
        bad.append("autograd is restricted")
    if float((torch.ones(4) * 2).sum()) != 8.0 or not 0 <= torch.rand(1).item() < 1:
        bad.append("work on the CPU is wrong")
    gfxgraph.stats()
    torch.cuda.CUDAGraph()
    gc.collect()
    gfxgraph.disable()
    return [*bad, *(["it is still on"] if gfxgraph.is_enabled() else [])]


def refused(graph: Any) -> list[str]:
    """A child may not replay its parent's graph."""
    try:
        graph.replay()
    except gfxgraph.ReplayError as error:
        return [] if error.code == "graph_in_forked_child" else [error.code]
    return ["the parent's graph was replayed"]


@contextmanager
def beside(block: Callable[[], Any]) -> Iterator[None]:
    """Another thread is inside a block meanwhile."""
    is_in, is_over = threading.Event(), threading.Event()

    def run() -> None:
        with block():
            is_in.set()
            is_over.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    is_in.wait(60)
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def capturing() -> Iterator[None]:
    x = torch.ones(8, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x * 2
        yield


FORKS: dict[str, Callable[[], Any]] = {
    "outside": contextlib.nullcontext,
    "in a capture": capturing,
    "beside a capture": lambda: beside(capturing),
    "beside a holder of the owners' lock": lambda: beside(lambda: capture_lock.lock),
    "beside a holder of the counters' lock": lambda: beside(lambda: process.require().counters._lock),
    "beside a holder of the bridge's lock": lambda: beside(lambda: bridge.lock),
}


@pytest.mark.parametrize("name", FORKS)
def test_forks(name, monkeypatch):
    """A child forked in or beside a capture, or while a thread holds a lock of ours, has nothing of it."""
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    gfxgraph.enable(simulate="hip", validate=False)
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.capture, x)
    for what in (child_state, lambda: refused(kept["graph"])):
        with FORKS[name]():
            text = in_child(what)
        assert text == "[]"
        assert faults.faults_left(x, kept) == []
