"""JAX under libgfxgraph_preload.so on CUDA: XLA's command buffers are seen, and refused ones run node by node.

The same program runs without graphs, with XLA's command buffers, and with these under the library in its modes.
Needed: a JAX that sees the GPU, and g++. What each run said is printed and, where GFXGRAPH_GPU_RESULTS names a
folder, written there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cuda_tools
import pytest

HERE = Path(__file__).parent
# What XLA would choose by measuring could differ from process to process, and its bits with it.
SAME_KERNELS = "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"
BUFFERS = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN --xla_gpu_graph_min_graph_size=1"
WITHOUT, PLAIN, PRELOADED = "no command buffers", "command buffers", "under the library"
WAYS: dict[str, tuple[str, bool, dict[str, str]]] = {
    WITHOUT: ("--xla_gpu_enable_command_buffer=", False, {}),
    PLAIN: (BUFFERS, False, {}),
    PRELOADED: (BUFFERS, True, {}),
    "a refused launch": (BUFFERS, True, {"GFXGRAPH_PRELOAD_REFUSE_LAUNCH": "3"}),
    "node by node": (BUFFERS, True, {"GFXGRAPH_PRELOAD_NODE_LIMIT": "1"}),
    "execs made anew": (BUFFERS, True, {"GFXGRAPH_PRELOAD_UPDATE_BUDGET": "2"}),
}

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each way: its exit status, what it printed, and the library's report."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("needs jax")
    device = cuda_tools.device()[0]
    folder = tmp_path_factory.mktemp("jax")
    library = cuda_tools.build_library("preload", folder)
    found = {way: _run(folder, library, *asked) for way, asked in WAYS.items()}
    told = {"device": device, "commit": cuda_tools.commit(), "ways": found}
    print(json.dumps(told, indent=1))
    if where := os.environ.get("GFXGRAPH_GPU_RESULTS"):
        (Path(where) / "jax_preload_gpu.json").write_text(json.dumps(told, indent=1) + "\n")
    if found[WITHOUT].get("platform") not in ("gpu", "cuda"):
        pytest.skip(f"needs a JAX that sees the GPU: {found[WITHOUT]}")
    return found


def _run(folder: Path, library: Path, flags: str, is_preloaded: bool, settings: dict[str, str]) -> dict[str, Any]:
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    environ = {
        **os.environ,
        "XLA_FLAGS": f"{SAME_KERNELS} {flags}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "GFXGRAPH_PRELOAD_REPORT": str(report),
        **settings,
    }
    if is_preloaded:
        environ["LD_PRELOAD"] = str(library)
    command = [sys.executable, str(HERE / "jax_program.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=200)
    said = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"stderr": done.stderr[-3000:]}
    return {"code": done.returncode, "report": json.loads(report.read_text()) if report.exists() else None, **said}


def _launches(report: dict[str, Any]) -> int:
    return sum(call["calls"] for name, call in report["calls"].items() if name.startswith("cuGraphLaunch"))


@pytest.mark.parametrize("way", [way for way in WAYS if way not in (WITHOUT, "node by node")])
def test_results_are_those_without_graphs(ran: dict[str, dict[str, Any]], way: str) -> None:
    """Bit for bit, inference and training, in every mode of the library."""
    assert ran[way]["code"] == 0, ran[way]
    assert ran[way]["digests"] == ran[WITHOUT]["digests"]


def test_xlas_graphs_are_seen(ran: dict[str, dict[str, Any]]) -> None:
    """Launches and instantiations are counted; none failed."""
    report = ran[PRELOADED]["report"]
    assert report is not None and _launches(report) > 0, ran[PRELOADED]
    assert report["failures"] == []


def test_a_refused_launch_is_run_node_by_node(ran: dict[str, dict[str, Any]]) -> None:
    """One, and nothing is left out."""
    fallback = ran["a refused launch"]["report"]["fallback"]
    assert (fallback["launch"], fallback["refused"]) == (1, 0)


def test_graphs_without_an_exec(ran: dict[str, dict[str, Any]]) -> None:
    """Graphs of more than one node have no exec: each is run node by node. XLA's change of a child node, which only
    an exec can take, is refused then, and XLA says so; nothing is computed wrongly."""
    found = ran["node by node"]
    fallback = found["report"]["fallback"]
    assert fallback["instantiate"] > 0 and fallback["nodes"] > 0
    assert found["code"] == 1 and "Failed to set CUDA graph child node params" in found["stderr"], found
