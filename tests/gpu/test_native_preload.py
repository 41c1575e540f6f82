"""libgfxgraph_preload.so on the real CUDA driver: a program built with nvcc, its runtime shared and linked in.

Neither torch nor cmake is needed: nvcc, g++ and a GPU. Figures (launch overhead over a million launches,
the fallback's cost per node) are printed and, where GFXGRAPH_GPU_RESULTS names a folder, written there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cuda_tools
import pytest

from gfxgraph import native

HERE = Path(__file__).parent
SCENARIOS = ("plain", "updates", "params", "forked", "cluster")
KINDS = ("shared", "static")
REPEATS = 5
MOST_NS = 200  # what a launch may cost more

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as CMakeLists.txt builds it, by g++ alone."""
    cuda_tools.device()
    return cuda_tools.build_library("preload", tmp_path_factory.mktemp("preload"))


@pytest.fixture(scope="module", params=KINDS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, with libcudart beside it or inside it."""
    return _program(tmp_path_factory, request.param)


def _program(factory: pytest.TempPathFactory, kind: str) -> Path:
    out = factory.mktemp(kind) / f"graphs_{kind}"
    return cuda_tools.compile_cuda(HERE / "native_graphs.cu", out, kind)


@dataclass
class Ran:
    code: int
    text: str
    stderr: str
    report: dict[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> float:
        return next(float(line.split()[1]) for line in self.text.splitlines() if line.startswith(name))


@pytest.fixture
def run(library: Path, tmp_path: Path) -> Callable[..., Ran]:
    """``run(program, *scenario, preload=True, **settings)``."""

    def go(program: Path, *scenario: str, preload: bool = True, **settings: str) -> Ran:
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        environ = {**os.environ, "GFXGRAPH_PRELOAD_REPORT": str(report), **settings}
        if preload:
            environ["LD_PRELOAD"] = str(library)
        done = subprocess.run([str(program), *scenario], capture_output=True, text=True, env=environ, timeout=300)
        told = json.loads(report.read_text()) if report.exists() else {}
        return Ran(done.returncode, done.stdout, done.stderr, told)

    return go


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_results_and_counts(run: Callable[..., Ran], program: Path, scenario: str) -> None:
    """The same text with the library; every capture, instantiation and launch is counted."""
    wanted, ran = run(program, scenario, preload=False), run(program, scenario)
    assert wanted.code == 0, wanted.stderr
    assert (ran.code, ran.text, ran.stderr) == (0, wanted.text, wanted.stderr)
    report = ran.report
    assert report["runtime"] == "cuda" and report["runtime_version"] >= 12000
    assert report["captures"] == {"updates": 2}.get(scenario, 1) and report["failures"] == []
    launches = sum(call["calls"] for name, call in report["calls"].items() if name.startswith("cuGraphLaunch"))
    assert launches == {"plain": 3, "updates": 6, "params": 3}.get(scenario, 1)
    assert report["captured_nodes"] == {"plain": 5, "updates": 10, "params": 5, "forked": 13, "cluster": 2}[scenario]
    asked = [Path(path).name for path in report["asked_by"]]
    assert any(name.startswith("libcudart") for name in asked) == (program.name == "graphs_shared")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_exec_at_all(run: Callable[..., Ran], program: Path, scenario: str) -> None:
    """Every graph is run node by node, updates included: the same text."""
    wanted = run(program, scenario, preload=False)
    ran = run(program, scenario, GFXGRAPH_PRELOAD_NODE_LIMIT="1")
    assert (ran.code, ran.text) == (0, wanted.text), ran.stderr
    assert ran.report["fallback"]["instantiate"] == 1 and ran.report["fallback"]["refused"] == 0
    assert ran.report["fallback"]["nodes"] > 0


@pytest.mark.parametrize("nth", ["1", "3"])
def test_a_refused_launch(run: Callable[..., Ran], program: Path, nth: str) -> None:
    """That launch is run node by node."""
    wanted = run(program, "plain", preload=False)
    ran = run(program, "plain", GFXGRAPH_PRELOAD_REFUSE_LAUNCH=nth)
    assert (ran.code, ran.text) == (0, wanted.text), ran.stderr
    assert ran.report["fallback"] == {"instantiate": 0, "launch": 1, "refused": 0, "nodes": 5}


def test_a_worn_exec(run: Callable[..., Ran], program: Path) -> None:
    """An exec made anew after every second update gives what the old one gave."""
    wanted = run(program, "updates", preload=False)
    ran = run(program, "updates", GFXGRAPH_PRELOAD_UPDATE_BUDGET="2")
    assert (ran.code, ran.text, ran.report["rebuilds"]) == (0, wanted.text, 3), ran.stderr


def test_a_broken_capture(run: Callable[..., Ran], program: Path) -> None:
    """Explained in the words of the catalogue; the program goes on as it does without us."""
    wanted, ran = run(program, "invalidated", preload=False), run(program, "invalidated")
    assert (ran.code, ran.text) == (wanted.code, wanted.text) and wanted.code == 0
    assert "returned cudaErrorStreamCapture" in ran.stderr and "why:" in ran.stderr
    assert ran.report["captures_failed"] == 1


def test_a_launch_through_an_entry_point(run: Callable[..., Ran], program: Path) -> None:
    """cudaGetDriverEntryPointByVersion answers with ours."""
    ran = run(program, "entry_point", GFXGRAPH_PRELOAD_REFUSE_LAUNCH="1")
    assert ran.code == 0 and ran.value("launch") == 0 and ran.value("c") == 0x01010101 + 5 + 7
    assert ran.report["fallback"]["launch"] == 1


def test_the_report_names_a_runtime_that_is_linked_in(run: Callable[..., Ran], program: Path, tmp_path: Path) -> None:
    """And no other."""
    run(program, "plain")
    seen = native.read_report(tmp_path / "report.json")
    assert seen is not None
    assert any(line.startswith("no libcudart") for line in seen.lines()) == (program.name == "graphs_static")


def test_figures(run: Callable[..., Ran], tmp_path_factory: pytest.TempPathFactory) -> None:
    """A million launches, paired; and what a node costs when it is run by itself."""
    program = _program(tmp_path_factory, "shared")
    without, with_us = [], []
    for _ in range(REPEATS):  # in turns, so that both see the same machine
        without.append(run(program, "bench", "1", preload=False).value("ns_per_launch"))
        with_us.append(run(program, "bench", "1").value("ns_per_launch"))
    in_graph = run(program, "bench", "100").value("ns_per_node")
    walked = [run(program, "bench", "100", GFXGRAPH_PRELOAD_NODE_LIMIT="1").value("ns_per_node") for _ in range(3)]
    overhead = [after - before for before, after in zip(without, with_us, strict=True)]
    figures = {
        "what": "libgfxgraph_preload.so on CUDA: cost of a launch over a million launches, of a node run by itself",
        "device": cuda_tools.device()[0],
        "commit": cuda_tools.commit(),
        "repeats": REPEATS,
        "ns_per_launch_without": without,
        "ns_per_launch_with": with_us,
        "overhead_ns": {"median": statistics.median(overhead), "least": min(overhead), "most": max(overhead)},
        "ns_per_node_in_graph": in_graph,
        "ns_per_node_walked": walked,
    }
    print(json.dumps(figures, indent=1))
    where = os.environ.get("GFXGRAPH_GPU_RESULTS")
    if where:
        (Path(where) / "native_preload_gpu.json").write_text(json.dumps(figures, indent=1) + "\n")
    spread = max(without) - min(without)
    if spread > MOST_NS:
        pytest.skip(f"without us a launch varies by {spread} ns here, more than the {MOST_NS} ns to be shown")
    assert statistics.median(with_us) - statistics.median(without) < MOST_NS, figures
