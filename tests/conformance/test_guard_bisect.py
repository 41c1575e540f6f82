"""Bisect: the operation that a graph cannot hold or gets wrong, and a script of its own that shows it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.core.reproducer import FaultKind
from gfxgraph.guard import bisect
from tests.conformance.guarding import PROFILES, graph_of, guarded, line_of
from tests.warm_python import warm_python

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the simulator stands in for the only card there is"
)
SOURCE = str(Path(gfxgraph.__file__).parents[1])


def run(*command, folder):
    environment = dict(os.environ, PYTHONPATH=SOURCE, GFXGRAPH_LANG="en", XDG_STATE_HOME=str(folder / "state"))
    command = [warm_python(), *map(str, command)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def five_ops():
    x = torch.arange(8.0, device="cuda")
    w = torch.linspace(0, 1, 8, device="cuda")

    def body():
        a = x * 2 + w
        b = a.sigmoid()
        c = b.cumsum(0)
        c[1:].add_(0.5)
        return c + 1

    return *graph_of(body), x, body.__code__


@pytest.mark.parametrize("profile", PROFILES)
def test_the_first_operation_that_differs_is_named(profile, tmp_path, monkeypatch):
    """graph.bisect(): operation, line, how far; the smallest script that shows it is kept."""
    tried = []
    monkeypatch.setattr(bisect, "_shows", lambda text, kind: (tried.append(text), len(tried) == 3)[1])
    with guarded(f"{profile}+wrong=aten::cumsum", 0, tmp_path, monkeypatch):
        graph, _, x, code = five_ops()
        before = x.tolist()
        found = graph.bisect(tmp_path / "small.py")
        assert (found.kind, found.op, found.where) == (FaultKind.DIFFERS, "aten::cumsum", line_of(code, 3))
        assert found.detail.startswith("largest difference 1, allowed 0.0014")
        assert (found.n_ops, found.n_ops_before, found.script) == (2, 7, tmp_path / "small.py")
        assert x.tolist() == before
    # The operation alone with made-up values, with the very values, then with what it depends on.
    calls = [
        [line.split("torch.ops.")[1].split("(")[0] for line in text.splitlines() if "torch.ops." in line]
        for text in tried
    ]
    assert calls == [["aten.cumsum.default"]] * 2 + [["aten.sigmoid.default", "aten.cumsum.default"]]
    assert "random(0, torch.float32" in tried[0] and "data('" in tried[1]
    assert (tmp_path / "small.py").read_text() == tried[2]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_graph_that_agrees_with_eager_gives_nothing(profile, tmp_path, monkeypatch):
    """No false alarm, and the results are an ordinary replay's."""
    with guarded(profile, 0, tmp_path, monkeypatch):
        graph, result, _, _ = five_ops()
        assert graph.bisect(tmp_path / "small.py") is None
        expected = result.tolist()
        graph.replay()
        assert result.tolist() == expected
        assert not (tmp_path / "small.py").exists()


def test_what_no_script_shows_is_said(tmp_path, monkeypatch):
    """The operation is named all the same."""
    monkeypatch.setattr(bisect, "_shows", lambda text, kind: False)
    with guarded("cuda+wrong=aten::sigmoid", 0, tmp_path, monkeypatch):
        graph, *_ = five_ops()
        found = graph.bisect()
        assert (found.op, found.script) == ("aten::sigmoid", None)
        assert "no script of its operations alone shows it" in str(found)
        assert not list(Path.cwd().glob("gfxgraph-*.py"))


DECODE = """
import torch

x = torch.arange(8.0, device="cuda").view(2, 4).t()
mask = torch.tensor([True, False, True, True], device="cuda")[:, None].expand(4, 2)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.where(mask, x, -x)
    z = y.cumsum(0)
graph.replay()
print("replayed", z[0, 0].item())
"""


def test_a_script_is_bisected_to_a_file_that_runs_on_its_own(tmp_path):
    """The command's words and status; the file shows the fault without us asking for it."""
    (tmp_path / "decode.py").write_text(DECODE)
    made = run("-m", "gfxgraph", "bisect", "--simulate", "hip+wrong=aten::where", "decode.py", folder=tmp_path)
    target = tmp_path / "decode-reproducer.py"
    assert (made.returncode, made.stderr) == (1, "")
    assert made.stdout == (
        "aten::where at decode.py:8\n"
        "  graph and eager differ from here on: largest difference 1, allowed 0\n"
        f"  shown by {target} (1 of 3 operations)\n"
    )
    shown = run(target, folder=tmp_path)
    assert shown.returncode == 1
    assert shown.stdout == "REPRODUCED: result 0 differs by 1 between graph and eager\n"
    # The same file on a card that is right: the fault is the card's, not the script's.
    target.write_text(target.read_text().replace("hip+wrong=aten::where", "hip"))
    healthy = run(target, folder=tmp_path)
    assert (healthy.returncode, healthy.stdout) == (0, "not reproduced\n")


REFUSED = """
import torch

x = torch.arange(8.0, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    a = x * 2
    b = a.nonzero()
"""


def test_the_operation_that_fails_the_capture_is_found(tmp_path):
    """Refused inside the capture: named, with a script whose capture fails too."""
    (tmp_path / "refused.py").write_text(REFUSED)
    made = run("-m", "gfxgraph", "bisect", "--simulate", "cuda", "-o", "small.py", "refused.py", folder=tmp_path)
    assert made.returncode == 1, made.stderr
    first, second, third = made.stdout.splitlines()
    assert first == "aten::nonzero at refused.py:8"
    assert second.startswith("  this operation cannot be captured: unsafe_op_in_capture")
    assert third == f"  shown by {tmp_path / 'small.py'} (1 of 2 operations)"
    shown = run(tmp_path / "small.py", folder=tmp_path)
    assert shown.returncode == 1 and shown.stdout.startswith("REPRODUCED: the capture failed: CUDA error: operation")


FAULTS = """
import torch
from gfxgraph import simulator

x = torch.arange(8.0, device="cuda")
index = torch.tensor([1, 2, 3], device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    a = x * 2
    if OPAQUE:
        simulator.launch_opaque("wild_kernel", lambda k: k[int(index[0]) + 4 :][0].add_(1), a)
    b = a.gather(0, index)
    c = b + 1
graph.replay()
print(c.tolist())
index.fill_(100)
graph.replay()
print("not reached")
"""


@pytest.mark.parametrize(
    ("profile", "detail", "shown"),
    [
        (
            "cuda",
            "index 100 is out of bounds for dimension 0 with size 8",
            "REPRODUCED: the replay failed: CUDA error",
        ),
        ("hip+fault=aten::gather", "hipErrorIllegalAddress (700)", "REPRODUCED: the replay failed: HIP error"),
        ("hip+abort=aten::gather", "SIGABRT", ""),
    ],
)
def test_a_fault_is_bisected_to_the_operation_alone(profile, detail, shown, tmp_path):
    """In eager as in the graph, in the graph alone, and where it ends the process: one operation of three."""
    (tmp_path / "decode.py").write_text(FAULTS.replace("OPAQUE", "False"))
    made = run("-m", "gfxgraph", "bisect", "--simulate", profile, "decode.py", folder=tmp_path)
    target = tmp_path / "decode-reproducer.py"
    assert made.returncode == 1, made.stderr
    assert made.stdout.removeprefix("[3.0, 5.0, 7.0]\n") == (
        "aten::gather at decode.py:12\n"
        f"  this operation faults in the replay: {detail}\n"
        f"  shown by {target} (1 of 3 operations)\n"
    )
    text = target.read_text()
    calls = [line for line in text.splitlines() if "torch.ops." in line]
    assert len(calls) == 1 and "aten.gather" in calls[0]
    alone = run(target, folder=tmp_path)
    assert alone.returncode == (1 if shown else -signal.SIGABRT)
    assert alone.stdout.startswith(shown)


def test_a_fault_of_a_launch_outside_torch_is_named(tmp_path):
    """Its inputs cannot be made again, so there is no script."""
    (tmp_path / "decode.py").write_text(FAULTS.replace("OPAQUE", "True"))
    made = run("-m", "gfxgraph", "bisect", "--simulate", "cuda", "decode.py", folder=tmp_path)
    assert made.returncode == 1, made.stderr
    op, said, script = made.stdout.splitlines()[-3:]
    assert op.startswith("wild_kernel at decode.py:9 to decode.py:12")
    assert said == "  this operation faults in the replay: cudaErrorIllegalAddress (700)"
    assert "no script of its operations alone" in script
