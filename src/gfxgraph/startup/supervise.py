"""Run a guarded program as a child process, and report how it died.

The program's stderr is passed on as it comes, and its last lines are kept. When
the program ends, the flight recorders of it and its children are read. A recorder that was at a node,
or a program that makes no progress, becomes a report. Then this process ends as the program did, by
the same status or the same signal.

No torch here: a process that waits must cost nothing, and must not be affected by the device's fault.

Endings (AMD's three, by version of ROCm):
    SIGABRT after "Memory access fault by GPU node"   the recorder names the node, the text the address
    a sticky error 700 on every later call            the program itself raised GfxGraphFault; told again where
                                                      it swallowed that or died of another signal
    a hang                                            no node done for ``limit_s``: reported, then ended
"""

from __future__ import annotations

import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gfxgraph import config, files
from gfxgraph.core import flight_page
from gfxgraph.core.fault_report import HANG_LIMIT_S, Fault, NodeInfo, RuntimeWords, read_words
from gfxgraph.core.flight_page import Page, Phase
from gfxgraph.core.memory_map import Allocation
from gfxgraph.diagnostics.render import render

VARIABLE = "GFXGRAPH_FLIGHT"
_POLL_S = 0.2
_PATIENCE_S = 5.0
_TAIL_NBYTES = 1 << 20


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
        fields = {"wait_s": f"{limit_s:g}", "where": self.segment.get("where", ""), "node": self._node_text()}
        return render("replay_hang", fields, lang)

    def death_report(self, status: str, lang: str) -> str:
        fields = {"status": status, "where": self.segment.get("where", ""), "node": self._node_text()}
        return render("died_in_replay", fields, lang)

    def _node_text(self) -> str:
        node = self.node()
        return str(node) if node is not None else ""


def recordings(home: Path) -> list[ProcessRecord]:
    """The records found below ``home``, the last one changed first."""
    found = []
    for folder in home.glob(f"{flight_page.PREFIX}*"):
        with suppress(OSError):
            page = flight_page.unpack(files.read(folder / flight_page.RECORDER_FILE))
            if page is not None:
                found.append(ProcessRecord(folder, page))
    return sorted(found, key=lambda recording: recording.page.begun_ns, reverse=True)


def supervise(
    argv: Sequence[str],
    environment: dict[str, str],
    limit_s: float = HANG_LIMIT_S,
    write: Callable[[str], object] = sys.stderr.write,
) -> int:
    """Run ``argv``, report its faults, and return its status as ``subprocess`` gives it (negative: a signal).

    Args:
        limit_s: how long one node, or one graph, may take before it counts as hanging.
    """
    home = config.state_folder(environment) / "flight" / f"run-{os.getpid()}-{time.time_ns():x}"
    files.new_folder(home, 0o700)
    try:
        return _Supervisor(argv, environment | {VARIABLE: str(home)}, home, limit_s, write).run()
    finally:
        shutil.rmtree(home, ignore_errors=True)


class _Supervisor:
    def __init__(
        self,
        argv: Sequence[str],
        environment: dict[str, str],
        home: Path,
        limit_s: float,
        write: Callable[[str], object],
    ) -> None:
        self.home = home
        self.limit_s = limit_s
        self.write = write
        self.lang = config.language_of(environment)
        self.tail: deque[bytes] = deque()
        self.has_hung = False
        theirs = self._stderr()
        self.program = subprocess.Popen(list(argv), env=environment, stderr=theirs)
        os.close(theirs)
        self.copier = threading.Thread(target=self._copy, daemon=True)
        self.copier.start()

    def _stderr(self) -> int:
        """The end that the program writes to: a terminal if this process has one, for progress bars and colours."""
        self.source, theirs = pty.openpty() if os.isatty(2) else os.pipe()
        return theirs

    def _copy(self) -> None:
        kept = 0
        while True:
            try:
                data = os.read(self.source, 1 << 16)
            except OSError:  # a terminal's master reports in this way that the other side is closed
                return
            if not data:
                return
            with suppress(OSError):
                os.write(2, data)
            self.tail.append(data)
            kept += len(data)
            while kept > _TAIL_NBYTES and len(self.tail) > 1:
                kept -= len(self.tail.popleft())

    def run(self) -> int:
        handlers = {number: signal.signal(number, self._pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
        # A terminal sends its interrupt to both processes: the program decides what it means.
        handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            status = self._wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        # Children of the program may keep its stderr open for longer.
        self.copier.join(timeout=1.0)
        text = self._report(status)
        if text:
            self.write(f"\n{text}\n")
        return status

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.program.send_signal(number)

    def _wait(self) -> int:
        while True:
            try:
                return self.program.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                self._look_for_hang()

    def _look_for_hang(self) -> None:
        now = time.monotonic_ns()
        stuck = [recording for recording in recordings(self.home) if recording.is_stuck(now, self.limit_s)]
        if not stuck or self.has_hung:
            return
        self.has_hung = True
        self.write(f"\n{stuck[0].hang_report(self.limit_s, self.lang)}\n")
        self.program.terminate()
        try:
            self.program.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:  # it waits inside the driver, where no handler runs
            self.program.kill()

    def _report(self, status: int) -> str:
        """The report about the end; '' if the program ended well or reported it itself."""
        if self.has_hung:
            return ""
        said = b"".join(self.tail).decode("utf-8", "replace")
        words = read_words(said)
        for recording in recordings(self.home):
            phase = recording.page.phase
            if phase is Phase.FAULTED:
                own = recording.own_words()
                # An uncaught exception has been printed, and its text is the report.
                return "" if own and own.splitlines()[0] in said else own
            if phase is Phase.RUNNING and (words is not None or -status in _CRASHES or 0 < status < 128):
                return recording.report(_ending(status, words), words, self.lang)
            if phase is Phase.RUNNING and status != 0 and -status not in _ASKED:
                return recording.death_report(_ending(status, words), self.lang)
        return ""


# Signals that a fault may end in, and signals that are sent on purpose.
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)
_ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _ending(status: int, words: RuntimeWords | None) -> str:
    """How the process ended, in one phrase."""
    name = ""
    if status < 0:
        with suppress(ValueError):
            name = signal.Signals(-status).name
    how = name or f"exit status {status}"
    return f"{how}: {words.line}" if words is not None else how


def end_as(status: int) -> None:
    """End this process as the program ended: by the same status or the same signal. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
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
