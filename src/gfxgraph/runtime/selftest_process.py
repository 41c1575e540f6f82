"""How a case of the self-test gets its process, and how that process is made to end.

Fresh processes are what a real GPU needs: a runtime that has been loaded is not promised to survive a fork.
On the simulator there is no runtime, and most of a fresh process's time goes into importing torch, so there
a server imports it once and forks for each case.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import gfxgraph

WORKER = "gfxgraph.runtime.selftest_worker"
_KEPT_SETTINGS = frozenset({"GFXGRAPH_ARCH", "GFXGRAPH_ENVIRONMENT", "GFXGRAPH_LIB"})
_KILL_LIMIT_S = 10.0

Starter = Callable[[Sequence[str], float, str, Path], tuple[int | None, bool]]
"""Takes arguments of the worker, a time limit, the folder to work in and the file for its output. Gives the exit
status, negative for a signal, None where the process could not even be killed; and whether it had to be."""


def start_fresh(arguments: Sequence[str], limit_s: float, folder: str, log: Path) -> tuple[int | None, bool]:
    """Run the worker in a process of its own."""
    with log.open("wb") as file:
        # A group of its own, so that what it started goes with it.
        child = subprocess.Popen(
            [sys.executable, "-m", WORKER, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=folder,
            env=_environment_of_a_case(),
            start_new_session=True,
        )
    try:
        return child.wait(limit_s), False
    except subprocess.TimeoutExpired:
        _kill(child.pid)
    except BaseException:  # Ctrl-C: nothing is left running
        _kill(child.pid)
        raise
    try:
        return child.wait(_KILL_LIMIT_S), True
    except subprocess.TimeoutExpired:
        return None, True  # stuck in the kernel's GPU driver; it goes when that lets go of it


class ForkServer:
    """A process that has imported torch and forks for each case; one case at a time."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", WORKER, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment_of_a_case(),
            start_new_session=True,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        _kill(self._child.pid)
        self._child.communicate()

    def start(self, arguments: Sequence[str], limit_s: float, folder: str, log: Path) -> tuple[int | None, bool]:
        """As ``start_fresh``."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"arguments": [*arguments], "folder": folder, "log": str(log)}) + "\n")
        pid = self._answer(None)
        assert pid is not None
        status = self._answer(limit_s)
        if status is not None:
            return status, False
        _kill(pid)
        return self._answer(_KILL_LIMIT_S), True

    def _answer(self, limit_s: float | None) -> int | None:
        """The next number from the server; None where none comes in time."""
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], limit_s)[0]:
            return None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the self-test's server ended with status {self._child.wait()}")
        return int(line)


def serve() -> list[str] | None:
    """Fork for each line of standard input. Returns twice: None in the server at its end, arguments in each fork."""
    # All that the cases need, once; torch comes with it.
    from gfxgraph.runtime import graph, selftest_cases, simulator, validate  # noqa: F401

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
            answers.write(f"{pid}\n")
            _, status = os.waitpid(pid, 0)
            answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
    return None


def _become(folder: str, log: str) -> None:
    os.setsid()
    os.chdir(folder)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)


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
