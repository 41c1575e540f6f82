"""Whole programs on the simulator: the demo, and the ways of switching gfxgraph on, with the real runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gfxgraph.cli.demo import examples_folder

pytest.importorskip("torch")

CAPTURE = """
g = torch.cuda.CUDAGraph()
x = torch.ones(4, device="cuda")
torch.cuda.synchronize()
with torch.cuda.graph(g):
    y = x * 2 + 1
x.fill_(5)
g.replay()
print(type(g).__name__, y.tolist())
"""
RIGHT = "BridgedCUDAGraph [11.0, 11.0, 11.0, 11.0]\n"


def python(*args, **env):
    base = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "HGB_"))}
    env = base | {"OMP_NUM_THREADS": "1"} | env
    return subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True, timeout=200)


@pytest.fixture
def program(tmp_path):
    def write(text):
        (tmp_path / "program.py").write_text(text)
        return str(tmp_path / "program.py")

    return write


def test_the_demo_tells_its_story():
    """On the simulator the demo's two texts are equal, one graph is captured, and three replays are validated."""
    done = python("-m", "gfxgraph", "demo", "--simulate", "--prompt", "Alice [sic]", "--tokens", "12", COLUMNS="100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Alice [sic]" in done.stdout.replace("│", "")
    for line in ("same text        yes", "graphs captured  1", "fallbacks        none"):
        assert line in done.stdout
    assert "3 replays compared with eager execution, all equal" in done.stdout
    assert "nothing about speed" in " ".join(done.stdout.split())
    # On a slow machine it says now and then that it goes on.
    assert [line for line in done.stderr.splitlines() if not line.startswith("demo: writing the text twice")] == []


def test_the_example_is_an_ordinary_program():
    """It says the same by itself under ``gfxgraph run``; its end counts its replays. (The demo reads its JSON.)"""
    script = str(examples_folder() / "decode.py")
    line = ["-m", "gfxgraph", "run", "--simulate", "--json", script, "--tokens", "5", "--prompt", "Off"]
    done = python(*line)
    assert done.returncode == 0, done.stderr
    assert "texts equal: True" in done.stdout
    stats = json.loads(done.stderr.splitlines()[-1])
    # 1 + 16 - 1 steps of warm-up, then 3 + 5 - 1.
    assert stats["replay_count"] == 23
    assert stats["capture_count"] == 1


@pytest.mark.parametrize("imports", ["import gfxgraph, torch", "import torch, gfxgraph"])
def test_the_environment_alone(imports):
    """GFXGRAPH=1 is enough for a program that imports gfxgraph, before or after torch."""
    done = python("-c", imports + CAPTURE, GFXGRAPH="1", GFXGRAPH_SIMULATE="hip")
    assert (done.stdout, done.returncode) == (RIGHT, 0), done.stderr


def test_spawned_workers_capture_too(program):
    """A worker started by spawn captures a graph of its own."""
    work = "".join(f"    {line}\n" for line in CAPTURE.strip().splitlines())
    main = "if __name__ == '__main__':\n    p = mp.get_context('spawn').Process(target=work); p.start(); p.join()\n"
    script = program(f"import torch, multiprocessing as mp\ndef work():\n{work}\n{main}    print(p.exitcode)\n")
    done = python("-m", "gfxgraph", "run", "--simulate", script)
    assert done.stdout == RIGHT + "0\n", done.stderr


def test_without_gfxgraph_nothing_is_different():
    """Importing gfxgraph, without asking for it, leaves torch's own class in place."""
    done = python("-c", "import torch, gfxgraph\nprint(torch.cuda.CUDAGraph.__module__, gfxgraph.is_enabled())")
    assert done.stdout == "torch.cuda.graphs False\n"


def test_this_torch_is_refused_where_it_cannot_be_used(program):
    """Refused from the command line before the start: status 2; by GFXGRAPH=1 a warning, and it goes on."""
    import torch

    if torch.version.hip or torch.version.cuda:
        pytest.skip("this torch is no CPU build")
    done = python("-m", "gfxgraph", "run", program("print('started')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("not_rocm_cpu_torch: ")
    done = python("-c", "import gfxgraph, torch; print('went on')", GFXGRAPH="1")
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert done.stderr.count("\n") == 1 and "not_rocm_cpu_torch" in done.stderr


def test_unknown_profile(program):
    """A simulator profile that does not exist is refused with the names of those that do."""
    done = python("-m", "gfxgraph", "run", "--simulate=nope", program("import torch"))
    assert done.returncode == 2
    assert done.stderr.startswith("no_such_name: ")
    assert "there is no simulator profile named nope" in done.stderr and "hip-7.2" in done.stderr
    assert "Traceback" not in done.stderr
