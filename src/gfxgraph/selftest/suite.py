"""The self-test: the safety suite on whatever GPU is there, as one report to send back.

Problem: a GPU graph that goes wrong may take its process with it (a crash, an abort, an error that every
later call repeats) or never end, and the next case must still be judged.

Idea: this process never imports torch and never touches the GPU. Each case runs in a process of its own with
a time limit (worker.py); how that ends is the outcome (outcome.py). The processes are prepared while earlier
cases run (processes.py), and a few cases run side by side where the machine has room; what is then done about
a failure stands in schedule.py.

The report can be made at any time, and holds what has ended until then: whoever stops the suite, or has to
switch the machine off, keeps it.

The report holds no user name, host name or path of the machine: it is meant to be sent to strangers.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gfxgraph
from gfxgraph import config, files
from gfxgraph.errors import ActivationError, ConfigError
from gfxgraph.hardware import defects
from gfxgraph.hardware.environment import Environment, detect
from gfxgraph.selftest.outcome import CaseResult, Listed, Outcome, result_of
from gfxgraph.selftest.processes import Crew, Forked, PreparedProcesses, n_cores
from gfxgraph.selftest.schedule import MAX_BESIDE, Schedule, how_many
from gfxgraph.selftest.scrub import cleaned
from gfxgraph.selftest.worker import CASES

SCHEMA = 1
# A ROCm device may spend a minute on its first kernels: code objects are unpacked, libraries opened.
PROBE_LIMIT_S = 120.0
# Between a dump of where everything hangs and the end of the process.
DUMP_BEFORE_S = 3.0
# Until the device has said how much memory it has free.
MAX_AHEAD_OF_PROBE = 4


class Suite:
    """One run of the self-test.

    Args:
        simulate: a simulator profile; '' for the GPU that is there.
        allow_cuda: also on an NVIDIA GPU.
        only: names of the cases wanted; all where empty.
        module: where the cases are.
        crew: where the processes come from; by default as the place asks for.
    """

    def __init__(
        self,
        simulate: str = "",
        allow_cuda: bool = False,
        only: Sequence[str] = (),
        module: str = CASES,
        crew: Crew | None = None,
    ) -> None:
        self.simulate = simulate
        self.allow_cuda = allow_cuda
        self.only = tuple(only)
        self.module = module
        self.device: dict[str, Any] = {}
        self.results: list[CaseResult] = []
        """What ``probe`` and ``run`` have given so far."""
        self.stopped_by = ""
        """What stopped the suite before its end, for the report."""
        self._cases: Sequence[Listed] = ()
        self._running: dict[str, None] = {}
        # Ended, but not given yet: an earlier case is still running.
        self._ended: dict[str, CaseResult] = {}
        self._crew = crew
        self._begun_at = datetime.now(UTC)
        self._begun = time.monotonic()

    @property
    def is_simulated(self) -> bool:
        return bool(self.simulate)

    @property
    def is_passed(self) -> bool:
        return self._outcome(self.all_results()) == "pass"

    @property
    def running(self) -> list[str]:
        """The cases that are running now."""
        return list(self._running)

    @property
    def n_cases(self) -> int:
        return len(self._cases)

    @property
    def n_ended(self) -> int:
        """How many cases have ended, given or not."""
        return len(self._ended)

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
        self._cases = [each for each in cases if not self.only or each.name in self.only]
        return list(self._cases)

    def run(self, cases: Sequence[Listed]) -> Iterator[CaseResult]:
        """Run the cases and give each result, in the order of ``cases``."""
        self._cases, crew, n_beside = cases, self._crew_here(), MAX_BESIDE
        if isinstance(crew, PreparedProcesses):
            n_beside, n_ahead = how_many(int(self.device.get("memory_free_mib", 0)), n_cores())
            crew.prepare(n_ahead, len(cases))
        elif isinstance(crew, Forked):
            n_beside = crew.n_servers
        answers = None if self.is_simulated else self._answers
        for result in Schedule(self._run_case, answers, self.close, n_beside).results(cases):
            self.results.append(result)
            yield result

    def close(self) -> None:
        """End every process that was started. What has ended until then stays."""
        if self._crew is not None:
            self._crew.close()

    def _crew_here(self) -> Crew:
        if self._crew is None:
            if self.is_simulated:
                self._crew = Forked(max(1, min(MAX_BESIDE, n_cores(), len(self.only) or MAX_BESIDE)))
            else:
                n_ahead = max(1, min(MAX_AHEAD_OF_PROBE, n_cores() - 1))
                self._crew = PreparedProcesses(self.module, n_ahead, 1 + (len(self.only) or MAX_AHEAD_OF_PROBE))
        return self._crew

    def _answers(self) -> bool:
        """Ask twice: a GPU that is being reset takes seconds to come back."""
        for wait_s in (0, 15):
            time.sleep(wait_s)
            if self._run(Listed("device", "", PROBE_LIMIT_S), "")[0].outcome is Outcome.PASS:
                return True
        return False

    def _run_case(self, case: Listed) -> CaseResult:
        self._running[case.name] = None
        result = self._run(case, case.name)[0]
        self._ended[case.name] = result
        self._running.pop(case.name)  # where the suite was stopped it stays there
        return result

    def _run(self, case: Listed, argument: str) -> tuple[CaseResult, Mapping[str, Any]]:
        line = ["--module", self.module, "--dump-after", str(max(case.limit_s - DUMP_BEFORE_S, case.limit_s / 2))]
        line += ["--simulate", self.simulate] if self.simulate else []
        line += ["--allow-cuda"] if self.allow_cuda else []
        line += [argument] if argument else []
        ended = self._crew_here().run(line, case.limit_s)
        return result_of(case, ended), ended.said

    # -- the report --------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Everything found so far, as plain data without names and paths of this machine."""
        results = self.all_results()
        environment = self._environment()
        decisions = defects.decide(environment)
        counts = Counter(result.outcome for result in results)
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
                "outcome": self._outcome(results),
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
            "stats": _total(result.stats for result in results),
            "cases": [result.as_dict() for result in results],
        }
        report: dict[str, Any] = cleaned(whole)
        return report

    def ended(self) -> list[CaseResult]:
        """What was given, and what has ended while an earlier case was still running."""
        given = {result.name for result in self.results}
        others = (self._ended.get(case.name) for case in self._cases if case.name not in given)
        return [*self.results, *(result for result in others if result is not None)]

    def all_results(self) -> list[CaseResult]:
        """A result for each case, in their order: what has not ended counts as skipped."""
        known = {result.name: result for result in self.ended()}
        left = [case for case in self._cases if case.name not in {result.name for result in self.results}]
        return [*self.results, *(known.get(case.name) or self._cut_off(case) for case in left)]

    def _cut_off(self, case: Listed) -> CaseResult:
        state = "was running" if case.name in self._running else "was not begun"
        ended = f"was stopped by {self.stopped_by}" if self.stopped_by else "was ended from outside"
        return CaseResult(case.name, case.fact, Outcome.SKIP, f"{state} when the self-test {ended}")

    def _outcome(self, results: Sequence[CaseResult]) -> str:
        if any(result.is_bad for result in results):
            return "fail"
        known = {result.name for result in self.ended()}
        return "pass" if self.results and known.issuperset(case.name for case in self._cases) else "unfinished"

    def _environment(self) -> Environment:
        found = detect()
        arch = str(self.device.get("arch", "")).split(":")[0]
        if not found.archs and arch and not self.is_simulated:
            # No KFD here (another vendor's GPU, Windows): what torch says of the device.
            found = replace(found, archs=(arch,), n_gpus=int(self.device.get("n_devices", 1)))
        return found


def write(report: Mapping[str, Any], path: Path) -> None:
    """Write the report as JSON, whole or not at all: the machine may stop at any moment."""
    text = json.dumps(report, indent=2, ensure_ascii=False, default=str) + "\n"
    files.write(path, text, is_lasting=True)


def _total(all_stats: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for stats in all_stats:
        total.update({name: n for name, n in stats.items() if isinstance(n, int) and not isinstance(n, bool)})
    return dict(total)
