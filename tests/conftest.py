"""Writes a summary of the run, for runs that are kept as evidence: GFXGRAPH_TEST_SUMMARY=FILE pytest ...

Everything is computed by one thread. The thread in which gradients are computed asks how many there are when
it begins: were it one test's number, a later test's gradients would be summed in another order than its replays.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import time
from pathlib import Path

with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(1)


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
