"""Run a program as a child process, end as it ends, and report how it died.

``gfxgraph run`` stays above its program, so that what its processes leave behind is read whatever became of them.
Where graphs are guarded (tier 2 and up) the program's stderr is passed on as it comes, its last lines are kept, and
the flight recorders of it and its children are read: a recorder that was at a node, or a program that makes no
progress, becomes a report.

No torch here: a process that waits must cost nothing, and must not be affected by the device's fault.

Endings of a guarded program (AMD's three, by version of ROCm):
    SIGABRT after "Memory access fault by GPU node"   the recorder names the node, the text the address
    a sticky error 700 on every later call            the program itself raised GfxGraphFault; told again where
                                                      it swallowed that or died of another signal
    a hang                                            no node done for ``limit_s``: reported, then ended
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gfxgraph import config, files
from gfxgraph.core import flight_page
from gfxgraph.core.fault_report import Fault, NodeInfo, RuntimeWords, read_words
from gfxgraph.core.flight_page import Page, Phase
from gfxgraph.core.memory_map import Allocation
from gfxgraph.diagnostics.render import render
from gfxgraph.hardware import defect_environment, defects
from gfxgraph.reporting.run_line import how_ended

VARIABLE = "GFXGRAPH_FLIGHT"
_POLL_S = 0.2
_PATIENCE_S = 5.0
_TAIL_NBYTES = 1 << 20
# Sent to this process alone; a terminal's interrupt reaches the program by itself, which decides what it means.
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_PR_SET_PDEATHSIG = 1
_Program = subprocess.Popen[bytes]


def run(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run ``argv`` and return its status as ``subprocess`` gives it (negative: a signal); our signals reach it.

    What it wrote to stderr, it and its children, in whatever language, is explained where it failed, with this
    machine's facts at that moment.
    """
    if not config.load(environment).diag:
        return _wait(_start(argv, environment))
    status, said = _listen(argv, environment)
    if status and (text := explained(status, said, config.language_of(environment))):
        sys.stderr.write(f"\n{text}\n")
    return status


def explained(status: int, said: str, lang: str = "") -> str:
    """What the end of a program means, by its last words and this machine's facts; '' if it was told already."""
    # lazily: most programs end well
    from gfxgraph.diagnostics.scan import Scanner
    from gfxgraph.hardware import advice

    scanner = Scanner()
    scanner.feed(said.encode("utf-8", "replace"))
    found = advice.conclude(scanner, lang=lang)
    if found:
        return "" if found.matches[0].code in scanner.told else found.format()
    # A native death without a word is explained only if the machine proves why.
    found = advice.explain(status, lang=lang) if -status in _CRASHES else found
    judged = found.judged(found.matches[0]) if found else []
    return found.format() if judged and judged[0].proof else ""


class _Tail:
    """Passes a program's stderr on as it comes and keeps its last lines."""

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()
        # A terminal if this process has one, for progress bars and colours.
        self._source, self.sink = os.openpty() if os.isatty(2) else os.pipe()
        self._copier = threading.Thread(target=self._copy, daemon=True)

    def begin(self) -> None:
        """The program has been started with ``sink``."""
        os.close(self.sink)
        self._copier.start()

    def end(self) -> str:
        """The program has ended: what it wrote last. Its children may keep its stderr open for longer."""
        self._copier.join(timeout=1.0)
        if self._copier.is_alive() and os.fork() == 0:  # they would die of a closed pipe
            self._copy()
            os._exit(0)
        return b"".join(self._kept).decode("utf-8", "replace")

    def _copy(self) -> None:
        n_kept = 0
        while True:
            try:
                data = os.read(self._source, 1 << 16)
            except OSError:  # a terminal's master reports in this way that the other side is closed
                return
            if not data:
                return
            with suppress(OSError):
                os.write(2, data)
            self._kept.append(data)
            n_kept += len(data)
            while n_kept > _TAIL_NBYTES and len(self._kept) > 1:
                n_kept -= len(self._kept.popleft())


def _start(argv: Sequence[str], environment: Mapping[str, str], stderr: int | None = None) -> _Program:
    sys.stdout.flush()
    sys.stderr.flush()
    is_linux = sys.platform == "linux"
    return subprocess.Popen(
        list(argv), env=dict(environment), stderr=stderr, preexec_fn=_end_with_parent if is_linux else None
    )


def _end_with_parent() -> None:
    """Killed without a word, this process would leave the program behind; it did not when it became the program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _listen(
    argv: Sequence[str], environment: Mapping[str, str], look: Callable[[_Program], object] = lambda _: None
) -> tuple[int, str]:
    """Run a program whose stderr is passed on; its status, and what it wrote there last."""
    tail = _Tail()
    program = _start(argv, environment, tail.sink)
    tail.begin()
    status = _wait(program, look)
    return status, tail.end()


def _wait(program: _Program, look: Callable[[_Program], object] = lambda _: None) -> int:
    """Wait for the program's end; ``look`` is called with it meanwhile."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        program.send_signal(number)

    handlers = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in (getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, for the program too
            handlers[number] = signal.signal(number, pass_on)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return program.wait(timeout=_POLL_S)
            look(program)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The flight record that one process left behind."""

    folder: Path
    page: Page

    @property
    def segment(self) -> dict[str, Any]:
        """The description of the last segment that ran."""
        return _read_json(self.folder / flight_page.graph_file(self.page.graph, self.page.segment)) or {}

    def node(self) -> NodeInfo | None:
        rows = self.segment.get("nodes", [])
        return NodeInfo.from_dict(rows[self.page.node]) if self.page.node < len(rows) else None

    def memory(self) -> list[Allocation]:
        return [Allocation(**row) for row in _read_json(self.folder / flight_page.MEMORY_FILE) or []]

    def own_words(self) -> str:
        """The process's own text about its fault."""
        return str((_read_json(self.folder / flight_page.FAULT_FILE) or {}).get("text", ""))

    def is_stuck(self, now_ns: int, limit_s: float) -> bool:
        return self.page.phase is Phase.RUNNING and now_ns - self.page.begun_ns > limit_s * 1e9

    def report(self, status: str, words: RuntimeWords | None, lang: str) -> str:
        """The text for a process that died at its node."""
        fault = Fault(self.node(), self.page.n_nodes, self.page.replay, status, words, self.memory())
        return render("memory_fault", fault.fields(), lang)

    def hang_report(self, limit_s: float, lang: str) -> str:
        node = str(self.node() or "")
        fields = {"wait_s": f"{limit_s:g}", "where": self.segment.get("where", ""), "node": node}
        return render("replay_hang", fields, lang)


def recordings(home: Path) -> list[ProcessRecord]:
    """The records found below ``home``, the last one changed first."""
    found = []
    for folder in home.glob(f"{flight_page.PREFIX}*"):
        with suppress(OSError):
            page = flight_page.unpack(files.read(folder / flight_page.RECORDER_FILE))
            if page is not None:
                found.append(ProcessRecord(folder, page))
    return sorted(found, key=lambda recording: recording.page.begun_ns, reverse=True)


def run_guarded(
    argv: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    write: Callable[[str], object] = sys.stderr.write,
) -> int:
    """As ``run``, and report the program's faults.

    Args:
        limit_s: how long one node, or one graph, may take before it counts as hanging.
    """
    home = config.state_folder(environment) / "flight" / f"run-{os.getpid()}-{time.time_ns():x}"
    files.new_folder(home, 0o700)
    try:
        # Without these variables some runtimes cannot run nodes one by one.
        decided = defects.decide(defect_environment.detect())
        environment = {**decided.set_env, **decided.env, **environment, VARIABLE: str(home)}
        lang = config.language_of(environment)
        hangs = HangWatchdog(home, limit_s, write, lang)
        status, said = _listen(argv, environment, hangs.end_if_stuck)
        if not hangs.found and (
            text := _report(home, status, said, lang) or (status and explained(status, said, lang))
        ):
            write(f"\n{text}\n")
        return status
    finally:
        shutil.rmtree(home, ignore_errors=True)


@dataclass(slots=True)
class HangWatchdog:
    """Reports and ends a guarded program that makes no progress."""

    home: Path
    limit_s: float
    write: Callable[[str], object]
    lang: str
    found: bool = False

    def end_if_stuck(self, program: _Program) -> None:
        now = time.monotonic_ns()
        stuck = [recording for recording in recordings(self.home) if recording.is_stuck(now, self.limit_s)]
        if not stuck or self.found:
            return
        self.found = True
        self.write(f"\n{stuck[0].hang_report(self.limit_s, self.lang)}\n")
        program.terminate()
        try:
            program.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:  # it waits inside the driver, where no handler runs
            program.kill()


def _report(home: Path, status: int, said: str, lang: str) -> str:
    """The report about the end; '' if the program ended well or reported it itself."""
    words = read_words(said)
    for recording in recordings(home):
        phase = recording.page.phase
        if phase is Phase.FAULTED:
            own = recording.own_words()
            # An uncaught exception has been printed, and its text is the report.
            return "" if own and own.splitlines()[0] in said else own
        if phase is Phase.RUNNING and (words is not None or -status in _CRASHES or 0 < status < 128):
            ended = how_ended(status) if words is None else f"{how_ended(status)}: {words.line}"
            return recording.report(ended, words, lang)
    return ""


# Signals that a fault may end in.
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)


def end_as(status: int) -> None:
    """End this process as the program ended: by the same status or the same signal. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        # lazily: where there are no such signals it is not there
        import resource

        # The program has left its core file, if any; one of this process would only be in the way.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status
    sys.exit(status)


def _read_json(path: Path) -> Any:
    try:
        return files.read_json(path)
    except (OSError, ValueError):
        return None
