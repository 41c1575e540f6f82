"""How a case of the self-test gets its process, and how that process is made to end.

Problem: of what a case costs, four fifths are the import of torch, and yet no two cases may share a process.

Idea: on a GPU, processes are started ahead. Each imports what a case needs, touches no device, and waits for
the one case that it will run; the imports go on while earlier cases run. A process is never forked there: a
runtime that has been loaded is not promised to survive it. On the simulator there is no runtime, so a server
imports torch once and forks for each case.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import gfxgraph
from gfxgraph import files

WORKER = "gfxgraph.selftest.worker"
FOLDER_PREFIX = "gfxgraph-selftest-"
_KEPT_SETTINGS = frozenset({"GFXGRAPH_ARCH", "GFXGRAPH_ENVIRONMENT", "GFXGRAPH_LIB"})
_KILL_LIMIT_S = 10.0
# What a process of the suite takes of the device: its context, libraries' workspaces, the case's own tensors.
NEEDED_MIB = 1536


def n_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and what it left.

    ``status``: negative for a signal; None where the process could not even be killed. ``said``: what the
    worker wrote, empty where it ended before it could.
    """

    status: int | None
    was_killed: bool
    seconds: float = 0.0
    said: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()


class Closed(Exception):
    """The crew was told to end; what became of the case is not known."""


class Crew(Protocol):
    """Where processes come from; ``run`` may be called from several threads."""

    def run(self, arguments: Sequence[str], limit_s: float) -> Ended:
        """Run the worker with these arguments in a process of its own, in a folder of its own.

        Raises:
            Closed: the crew was closed before the process had ended.
        """

    def close(self) -> None:
        """End every process at once."""


class PreparedProcesses:
    """Processes that have imported torch, or are about to, each for one case.

    Args:
        module: where the cases are.
        n_ahead: how many to keep waiting.
        n_wanted: how many cases there may be: no more are started ahead.
    """

    def __init__(self, module: str, n_ahead: int = 1, n_wanted: int = 1) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._waiting: deque[_Process] = deque()
        self._running: set[_Process] = set()
        self._is_closed = False
        self.prepare(n_ahead, n_wanted)

    def prepare(self, n_ahead: int, n_wanted: int) -> None:
        """Keep ``n_ahead`` waiting, for the ``n_wanted`` cases that are left."""
        with self._lock:
            self._n_ahead, self._n_wanted = n_ahead, n_wanted
            self._fill()

    def _fill(self) -> None:
        while len(self._waiting) < min(self._n_ahead, self._n_wanted):
            self._waiting.append(_Process(self._module))

    def run(self, arguments: Sequence[str], limit_s: float) -> Ended:
        """As ``Crew.run``; the seconds count from when the process is given the case."""
        with self._lock:
            if self._is_closed:
                raise Closed
            # The oldest: it has come furthest.
            mine = self._waiting.popleft() if self._waiting else _Process(self._module)
            self._running.add(mine)
            self._n_wanted = max(0, self._n_wanted - 1)
            self._fill()
        try:
            ended = mine.run(arguments, limit_s)
        finally:
            with self._lock:
                self._running.discard(mine)
        if self._is_closed:
            raise Closed
        return ended

    def close(self) -> None:
        """As ``Crew.close``."""
        with self._lock:
            self._is_closed = True
            for each in (*self._waiting, *self._running):
                each.kill()
            while self._waiting:
                self._waiting.pop().forget()


class _Process:
    """One worker, from its start to what became of it."""

    def __init__(self, module: str) -> None:
        # A folder of its own: runtimes write dumps into the current one.
        self._folder = tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True)
        self._answer, self._log = (Path(self._folder.name) / name for name in ("result.json", "log"))
        with files.create(self._log) as file:
            # A group of its own, so that what it started goes with it.
            self._child = subprocess.Popen(
                [sys.executable, "-m", WORKER, "--wait", module],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                cwd=self._folder.name,
                env=_environment_of_a_case(),
                start_new_session=True,
            )

    def run(self, arguments: Sequence[str], limit_s: float) -> Ended:
        begun = time.monotonic()
        try:
            self._hand_over([*arguments, "--result", str(self._answer)])
            status, was_killed = self._end(limit_s)
            seconds = time.monotonic() - begun
            return Ended(status, was_killed, seconds, *_left_in(self._answer, self._log))
        finally:
            self.kill()  # Ctrl-C: nothing is left running
            self.forget()

    def _hand_over(self, arguments: Sequence[str]) -> None:
        assert self._child.stdin is not None
        # One that is dead already is found so by its status.
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(arguments).encode() + b"\n")
        with suppress(BrokenPipeError):
            self._child.stdin.close()

    def _end(self, limit_s: float) -> tuple[int | None, bool]:
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(limit_s), False
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(_KILL_LIMIT_S), True
        return None, True  # stuck in the kernel's GPU driver; it goes when that lets go of it

    def kill(self) -> None:
        if self._child.poll() is None:
            _kill(self._child.pid)

    def forget(self) -> None:
        """Remove the folder; the process has been killed or has ended."""
        if self._child.stdin is not None:
            with suppress(BrokenPipeError):
                self._child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(0.5)
        self._folder.cleanup()


class Forked:
    """Servers that have imported torch and fork for each case."""

    def __init__(self, n_servers: int) -> None:
        self.n_servers = n_servers
        self._is_closed = False
        self._servers = [_ForkServer() for _ in range(n_servers)]
        self._idle: SimpleQueue[_ForkServer] = SimpleQueue()
        for server in self._servers:
            self._idle.put(server)

    def run(self, arguments: Sequence[str], limit_s: float) -> Ended:
        """As ``Crew.run``."""
        server = self._idle.get()
        try:
            if self._is_closed:
                raise Closed
            with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
                answer, log = Path(folder) / "result.json", Path(folder) / "log"
                begun = time.monotonic()
                status, was_killed = server.run([*arguments, "--result", str(answer)], limit_s, folder, log)
                return Ended(status, was_killed, time.monotonic() - begun, *_left_in(answer, log))
        except RuntimeError:
            if self._is_closed:
                raise Closed from None
            raise
        finally:
            self._idle.put(server)

    def close(self) -> None:
        """As ``Crew.close``."""
        self._is_closed = True
        for server in self._servers:
            server.kill()


class _ForkServer:
    """A process that has imported torch and forks for each case; one case at a time."""

    def __init__(self) -> None:
        self._fork: int | None = None
        self._unread = b""
        self._child = subprocess.Popen(
            [sys.executable, "-m", WORKER, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment_of_a_case(),
            start_new_session=True,
            bufsize=0,
        )

    def kill(self) -> None:
        if self._child.poll() is None:
            _kill(self._child.pid)
        if (fork := self._fork) is not None:
            _kill(fork)
        self._child.wait()

    def run(self, arguments: Sequence[str], limit_s: float, folder: str, log: Path) -> tuple[int | None, bool]:
        """The exit status, None where the fork could not even be killed; and whether it had to be."""
        assert self._child.stdin is not None
        asked = {"arguments": [*arguments], "folder": folder, "log": str(log)}
        try:
            self._child.stdin.write(json.dumps(asked).encode() + b"\n")
        except BrokenPipeError:
            raise RuntimeError("the self-test's server is gone") from None
        self._fork = self._number(None)
        assert self._fork is not None
        try:
            status = self._number(limit_s)
            if status is not None:
                return status, False
            _kill(self._fork)
            return self._number(_KILL_LIMIT_S), True
        finally:
            self._fork = None

    def _number(self, limit_s: float | None) -> int | None:
        """The next number from the server; None where none comes in time."""
        assert self._child.stdout is not None
        while b"\n" not in self._unread:
            if not select.select([self._child.stdout], [], [], limit_s)[0]:
                return None
            read = self._child.stdout.read(4096)
            if not read:
                raise RuntimeError(f"the self-test's server ended with status {self._child.wait()}")
            self._unread += read
        line, self._unread = self._unread.split(b"\n", 1)
        return int(line)


# -- in the child ------------------------------------------------------------------------------------------------


def wait() -> list[str] | None:
    """The arguments of the case, once they come; None where none will."""
    line = sys.stdin.readline()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    return [str(word) for word in json.loads(line)] if line else None


def serve() -> list[str] | None:
    """Fork for each line of standard input. Returns twice: None in the server at its end, arguments in each fork."""
    import_all("gfxgraph.selftest.cases")
    gc.collect()
    gc.freeze()  # or the collector of each fork would write to, and so copy, all of torch's pages

    requests, answers = sys.stdin.fileno(), os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    with os.fdopen(requests, "r", closefd=False) as lines:
        for line in lines:
            asked = json.loads(line)
            pid = os.fork()
            if not pid:
                answers.close()
                _become(asked["folder"], asked["log"])
                return [str(word) for word in asked["arguments"]]
            with suppress(BrokenPipeError):  # who asked is gone; the next line will not come either
                answers.write(f"{pid}\n")
                _, status = os.waitpid(pid, 0)
                answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
    return None


def import_all(module: str) -> None:
    """All that the cases need, once; torch comes with it. None of it may touch a device."""
    for name in (
        "startup.activation",  # and what enable() imports
        "simulator",
        "callables.older",
        "callables.training.training",
        "guard.for_capture",
        "compile.torch_compile_patch",
        "adapters.transformers",
    ):
        importlib.import_module(f"gfxgraph.{name}")
    importlib.import_module("torch._dynamo")  # enable() does without; a graphed callable loads it
    importlib.import_module(module)


def _become(folder: str, log: str) -> None:
    os.setsid()
    os.chdir(folder)
    output = files.open_own(Path(log), is_emptied=True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)


# -- shared ------------------------------------------------------------------------------------------------------


def _left_in(answer: Path, log: Path) -> tuple[dict[str, Any], list[str]]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    try:
        found = files.read_json(answer)
    except (OSError, ValueError):
        return {}, lines  # the process ended before it could say anything
    return (found if isinstance(found, dict) else {}), lines


def _kill(group: int) -> None:
    # A fork is killed by its group; it may not have made one yet.
    for _ in range(2):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
            return
        time.sleep(0.05)


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
    # A case computes little: threads would wait for each other more than they compute.
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment
