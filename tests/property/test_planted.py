"""A part of planted.py and planted_processes.py: what runs beside captures fails at a line, and the process works on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

import gfxgraph
from tests.property import faults, planted
from tests.warm_python import warm_python

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="failures are planted in the simulator")


@pytest.fixture(autouse=True)
def off_afterwards(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield
    gfxgraph.disable()


def whole(struck, least):
    """Nothing is wrong at any position, and there were some."""
    found = list(struck)
    assert [(where, bad) for where, _, bad in found if bad] == []
    assert sum(was_struck for _, was_struck, _ in found) >= least


@pytest.mark.parametrize("name", ["disable", "enable"])
def test_switch(name):
    """Struck at a line, switching leaves the bridge on or off, and the other and the same switch work."""
    whole(planted.switching(every=5 if name == "disable" else 17, names=[name]), least=50)


def test_undo_fails(monkeypatch):
    """An undo that always fails is told, and keeps none of the others from being done."""
    stock = planted.attributes()
    planted.on()

    def fail():
        raise OSError("a file of ours")

    planted.bridge.undo.append(fail)
    with pytest.raises(OSError, match="a file of ours"):
        gfxgraph.disable()
    assert not gfxgraph.is_enabled() and planted.patched(stock) == []


def test_threads_of_ours():
    """A round of the watch for hangs, of the history or of what writes counters, fails: the next rounds do their work."""
    whole(planted.watchers(every=20), least=10)


def test_first_counters_cannot_be_written(monkeypatch, tmp_path):
    """A folder that is a file: the process begins without an error, and writes once there is a folder."""
    folder = tmp_path / "counters"
    folder.write_text("")
    planted.on()
    one = planted.Round("metrics", folder)
    try:
        one.begin()
        folder.unlink()
        folder.mkdir()
        assert one.works()
    finally:
        one.stop()


def test_files_of_ours():
    """A full disk: guarded graphs are captured and replayed as without the recorder of nodes."""
    whole(planted.own_files(), least=3)


def test_forks():
    """A child forked in or beside a capture, or while a thread holds a lock of ours, has nothing of it."""
    whole(planted.forks(every=40), least=14)


@pytest.mark.parametrize("kind", planted.KINDS)
def test_end_of_a_pools_capture(kind):
    """Struck while the names that a capture replaced are put back, a graphed callable leaves none replaced."""
    planted.on()
    lines = faults.lines_of(faults.graphed_first, most_hits=1)
    inside = [line for line, _ in lines if planted.name_of(line) == "_leave" and line[0].endswith("intercept.py")]
    assert len(inside) > 5
    for line in inside[::3]:
        struck, bad = faults.interrupted(faults.graphed_first, line, 1, kind)
        assert struck and not bad, (line, bad)


def test_torch_functions_after_memory_ran_out():
    """A MemoryError leaves a block of torch's half left: the capture's end puts the thread's state back."""
    planted.on()
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(MemoryError):
        with torch.cuda.graph(graph):
            torch._C.DisableTorchFunction().__enter__()
            raise MemoryError
    assert torch._C._is_torch_function_enabled()
    assert faults.faults_left(x, faults.before(faults.capture, x)) == []


@pytest.mark.parametrize(("part", "every"), [("import", 3100), ("an open capture", 620)])
def test_beginning_and_end_of_a_process(part, every):
    """A struck import is done again; a process whose end is struck ends, and at most one of its files is missing."""
    program = "import sys; from tests.property import planted_processes as whole; sys.exit(whole.main())"
    command = [warm_python(), "-c", program, "--only", part, "--every", str(every)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(done.stdout).values()
    assert row["positions"] >= 2 and row["broken"] == []
