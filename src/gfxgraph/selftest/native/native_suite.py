"""The native self-test: what HIP's captures, streams and graphs do on the GPU that is there, as one report.

Problem: the first row about a GPU nobody here has must come from its owner, who may have no torch; a wrong step in a
capture ends the process, and some never end. Idea: jobs in processes of their own (native_worker.py), as many as fit the
time, and a report of known size, which says in which cells HIP differs from the tables measured here and what that
means. It holds no user name, host name or path.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gfxgraph
from gfxgraph import config, files, native
from gfxgraph.driver import library
from gfxgraph.errors import DriverError
from gfxgraph.hardware import defects, versions
from gfxgraph.hardware.defect_environment import Environment
from gfxgraph.selftest.native import capture_table as table
from gfxgraph.selftest.native.experiments import EXPERIMENTS
from gfxgraph.selftest.native.scenarios import SCENARIOS
from gfxgraph.selftest.suite import _environment_of_a_case, scrubbed

SCHEMA = 1
WORKER = "gfxgraph.selftest.native.native_worker"
LIMIT_S = 170.0
JOB_LIMIT_S = 20
N_PROGRAMS = 50
NEED_A_COMPILER = {"kernel_attributes"}  # launches by host stub: hipcc's
Result = dict[str, Any]


class NativeSuite:
    """One run. ``results`` grows as jobs end; ``report`` can be asked for at any time."""

    def __init__(self, limit_s: float = LIMIT_S, programs: Sequence[int] = range(N_PROGRAMS)) -> None:
        self.programs = programs
        self.results: list[Result] = []
        self.planned: Counter[str] = Counter()
        self.device: Result = {}
        self.preload = native.library_path()
        self._limit_s, self._begun, self._begun_at = limit_s, time.monotonic(), datetime.now(UTC)
        self._folder = tempfile.TemporaryDirectory(prefix="gfxgraph-selftest-", ignore_cleanup_errors=True)
        self._code = str(Path(self._folder.name) / "kernels.hsaco")

    def run(self) -> Iterator[Result]:
        """Do everything that the time is enough for; each result as it comes, the first is who HIP and GPU are.

        Raises:
            DriverError: `driver_library_not_found`: there is no HIP; `no_device`: it finds no GPU;
                `kernel_not_compiled`.
        """
        self.results.append(self.identify())
        yield self.results[0]
        modes = range(len(table.MODES))
        streams = [{"kind": "streams", "name": str(seed), "how": "driver"} for seed in self.programs]
        plain = [{"kind": "cell", "name": name, "mode": mode} for name, mode in table.cells()]
        plain += [{"kind": "scenario", "name": name} for name in sorted(SCENARIOS.keys() - NEED_A_COMPILER - {"identity"})]
        yield from self._keep(plain + streams)
        if self.preload is not None:
            _, known = nearest(self.device.get("hip", ""))
            quiet = {name for name, row in known.items() if not any("refuses" in said for said in row.values())}
            names = sorted(EXPERIMENTS.keys() - NEED_A_COMPILER - quiet)
            done = [{"kind": "experiment", "name": name, "mode": mode} for name in names for mode in modes]
            yield from self._keep(done + [{**job, "how": "plain"} for job in streams], True)

    def identify(self) -> Result:
        """Ask HIP and its first GPU who they are, and have the kernels compiled."""
        library.find("hip")
        found = next(self._jobs([{"kind": "identity", "name": "identity"}], 120), {})
        if "told" not in found:
            code, fields = found.get("error", ("no_device", {}))
            said = "" if "error" in found else found.get("failed") or found.get("ended", "")
            raise DriverError(code, quote=said, **fields)
        self.device = found["told"]
        return found

    def _keep(self, jobs: list[Result], under_preload: bool = False) -> Iterator[Result]:
        for job in jobs:
            self.planned[_kind(job, under_preload)] += 1
        for result in self._jobs(jobs, JOB_LIMIT_S, under_preload):
            result["kind"] = _kind(result, under_preload)
            result["outcome"] = judge(result)
            self.results.append(result)
            yield result

    def _jobs(self, jobs: list[Result], limit_s: int, under_preload: bool = False) -> Iterator[Result]:
        left = self._begun + self._limit_s - time.monotonic()
        if left <= 0:
            return  # what has not run is told in the report
        environ = _environment_of_a_case() | self.settings()
        if under_preload:
            report = Path(self._folder.name) / "%p.json"
            environ = native.preload_environment(environ, report, self.preload) | {"GFXGRAPH_DIAG": "0"}
        worker = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self._folder.name,
            env=environ,
            start_new_session=True,
        )
        assert worker.stdin is not None and worker.stdout is not None
        over = threading.Timer(left, os.killpg, (worker.pid, signal.SIGKILL))
        over.start()
        try:
            with suppress(BrokenPipeError), worker.stdin as pipe:
                pipe.writelines(json.dumps({**job, "limit_s": limit_s, "code": self._code}) + "\n" for job in jobs)
            for line in worker.stdout:
                yield json.loads(line)
        finally:
            over.cancel()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def settings(self) -> dict[str, str]:
        """What `gfxgraph run` would set before HIP starts."""
        return dict(defects.decide(self.environment()).set_env) if self.device else {}

    def environment(self) -> Environment:
        hip = versions.parse(self.device.get("hip", ""))
        arch = str(self.device.get("arch", "")).split(":")[0]
        return Environment(
            platform="hip", hip=hip, rocm=versions.rocm_of_hip(hip), archs=(arch,), n_gpus=self.device.get("devices", 1)
        )

    def cells(self) -> dict[str, dict[str, str]]:
        """What each call did, in the form of the committed tables."""
        cells: dict[str, dict[str, str]] = {}
        for result in self.results:
            if result["kind"] == "cell":
                rule = result.get("told", {}).get("rule") or "ends the process"
                cells.setdefault(result["name"], {})[result["mode"]] = rule
        return cells

    @property
    def outcome(self) -> str:
        if any(result.get("outcome") in BAD for result in self.results):
            return "fail"
        return "unfinished" if self.planned.total() > len(self.results) - 1 else "pass"

    def report(self) -> Result:
        """Everything, as plain data without names and paths of this machine."""
        by_kind: dict[str, Counter[str]] = {}
        for result in self.results[1:]:
            by_kind.setdefault(result["kind"], Counter())[result["outcome"]] += 1
        cells = self.cells()
        like, known = nearest(self.device.get("hip", ""))
        whole = {
            "kind": "gfxgraph native self-test",
            "schema": SCHEMA,
            "gfxgraph": gfxgraph.__version__,
            "made_at": self._begun_at.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._begun, 1),
            "device": self.device,
            "verdict": self.outcome,
            "counts": by_kind,
            "not_run": {kind: n - by_kind.get(kind, Counter()).total() for kind, n in self.planned.items()},
            "preload_library": "used" if self.preload is not None else "not installed: its part was left out",
            "variables": config.reported(config.gpu_variables()) | self.settings(),
            "defects": [row.id for row in defects.applicable(self.environment())],
            "compared_with": like,
            "differs": differences(cells, known),
            "cells": cells,
            "not_right": [result for result in self.results[1:] if result["outcome"] in BAD or "ended" in result],
            "scenarios": {r["name"]: r.get("told") for r in self.results if r["kind"] == "scenario"},
        }
        report: Result = json.loads(scrubbed(json.dumps(whole, default=str)))
        return report


BAD = ("died", "failed", "wrong")


def _kind(job: Mapping[str, object], under_preload: bool) -> str:
    if job["kind"] != "streams":
        return str(job["kind"])
    return "streams under the preload library" if under_preload else "streams through the driver"


def judge(result: Mapping[str, Any]) -> str:
    """``right``, ``refused``, ``wrong``, ``failed`` or ``died``; of a cell ``measured``."""
    if "ended" in result:
        return "died"
    if "failed" in result:
        return "failed"
    told = result["told"]
    if result["kind"] == "cell":
        return "measured"
    if result["kind"].startswith("streams"):
        return str(told["outcome"])
    if result["kind"] == "experiment":
        # Under the library, whatever was refused: no handle without a graph, a right replay, and the stream lives on.
        is_right = told["stream works"] and told["graph"] == (told["end"] == 0)
        return "right" if is_right and told.get("replayed") is not False else "wrong"
    return "right"


def nearest(hip: str) -> tuple[str, Mapping[str, Mapping[str, str]]]:
    """The committed table of the newest HIP that is no newer than this one; its name and its cells."""
    there = {
        versions.parse(path.stem): path for path in sorted((Path(__file__).parent / "tables").glob("*.json"))
    }
    ours = versions.parse(hip)[:2]
    older = [version for version in there if version[:2] <= ours]
    path = there[max(older) if older else min(there)]
    return path.stem, files.read_json(path)["cells"]


def differences(cells: Mapping[str, Mapping[str, str]], known: Mapping[str, Mapping[str, str]]) -> list[Result]:
    """Cells that are not as in a committed table, and what each means for whoever captures here."""
    found = []
    for name, mode in itertools.product(cells, table.MODES):
        here, there = cells[name].get(mode), known.get(name, {}).get(mode)
        if here is not None and there is not None and here != there:
            found.append({"call": name, "mode": mode, "here": here, "table": there, "means": meaning(here, there)})
    return found


def meaning(here: str, there: str) -> str:
    """What a cell that differs means for the owner of the GPU."""
    if here.startswith("ends"):
        return "the process ends here: keep this call out of captures"
    if here.startswith("refuses"):
        if there.startswith("refuses"):
            return "refused with another status, or the capture survives it or not: gfxgraph explain has both"
        return "refused here, and not in gfxgraph's simulator: a capture that is right there may fail here"
    if there.startswith("refuses"):
        return "accepted here, and refused in gfxgraph's simulator, which is stricter: nothing to do"
    if here == "records":
        return "recorded here: each replay does it again"
    return "done at once here and not recorded: no replay does it again"
