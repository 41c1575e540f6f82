"""llama.cpp's CUDA build under the preload library, on a real GPU: same tokens, plausible counts.

GFXGRAPH_LLAMA_CPP names ``llama-completion`` of a CUDA build. Without one, GFXGRAPH_LLAMA_SOURCE names a folder
of llama.cpp's sources, which are built here for this GPU (cmake, nvcc; some minutes). The model is the one with
random weights of the emulator's test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "emulator"))
import cuda_tools  # noqa: E402
import tiny_gguf  # noqa: E402
from test_native_preload import library  # noqa: E402, F401

N_TOKENS = 64
# A model of random weights may say at any time that it is done.
OPTIONS = ["-p", "the a of", "--temp", "0", "--ignore-eos", "-no-cnv", "--no-warmup", "-t", "1", "-ngl", "99"]
OPTIONS += ["-fa", "off"]
SETTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "a refused launch": {"GFXGRAPH_PRELOAD_REFUSE_LAUNCH": "3"},
    "node by node": {"GFXGRAPH_PRELOAD_NODE_LIMIT": "1"},
    "made anew": {"GFXGRAPH_PRELOAD_UPDATE_BUDGET": "1"},
}

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]

_outcomes: dict[str, Any] = {}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """llama-completion with the CUDA backend."""
    given = os.environ.get("GFXGRAPH_LLAMA_CPP") or shutil.which("llama-completion")
    if given:
        return given
    source = os.environ.get("GFXGRAPH_LLAMA_SOURCE")
    if not source or shutil.which("cmake") is None:
        pytest.skip("needs GFXGRAPH_LLAMA_CPP, or GFXGRAPH_LLAMA_SOURCE with cmake and nvcc")
    cuda_tools.nvcc()
    folder = tmp_path_factory.mktemp("llama_build")
    options = [
        "-DGGML_CUDA=ON",
        "-DCMAKE_CUDA_ARCHITECTURES=native",
        "-DLLAMA_CURL=OFF",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    for command in (
        ["cmake", "-S", source, "-B", str(folder), *options],
        ["cmake", "--build", str(folder), "--target", "llama-completion", "--parallel", str(os.cpu_count())],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return str(folder / "bin/llama-completion")


def generate(program: str, folder: Path, preload: Path | None, **settings: str) -> tuple[bytes, dict[str, Any]]:
    """The text that the model makes, and the library's report."""
    model, report = folder / "tiny.gguf", folder / "report.json"
    if not model.exists():
        model.write_bytes(tiny_gguf.model(1))
    report.unlink(missing_ok=True)
    environ = {**os.environ, "GFXGRAPH_PRELOAD_REPORT": str(report), **settings}
    if preload:
        environ["LD_PRELOAD"] = str(preload)
    command = [program, "-m", str(model), "-n", str(N_TOKENS), *OPTIONS]
    done = subprocess.run(command, capture_output=True, env=environ, timeout=300)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return done.stdout, json.loads(report.read_text()) if report.exists() else {}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_tokens(program: str, library: Path, tmp_path: Path, name: str) -> None:  # noqa: F811
    """The text is the one without the library, whatever becomes of its graphs."""
    wanted, none = generate(program, tmp_path, None)
    text, report = generate(program, tmp_path, library, **SETTINGS[name])
    assert none == {} and text == wanted
    assert report["runtime"] == "cuda" and report["captures"] >= 1 and report["captures_failed"] == 0
    launches = sum(call["calls"] for symbol, call in report["calls"].items() if symbol.startswith("cuGraphLaunch"))
    assert 3 <= launches <= N_TOKENS
    fallback = report["fallback"]
    assert fallback["refused"] == 0
    assert fallback["launch"] == (name == "a refused launch")
    assert (fallback["instantiate"] > 0) == (name == "node by node")
    assert (report["rebuilds"] > 0) == (name == "made anew")
    where = os.environ.get("GFXGRAPH_GPU_RESULTS")
    _outcomes[name] = {
        "captures": report["captures"],
        "nodes": report["captured_nodes"] // report["captures"],
        "launches": launches,
        "rebuilds": report["rebuilds"],
        "fallback": fallback,
    }
    if where:
        summary = {
            "what": "llama.cpp, CUDA backend, under libgfxgraph_preload.so",
            "device": cuda_tools.device()[0],
            "commit": cuda_tools.commit(),
            "model": f"random weights, {len(tiny_gguf.model(1))} bytes (tests/emulator/tiny_gguf.py)",
            "tokens": N_TOKENS,
            "runs": _outcomes,
        }
        (Path(where) / "native_llama_cpp_gpu.json").write_text(json.dumps(summary, indent=1) + "\n")
