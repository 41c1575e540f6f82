"""Jobs of the native self-test, each in a process forked for it, which loads the runtime and ends with the job.

    python -m gfxgraph.selftest.native.native_worker < JOBS

One JSON object a line, there and back. Forked, not started anew: two hundred starts of Python cost more than the jobs.
This process never loads the runtime, which a fork would not survive.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from ctypes import create_string_buffer
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gfxgraph import config, files
from gfxgraph.driver import hiprtc, locate
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.errors import GfxGraphError
from gfxgraph.reporting.run_line import how_ended
from gfxgraph.selftest.native import capture_table, experiments, scenarios, stream_programs
from gfxgraph.selftest.native.hip_calls import KERNELS, HipCalls

Job = Mapping[str, Any]
"""``kind``, ``name``, ``limit_s``, ``code``: the file of the kernels' code object; ``mode`` or ``how``."""
_REPORT = "GFXGRAPH_PRELOAD_REPORT"
_N_STDERR = 500


def perform(job: Job) -> dict[str, object]:
    """Do one job in this process."""
    driver = locate("hip")
    if job["kind"] == "identity":
        return _identity(driver, job)
    gpu = HipCalls(driver, "", job["code"])
    if job["kind"] == "cell":
        return capture_table.measure(driver, gpu, job["name"], job["mode"])
    if job["kind"] == "scenario":
        return scenarios.SCENARIOS[job["name"]](driver, gpu)
    if job["kind"] == "experiment":
        return experiments.perform(driver, gpu, job["name"], job["mode"])
    return stream_programs.run(driver, gpu, int(job["name"]), job["how"])


def _identity(driver: GraphDriver, job: Job) -> dict[str, object]:
    """Runtime and device, and the kernels compiled for it into the file ``code``."""
    gpu, text = HipCalls(driver), create_string_buffer(8192)
    found = scenarios.SCENARIOS["identity"](driver, gpu)
    symbol = "hipGetDevicePropertiesR0600" if hasattr(gpu.hip, "hipGetDevicePropertiesR0600") else "hipGetDeviceProperties"
    gpu(symbol, text, 0)
    # The struct differs between releases; what looks like an architecture in it is one.
    arch = re.search(rb"gfx[0-9a-f]{3,5}(:[\w:+-]*)?", text.raw)
    found["arch"] = arch[0].decode() if arch else ""
    files.write(Path(job["code"]), hiprtc.compile_kernel(driver.table.found, KERNELS, found["arch"]))
    return found


def _child(job: Job, out: int, errors: int) -> None:
    os.dup2(errors, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    told: dict[str, object] = {}
    try:
        told["told"] = perform(job)
    except GfxGraphError as error:
        told |= {"failed": f"{error.code}: {str(error).splitlines()[1].strip()}", "error": [error.code, error.fields]}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the job's outcome
        told["failed"] = f"{type(error).__name__}: {error}"
    pattern = config.variables([_REPORT]).get(_REPORT)
    if pattern:
        os.kill(os.getpid(), signal.SIGUSR1)  # the preload library writes its report
        with suppress(OSError, ValueError):
            told["report"] = files.read_json(Path(pattern.replace("%p", str(os.getpid()))))
    os.write(out, json.dumps(told, default=str).encode())
    os._exit(0)  # without what libraries do at exit, which is no part of the job


@dataclass
class _Running:
    job: Job
    pid: int
    out: int
    errors: int
    begun: float
    said: bytes = b""


def _start(job: Job) -> _Running:
    out, child_out = os.pipe()
    errors = os.memfd_create("stderr")
    pid = os.fork()
    if not pid:
        os.close(out)
        _child(job, child_out, errors)
    os.close(child_out)
    return _Running(job, pid, out, errors, time.monotonic())


def _end(running: _Running, was_killed: bool) -> dict[str, object]:
    if was_killed:
        os.kill(running.pid, signal.SIGKILL)
    _, status = os.waitpid(running.pid, 0)
    ended = os.waitstatus_to_exitcode(status)
    os.lseek(running.errors, 0, os.SEEK_SET)
    stderr = os.read(running.errors, 1 << 20)[-_N_STDERR:].decode("utf-8", "replace")
    os.close(running.errors)
    os.close(running.out)
    result: dict[str, object] = {"seconds": round(time.monotonic() - running.begun, 2)}
    if was_killed:
        result["ended"] = f"did not end within {running.job['limit_s']} s"
    elif ended or not running.said:
        result["ended"] = how_ended(ended)
    else:
        result |= json.loads(running.said)
    if stderr and ("ended" in result or "failed" in result):
        result["stderr"] = stderr
    return {name: running.job[name] for name in ("kind", "name", "mode", "how") if name in running.job} | result


def main() -> None:
    waiting = [json.loads(line) for line in sys.stdin]
    waiting.reverse()
    running: list[_Running] = []
    n_at_once = min(2 * (os.cpu_count() or 1), 8)  # half of a job is waiting for the runtime
    while waiting or running:
        while waiting and len(running) < n_at_once:
            running.append(_start(waiting.pop()))
        ready, _, _ = select.select([each.out for each in running], [], [], 0.2)
        for each in list(running):
            more = os.read(each.out, 1 << 20) if each.out in ready else None
            if more:
                each.said += more
            over = time.monotonic() - each.begun > each.job["limit_s"]
            if more == b"" or over:
                running.remove(each)
                print(json.dumps(_end(each, over and more != b"")), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
