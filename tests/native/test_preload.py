"""libgfxgraph_preload.so under a program that uses graphs, against the fake runtime."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gfxgraph import native

WAYS = ("linked", "dlsym", "procaddress")
PROFILES = ("6.2", "7.2.0", "7.14", "10.0")
INVALID, OUT_OF_MEMORY = 1, 2
Run = Callable[..., "Ran"]  # noqa: F821


@pytest.mark.parametrize("way", WAYS)
def test_calls_are_seen_however_they_are_fetched(run: Run, checked: Path, way: str) -> None:
    """Linked, by dlsym from a local scope, and by hipGetProcAddress: same counts, same results."""
    ran = run(checked, "plain", way)
    assert (ran.code, ran.failed) == (0, [])
    assert (ran.last("c"), ran.last("host_calls")) == (22, 3)
    assert (ran.last("live_graphs"), ran.last("live_execs")) == (0, 0)
    calls = {name: call["calls"] for name, call in ran.report["calls"].items()}
    assert calls["hipGraphLaunch"] == 3
    assert calls["hipGraphInstantiateWithFlags"] == calls["hipStreamBeginCapture"] == 1
    assert (ran.report["captures"], ran.report["captured_nodes"]) == (1, 6)
    assert (ran.report["runtime"], ran.report["runtime_version"]) == ("hip", 70226015)
    assert ran.report["not_recorded"] == {} and ran.report["failures"] == []
    assert ran.stderr == ""


# Sanitizers refuse RTLD_DEEPBIND themselves, so these run as shipped.


@pytest.mark.parametrize("way", WAYS)
def test_a_library_opened_with_deepbind_is_seen(run: Run, plain: Path, way: str) -> None:
    """Its names would be bound past us, dlsym's too: the flag is cleared, said, and the fallback works there."""
    ran = run(plain, "plain", f"{way} in deepbind", GFX_FAKE_FAIL=f"1:{OUT_OF_MEMORY}:hipGraphLaunch")
    assert (ran.code, ran.failed, ran.last("c"), ran.last("host_calls")) == (0, [], 22, 3)
    assert (ran.report["captures"], ran.report["fallback"]["nodes"]) == (1, 6)
    (path,) = ran.report["deepbind_cleared"]
    assert Path(path).name.startswith("libmodule_") and ran.report["deepbind_kept"] == []


@pytest.mark.parametrize(
    ("opened", "setting", "told", "words"),
    [("deepbind", "keep", "deepbind_kept", "RTLD_DEEPBIND"), ("namespace", "", "namespaces", "dlmopen")],
)
def test_what_is_not_seen_is_told(
    run: Run, plain: Path, tmp_path: Path, opened: str, setting: str, told: str, words: str
) -> None:
    """A report that names the library, not one without graph calls; the program is as without us."""
    way = f"linked in {opened}"
    without = run(plain, "plain", way, preload=False)
    ran = run(plain, "plain", way, GFXGRAPH_PRELOAD_DEEPBIND=setting)
    assert (ran.code, ran.seen, ran.n_calls) == (0, without.seen, without.n_calls)
    assert ran.report["calls"] == {} and Path(ran.report[told][0]).name == "libmodule_linked.so"
    seen = native.read_report(tmp_path / "report.json")
    assert seen is not None
    not_seen, no_call = seen.lines()
    assert not_seen.startswith("not seen: ") and words in not_seen and no_call == "no graph call was seen"


@pytest.mark.parametrize("scenario", ["plain", "updates", "params", "children", "switched_off"])
def test_results_are_those_without_us(run: Run, checked: Path, scenario: str) -> None:
    """A program prints the same with the library and without it."""
    without, with_us = run(checked, scenario, preload=False), run(checked, scenario)
    assert with_us.seen == without.seen
    assert without.report == {} and with_us.report


def test_an_exec_is_reported_with_its_counts(run: Run, checked: Path) -> None:
    """Nodes, launches and updates of each exec, also when it has been destroyed."""
    (made,) = run(checked, "updates").report["execs"]
    assert (made["live"], made["nodes"], made["launches"], made["updates"], made["walked"]) == (0, 6, 6, 6, 0)
    assert made["instantiate_ns"] > 0


def test_a_report_is_written_on_a_signal(run: Run, checked: Path) -> None:
    """By a process that ends without running any destructor."""
    ran = run(checked, "signalled")
    assert ran.last("alive") == 1
    assert ran.report["captures"] == 1 and ran.report["calls"]["hipStreamEndCapture"]["calls"] == 1


# Falling back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", ["plain", "updates", "params", "children"])
def test_a_refused_instantiation_is_run_node_by_node(run: Run, checked: Path, scenario: str, way: str) -> None:
    """The same results as with the exec, updates included, and the reason is said once."""
    wanted = run(checked, scenario, way, preload=False)
    name = "hipGraphInstantiate" if scenario == "updates" else "hipGraphInstantiateWithFlags"
    ran = run(checked, scenario, way, GFX_FAKE_FAIL=f"1:{OUT_OF_MEMORY}:{name}")
    assert (ran.code, ran.failed, ran.seen) == (0, [], wanted.seen)
    assert ran.report["fallback"]["instantiate"] == 1
    assert ran.report["fallback"]["nodes"] > 0
    assert ran.stderr.count("one by one") == 1


@pytest.mark.parametrize("name", ["hipGraphInstantiateWithFlags", "hipGraphLaunch"])
def test_an_answer_about_arguments_is_passed_on(run: Run, checked: Path, name: str) -> None:
    """A program may be counting on it: AMD's own tests do."""
    ran = run(checked, "plain", GFX_FAKE_FAIL=f"1:{INVALID}:{name}")
    assert ran.failed == [(name, INVALID)]
    assert ran.report["fallback"] == {"instantiate": 0, "launch": 0, "refused": 0, "nodes": 0}


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_refused_launch_is_run_node_by_node(run: Run, checked: Path, nth: int) -> None:
    """That launch only; the exec goes on serving the others."""
    ran = run(checked, "plain", GFX_FAKE_FAIL=f"{nth}:{OUT_OF_MEMORY}:hipGraphLaunch")
    assert (ran.code, ran.failed, ran.last("c"), ran.last("host_calls")) == (0, [], 22, 3)
    assert ran.report["fallback"] == {"instantiate": 0, "launch": 1, "refused": 0, "nodes": 6}


def test_a_graph_with_nodes_switched_off_is_not_walked(run: Run, checked: Path) -> None:
    """A walk would run what the program switched off, so the failure is passed on."""
    ran = run(checked, "switched_off", GFX_FAKE_FAIL=f"1:{OUT_OF_MEMORY}:hipGraphLaunch")
    assert ran.failed == [("hipGraphLaunch", OUT_OF_MEMORY)]
    assert ran.report["fallback"]["refused"] == 1
    assert ran.last("c") == -1


def test_fallback_can_be_switched_off(run: Run, checked: Path) -> None:
    """Then failures are the program's own, with a null handle instead of garbage."""
    ran = run(
        checked,
        "plain",
        GFX_FAKE_FAIL=f"1:{OUT_OF_MEMORY}:hipGraphInstantiateWithFlags",
        GFXGRAPH_PRELOAD_FALLBACK="0",
    )
    assert ran.failed == [("hipGraphInstantiateWithFlags", OUT_OF_MEMORY)]
    assert ran.report["fallback"]["instantiate"] == 0
    assert "hipErrorOutOfMemory (2)" in ran.stderr


def test_a_graph_over_the_node_limit_is_never_instantiated(run: Run, checked: Path) -> None:
    """The limit keeps a graph out of the executor; its results stay."""
    ran = run(checked, "plain", GFXGRAPH_PRELOAD_NODE_LIMIT="5")
    assert (ran.failed, ran.last("c")) == ([], 22)
    assert ran.report["fallback"]["instantiate"] == 1
    assert run(checked, "plain", GFXGRAPH_PRELOAD_NODE_LIMIT="6").report["fallback"]["instantiate"] == 0


@pytest.mark.parametrize("scenario", ["updates", "params"])
def test_a_worn_exec_is_replaced(run: Run, checked: Path, scenario: str) -> None:
    """Every second update makes a fresh exec behind the same handle; results and handles hold."""
    wanted = run(checked, scenario, preload=False)
    ran = run(checked, scenario, GFXGRAPH_PRELOAD_UPDATE_BUDGET="2")
    assert (ran.code, ran.failed, ran.seen) == (0, [], wanted.seen)
    assert ran.report["rebuilds"] == {"updates": 3, "params": 1}[scenario]


def test_a_cache_of_execs_is_bounded(run: Run, checked: Path) -> None:
    """Of more execs than the limit the longest unused are destroyed, and made again when used; results hold."""
    wanted = run(checked, "cache", preload=False)
    ran = run(checked, "cache", GFXGRAPH_PRELOAD_EXEC_LIMIT="2")
    same = {name for name in wanted.seen if name not in ("most_execs", "calls")}
    assert (ran.code, ran.failed) == (0, []) and {n: ran.seen[n] for n in same} == {n: wanted.seen[n] for n in same}
    assert wanted.last("most_execs") == 6 and ran.last("most_execs") == 2
    assert ran.report["set_aside"] > 4 and ran.report["made_again"] > 4 and ran.report["fallback"]["nodes"] == 0
    assert run(checked, "cache").report["set_aside"] == 0


def test_a_handle_stays_its_execs(run: Run, plain: Path) -> None:
    """A new exec at the address of one that was set aside does not take its handle; nor of one that was replaced."""
    wanted = run(plain, "cache", preload=False)
    for limits in ({"GFXGRAPH_PRELOAD_EXEC_LIMIT": "2"}, {"GFXGRAPH_PRELOAD_UPDATE_BUDGET": "1"}):
        ran = run(plain, "cache", **limits)
        assert (ran.code, ran.failed, ran.seen["c"]) == (0, [], wanted.seen["c"]), limits


def test_what_cannot_be_made_again_is_run_node_by_node(run: Run, checked: Path) -> None:
    """Where the runtime refuses to make an exec again, its nodes are run one by one: never worse than without."""
    wanted = run(checked, "cache", preload=False)
    for nth in range(7, 13):
        refused = f"{nth}:{OUT_OF_MEMORY}:hipGraphInstantiateWithFlags"
        ran = run(checked, "cache", GFXGRAPH_PRELOAD_EXEC_LIMIT="2", GFX_FAKE_FAIL=refused)
        assert (ran.code, ran.failed, ran.seen["c"]) == (0, [], wanted.seen["c"]), (nth, ran.stderr)
        assert ran.last("live_execs") == ran.last("live_graphs") == 0


@pytest.mark.parametrize("scenario", ["plain", "updates", "params", "children", "invalidated", "forked", "ends"])
def test_every_nth_call_may_fail(run: Run, checked: Path, scenario: str) -> None:
    """Whichever call is refused, our own included: no crash, and nothing of ours is left behind."""
    clean = run(checked, scenario)
    assert clean.n_calls > 10
    for nth in range(1, clean.n_calls + 1):
        ran = run(checked, scenario, GFX_FAKE_FAIL=f"{nth}:{OUT_OF_MEMORY}")
        assert ran.code == 0, (nth, ran.code, ran.stderr)
        # A refused destroy or end, whoever called it, leaves its one graph (and that graph's child); a
        # refused destroy of an exec leaves the exec and our copy of its graph.
        refused = {failure["api"] for failure in ran.report["failures"]}
        left = ran.last("live_graphs") + ran.last("live_execs")
        allowed = 1 + (scenario == "children") + ("hipGraphExecDestroy" in refused)
        assert left <= allowed, (nth, ran.seen, ran.failed, ran.stderr)
        # What the program was refused in graph calls is explained.
        told = [name for name, _ in ran.failed if name.startswith(("hipGraph", "hipStreamB", "hipStreamE"))]
        assert all(f"{name} returned" in ran.stderr for name in told), (nth, ran.failed)


@pytest.mark.parametrize(
    ("setting", "ends"),
    [("", [908, 908, 0]), ("thread_local", [908, 908, 908]), ("relaxed", [0, 0, 0])]
    + [("global:relaxed", [0, 908, 0]), ("global:thread_local,relaxed:thread_local", [908, 908, 908])],
)
def test_captures_are_made_in_another_mode_where_asked(
    run: Run, checked: Path, setting: str, ends: list[int]
) -> None:
    """All of them, or those that a program begins in one mode: a thread may end what is relaxed."""
    ran = run(checked, "modes", GFXGRAPH_PRELOAD_CAPTURE_MODE=setting)
    assert (ran.code, ran.failed, ran.seen["end"], ran.last("live_graphs")) == (0, [], ends, 0)


def test_a_call_that_breaks_a_capture_is_named(run: Run, checked: Path) -> None:
    """Not only the end that fails for it."""
    ran = run(checked, "invalidated")
    assert {"api": "hipStreamSynchronize", "status": 900, "times": 1} in ran.report["failures"]
    assert ran.stderr.index("hipStreamSynchronize returned") < ran.stderr.index("hipStreamEndCapture returned")


# Captures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_work_that_is_not_recorded_is_noticed(run: Run, checked: Path, profile: str) -> None:
    """What ran at once and returned success is named; joins, forks and empty copies are not."""
    ran = run(checked, "escapes", GFX_FAKE_PROFILE=profile)
    wanted = {"hipGraphLaunch", "hipMemcpyPeerAsync", "hipStreamWaitEvent", "hipLaunchKernel"}
    wanted |= {"hipStreamWriteValue32"} if profile != "10.0" else set()
    wanted |= {"hipStreamAddCallback"} if profile == "6.2" else set()
    assert set(ran.report["not_recorded"]) == wanted
    assert ran.report["legacy_stream_work"] == 1
    assert len(re.findall("ran at once", ran.stderr)) == len(wanted)
    assert ran.last("end") == (0 if profile == "6.2" else 901)


def test_a_part_of_a_workgroup_is_refused_in_a_capture(run: Run, checked: Path) -> None:
    """HIP 7 would replay the whole workgroup, beyond the arrays' ends; whole ones, and eager launches, are left alone."""
    without = run(checked, "part_of_a_workgroup", preload=False)
    assert [without.last(name) for name in ("eager", "part", "whole", "end", "nodes")] == [0, 0, 0, 0, 2]
    ran = run(checked, "part_of_a_workgroup")
    assert [ran.last(name) for name in ("eager", "part", "whole", "end", "nodes")] == [0, INVALID, 0, 0, 1]
    assert ran.report["failures"] == [{"api": "hipExtModuleLaunchKernel", "status": INVALID, "times": 1}]
    assert "a part of a workgroup was refused" in ran.stderr


@pytest.mark.parametrize("profile", PROFILES)
def test_an_unjoined_capture_leaves_a_working_stream(run: Run, checked: Path, profile: str) -> None:
    """The program is told, gets a null graph and no crash at a second end, and captures again."""
    without = run(checked, "unjoined", preload=False, GFX_FAKE_PROFILE=profile)
    assert without.code != 0
    ran = run(checked, "unjoined", GFX_FAKE_PROFILE=profile)
    assert (ran.code, ran.failed) == (0, [])
    assert ran.seen["end"] == [904, 401]
    assert ran.seen["graph_is_null"] == [1, 1]
    assert (ran.last("stream_works"), ran.last("live_graphs")) == (1, 0)


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_no_fork_is_not_refused(run: Run, checked: Path, profile: str) -> None:
    """A side stream joined last, a node placed by hand, what a graph had before: the graphs are as without us."""
    without = run(checked, "ends", preload=False, GFX_FAKE_PROFILE=profile)
    assert (without.failed, without.seen["end"], without.seen["replayed"]) == ([], [0, 0, 0], [1, 1, 1])
    ran = run(checked, "ends", GFX_FAKE_PROFILE=profile)
    assert (ran.code, ran.failed, ran.seen) == (0, [], without.seen)
    assert (ran.report["captures"], ran.report["captures_failed"]) == (3, 0)


@pytest.mark.parametrize("profile", PROFILES)
def test_answers_are_the_runtimes_own(run: Run, checked: Path, profile: str) -> None:
    """The last error though we called in between, a capture ended too early by another stream, an exec that is none."""
    without = run(checked, "answers", preload=False, GFX_FAKE_PROFILE=profile)
    ran = run(checked, "answers", GFX_FAKE_PROFILE=profile)
    assert ran.seen == without.seen
    assert (ran.last("invalidated"), ran.seen["peeked"], ran.seen["last"]) == (901, [901, 901], [901, 0])
    assert (ran.last("wrong_stream"), ran.last("wrong_thread"), ran.last("end"), ran.last("nodes")) == (903, 908, 0, 2)
    assert ran.last("no_exec") == INVALID


@pytest.mark.parametrize("profile", PROFILES)
def test_a_graph_that_was_captured_into_stays_the_programs(run: Run, checked: Path, profile: str) -> None:
    """Also where the capture is refused for a fork that nobody joined."""
    ran = run(checked, "unjoined_into", GFX_FAKE_PROFILE=profile)
    assert (ran.code, ran.failed, ran.last("live_graphs")) == (0, [], 0)
    assert (ran.last("end"), ran.last("graph_is_null"), ran.report["captures_failed"]) == (904, 1, 1)


@pytest.mark.parametrize("profile", PROFILES)
def test_an_invalidated_capture_leaves_a_working_stream(run: Run, checked: Path, profile: str) -> None:
    """The handle is null, the failure explained, and the stream runs work and captures again."""
    without = run(checked, "invalidated", preload=False, GFX_FAKE_PROFILE=profile)
    assert (without.last("graph_is_null"), without.last("stream_works")) == (
        0,
        int(profile in ("7.14", "10.0")),
    )
    ran = run(checked, "invalidated", GFX_FAKE_PROFILE=profile)
    assert (ran.last("end"), ran.last("graph_is_null"), ran.last("again")) == (901, 1, 1)
    assert ran.last("stream_works") == 1
    assert ran.report["captures_failed"] == 1
    assert {"api": "hipStreamEndCapture", "status": 901, "times": 1} in ran.report["failures"]


# Living in somebody else's process ---------------------------------------------------------------


def test_explanations_are_in_the_users_language_and_can_be_silenced(run: Run, checked: Path) -> None:
    """English, Chinese, nothing; each failure once."""
    assert "why:" in run(checked, "invalidated").stderr
    chinese = run(checked, "invalidated", GFXGRAPH_LANG="zh").stderr
    assert "原因" in chinese and "why:" not in chinese
    assert "hipErrorStreamCaptureInvalidated (901)" in chinese
    assert run(checked, "invalidated", GFXGRAPH_DIAG="0").stderr == ""


def test_forking_with_live_execs(run: Run, checked: Path) -> None:
    """Child and parent both launch."""
    ran = run(checked, "forked")
    assert (ran.code, ran.last("child"), ran.last("live_graphs")) == (0, 0, 0)


def test_the_report_is_per_process_where_asked(run: Run, checked: Path, tmp_path: Path) -> None:
    """%p in the path is the process id."""
    run(checked, "plain", GFXGRAPH_PRELOAD_REPORT=str(tmp_path / "r-%p.json"))
    assert [re.fullmatch(r"r-\d+\.json", path.name) is not None for path in tmp_path.glob("r-*.json")] == [True]


def test_nothing_else_is_exported(plain: Path) -> None:
    """Only the runtimes' names and the loader's three: a preloaded library must not stand in the way of others."""
    import subprocess

    said = subprocess.run(
        ["nm", "-D", "--defined-only", str(plain / "libgfxgraph_preload.so")], capture_output=True, text=True
    )
    names = {line.split()[-1].split("@")[0] for line in said.stdout.splitlines()}
    assert {name for name in names if not name.startswith(("hip", "cuGraph", "cuStream"))} == {
        "cuDeviceGetGraphMemAttribute",
        "cuDeviceGraphMemTrim",
        "cuDeviceSetGraphMemAttribute",
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
        "cuThreadExchangeStreamCaptureMode",
        "cuUserObjectCreate",
        "cuUserObjectRelease",
        "cuUserObjectRetain",
        "dlmopen",
        "dlopen",
        "dlsym",
    }
    assert {"hipGraphLaunch", "hipGraphLaunch_spt", "hipGetProcAddress", "hipStreamEndCapture_spt"} <= names


def test_programs_without_a_gpu_runtime_are_left_alone(plain: Path, tmp_path: Path) -> None:
    """A shell under the library works, and no report appears."""
    import os
    import subprocess

    report = tmp_path / "r.json"
    environ = {
        **os.environ,
        "LD_PRELOAD": str(plain / "libgfxgraph_preload.so"),
        "GFXGRAPH_PRELOAD_REPORT": str(report),
    }
    done = subprocess.run(["sh", "-c", "echo fine | cat"], capture_output=True, text=True, env=environ)
    assert (done.stdout, done.stderr, report.exists()) == ("fine\n", "", False)


def test_a_launch_costs_little(run: Run, plain: Path) -> None:
    """Under 500 ns more, also on a busy machine; benchmarks/results has the paired figure."""
    fastest = [
        min(run(plain, "bench", preload=preload).last("ns_per_launch") for _ in range(3)) for preload in (False, True)
    ]
    assert fastest[1] - fastest[0] < 500, fastest
