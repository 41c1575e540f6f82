"""Failures at lines of a process's beginning and end: import and enable, exit handlers and finalizers, in forks.

    TORCH_DEVICE_BACKEND_AUTOLOAD=0 python -m tests.property.planted_processes [--every N --first K] [--only PART]

A struck import is done again; a fork ends as an interpreter ends, with live graphs, and with all that is written then.
A part of it is in `make test` (test_planted.py).
"""

from __future__ import annotations

import argparse
import atexit
import collections
import faulthandler
import gc
import importlib.util
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

_spec = importlib.util.find_spec("gfxgraph")  # not imported: that is one of the things interrupted
assert _spec is not None and _spec.origin is not None
OURS = os.path.dirname(_spec.origin) + os.sep
KINDS = (KeyboardInterrupt, MemoryError)
LIMIT_S = 120
kept: list[Any] = []
"""What lives until the process ends."""
at_last: list[Callable[[], None]] = []
"""What to do when all exit handlers of ours have run: Python 3.11 aborts if a thread leaves torch's C++ later."""


class Lines:
    """As ``faults.Lines``, which imports gfxgraph. It works on when this module's names are gone."""

    def __init__(self, target: Any = None, kind: type = KeyboardInterrupt) -> None:
        self.target, self.kind, self.is_struck = target, kind, False
        self.seen: collections.Counter[tuple[str, int]] = collections.Counter()
        self.ours, self.not_ours, self.set_trace, self.write = OURS, OURS + "simulator", sys.settrace, os.write
        self.list = -1
        """A file that gets each line at once: nothing can be written when the interpreter has ended."""

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(self.ours) and not name.startswith(self.not_ours) else None

    def _line(self, frame: Any, event: str, _: Any) -> Any:
        here = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and self.target is None:
            if not self.seen[here] and self.list >= 0:
                self.write(self.list, f"{here[0]}:{here[1]}\n".encode())
            self.seen[here] += 1
        elif event == "line" and here == self.target and not self.is_struck:
            self.is_struck = True
            self.set_trace(None)
            raise self.kind("at a line")
        return self._line


# -- beginning ----------------------------------------------------------------------------------------------


def begin() -> None:
    import gfxgraph

    gfxgraph.enable(simulate="hip", validate=False)


def begun(planted: Lines) -> dict[str, Any]:
    """Import and enable with a failure planted, then again; what is wrong afterwards."""
    sys.settrace(planted)
    try:
        begin()
    except (KeyboardInterrupt, MemoryError):
        pass
    finally:
        sys.settrace(None)
    if planted.target is None:
        return {"seen": [*planted.seen]}
    try:
        begin()
        from tests.property import faults

        x = torch.ones(8, device="cuda")
        bad = faults.faults_left(x, faults.before(faults.capture, x))
        faults.gfxgraph.disable()
        if torch.cuda.CUDAGraph.__module__.startswith("gfxgraph"):
            bad.append("torch's class stays replaced")
    except BaseException as error:
        bad = [f"{type(error).__name__}: {str(error)[:200]}"]
    return {"bad": bad, "struck": planted.is_struck}


def in_fork(planted: Lines) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(writing, "w") as out:
            json.dump(begun(planted), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read() if select.select([answer], [], [], LIMIT_S)[0] else ""
    if not text:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(text) if text else {"bad": ["it died or hangs"], "struck": True}
    return found


def beginnings(every: int, first: int = 0) -> dict[str, Any]:
    row: dict[str, Any] = {"positions": 0, "every": every, "broken": []}
    for n, line in enumerate(sorted(map(tuple, in_fork(Lines())["seen"]))[first::every]):
        found = in_fork(Lines(line, KINDS[n % 2]))
        row["positions"] += found["struck"]
        if found["bad"]:
            row["broken"].append([line[0].removeprefix(OURS), line[1], found["bad"]])
            print(row["broken"][-1], file=sys.stderr, flush=True)
    return row


# -- end ------------------------------------------------------------------------------------------------------

ENDS = ("live graphs", "an open capture", "another thread captures", "another thread replays", "a cycle")


SAID = re.compile("gfxgraph: |Fatal Python|[A-Za-z]+(Error|Exception|Interrupt)")
"""The beginning of a line that tells of something wrong."""
EXPECTED = re.compile("at a line|the program ended inside|no fallback left")
"""And of one that is meant: an open capture is given up; where a thread replays, the simulated card goes before it."""


def live(how: str, folder: str) -> None:
    """A program that is watched in every way, with what lives until its end."""
    os.environ.update(
        GFXGRAPH="1", GFXGRAPH_SIMULATE="hip", GFXGRAPH_VALIDATE_REPLAYS="0", GFXGRAPH_COVERAGE="1", GFXGRAPH_WATCH="60",
        GFXGRAPH_GUARD="2", GFXGRAPH_STATS=f"{folder}/stats", GFXGRAPH_REPORT=f"{folder}/report",
        GFXGRAPH_STATE_DIR=f"{folder}/state", XDG_STATE_HOME=folder,
    )  # fmt: skip
    import gfxgraph
    from gfxgraph.startup import hook
    from tests.property import faults

    hook.activate()
    x = torch.ones(8, device="cuda")
    graph, out = faults.captured(lambda: faults.program(x))
    made = gfxgraph.graphed(faults.program, assume_pure=True)
    for _ in range(4):
        graph.replay()
        made(x)
    kept.extend([graph, out, made, x])
    is_in, is_over = threading.Event(), threading.Event()

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            is_in.set()
            time.sleep(60)

    def replay() -> None:
        with suppress(RuntimeError):  # the simulated card goes before the thread
            while not is_over.is_set():
                graph.replay()
                is_in.set()

    if how == "an open capture":
        kept.append(torch.cuda.graph(torch.cuda.CUDAGraph()))
        kept[-1].__enter__()
    elif how == "a cycle":
        kept.append(kept)
    elif how != "live graphs":
        thread = threading.Thread(target=capture if "captures" in how else replay, daemon=True)
        thread.start()
        is_in.wait(20)
        if "replays" in how:
            at_last.extend([is_over.set, thread.join])


def end(how: str, planted: Lines, folder: str) -> tuple[bool, list[str]]:
    """Fork; (True, []) in the child, which is to end now, and in the parent what was wrong with its end."""
    pid = os.fork()
    if pid == 0:
        log = os.open(f"{folder}/log", os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable()
        atexit.register(lambda: [each() for each in at_last])
        if planted.target is None:
            planted.list = os.open(f"{folder}/seen", os.O_CREAT | os.O_WRONLY, 0o600)
        live(how, folder)
        sys.settrace(planted)
        return True, []
    limit = time.monotonic() + LIMIT_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < limit:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return False, ["it hangs"]
    code = os.waitstatus_to_exitcode(ended[1])
    text = Path(f"{folder}/log").read_text(errors="replace")
    bad = [f"it ends with {code}: {text[-4000:]}"] if code else []
    bad += [line for line in text.splitlines() if SAID.match(line) and not EXPECTED.search(line)]
    missing = [name for name in ("stats", "report") if not os.path.exists(f"{folder}/{name}")]
    return False, bad + ([f"not written: {missing}"] if len(missing) > (planted.target is not None) else [])


def ends(how: str, every: int, first: int = 0) -> dict[str, Any] | None:
    """Each line at one kind of end; None in a child, which is to end now."""
    row: dict[str, Any] = {"positions": 0, "every": every, "broken": []}
    lines: list[Any] = [None]
    for n, line in enumerate(lines):
        folder = tempfile.mkdtemp(prefix="end-")
        is_child, bad = end(how, Lines(line, KINDS[n % 2]), folder)
        if is_child:
            return None
        if line is None:
            seen = [line.rpartition(":") for line in Path(f"{folder}/seen").read_text().splitlines()]
            lines += sorted((path, int(number)) for path, _, number in seen)[first::every]
        row["positions"] += line is not None
        if bad:
            row["broken"].append([line and [line[0].removeprefix(OURS), line[1]], bad])
            print(how, row["broken"][-1], file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="of the lines, one in so many")
    parser.add_argument("--first", type=int, default=0, help="which of so many")
    parser.add_argument("--only", default="", help='"import" or one kind of end')
    parser.add_argument("--out", type=Path, help="a table of planted.py's, to which this adds its rows")
    asked = parser.parse_args()
    gc.freeze()  # what is there now is not looked through in each fork
    rows: dict[str, Any] = {}
    for how in ENDS:
        if asked.only in ("", how):
            row = ends(how, asked.every, asked.first)
            if row is None:
                return 0  # and now the interpreter ends
            rows[f"the end of a process: {how}"] = row
            print(how, row["positions"], len(row["broken"]), file=sys.stderr, flush=True)
    if asked.only in ("", "import"):
        rows["import and enable"] = beginnings(asked.every, asked.first)
    print(json.dumps(rows, indent=1))
    if asked.out is not None:
        table = json.loads(asked.out.read_text(encoding="utf-8"))
        table["parts"].update(rows)
        asked.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["broken"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
