"""llama.cpp's HIP build on the emulated GPU, under the preload library: an engine that knows nothing of us.

It opens its backend in a local scope, captures in relaxed mode, updates its exec and launches it. A model
with random weights (tiny_gguf.py) must give the same text with the library as without, also where a launch
is refused or no exec may be made. Takes a minute a run.

GFXGRAPH_LLAMA_CPP names ``llama-completion`` of a build with the HIP backend (Debian: llama.cpp-tools and
libggml0-backend-hip), and GFXGRAPH_LLAMA_LIBRARIES the folders of its libraries where they are not installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
from test_hip_driver import HERE, SOURCE, build, emulator  # noqa: F401
from test_hip_preload import preload  # noqa: F401

TIMEOUT_S = 600
N_TOKENS = 12
# How often it captures differs from run to run, down to not at all where this machine is busy.
ATTEMPTS = 4
PROMPT = "the a of"
# Greedy, one token after another, every layer on the GPU; without attention kernels that need scratch memory,
# which the emulator gets wrong on this architecture.
OPTIONS = ["--temp", "0", "-no-cnv", "--no-warmup", "-t", "1", "-ngl", "99", "-fa", "off"]

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(2 * TIMEOUT_S)]


@dataclass
class Ran:
    text: bytes
    report: dict[str, Any]
    stderr: str


@dataclass
class Engine:
    """llama.cpp with its model: ``command`` makes it generate."""

    command: list[str]
    library: Path
    folder: Path

    def generate(self, preloaded: bool, **settings: str) -> Ran:
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        environ = {**os.environ, "GFXGRAPH_PRELOAD_REPORT": str(report), **settings}
        if preloaded:
            environ["LD_PRELOAD"] = str(self.library)
        done = subprocess.run(self.command, capture_output=True, env=environ, timeout=TIMEOUT_S)
        stderr = done.stderr.decode(errors="replace")
        assert done.returncode == 0, stderr[-3000:]
        told = json.loads(report.read_text()) if report.exists() else {}
        return Ran(done.stdout, told, stderr)


@pytest.fixture(scope="module")
def engine(
    emulator: list[str],  # noqa: F811
    preload: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Engine:
    program = os.environ.get("GFXGRAPH_LLAMA_CPP") or shutil.which("llama-completion")
    if program is None:
        pytest.skip("needs llama.cpp with the HIP backend: GFXGRAPH_LLAMA_CPP names its llama-completion")
    folder = tmp_path_factory.mktemp("llama")
    model = folder / "tiny.gguf"
    model.write_bytes(tiny_gguf.model(1))
    folders = os.environ.get("GFXGRAPH_LLAMA_LIBRARIES")
    if folders:
        # For it alone: what they hold may be of a newer system than this one.
        emulator = [*emulator, "env", f"LD_LIBRARY_PATH={folders}"]
    command = [*emulator, program, "-m", str(model), "-p", PROMPT, "-n", str(N_TOKENS), *OPTIONS]
    return Engine(command, preload, folder)


@pytest.fixture(scope="module")
def without(engine: Engine) -> Ran:
    ran = engine.generate(preloaded=False)
    assert ran.report == {} and "ROCm" in ran.stderr
    assert len(ran.text.strip()) > len(PROMPT)
    return ran


# The first launch refused; no exec at all; an exec made anew after each update; another capture mode.
SETTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "a refused launch": {"GFXGRAPH_PRELOAD_REFUSE_LAUNCH": "1"},
    "node by node": {"GFXGRAPH_PRELOAD_NODE_LIMIT": "1"},
    "made anew": {"GFXGRAPH_PRELOAD_UPDATE_BUDGET": "1"},
    "thread_local": {"GFXGRAPH_PRELOAD_CAPTURE_MODE": "thread_local"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_tokens(engine: Engine, without: Ran, name: str) -> None:
    """The text is the one without the library, and the counts are those of a decoder's graph."""
    for _ in range(ATTEMPTS):
        ran = engine.generate(preloaded=True, **SETTINGS[name])
        assert ran.text == without.text
        report = ran.report
        if report["captures"]:
            break
    calls = {symbol: call["calls"] for symbol, call in report["calls"].items()}
    # One graph, captured once the engine has seen the same work twice, then launched for the rest.
    assert report["captures"] >= 1 and report["captures_failed"] == 0
    nodes = report["captured_nodes"] // report["captures"]
    assert nodes > 10 * tiny_gguf.LAYERS
    assert calls["hipStreamBeginCapture"] == calls["hipStreamEndCapture"] == report["captures"]
    assert 0 < calls["hipGraphLaunch"] < N_TOKENS
    assert report["not_recorded"] == {} and report["failures"] == []
    fallback = report["fallback"]
    assert fallback["refused"] == 0
    assert fallback["launch"] == (name == "a refused launch")
    assert fallback["instantiate"] == (report["captures"] if name == "node by node" else 0)
    walked = {"a refused launch": nodes, "node by node": nodes * calls["hipGraphLaunch"]}
    assert fallback["nodes"] == walked.get(name, 0)
    assert (report["rebuilds"] > 0) == (name == "made anew")


def test_gfxgraph_run_sets_it_all_up(engine: Engine, without: Ran) -> None:
    """``gfxgraph run --preload -- llama-completion`` prints the report after the engine's own output."""
    command = [sys.executable, "-m", "gfxgraph", "run", "--preload", "--"]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "GFXGRAPH_LIB": str(engine.library)}
    done = subprocess.run([*command, *engine.command], capture_output=True, env=environ, timeout=TIMEOUT_S)
    assert done.returncode == 0 and done.stdout == without.text
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.startswith("gfxgraph: ")]
    assert said[0].startswith("gfxgraph: HIP ")
    assert any(line.startswith("gfxgraph: captures: ") for line in said)
