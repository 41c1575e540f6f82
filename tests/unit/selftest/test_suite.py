"""The self-test on the simulator: every way a case can end, the report, and what the terminal shows."""

from __future__ import annotations

import getpass
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.warm_python import warm_python

import gfxgraph
from gfxgraph.hardware import defect_environment
from gfxgraph.selftest import suite as selftest_suite
from gfxgraph.selftest import worker
from gfxgraph.selftest.suite import Suite

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator is what is tested here")
SRC = Path(gfxgraph.__file__).parent.parent


def doctor(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    begun = doctor_begun(*args, python=warm_python(), cwd=cwd, **env)
    printed, errors = begun.communicate(timeout=120)
    return subprocess.CompletedProcess(begun.args, begun.returncode, printed, errors)


def doctor_begun(
    *args: str, python: str = sys.executable, cwd: Path | None = None, **env: str
) -> subprocess.Popen[str]:
    own = ("GFXGRAPH", "HGB_", "PYTHONPATH")
    base = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    base |= {"PYTHONPATH": f"{SRC}{os.pathsep}{Path(__file__).parent}", "COLUMNS": "120", "LC_ALL": "C.UTF-8"}
    line = [python, "-m", "gfxgraph", "doctor", "--selftest", *args]
    return subprocess.Popen(line, cwd=cwd, env=base | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict]:
    """One run of the planted cases: what was printed, and the report."""
    folder = tmp_path_factory.mktemp("planted")
    done = doctor(
        "--simulate", "--cases", "planted_cases", cwd=folder, VLLM_API_KEY="abc123", HIP_VISIBLE_DEVICES="0"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done, json.loads((folder / "gfxgraph-selftest.json").read_text())


def found(report: dict, name: str) -> dict:
    return next(case for case in report["cases"] if case["name"] == name)


@pytest.mark.parametrize(
    ("name", "outcome", "reason", "status"),
    [
        ("right", "pass", None, 0),
        ("wrong", "fail", "Differs: seen in ", 1),
        ("crashing", "crash", "ended by signal 6 (Aborted) without a result", -6),
        ("dying_at_exit", "crash", "the case was done, and then the process ended by signal 6 (Aborted)", -6),
        ("hanging", "hang", "did not end within 4 s", -9),
        ("skipping", "skip", "not here", 77),
        ("falling_back", "fail", "eager execution stood in for a graph: ", 1),
    ],
)
def test_outcome(planted, name, outcome, reason, status):
    """Whatever one case does to its process, it is that case's outcome, and the others run."""
    case = found(planted[1], name)
    assert (case["outcome"], case["exit_status"]) == (outcome, status)
    assert case.get("reason", "").startswith(reason or "") and bool(reason) == ("reason" in case)


def test_report(planted):
    """The verdict counts every outcome; evidence stands with the case; the report says that it is the simulator."""
    _, report = planted
    assert report["schema"] == selftest_suite.SCHEMA and report["gfxgraph"] == gfxgraph.__version__
    assert report["is_simulated"] and report["where"] == "the simulator, profile hip"
    assert report["verdict"]["outcome"] == "fail"
    assert report["verdict"]["counts"] == {"pass": 2, "fail": 2, "crash": 2, "hang": 1, "skip": 1}
    assert report["verdict"]["not_passed"] == ["wrong", "crashing", "dying_at_exit", "hanging", "falling_back"]
    assert report["verdict"]["skipped"] == {"skipping": "not here"}
    assert report["device"]["arch"] == "gfx1030" and report["device"]["torch"] == torch.__version__
    assert found(report, "right")["figures"] == {"n": 3}
    assert any("in hanging" in line for line in found(report, "hanging")["stderr"])
    assert found(report, "crashing")["stderr"][0].startswith("Memory access fault by GPU node-1")
    assert "illegal_address" in found(report, "crashing")["explained"]
    assert report["stats"]["replay_count"] == sum(
        case["stats"]["replay_count"] for case in report["cases"] if "stats" in case
    )
    assert defect_environment.from_dict(report).platform == ("cuda" if torch.version.cuda else "none")


def test_nothing_of_the_owner_is_in_it(planted):
    """No home folder, host name, installation folder or secret; variables that matter are there."""
    _, report = planted
    text = json.dumps(report)
    assert str(Path.home()) + "/" not in text and str(SRC) not in text and sys.prefix not in text
    assert "VLLM_API_KEY" not in text and "abc123" not in text
    assert report["variables"]["HIP_VISIBLE_DEVICES"] == "0"
    assert found(report, "wrong")["reason"] == "Differs: seen in ~/project"
    assert "looked into ~/project" in found(report, "wrong")["stderr"]


def test_terminal(planted):
    """A line for each case, all of what failed, the catalogue's word for it, the simulator named twice."""
    out = planted[0].stdout
    assert out.count("This is the simulator (profile hip), not a GPU") == 2
    assert "pass   right: A case" in out and "A case that holds." in out
    assert "crash  crashing: " in out and "gfxgraph explain illegal_address" in out
    assert "hang   hanging: " in out and "did not end within 4 s" in out
    assert "skip   skipping: not here" in out
    assert "NOT ALL PASSED: 2 pass, 2 fail, 2 crash, 1 hang, 1 skip" in out


def test_real_cases_pass(tmp_path):
    """A subset of the suite passes; settings of the user's do not reach it; the exit status is 0."""
    only = ["plain", "nonzero", "unseen_wait", "validation_catches", "node_walk", "replay_overhead"]
    options = [word for name in only for word in ("--only", name)]
    done = doctor(
        "--simulate=cuda", "--out", "r.json", *options, cwd=tmp_path, GFXGRAPH_ON_UNSAFE="raise", COLUMNS="80"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert [case["name"] for case in report["cases"]] == ["device", *only]
    assert report["verdict"]["counts"] == {"pass": 6, "fail": 0, "crash": 0, "hang": 0, "skip": 1}
    assert report["only"] == only
    assert "skip   replay_overhead: the simulator says nothing about speed" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if line.startswith(("pass", "skip")))


def test_refusals(tmp_path):
    """Where gfxgraph cannot be used, and for a case or profile that there is not: status 2, no report."""
    done = doctor(cwd=tmp_path)
    refusals = ("not_rocm_cpu_torch: ", "not_rocm_cuda_torch: ", "no_gpu: ")
    assert done.returncode == 2 and done.stderr.startswith(refusals)
    done = doctor("--simulate=no-such-profile", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("no_such_name: ") and "no-such-profile" in done.stderr
    done = doctor("--simulate", "--only", "no_such_case", cwd=tmp_path)
    assert done.returncode == 2 and "no_such_case" in done.stderr
    assert not list(tmp_path.iterdir())


def test_device_that_stops_answering(monkeypatch):
    """After a crash the GPU is asked twice; where it is silent, the rest is skipped with that reason."""
    ends = iter([(-6, False, {}, []), (None, True, {}, []), (None, True, {}, [])])
    monkeypatch.setattr(selftest_suite.time, "sleep", lambda s: None)
    monkeypatch.setattr(selftest_suite, "_in_a_process", lambda asked: next(ends))
    suite = Suite(allow_cuda=True)
    results = list(suite.run([{"name": "a", "fact": "A.", "limit_s": 5}, {"name": "b", "fact": "B.", "limit_s": 5}]))
    assert [result["outcome"] for result in results] == ["crash", "skip"]
    assert results[1]["reason"] == "the GPU has not answered since the case a"
    assert suite.outcome == "fail"


def test_process_that_cannot_start():
    """Where not even the imports work, each case says why."""
    result = Suite("hip", module="no_such_cases")._run({"name": "right", "fact": "", "limit_s": 60}, "right")[0]
    assert result["outcome"] == "fail" and "No module named 'no_such_cases'" in result["stderr"][-1]


def test_every_case_is_listed():
    """Each case of each file in the folder is in the suite, under a name of its own."""
    folder = importlib.import_module(worker.CASES)
    names = [each.name for each in pkgutil.iter_modules(folder.__path__)]
    found = [name for each in names for name in worker.load(f"{worker.CASES}.{each}")]
    assert len(names) > 1 and sorted(found) == sorted(worker.load(worker.CASES))
    assert len(found) == len(set(found)) > 20


def test_stopped_from_outside(tmp_path):
    """The report is there while the suite runs and names what has not ended; SIGTERM ends all processes."""
    pid_file, out = tmp_path / "pid", tmp_path / "r.json"
    begun = doctor_begun("--simulate", "--cases", "planted_stop", "--out", str(out), PLANTED_PID=str(pid_file))
    wait_for(lambda: pid_file.exists() and out.exists(), begun)
    report = json.loads(out.read_text())
    assert report["verdict"]["outcome"] == "unfinished" and found(report, "right")["outcome"] == "pass"
    assert report["verdict"]["not_ended"] == ["endless", "never_begun"]
    begun.terminate()
    printed, errors = begun.communicate(timeout=60)
    assert begun.returncode == 128 + 15, errors
    report = json.loads(out.read_text())
    assert report["verdict"]["outcome"] == "unfinished" and found(report, "right")["outcome"] == "pass"
    assert "STOPPED before its end: 2 pass" in printed
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pid", "r.json"]
    wait_for(lambda: not is_alive(int(pid_file.read_text())))


def wait_for(holds: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, "waited for a minute"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_scrubbing(monkeypatch):
    """Foreign home folders, user names in paths and host names are taken out; /opt/rocm stays."""
    monkeypatch.setattr(getpass, "getuser", lambda: "berta")
    monkeypatch.setattr(selftest_suite.platform, "node", lambda: "bertas-pc")
    scrub = selftest_suite.scrubbed
    assert scrub("/home/carl/x and C:\\Users\\carl\\x") == "~/x and ~\\x"
    assert scrub("/data/berta/model on bertas-pc: berta") == "/data/<user>/model on <host>: berta"
    assert scrub("/opt/rocm/lib http://me:pw@proxy") == "/opt/rocm/lib http://proxy"
