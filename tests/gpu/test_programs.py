"""Whole programs on a GPU: the examples under ``gfxgraph run``, workers, and the refusal on an NVIDIA GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from gfxgraph.cli.demo import examples_folder

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
IS_HIP = torch.version.hip is not None
PERMISSION = [] if IS_HIP else ["--allow-cuda"]


def gfxgraph(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "HGB_"))}
    line = [sys.executable, "-m", "gfxgraph", *args]
    return subprocess.run(line, env=base | env, capture_output=True, text=True, timeout=280)


def run_example(name: str, *args: str, tmp_path, **env: str):
    """Run an example with --json; return what it printed and the statistics of its process."""
    script = str(examples_folder() / name)
    done = gfxgraph("run", *PERMISSION, script, "--json", *args, GFXGRAPH_REPORT=str(tmp_path), **env)
    assert done.returncode == 0, done.stderr
    (left,) = tmp_path.glob("gfxgraph-*.json")
    return json.loads(done.stdout.splitlines()[-1]), json.loads(left.read_text())["stats"]


@pytest.mark.parametrize("validated", ["0", "3"])
def test_character_decoding(tmp_path, validated):
    """Graphed and eager text are equal; one graph, no fallback; validation finds nothing."""
    result, stats = run_example("decode.py", tmp_path=tmp_path, GFXGRAPH_VALIDATE_REPLAYS=validated)
    assert result["texts_equal"]
    assert stats["capture_count"] == 1 and stats["fallback_count"] == 0
    assert stats["replay_count"] == 16 + 32 + 300 - 1
    assert (stats["validations"], stats["validation_failures"]) == (int(validated), 0)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_hugging_face_llama(tmp_path):
    """Its tokens equal the eager ones, through one graph without a fallback."""
    result, stats = run_example("hf_llama.py", "--tokens", "128", tmp_path=tmp_path)
    assert result["tokens_equal"]
    assert stats["capture_count"] == 1 and stats["fallback_count"] == 0


def test_the_demo():
    """The demo runs on the GPU, says which, and shows a gain that is worth showing."""
    done = gfxgraph("demo", "--prompt", "Off with", COLUMNS="120")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Running on {torch.cuda.get_device_name()}" in done.stdout
    assert "times eager" in done.stdout
    assert "simulator" not in done.stdout


def test_spawned_workers(tmp_path):
    """A spawned worker captures and replays under gfxgraph."""
    script = tmp_path / "program.py"
    script.write_text(
        "import torch, multiprocessing as mp\n"
        "def work():\n"
        "    g, x = torch.cuda.CUDAGraph(), torch.ones(4, device='cuda')\n"
        "    with torch.cuda.graph(g):\n"
        "        y = x * 2\n"
        "    x.fill_(5); g.replay()\n"
        "    print(type(g).__name__, y.tolist(), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    p = mp.get_context('spawn').Process(target=work); p.start(); p.join(); print(p.exitcode)\n"
    )
    done = gfxgraph("run", *PERMISSION, str(script))
    assert done.stdout == "BridgedCUDAGraph [10.0, 10.0, 10.0, 10.0]\n0\n", done.stderr


@pytest.mark.skipif(IS_HIP, reason="a ROCm build needs no permission")
def test_an_nvidia_gpu_needs_permission(tmp_path):
    """Without it nothing starts: status 2, the reason, and torch is not even imported."""
    script = tmp_path / "program.py"
    script.write_text("print('started')\n")
    done = gfxgraph("run", str(script))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("not_rocm_cuda_torch: ")


MANY_POOLS = """
import sys, torch
from gfxgraph.capture.replay.graph_tensors import pool_ranges
x = torch.ones(4, device="cuda")
kept = []
for n in range(300):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + n
    kept.append((graph, y))
pool = kept[-1][0].pool()
assert max(pool) > 256, "small integers are never freed"
before = [sys.getrefcount(number) for number in pool]
assert pool_ranges(pool)
assert [sys.getrefcount(number) for number in pool] == before
for n, (graph, y) in enumerate(kept):
    graph.replay()
    assert y.tolist() == [n + 1.0] * 4
print("fine")
"""


def test_a_process_may_make_many_pools(tmp_path):
    """torch 2.11 to 2.14 lose references to a pool's number when asked for the pool's memory."""
    (tmp_path / "many.py").write_text(MANY_POOLS)
    done = gfxgraph("run", *PERMISSION, str(tmp_path / "many.py"))
    assert done.stdout == "fine\n", done.stderr
