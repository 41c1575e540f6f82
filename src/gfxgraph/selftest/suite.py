"""The self-test: the safety suite on whatever GPU is there, as one report to send back.

Problem: a GPU graph that goes wrong may take its process with it (a crash, an abort, an error that every
later call repeats) or never end, and the next case must still be judged.

Idea: this process never imports torch and never touches the GPU. The cases run one after the other, each in a
process of its own with a time limit (worker.py), and how that process ends is the outcome. After a crash or a
hang the GPU is asked whether it answers; where it does not, the rest is skipped with that reason, not counted against
graphs.

The report can be made at any time and holds what has ended until then. It holds no user name, host name or path of
the machine: it is meant to be sent to strangers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import gfxgraph
from gfxgraph import config, files
from gfxgraph.diagnostics.explain import explain
from gfxgraph.errors import ActivationError, ConfigError
from gfxgraph.hardware import defects
from gfxgraph.hardware.defect_environment import Environment, detect
from gfxgraph.selftest.scrub import FOLDER_PREFIX, cleaned
from gfxgraph.selftest.worker import CASES, FAIL, PASS, REFUSED, SKIP

SCHEMA = 1
# A ROCm device may spend a minute on its first kernels: code objects are unpacked, libraries opened.
PROBE_LIMIT_S = 180
DUMP_BEFORE_S = 5.0
KILL_LIMIT_S = 10.0
N_FIRST_LINES, N_LAST_LINES = 12, 24
_KEPT_SETTINGS = frozenset({"GFXGRAPH_ARCH", "GFXGRAPH_ENVIRONMENT", "GFXGRAPH_LIB"})


class Outcome(StrEnum):
    """How a case ended."""

    PASS = "pass"  # noqa: S105  (not a password)
    """The fact holds, and the process ended with status 0."""
    FAIL = "fail"
    """The fact does not hold, or holds only because eager execution stood in for the graph."""
    CRASH = "crash"
    """The process ended otherwise: by a signal, or after the case had passed."""
    HANG = "hang"
    """The process did not end in time and was killed."""
    SKIP = "skip"
    """The case does not apply here, and says why."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A case that there is."""

    name: str
    fact: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class CaseResult:
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
        self.results: list[CaseResult] = []
        """What ``probe`` and ``run`` have given so far."""
        self.running = ""
        """The case that is running now, or is next."""
        self.stopped_by = ""
        """What stopped the suite before its end, for the report."""
        self.cases: list[Listed] = []
        self._begun_at = datetime.now(UTC)
        self._begun = time.monotonic()

    @property
    def is_passed(self) -> bool:
        return self._outcome() == "pass"

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
        self.cases = [each for each in cases if not self.only or each.name in self.only]
        self.running = self.cases[0].name
        return self.cases

    def run(self, cases: Sequence[Listed]) -> Iterator[CaseResult]:
        """Run the cases and give each result, in the order of ``cases``."""
        self.cases, silent_since = list(cases), ""
        for case, following in zip(cases, [*(case.name for case in cases[1:]), ""]):
            if silent_since:
                why = f"the GPU has not answered since the case {silent_since}"
                result = CaseResult(case.name, case.fact, Outcome.SKIP, why)
            else:
                result = self._run(case, case.name)[0]
                if result.outcome in (Outcome.CRASH, Outcome.HANG) and not self.simulate and not self._answers():
                    silent_since = case.name
            self.results.append(result)
            self.running = (
                "" if silent_since else following
            )  # whoever must switch the machine off has it in the report
            yield result

    def _answers(self) -> bool:
        """Ask twice: a GPU that is being reset takes seconds to come back."""
        for wait_s in (0, 15):
            time.sleep(wait_s)
            if self._run(Listed("device", "", PROBE_LIMIT_S), "")[0].outcome is Outcome.PASS:
                return True
        return False

    def _run(self, case: Listed, argument: str) -> tuple[CaseResult, Mapping[str, Any]]:
        line = ["--module", self.module, "--dump-after", str(max(case.limit_s - DUMP_BEFORE_S, case.limit_s / 2))]
        line += ["--simulate", self.simulate] if self.simulate else []
        line += ["--allow-cuda"] if self.allow_cuda else []
        line += [argument] if argument else []
        begun = time.monotonic()
        status, was_killed, said, lines = _in_a_process(line, case.limit_s)
        seconds = time.monotonic() - begun
        outcome, reason = _judge(status, was_killed, said, case.limit_s)
        is_told = outcome not in (Outcome.PASS, Outcome.SKIP)
        tail = _ends(lines) if is_told else ()
        explained = tuple(match.code for match in explain("\n".join(lines)).matches) if tail else ()
        figures, stats = said.get("figures", {}), said.get("stats", {})
        result = CaseResult(case.name, case.fact, outcome, reason, seconds, status, tail, explained, figures, stats)
        return result, said

    # -- the report --------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Everything found so far, as plain data without names and paths of this machine."""
        results = [*self.results, *map(self._cut_off, self._left())]
        environment = self._environment()
        decisions = defects.decide(environment)
        counts = Counter(result.outcome for result in results)
        where = f"the simulator, profile {self.simulate}" if self.simulate else self.device.get("name", "unknown")
        whole = {
            "kind": "gfxgraph self-test",
            "schema": SCHEMA,
            "gfxgraph": gfxgraph.__version__,
            "made_at": self._begun_at.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._begun, 1),
            "where": where,
            "is_simulated": bool(self.simulate),
            "verdict": {
                "outcome": self._outcome(),
                "counts": {str(outcome): counts[outcome] for outcome in Outcome},
                "not_passed": [result.name for result in results if result.is_bad],
                "skipped": {r.name: r.reason for r in results if r.outcome is Outcome.SKIP},
            },
            "environment": environment.as_dict(),
            "device": self.device,
            "variables": config.reported(config.gpu_variables()),
            "defects": [{"id": row.id, "status": row.status} for row in defects.applicable(environment)],
            "decisions": {
                reason.decision: {"value": reason.value, "because": list(reason.rows)} for reason in decisions.reasons
            },
            "only": list(self.only),
            "stats": self._total(),
            "cases": [result.as_dict() for result in results],
        }
        report: dict[str, Any] = cleaned(whole)
        return report

    def _left(self) -> list[Listed]:
        known = {result.name for result in self.results}
        return [case for case in self.cases if case.name not in known]

    def _cut_off(self, case: Listed) -> CaseResult:
        state = "was running" if case.name == self.running else "was not begun"
        ended = f"was stopped by {self.stopped_by}" if self.stopped_by else "was ended from outside"
        return CaseResult(case.name, case.fact, Outcome.SKIP, f"{state} when the self-test {ended}")

    def _outcome(self) -> str:
        if any(result.is_bad for result in self.results):
            return "fail"
        return "pass" if self.results and not self._left() else "unfinished"

    def _environment(self) -> Environment:
        found = detect()
        arch = str(self.device.get("arch", "")).split(":")[0]
        if not found.archs and arch and not self.simulate:
            # No KFD here (another vendor's GPU, Windows): what torch says of the device.
            found = replace(found, archs=(arch,), n_gpus=int(self.device.get("n_devices", 1)))
        return found

    def _total(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for result in self.results:
            numbers = {name: n for name, n in result.stats.items() if isinstance(n, int) and not isinstance(n, bool)}
            total.update(numbers)
        return dict(total)


def write(report: Mapping[str, Any], path: Path) -> None:
    """Write the report as JSON, whole or not at all: the machine may stop at any moment."""
    text = json.dumps(report, indent=2, ensure_ascii=False, default=str) + "\n"
    files.write(path, text, is_lasting=True)


# -- one process ---------------------------------------------------------------------------------------------


def _in_a_process(arguments: Sequence[str], limit_s: float) -> tuple[int | None, bool, dict[str, Any], list[str]]:
    """Run the worker with these arguments.

    Returns:
        (exit status, negative for a signal, None where it could not even be killed; whether it had to be killed;
        what it wrote, empty where it ended before it could; the lines that it printed)
    """
    # A folder of its own: runtimes write dumps into the current one.
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        answer, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", "gfxgraph.selftest.worker", *arguments, "--result", str(answer)]
        with files.create(log) as file:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=folder,
                env=_environment_of_a_case(),
                start_new_session=True,  # what it starts goes with it
            )
        status, was_killed = None, False
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            was_killed = True
        finally:  # also after Ctrl-C
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # stuck in the kernel's GPU driver
                status = child.wait(KILL_LIMIT_S)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said: Any = {}
        with suppress(OSError, ValueError):  # it ended before it could say anything
            said = files.read_json(answer)
        return status, was_killed, said if isinstance(said, dict) else {}, lines


def _environment_of_a_case() -> dict[str, str]:
    """This process's environment without gfxgraph's settings: every machine runs the same suite."""
    environment = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251  (handed on whole, not read)
        if name in _KEPT_SETTINGS or not name.startswith(("GFXGRAPH", "HGB_", "SGLANG_DISABLE_GFXGRAPH"))
    }
    # The child's folder is another: relative entries would be lost, and gfxgraph with them.
    package = str(Path(gfxgraph.__file__).resolve().parent.parent)
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(each).resolve()) for each in entries] + [package])
    environment["GFXGRAPH_LANG"] = "en"
    return environment


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
    told = [line for line in lines if line.strip() and not line.startswith("Extension modules:")]
    left_out = len(told) - N_FIRST_LINES - N_LAST_LINES
    if left_out > 0:
        told[N_FIRST_LINES:-N_LAST_LINES] = [f"... {left_out} lines left out ..."]
    return tuple(told)
