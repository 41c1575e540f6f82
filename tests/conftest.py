"""Writes a summary of the run, for runs that are kept as evidence: GFXGRAPH_TEST_SUMMARY=FILE pytest ...

A time limit finds what hangs, and must fail nothing on a slow or busy machine: limits are multiplied by ``PATIENCE``,
four times what this machine takes longer to start Python than the one on which they were set.

Everything is computed by one thread. The thread in which gradients are computed asks how many there are when
it begins: were it one test's number, a later test's gradients would be summed in another order than its replays.

Hundreds of tests start Python. What one start has compiled the next is to find, also where the environment says that
nothing is to be kept: without that each start compiles all of gfxgraph again, for half a second of CPU.

Many tests collect garbage, and each collection looks at all that the process has loaded: half a million objects, a
quarter of a second. What is there when a file of tests begins is taken out of its sight.

pytest, from 9.2 on, listens to loggers that hand nothing on, too. Where somebody listens to its logger of traces,
Dynamo writes down each step of each of the thousands of traces, as JSON: 5 % of all the tests' time.

Dynamo ends each trace by measuring its guards with empty caches, for a figure of its statistics: to empty them takes
20 ms, as long as a small trace.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import json
import logging
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

STARTS_IN_S = 0.05
"""A start of Python on the machine on which the limits were set."""
LIMIT_S = 300
"""For one test there."""
DEPTH = float(os.environ.get("GFXGRAPH_TEST_DEPTH", "1"))
"""How many times as many random programs as `make test` runs."""
SHORT_S = 20
"""Shorter limits are part of what a test is about."""
_VARIABLE = "GFXGRAPH_TEST_PATIENCE"


def _patience() -> float:
    if _VARIABLE not in os.environ:  # workers and children take what was found first
        began = time.monotonic()
        for _ in range(3):
            subprocess.run([sys.executable, "-c", "pass"], check=False)
        starts_in_s = (time.monotonic() - began) / 3
        os.environ[_VARIABLE] = f"{4 * max(1.0, starts_in_s / STARTS_IN_S):.1f}"
    return float(os.environ[_VARIABLE])


os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
PATIENCE = _patience()


def _patient(method):
    signature = inspect.signature(method)

    @functools.wraps(method)
    def with_patience(*args, **kwargs):
        given = signature.bind(*args, **kwargs)  # the limit may be given by position, too
        timeout = given.arguments.get("timeout")
        if timeout is not None and timeout >= SHORT_S:
            given.arguments["timeout"] = timeout * PATIENCE
        return method(*given.args, **given.kwargs)

    return with_patience


subprocess.Popen.wait = _patient(subprocess.Popen.wait)
subprocess.Popen.communicate = _patient(subprocess.Popen.communicate)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    os.environ.setdefault("PYTEST_TIMEOUT", str(int(LIMIT_S * PATIENCE)))


@pytest.fixture(scope="module", autouse=True)
def what_is_loaded_is_not_collected():
    """Before each file of tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_lock_stays_held():
    """Later tests' threads would wait for it for good."""
    yield
    locks = sys.modules.get("gfxgraph.core.locks")
    held = [lock for lock in list(locks.every) if lock._is_owned()] if locks is not None else []
    for lock in held:
        while lock._is_owned():
            lock.release()
    assert not held


@pytest.fixture(autouse=True)
def nothing_would_have_ended_the_process():
    """Torn down after the test's simulators."""
    yield
    core = sys.modules.get("gfxgraph_simulator.card")
    if core is not None:
        crashes, core.crashes_of_former[:] = list(core.crashes_of_former), []
        assert not crashes


with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(1)
    logging.getLogger("torch.__trace").propagate = True  # as torch has it, pytest would listen
    torch._C._dynamo.guards.profile_guard_manager = lambda *given: 0.0


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    target = os.environ.get("GFXGRAPH_TEST_SUMMARY")
    if not target or hasattr(config, "workerinput"):
        return
    stats = terminalreporter.stats
    summary = {
        "exit_status": int(exitstatus),
        "counts": {name: len(stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")},
        "failed": sorted({report.nodeid for name in ("failed", "error") for report in stats.get(name, [])}),
        "skipped": sorted({f"{report.nodeid}: {_reason(report)}" for report in stats.get("skipped", [])})[:60],
        "seconds": round(time.time() - terminalreporter._session_start.time, 1)
        if hasattr(getattr(terminalreporter, "_session_start", None), "time")
        else None,
        "machine": _machine(),
    }
    Path(target).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def _reason(report) -> str:
    found = report.longrepr
    return found[2] if isinstance(found, tuple) else str(found)


def _machine() -> dict[str, str]:
    on_gpu = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "none (simulator)",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": os.environ.get("BENCH_COMMIT") or _commit(),
    }


def _commit() -> str:
    try:
        line = ["git", "rev-parse", "HEAD"]
        return subprocess.check_output(line, text=True, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
