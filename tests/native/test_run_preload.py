"""``gfxgraph run --preload``: sets the library up, waits, prints what it saw, ends as the program did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src"
GFXGRAPH = [sys.executable, "-m", "gfxgraph"]
Environ = dict[str, str]


def environment(build: Path, **more: str) -> Environ:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("GFX")},
        "PYTHONPATH": str(SOURCE),
        "GFXGRAPH_LIB": str(build / "libhipgraph_bridge.so"),
        "LD_LIBRARY_PATH": str(build / "fake"),
        **more,
    }


def app(build: Path, scenario: str) -> list[str]:
    return [str(build / "tests/app_linked"), "linked", str(build / "fake/libamdhip64.so.6"), scenario]


def run(build: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GFXGRAPH, "run", "--preload", "--", *command],
        capture_output=True,
        text=True,
        env=environment(build, **more),
        timeout=60,
    )


def report_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("gfxgraph: ") for line in done.stderr.splitlines() if line.startswith("gfxgraph: ")]


def test_the_report_is_printed_after_the_program(plain: Path) -> None:
    """Its output is its own, on stdout; the report comes on stderr, with what was survived."""
    without = subprocess.run(app(plain, "plain"), capture_output=True, text=True, env=environment(plain))
    done = run(plain, *app(plain, "plain"), GFX_FAKE_FAIL="2:2:hipGraphLaunch", GFXGRAPH_DIAG="0")

    def results(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("calls")]

    assert results(done.stdout) == results(without.stdout)
    assert done.returncode == 0
    said = report_of(done)
    assert said[0].startswith("HIP 7.2.26015: ")
    assert "captures: 1, of 6 nodes; failed: 0" in said
    assert "graph execs made: 1; updated: 0; launches: 3; rebuilt: 0" in said
    assert "fallback: 0 instantiations and 1 launches refused, 6 nodes run one by one" in said


def test_cuda_programs_are_reported_too(plain: Path) -> None:
    """One with its runtime linked in is named as such."""
    done = run(plain, str(plain / "tests/cuda_static"), "runtime", "runtime")
    said = report_of(done)
    assert done.returncode == 0 and said[0].startswith("CUDA 13.0: ")
    assert said[1].startswith("no libcudart: cuda_static")


def test_failures_are_named_in_the_report(plain: Path) -> None:
    """With the status's name, once for each function and status."""
    done = run(plain, *app(plain, "invalidated"), GFXGRAPH_DIAG="0")
    assert "failed: hipStreamEndCapture with hipErrorStreamCaptureInvalidated (901), once" in report_of(done)


@pytest.mark.parametrize(
    ("command", "status"), [(("sh", "-c", "exit 7"), 7), (("sh", "-c", "kill -SEGV $$"), -signal.SIGSEGV)]
)
def test_the_exit_status_is_the_programs(plain: Path, command: tuple[str, ...], status: int) -> None:
    """And where there is nothing to report, why."""
    done = run(plain, *command)
    assert done.returncode == status
    said = " ".join(report_of(done))
    assert "no report: " in said
    assert ("died of SIGSEGV" in said) == (status < 0)


def test_known_defects_of_this_machine_set_the_library_up(plain: Path, tmp_path: Path) -> None:
    """The defect table's decisions become the library's settings; the user's own go first."""
    machine = tmp_path / "machine.json"
    machine.write_text('{"platform": "hip", "rocm": "7.2", "hip": "7.2.26015", "archs": ["gfx1030"], "n_gpus": 1}')
    more = {"GFXGRAPH_ENVIRONMENT": str(machine), "GFXGRAPH_PRELOAD_UPDATE_BUDGET": "2"}
    done = run(plain, *app(plain, "updates"), **more)
    said = "\n".join(report_of(done))
    assert "rebuilt: 3" in said
    assert "GFXGRAPH_PRELOAD_CAPTURE_MODE=global:thread_local,relaxed:thread_local" in said
    assert "GFXGRAPH_PRELOAD_UPDATE_BUDGET" not in said
    # A limit of 4000 nodes leaves this one alone.
    assert "GFXGRAPH_PRELOAD_NODE_LIMIT=4000" in said and "one by one" not in said


def test_without_the_library_nothing_is_started(tmp_path: Path) -> None:
    """The error names what to install."""
    environ = environment(tmp_path)
    code = "import sys; sys.modules['gfxgraph_native'] = None; from gfxgraph.cli.main import main; main()"
    ran = tmp_path / "ran"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--preload", "--", "touch", str(ran)],
        capture_output=True,
        text=True,
        env=environ,
    )
    assert done.returncode == 2 and "native_library_unusable" in done.stderr and "./native" in done.stderr
    assert not ran.exists()


def test_signals_reach_the_program(plain: Path, tmp_path: Path) -> None:
    """SIGTERM ends it and us, by its status; the report of what it did is still printed where it was written."""
    started = tmp_path / "started"
    script = f"trap 'exit 9' TERM; touch {started}; while :; do sleep 0.05; done"
    program = subprocess.Popen(
        [*GFXGRAPH, "run", "--preload", "--", "sh", "-c", script],
        env=environment(plain),
        stderr=subprocess.DEVNULL,
    )
    _until(started.exists)
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=60) == 9


def _until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
