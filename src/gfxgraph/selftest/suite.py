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

import getpass
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gfxgraph
from gfxgraph import config, files
from gfxgraph.diagnostics.explainer import explain
from gfxgraph.errors import ActivationError, ConfigError
from gfxgraph.hardware import defects
from gfxgraph.hardware.defect_environment import Environment, detect
from gfxgraph.selftest.worker import CASES, PASS, SKIP

SCHEMA = 1
# A ROCm device may spend a minute on its first kernels: code objects are unpacked, libraries opened.
PROBE = {"name": "device", "fact": "The device answers and computes.", "limit_s": 180.0}
KILL_LIMIT_S = 10.0
N_FIRST_LINES, N_LAST_LINES = 12, 24
OUTCOMES = ("pass", "fail", "crash", "hang", "skip")
"""``fail``: the fact does not hold, or only because eager execution stood in; ``crash``: the process died, perhaps
after the case had passed; ``hang``: it did not end in time and was killed; ``skip``: the case says why."""
BAD = frozenset({"fail", "crash", "hang"})
FOLDER_PREFIX = "gfxgraph-selftest-"
_KEPT_SETTINGS = frozenset({"GFXGRAPH_ARCH", "GFXGRAPH_ENVIRONMENT", "GFXGRAPH_LIB"})

Case = Mapping[str, Any]
"""``name``, ``fact`` and ``limit_s``; of one that has ended also ``outcome``, ``reason``, ``seconds``,
``exit_status``, ``stderr``, ``explained``, ``figures``, ``stats``, what is empty left out."""


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
        self.only = tuple(only)
        self.asked = {"simulate": simulate, "allow_cuda": allow_cuda, "module": module}
        self.simulate = simulate
        self.device: dict[str, Any] = {}
        self.cases: list[Case] = []
        self.results: list[Case] = []
        """What ``probe`` and ``run`` have given so far."""
        self._begun_at, self._begun = datetime.now(UTC), time.monotonic()

    @property
    def outcome(self) -> str:
        """``pass``, ``fail`` or ``unfinished``."""
        if any(result["outcome"] in BAD for result in self.results):
            return "fail"
        return "pass" if len(self.results) == 1 + len(self.cases) else "unfinished"

    def probe(self) -> list[Case]:
        """Look at the device and return the cases to run; none where the device does not answer.

        Raises:
            ActivationError: gfxgraph cannot be used here, with the code that ``enable`` gives.
            ConfigError: `bad_setting`, for a case that there is not.
        """
        found, told = self._run(PROBE, "")
        if "refused" in told:
            raise ActivationError(told["refused"]["code"], **told["refused"]["fields"])
        self.results.append(found)
        self.device = told.get("device", {})
        cases = told.get("cases", [])
        known = [each["name"] for each in cases]
        for name in self.only if found["outcome"] == "pass" else ():
            if name not in known:
                raise ConfigError("bad_setting", variable="--only", value=name, allowed=", ".join(known))
        self.cases = [each for each in cases if not self.only or each["name"] in self.only]
        return self.cases

    def run(self, cases: Sequence[Case]) -> Iterator[Case]:
        """Run the cases and give each result, in the order of ``cases``."""
        self.cases, silent_since = list(cases), ""
        for case in cases:
            if silent_since:
                why = f"the GPU has not answered since the case {silent_since}"
                result = {**case, "outcome": "skip", "reason": why}
            else:
                result = self._run(case, case["name"])[0]
                if result["outcome"] in ("crash", "hang") and not self.simulate and not self._answers():
                    silent_since = case["name"]
            self.results.append(result)
            yield result

    def _answers(self) -> bool:
        """Ask twice: a GPU that is being reset takes seconds to come back."""
        for wait_s in (0, 15):
            time.sleep(wait_s)
            if self._run(PROBE, "")[0]["outcome"] == "pass":
                return True
        return False

    def _run(self, case: Case, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        begun = time.monotonic()
        status, was_killed, told, lines = _in_a_process({**self.asked, "case": name, "limit_s": case["limit_s"]})
        outcome, reason = _judge(status, was_killed, told, case["limit_s"])
        result = {**case, "outcome": outcome, "reason": reason, "exit_status": status}
        if outcome in BAD:
            # The first and the last lines: a runtime says what happened before Python says where it stood then.
            lines = [line for line in lines if line.strip() and not line.startswith("Extension modules:")]
            result["explained"] = [match.code for match in explain("\n".join(lines)).matches]
            left_out = len(lines) - N_FIRST_LINES - N_LAST_LINES
            if left_out > 0:
                lines[N_FIRST_LINES:-N_LAST_LINES] = [f"... {left_out} lines left out ..."]
            result["stderr"] = lines
        result |= {"seconds": round(time.monotonic() - begun, 2)} | {k: told.get(k) for k in ("figures", "stats")}
        return {name: value for name, value in result.items() if value not in ("", [], {}, None)}, told

    def report(self) -> dict[str, Any]:
        """Everything found so far, as plain data without names and paths of this machine."""
        environment = self._environment()
        decisions = defects.decide(environment)
        counts = Counter(result["outcome"] for result in self.results)
        done = {result["name"] for result in self.results}
        total: Counter[str] = Counter()
        for result in self.results:
            total.update({name: n for name, n in result.get("stats", {}).items() if type(n) is int})
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
                "outcome": self.outcome,
                "counts": {outcome: counts[outcome] for outcome in OUTCOMES},
                "not_passed": [result["name"] for result in self.results if result["outcome"] in BAD],
                "skipped": {r["name"]: r["reason"] for r in self.results if r["outcome"] == "skip"},
                "not_ended": [case["name"] for case in self.cases if case["name"] not in done],
            },
            "environment": environment.as_dict(),
            "device": self.device,
            "variables": config.reported(config.gpu_variables()),
            "defects": [{"id": row.id, "status": row.status} for row in defects.applicable(environment)],
            "decisions": {
                reason.decision: {"value": reason.value, "because": list(reason.rows)} for reason in decisions.reasons
            },
            "only": list(self.only),
            "stats": dict(total),
            "cases": self.results,
        }
        report: dict[str, Any] = json.loads(scrubbed(json.dumps(whole, default=str)))
        return report

    def _environment(self) -> Environment:
        found = detect()
        arch = str(self.device.get("arch", "")).split(":")[0]
        if not found.archs and arch and not self.simulate:
            # No KFD here (another vendor's GPU, Windows): what torch says of the device.
            found = replace(found, archs=(arch,), n_gpus=int(self.device.get("n_devices", 1)))
        return found


def write(report: Mapping[str, object], path: Path) -> None:
    """Write the report as JSON, whole or not at all: the machine may stop at any moment."""
    files.write(path, json.dumps(report, indent=2, ensure_ascii=False) + "\n", is_lasting=True)


def scrubbed(text: str) -> str:
    """``text`` without home folders, installation folders, user and host name."""
    plain = [
        (str(Path(gfxgraph.__file__).parent), "<gfxgraph>"),
        (sys.prefix, "<python>"),
        (sys.base_prefix, "<python>"),
    ]
    plain += [(str(Path(tempfile.gettempdir()) / FOLDER_PREFIX), "<temporary>/")]
    with suppress(RuntimeError):
        plain.append((str(Path.home()), "~"))
    # Longest first: an environment inside the home folder is the environment.
    for found, shown in sorted((pair for pair in plain if len(pair[0]) > 3), key=lambda pair: -len(pair[0])):
        text = text.replace(found, shown)
    text = re.sub(r"(/home|/Users|[A-Za-z]:\\+Users)(/|\\+)[^/\\\s:;,'\"]+", "~", text)
    user, host = "", platform.node()
    with suppress(OSError, KeyError, ImportError):
        user = getpass.getuser()
    if user and user != "root":  # as part of a path only: a user may be called "amd" or "gpu"
        text = re.sub(rf"(?<=[/\\]){re.escape(user)}(?=[/\\:\s\"]|$)", "<user>", text)
    if len(host) > 2 and host != "localhost":
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "<host>", text)
    return re.sub(r"(?<=://)[^/\s@\"]+@", "", text)


# -- one process ---------------------------------------------------------------------------------------------


def _in_a_process(asked: Mapping[str, Any]) -> tuple[int | None, bool, dict[str, Any], list[str]]:
    """Run the worker.

    Returns:
        (exit status, negative for a signal, None where it could not even be killed; whether it had to be killed;
        what it wrote, empty where it ended before it could; the lines that it printed)
    """
    # A folder of its own: runtimes write dumps into the current one.
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        answer, log = Path(folder) / "result.json", Path(folder) / "log"
        words = json.dumps({**asked, "result": str(answer)})
        with files.create(log) as file:
            child = subprocess.Popen(
                [sys.executable, "-m", "gfxgraph.selftest.worker", words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=folder,
                env=_environment_of_a_case(),
                start_new_session=True,  # what it starts goes with it
            )
        status, was_killed = None, False
        try:
            status = child.wait(asked["limit_s"])
        except subprocess.TimeoutExpired:
            was_killed = True
        finally:  # also after Ctrl-C
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # stuck in the kernel's GPU driver
                status = child.wait(KILL_LIMIT_S)
        told: dict[str, Any] = {}
        with suppress(OSError, ValueError):  # it ended before it could say anything
            told = files.read_json(answer)
        return status, was_killed, told, log.read_text(encoding="utf-8", errors="replace").splitlines()


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


def _judge(status: int | None, was_killed: bool, told: Mapping[str, object], limit_s: float) -> tuple[str, str]:
    if was_killed or status is None:
        after = ", and could not even be killed" if status is None else " after the case was done" if told else ""
        return "hang", f"did not end within {limit_s:.0f} s{after}"
    how = f"exit status {status}"
    if status < 0:
        how = f"signal {-status} ({signal.strsignal(-status)})"
    if not told:
        return "crash", f"ended by {how} without a result"
    if status in (PASS, SKIP):
        return ("pass" if status == PASS else "skip"), str(told["reason"])
    if status > 0 and told["reason"]:
        return "fail", str(told["reason"])
    return "crash", f"the case was done, and then the process ended by {how}"
