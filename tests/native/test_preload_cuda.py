"""libgfxgraph_preload.so under CUDA programs, against a fake driver with CUDA's names and layouts.

The real libcudart asks the driver for each function by name and version; the fake one asks for the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gfxgraph import native

DRIVER_WAYS = ("linked", "dlsym", "procaddress")
RUNTIME_WAYS = ("shared runtime", "static runtime")
SCENARIOS = ("plain", "updates", "params", "diamond")
OUT_OF_MEMORY = 2
Run = Callable[..., "Ran"]  # noqa: F821


@pytest.mark.parametrize("way", DRIVER_WAYS)
def test_driver_calls_are_seen_however_they_are_fetched(run_cuda: Run, checked: Path, way: str) -> None:
    """Linked, by dlsym, and by cuGetProcAddress with a version: same counts, same results."""
    ran = run_cuda(checked, "plain", way)
    assert (ran.code, ran.failed, ran.stderr) == (0, [], "")
    assert (ran.last("c"), ran.last("host_calls"), ran.last("live_graphs"), ran.last("live_execs")) == (22, 3, 0, 0)
    calls = {name: call["calls"] for name, call in ran.report["calls"].items()}
    assert calls == {
        "cuGraphDestroy": 1,
        "cuGraphExecDestroy": 1,
        "cuGraphInstantiateWithFlags": 1,
        "cuGraphLaunch": 3,
        "cuStreamBeginCapture_v2": 1,
        "cuStreamEndCapture": 1,
    }
    assert (ran.report["runtime"], ran.report["runtime_version"]) == ("cuda", 13000)
    assert (ran.report["captures"], ran.report["captured_nodes"]) == (1, 6)


@pytest.mark.parametrize("way", RUNTIME_WAYS)
def test_a_runtime_library_is_seen_through_the_driver(run_cuda: Run, checked: Path, tmp_path: Path, way: str) -> None:
    """Shared or linked into the program; where it is linked in, the report says so."""
    ran = run_cuda(checked, "runtime", way)
    assert (ran.code, ran.failed, ran.last("host_calls")) == (0, [], 3)
    assert ran.report["calls"]["cuGraphLaunch"]["calls"] == 3
    assert ran.report["captured_nodes"] == 3
    seen = native.read_report(tmp_path / "report.json")
    assert seen is not None
    said = [line for line in seen.lines() if line.startswith("no libcudart")]
    assert len(said) == (way == "static runtime")
    assert all("cuda_static" in line for line in said)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_cuda_results_are_those_without_us(run_cuda: Run, checked: Path, scenario: str) -> None:
    """A program prints the same with the library and without it."""
    without, with_us = run_cuda(checked, scenario, preload=False), run_cuda(checked, scenario)
    assert with_us.seen == without.seen and with_us.failed == []
    assert without.report == {} and with_us.report


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_refused_cuda_instantiation_is_run_node_by_node(run_cuda: Run, checked: Path, scenario: str) -> None:
    """Same results in the order of the edges, although the driver lists nodes in no order."""
    wanted = run_cuda(checked, scenario, preload=False)
    ran = run_cuda(checked, scenario, GFX_FAKE_FAIL=f"1:{OUT_OF_MEMORY}:cuGraphInstantiateWithFlags")
    assert (ran.code, ran.failed, ran.seen) == (0, [], wanted.seen)
    assert ran.report["fallback"]["instantiate"] == 1 and ran.report["fallback"]["nodes"] > 0
    assert ran.stderr.count("one by one") == 1


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("way", [*DRIVER_WAYS, *RUNTIME_WAYS])
def test_a_refused_cuda_launch_is_run_node_by_node(run_cuda: Run, checked: Path, way: str, nth: int) -> None:
    """That launch only, whoever made it."""
    scenario = "runtime" if way in RUNTIME_WAYS else "plain"
    wanted = run_cuda(checked, scenario, way, preload=False)
    ran = run_cuda(checked, scenario, way, GFX_FAKE_FAIL=f"{nth}:{OUT_OF_MEMORY}:cuGraphLaunch")
    assert (ran.code, ran.failed, ran.seen) == (0, [], wanted.seen)
    fell = {"instantiate": 0, "launch": 1, "refused": 0, "nodes": 3 if way in RUNTIME_WAYS else 6}
    assert ran.report["fallback"] == fell


def test_a_worn_cuda_exec_is_replaced(run_cuda: Run, checked: Path) -> None:
    """Every second update makes a fresh exec behind the same handle."""
    wanted = run_cuda(checked, "updates", preload=False)
    ran = run_cuda(checked, "updates", GFXGRAPH_PRELOAD_UPDATE_BUDGET="2")
    assert (ran.failed, ran.seen, ran.report["rebuilds"]) == ([], wanted.seen, 3)


def test_cuda_failures_are_explained_by_the_name_that_the_author_knows(run_cuda: Run, checked: Path) -> None:
    """The runtime's name beside the driver's, CUDA's name of the status, the catalogue's words."""
    ran = run_cuda(checked, "invalidated")
    assert (ran.last("end"), ran.last("graph_is_null")) == (901, 1)
    assert "cudaStreamEndCapture (cuStreamEndCapture) returned cudaErrorStreamCaptureInvalidated (901)" in ran.stderr
    assert "原因" in run_cuda(checked, "invalidated", GFXGRAPH_LANG="zh").stderr


@pytest.mark.parametrize("scenario", ["plain", "params", "invalidated"])
def test_every_nth_cuda_call_may_fail(run_cuda: Run, checked: Path, scenario: str) -> None:
    """Whichever call is refused, our own included: no crash, and at most what the refused call held is left."""
    clean = run_cuda(checked, scenario)
    assert clean.n_calls > 10
    for nth in range(1, clean.n_calls + 1):
        ran = run_cuda(checked, scenario, GFX_FAKE_FAIL=f"{nth}:{OUT_OF_MEMORY}")
        assert ran.code == 0, (nth, ran.code, ran.stderr)
        refused = {failure["api"] for failure in ran.report["failures"]}
        left = ran.last("live_graphs") + ran.last("live_execs")
        assert left <= 1 + ("cuGraphExecDestroy" in refused), (nth, ran.seen, ran.failed, ran.stderr)
        told = [name for name, _ in ran.failed if name.startswith(("cuGraph", "cuStreamB", "cuStreamE"))]
        assert all(f"{name.split('_')[0]}" in ran.stderr for name in told), (nth, ran.failed)
