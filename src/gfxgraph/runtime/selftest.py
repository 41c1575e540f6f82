"""The self-test: the safety suite on whatever GPU is there, as one report to send back.

Problem: a GPU graph that goes wrong may take its process with it (a crash, an abort, an error that every
later call repeats) or never end, and the next case must still be judged.

Idea: this process never imports torch and never touches the GPU. Each case runs in a fresh process with a
time limit (selftest_worker.py); how that ends is the outcome. After a crash or a hang the GPU is asked
whether it still answers, and where it does not, the rest is skipped with that reason instead of being
counted against graphs.

    skip  the case does not apply here, and says why
    pass  the fact holds, and the process ended with status 0
    fail  the fact does not hold, or holds only because eager execution stood in for the graph
    crash the process ended otherwise: by a signal, or after the case had passed
    hang  the process did not end in time and was killed

The report holds no user name, host name or path of the machine: it is meant to be sent to strangers.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import gfxgraph
from gfxgraph import config
from gfxgraph.diagnostics.explain import explain
from gfxgraph.errors import ActivationError, ConfigError
from gfxgraph.hardware import defects
from gfxgraph.hardware.environment import Environment, detect
from gfxgraph.runtime.selftest_process import ForkServer, Starter, start_fresh
from gfxgraph.runtime.selftest_scrub import cleaned
from gfxgraph.runtime.selftest_worker import CASES, FAIL, PASS, REFUSED, SKIP

SCHEMA = 1
# A ROCm device may spend a minute on its first kernels: code objects are unpacked, libraries opened.
PROBE_LIMIT_S = 120.0
# Between a dump of where everything hangs and the end of the process.
DUMP_BEFORE_S = 3.0
N_FIRST_LINES, N_LAST_LINES = 12, 24
# A simulated case keeps one CPU busy; a GPU gets one process at a time: a failure has one author.
MAX_JOBS_SIMULATED = 4


class Outcome(StrEnum):
    """How a case ended; the module's text says what each means."""

    PASS = "pass"  # noqa: S105  (not a password)
    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Listed:
    """A case that there is."""

    name: str
    fact: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """A case that was run, or was not: then ``exit_status`` is None."""

    name: str
    fact: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    exit_status: int | None = None
    stderr: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        return self.outcome in (Outcome.FAIL, Outcome.CRASH, Outcome.HANG)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; what is empty is left out."""
        values: dict[str, Any] = {
            "name": self.name,
            "outcome": str(self.outcome),
            "fact": self.fact,
            "reason": self.reason,
            "seconds": round(self.seconds, 2),
            "exit_status": self.exit_status,
            "stderr": list(self.stderr),
            "explained": list(self.explained),
            "figures": dict(self.figures),
            "stats": dict(self.stats),
        }
        return {name: value for name, value in values.items() if value not in ("", [], {}) and value is not None}


class Suite:
    """One run of the self-test.

    Args:
        simulate: a simulator profile; '' for the GPU that is there.
        allow_cuda: also on an NVIDIA GPU.
        only: names of the cases wanted; all where empty.
        module: where the cases are.
    """

    def __init__(
        self, simulate: str = "", allow_cuda: bool = False, only: Sequence[str] = (), module: str = CASES
    ) -> None:
        self.simulate = simulate
        self.allow_cuda = allow_cuda
        self.only = tuple(only)
        self.module = module
        self.device: dict[str, Any] = {}
        self.results: list[Result] = []
        self._begun_at = datetime.now(UTC)
        self._begun = time.monotonic()

    @property
    def is_simulated(self) -> bool:
        return bool(self.simulate)

    @property
    def is_passed(self) -> bool:
        return not any(result.is_bad for result in self.results)

    def probe(self) -> list[Listed]:
        """Look at the device and return the cases to run; none where the device does not answer.

        Raises:
            ActivationError: gfxgraph cannot be used here, with the code that ``enable`` gives.
            ConfigError: `bad_setting`, for a case that there is not.
        """
        found, described = self._run(Listed("device", "The device answers and computes.", PROBE_LIMIT_S), "")
        refused = described.get("refused")
        if refused:
            raise ActivationError(refused["code"], **refused["fields"])
        self.results.append(found)
        if found.is_bad:
            return []
        self.device = described["device"]
        cases = [Listed(**each) for each in described["cases"]]
        known = [each.name for each in cases]
        for name in self.only:
            if name not in known:
                raise ConfigError("bad_setting", variable="--only", value=name, allowed=", ".join(known))
        return [each for each in cases if not self.only or each.name in self.only]

    def run(self, cases: Sequence[Listed]) -> Iterator[Result]:
        """Run the cases and give each result, in the order of ``cases``."""
        runs = self._simulated(cases) if self.is_simulated else self._one_by_one(cases)
        for result in runs:
            self.results.append(result)
            yield result

    def _simulated(self, cases: Sequence[Listed]) -> Iterator[Result]:
        """Several at a time, forked: there is no device whose state a fork could share."""
        n_jobs = max(1, min(MAX_JOBS_SIMULATED, os.cpu_count() or 1, len(cases)))
        idle: SimpleQueue[ForkServer] = SimpleQueue()

        def one(case: Listed) -> Result:
            server = idle.get()
            try:
                return self._run(case, case.name, server.start)[0]
            finally:
                idle.put(server)

        with ExitStack() as servers, ThreadPoolExecutor(n_jobs) as pool:
            for _ in range(n_jobs):
                idle.put(servers.enter_context(ForkServer()))
            yield from pool.map(one, cases)

    def _one_by_one(self, cases: Sequence[Listed]) -> Iterator[Result]:
        why_not = ""
        for each in cases:
            if why_not:
                yield Result(each.name, each.fact, Outcome.SKIP, why_not)
                continue
            result = self._run(each, each.name)[0]
            yield result
            if result.outcome in (Outcome.CRASH, Outcome.HANG) and not self._answers():
                why_not = f"the GPU has not answered since the case {each.name}"

    def _answers(self) -> bool:
        """Ask twice: a GPU that is being reset takes seconds to come back."""
        for wait_s in (0, 15):
            time.sleep(wait_s)
            if self._run(Listed("device", "", PROBE_LIMIT_S), "")[0].outcome is Outcome.PASS:
                return True
        return False

    def _run(self, case: Listed, argument: str, start: Starter = start_fresh) -> tuple[Result, dict[str, Any]]:
        # A folder of its own: runtimes write dumps into the current one.
        with tempfile.TemporaryDirectory(prefix="gfxgraph-selftest-") as folder:
            answer, log = Path(folder) / "result.json", Path(folder) / "log"
            line = ["--result", str(answer), "--module", self.module]
            line += ["--dump-after", str(max(case.limit_s - DUMP_BEFORE_S, case.limit_s / 2))]
            line += ["--simulate", self.simulate] if self.simulate else []
            line += ["--allow-cuda"] if self.allow_cuda else []
            line += [argument] if argument else []
            begun = time.monotonic()
            status, was_killed = start(line, case.limit_s, folder, log)
            seconds = time.monotonic() - begun
            found = _read(answer)
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        outcome, reason = _judge(status, was_killed, found, case.limit_s)
        is_told = outcome not in (Outcome.PASS, Outcome.SKIP)
        tail = _ends(lines) if is_told else ()
        explained = tuple(match.code for match in explain("\n".join(lines)).matches) if is_told and lines else ()
        result = Result(
            case.name,
            case.fact,
            outcome,
            reason,
            seconds,
            status,
            tail,
            explained,
            found.get("figures", {}),
            found.get("stats", {}),
        )
        return result, found

    # -- the report --------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Everything found, as plain data without names and paths of this machine."""
        environment = self._environment()
        decisions = defects.decide(environment)
        counts = Counter(result.outcome for result in self.results)
        where = f"the simulator, profile {self.simulate}" if self.is_simulated else self.device.get("name", "unknown")
        whole = {
            "kind": "gfxgraph self-test",
            "schema": SCHEMA,
            "gfxgraph": gfxgraph.__version__,
            "made_at": self._begun_at.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._begun, 1),
            "where": where,
            "is_simulated": self.is_simulated,
            "verdict": {
                "outcome": "pass" if self.is_passed else "fail",
                "counts": {str(outcome): counts[outcome] for outcome in Outcome},
                "not_passed": [result.name for result in self.results if result.is_bad],
                "skipped": {r.name: r.reason for r in self.results if r.outcome is Outcome.SKIP},
            },
            "environment": environment.as_dict(),
            "device": self.device,
            "variables": config.gpu_variables(),
            "defects": [{"id": row.id, "status": row.status} for row in defects.applicable(environment)],
            "decisions": {
                reason.decision: {"value": reason.value, "because": list(reason.rows)} for reason in decisions.reasons
            },
            "only": list(self.only),
            "stats": _total(result.stats for result in self.results),
            "cases": [result.as_dict() for result in self.results],
        }
        report: dict[str, Any] = cleaned(whole)
        return report

    def _environment(self) -> Environment:
        found = detect()
        arch = str(self.device.get("arch", "")).split(":")[0]
        if not found.archs and arch and not self.is_simulated:
            # No KFD here (another vendor's GPU, Windows): what torch says of the device.
            found = replace(found, archs=(arch,), n_gpus=int(self.device.get("n_devices", 1)))
        return found


def write(report: Mapping[str, Any], path: Path) -> None:
    """Write the report as JSON."""
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


# -- what became of a process --------------------------------------------------------------------------------------


def _read(answer: Path) -> dict[str, Any]:
    try:
        found = json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # the process ended before it could say anything
    return found if isinstance(found, dict) else {}


def _judge(status: int | None, was_killed: bool, found: Mapping[str, Any], limit_s: float) -> tuple[Outcome, str]:
    said = str(found.get("reason", ""))
    if status is None:
        return Outcome.HANG, f"did not end within {limit_s:.0f} s, and could not even be killed"
    if was_killed:
        after = " after the case was done" if found else ""
        return Outcome.HANG, f"did not end within {limit_s:.0f} s{after}"
    if not found:
        return Outcome.CRASH, f"ended by {_how(status)} without a result"
    if status == SKIP:
        return Outcome.SKIP, said
    if status == PASS:
        return Outcome.PASS, said
    if status in (FAIL, REFUSED) and said:
        return Outcome.FAIL, said
    return Outcome.CRASH, f"the case was done, and then the process ended by {_how(status)}"


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return f"signal {-status} ({signal.Signals(-status).name})"
    return f"signal {-status}"


def _ends(lines: Sequence[str]) -> tuple[str, ...]:
    """The first and the last lines: a runtime says what happened before Python says where it stood then."""
    told: list[str] = []
    for line in lines:
        if line.startswith("Extension modules:"):
            continue
        if line.strip() == "<no Python frame>" and told and told[-1].startswith("Thread "):
            told.pop()  # torch's idle threads
        elif line.strip():
            told.append(line)
    left_out = len(told) - N_FIRST_LINES - N_LAST_LINES
    if left_out > 0:
        told[N_FIRST_LINES:-N_LAST_LINES] = [f"... {left_out} lines left out ..."]
    return tuple(told)


def _total(all_stats: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for stats in all_stats:
        total.update({name: n for name, n in stats.items() if isinstance(n, int) and not isinstance(n, bool)})
    return dict(total)
