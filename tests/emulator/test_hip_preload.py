"""libgfxgraph_preload.so in programs on the real libamdhip64, on AMD's emulator.

What the preload library reports of each thing that a capture does not like, in every capture mode;
and that the driver room's own scenarios give the same results with the library in the process.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import results
from test_hip_driver import ONE_JOB, SOURCE, TIMEOUT_S, build, emulator, kernels, started  # noqa: F401

from gfxgraph.selftest.native import capture_table, experiments, native_suite, scenarios

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(TIMEOUT_S + 30)]

MODES, STRICT = (0, 1, 2), (0, 1)
ALWAYS, FROM_7 = (0, 0), (7, 0)
# The function behind a call of the capture table, by the name without its thread, stream or event.
APIS = {
    "stream_synchronize": "hipStreamSynchronize",
    "stream_query": "hipStreamQuery",
    "device_synchronize": "hipDeviceSynchronize",
    "graph_destroy": "hipDeviceSynchronize",
    "event_query": "hipEventQuery",
    "event_synchronize": "hipEventSynchronize",
    "malloc": "hipMalloc",
    "free": "hipFree",
    "host_malloc": "hipHostMalloc",
    "memcpy_sync": "hipMemcpy",
    "memset_sync": "hipMemset",
    "module_unload": "hipModuleUnload",
}
# What is not in the table: refused by which call, with what, in which modes, from which HIP on. The end then
# answers 901.
REFUSED = {
    "copy_from_host": ("hipMemcpy", 906, MODES, ALWAYS),
    "exchanged_mode": ("hipDeviceSynchronize", 900, MODES, ALWAYS),
    "kernel_on_another_stream_and_wait": ("hipStreamSynchronize", 900, STRICT, ALWAYS),
    "stream_callback": ("hipStreamAddCallback", 900, MODES, FROM_7),
    "another_thread_synchronizes_the_stream": ("hipStreamSynchronize", 900, MODES, ALWAYS),
}
# Refused, but the capture goes on: by which call, with what in which major version, in which modes.
SURVIVED = {
    "begin_again": ("hipStreamBeginCapture", {6: 401, 7: 401}, MODES),
    "end_from_another_thread": ("hipStreamEndCapture", {6: 908, 7: 908}, STRICT),
    "refused_kernel": ("hipLaunchKernel", {6: 1, 7: 9}, MODES),
    # A node in 6.4.3, refused as an argument by 7.2.4; neither loses the capture.
    "copy_of_no_bytes": ("hipMemcpyAsync", {7: 1}, MODES),
    # By the library: HIP 6.4.3 would record a copy to memory that is gone.
    "memcpy_with_stream": ("hipMemcpyWithStream", {6: 900, 7: 900}, MODES),
}
# What ran at once and returned success, so that only the library tells.
ESCAPES = {
    "graph_launch": ("hipGraphLaunch",),
    "stream_callback": ("hipStreamAddCallback",),
    "null_kernel": ("hipLaunchKernel",),
    "another_thread_uses_the_null_stream": ("hipLaunchKernel",),
    "null_stream_beside_a_blocking_stream": ("hipLaunchKernel", "hipMemcpyAsync"),
    "wait_event_from_outside": ("hipStreamWaitEvent",),
    "wait_event_of_ended": ("hipStreamWaitEvent",),
}
LEGACY = {"null_kernel": 1, "another_thread_uses_the_null_stream": 1, "null_stream_beside_a_blocking_stream": 2}
# Nodes besides the two fills.
MORE_NODES = {
    "launch": 1,
    "launch_host_func": 1,
    "memcpy_async": 1,
    "memset_async": 1,
    "fork_and_join": 1,
    "join_right_before_the_end": 1,
    "pageable_copy": 1,
    "allocation_in_stream_order": 3,
}
# The emulator has no virtual memory management, without which HIP replays no allocation.
SETTINGS = {"allocation_in_stream_order": {"HIP_MEM_POOL_USE_VM": "0"}}

_outcomes: dict[str, Any] = {}
_versions: set[str] = set()


@pytest.fixture(scope="session")
def preload(build: Path) -> Path:  # noqa: F811
    """The library as it is shipped."""
    return build / "libgfxgraph_preload.so"


@pytest.fixture(scope="session", autouse=True)
def preload_summary() -> Iterator[None]:
    """Write what was run and seen, where asked to."""
    yield
    what = "preload library in programs on libamdhip64"
    results.keep("preload", what, " ".join(sorted(_versions)), _outcomes)


def refused(name: str, mode: int, hip: list[int]) -> tuple[str, int]:
    """By which call, with which status, a capture is lost; ('', 0) where it is not."""
    if name in SURVIVED:
        return "", 0
    if name not in capture_table.CALLS:
        api, status, modes, since = REFUSED.get(name, ("", 0, (), ALWAYS))
        return (api, status) if mode in modes and hip >= list(since) else ("", 0)
    rule = native_suite.nearest(".".join(map(str, hip)))[1][name][capture_table.MODES[mode]]
    if not rule.endswith("invalidates"):
        return "", 0
    bare = re.sub("^thread_", "", re.sub("_(other|own_stream|captured|of_ended)$", "", name))
    return APIS[bare], int(rule.split()[1])


def run(
    emulator: list[str],  # noqa: F811
    preload: Path,
    folder: Path,
    *command: str,
    **settings: str,
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Run a script with the library in its process; return its line, the report and stderr."""
    report = folder / "report.json"
    environ = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_PRELOAD": str(preload),
        "GFXGRAPH_PRELOAD_REPORT": str(report),
        **settings,
    }
    done = started([*emulator, sys.executable, *command], environ)
    lines = [line for line in done.stdout.splitlines() if line.startswith(('{"experiment"', '{"scenario"'))]
    assert done.returncode == 0 and len(lines) == 1, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    # A program that made no graph call has nothing to report.
    told = json.loads(report.read_text()) if report.exists() else {}
    if number := told.get("runtime_version", 0):
        _versions.add(f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}")
    return json.loads(lines[0]), told, done.stderr


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(experiments.EXPERIMENTS))
def test_what_a_capture_does_not_record_is_told(
    name: str,
    mode: int,
    emulator: list[str],  # noqa: F811
    preload: Path,
    kernels: tuple[str, str],  # noqa: F811
    tmp_path: Path,
) -> None:
    """Calls that ran at once are named; broken captures give a null graph and a stream that works."""
    key = f"{name}, mode {mode}"
    _outcomes[key] = {"passed": False}
    command = (ONE_JOB, "experiment", name, str(mode), *kernels)
    line, report, stderr = run(emulator, preload, tmp_path, *command, **SETTINGS.get(name, {}))
    seen = line["seen"]
    api, status = refused(name, mode, line["hip"])
    breaks = bool(status)
    wanted = {api: 1 for api in ESCAPES.get(name, ()) if not breaks}
    assert report["not_recorded"] == wanted
    assert report["legacy_stream_work"] == LEGACY.get(name, 0)
    assert ("ran at once" in stderr) == bool(wanted)
    assert seen["end"] == (904 if name == "fork_not_joined" else 901 if breaks else 0)
    assert seen["graph"] == (seen["end"] == 0)
    assert seen["stream works"]
    told = {(failure["api"], failure["status"]) for failure in report["failures"]}
    if breaks:
        # Not only the end that failed: the call that is to blame.
        assert (api, status) in told and seen["status"] == status
        assert f"{api} returned " in stderr
    refused_by, numbers, among = SURVIVED.get(name, ("", {}, ()))
    survived = {(refused_by, numbers[line["hip"][0]])} if mode in among and line["hip"][0] in numbers else set()
    assert survived <= told
    if seen["graph"]:
        # A copy of no bytes is a node in 6.4.3 alone.
        extra = {0, 1} if name == "copy_of_no_bytes" else {MORE_NODES.get(name, 0)}
        assert seen["nodes"] - 2 in extra
        is_replayed = name not in experiments.NOT_REPLAYED_FROM_7 or line["hip"] < [7]
        assert seen["replayed"] is (True if is_replayed else None)
        assert told == survived
    else:
        assert seen["end again"] == 401
        assert report["captures_failed"] == 1 and "why:" in stderr
    _outcomes[key] = {"passed": True, "seen": seen, "not_recorded": report["not_recorded"]}


@pytest.mark.parametrize("name", sorted(scenarios.SCENARIOS.keys() - {"give_up_a_lost_stream"}))
def test_scenarios_run_the_same_under_the_library(
    name: str,
    emulator: list[str],  # noqa: F811
    preload: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """The driver room's scenarios hold with the library in the process, fetched through dlsym.

    Left out is the stream that HIP loses: under the library it is not lost.
    """
    files = request.getfixturevalue("kernels") if name in scenarios.NEED_KERNELS else ()
    _outcomes[name] = {"passed": False}
    _, report, _ = run(emulator, preload, tmp_path, ONE_JOB, "scenario", name, *files)
    _outcomes[name] = {"passed": True, "calls": {k: v["calls"] for k, v in report.get("calls", {}).items()}}


@pytest.mark.parametrize("name", ["capture_with_kernels", "capture_without_kernels"])
def test_real_graphs_are_run_node_by_node(
    name: str,
    emulator: list[str],  # noqa: F811
    preload: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Kernels by stub, by function and packed, copies and fills: the same values without an exec."""
    files = request.getfixturevalue("kernels") if name in scenarios.NEED_KERNELS else ()
    _outcomes[f"{name}, node by node"] = {"passed": False}
    _, report, _ = run(
        emulator,
        preload,
        tmp_path,
        ONE_JOB,
        "scenario",
        name,
        *files,
        GFXGRAPH_PRELOAD_NODE_LIMIT="1",
    )
    assert report["fallback"]["instantiate"] == 1
    assert report["fallback"]["nodes"] == (5 if name in scenarios.NEED_KERNELS else 2)
    _outcomes[f"{name}, node by node"] = {"passed": True, "fallback": report["fallback"]}
