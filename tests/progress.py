"""What `make test` prints: what the run will take, where it is, each failure as it happens, why tests are skipped.

    pytest -p tests.progress

How long each test took here is kept in build/test-times.json, so that the estimate is this machine's.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

TIMES = Path(__file__).parent.parent / "build" / "test-times.json"
EVERY_S = 20.0
TYPICAL_S = 0.11
"""A test nobody has run here yet: 6,242 took 344 s on two cores."""


class Progress:
    """Counts outcomes in the process that gathers them."""

    def __init__(self, config: pytest.Config) -> None:
        self.plugins = config.pluginmanager
        self.jobs = max(1, int(getattr(config.option, "numprocesses", 0) or 1))
        self.known: dict[str, float] = json.loads(TIMES.read_text("utf-8")) if TIMES.exists() else {}
        self.taken: dict[str, float] = {}
        self.todo: set[str] = set()
        self.n_all = self.n_failed = 0
        self.skipped: Counter[str] = Counter()
        self.began = self.said = time.monotonic()

    def begin(self, ids: list[str]) -> None:
        if self.n_all:
            return  # another worker's list, the same
        self.todo, self.n_all = set(ids), len(ids)
        self.began = self.said = time.monotonic()
        new = sum(test not in self.known for test in ids)
        how = f"{new:,} of them never run here" if new else "by the last run here"
        self._say(f"{self.n_all:,} tests, about {_span(self._left_s())} on {self.jobs} processes ({how})")

    def _left_s(self) -> float:
        return sum(self.known.get(test, TYPICAL_S) for test in self.todo) / self.jobs

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # without xdist; with it the workers tell
            self.begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        self.begin(list(ids))

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        # The outcome counts; the dot is not printed.
        if report.passed:
            return ("passed" if report.when == "call" else "", "", "")
        if report.skipped:
            return ("skipped", "", "")
        return ("failed" if report.when == "call" else "error", "", "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.taken[report.nodeid] = self.taken.get(report.nodeid, 0.0) + report.duration
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1
        if report.failed:
            self.n_failed += 1
            lines = str(report.longrepr).splitlines()
            why = next(
                (line[2:].strip() for line in reversed(lines) if line.startswith("E ")), lines[-1] if lines else ""
            )
            self._say(f"FAILED {report.nodeid}: {why[:160]}")
        if report.when == "teardown":
            self.todo.discard(report.nodeid)
            if time.monotonic() - self.said >= EVERY_S:
                self._where()

    def _where(self) -> None:
        done = self.n_all - len(self.todo)
        elapsed = time.monotonic() - self.began
        expected = sum(self.known.get(test, TYPICAL_S) for test in self.taken) / self.jobs
        left = self._left_s() * (elapsed / expected if expected else 1.0)  # as fast as it has been so far
        self._say(
            f"{done:,} of {self.n_all:,} ({100 * done // max(1, self.n_all)}%), {_span(elapsed)} so far, "
            f"about {_span(left)} left, {self.n_failed} failed"
        )

    def _say(self, text: str) -> None:
        self.said = time.monotonic()
        reporter = self.plugins.getplugin("terminalreporter")  # not there yet when plugins are configured
        reporter.ensure_newline()
        reporter.write_line(text)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, n in self.skipped.most_common():
            terminalreporter.write_line(f"{n} skipped: {reason}")

    def pytest_sessionfinish(self) -> None:
        if self.taken:
            TIMES.parent.mkdir(exist_ok=True)
            kept = {test: round(seconds, 2) for test, seconds in (self.known | self.taken).items()}
            TIMES.write_text(json.dumps(kept), encoding="utf-8")


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config), "gfxgraph-progress")
