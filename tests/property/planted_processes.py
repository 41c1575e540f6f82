"""Failures at lines of a process's beginning and end: import and enable, exit handlers and finalizers, in forks.

    TORCH_DEVICE_BACKEND_AUTOLOAD=0 python -m tests.property.planted_processes --every N [--out FILE]

A struck import is done again; a fork ends as an interpreter ends, with live graphs, and with all that is written then.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import faulthandler
import importlib.util
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
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


class Lines:
    """As ``faults.Lines``, which imports gfxgraph."""

    def __init__(self, target: Any = None, kind: type = KeyboardInterrupt) -> None:
        self.target, self.kind, self.is_struck = target, kind, False
        self.seen: collections.Counter[tuple[str, int]] = collections.Counter()

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(OURS) and not name.startswith(OURS + "simulator") else None

    def _line(self, frame: Any, event: str, _: Any) -> Any:
        here = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and self.target is None:
            self.seen[here] += 1
        elif event == "line" and here == self.target and not self.is_struck:
            self.is_struck = True
            sys.settrace(None)
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


def beginnings(every: int) -> dict[str, Any]:
    row: dict[str, Any] = {"positions": 0, "every": every, "broken": []}
    for n, line in enumerate(sorted(map(tuple, in_fork(Lines())["seen"]))[::every]):
        found = in_fork(Lines(line, KINDS[n % 2]))
        row["positions"] += found["struck"]
        if found["bad"]:
            row["broken"].append([line[0].removeprefix(OURS), line[1], found["bad"]])
            print(row["broken"][-1], file=sys.stderr, flush=True)
    return row


# -- end ------------------------------------------------------------------------------------------------------

ENDS = ("live graphs", "an open capture", "another thread captures", "another thread replays", "a cycle")


def live(how: str, folder: str) -> None:
    """A program that is watched in every way, with what lives until its end."""
    os.environ.update(
        GFXGRAPH="1", GFXGRAPH_SIMULATE="hip", GFXGRAPH_VALIDATE_REPLAYS="0", GFXGRAPH_COVERAGE="1", GFXGRAPH_WATCH="60",
        GFXGRAPH_GUARD="2", GFXGRAPH_STATS=f"{folder}/stats", GFXGRAPH_REPORT=f"{folder}/report",
        GFXGRAPH_METRICS=f"{folder}/metrics", GFXGRAPH_STATE_DIR=f"{folder}/state", XDG_STATE_HOME=folder,
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
    is_in = threading.Event()

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            is_in.set()
            time.sleep(60)

    def replay() -> None:
        while True:
            graph.replay()
            is_in.set()

    if how == "an open capture":
        kept.append(torch.cuda.graph(torch.cuda.CUDAGraph()))
        kept[-1].__enter__()
    elif how == "a cycle":
        kept.append(kept)
    elif how != "live graphs":
        threading.Thread(target=capture if "captures" in how else replay, daemon=True).start()
        is_in.wait(20)


def end(how: str, planted: Lines, folder: str) -> tuple[bool, list[str]]:
    """Fork; (True, []) in the child, which is to end now, and in the parent what was wrong with its end."""
    pid = os.fork()
    if pid == 0:
        log = os.open(f"{folder}/log", os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable()
        if planted.target is None:
            atexit.register(lambda: Path(f"{folder}/seen").write_text(json.dumps([*planted.seen])))
        live(how, folder)
        atexit.register(sys.settrace, planted)  # the first to run
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
    bad = [f"it ends with {code}: {text[-500:]}"] if code else []
    return False, bad + (["a fatal error"] if "Fatal Python" in text else [])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="of the lines, one in so many")
    parser.add_argument("--out", type=Path, help="a table of planted.py's, to which this adds its rows")
    asked = parser.parse_args()
    rows: dict[str, Any] = {}
    for how in ENDS:
        row = rows[f"the end of a process: {how}"] = {"positions": 0, "every": asked.every, "broken": []}
        lines: list[Any] = [None]
        for n, line in enumerate(lines):
            folder = tempfile.mkdtemp(prefix="end-")
            is_child, bad = end(how, Lines(tuple(line) if line else None, KINDS[n % 2]), folder)
            if is_child:
                return 0  # and now the interpreter ends
            if line is None:
                lines += sorted(json.loads(Path(f"{folder}/seen").read_text()))[:: asked.every]
            row["positions"] += line is not None
            if bad:
                row["broken"].append([line, bad])
                print(how, row["broken"][-1], file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
        print(how, row["positions"], len(row["broken"]), file=sys.stderr, flush=True)
    rows["import and enable"] = beginnings(asked.every)
    print(json.dumps(rows, indent=1))
    if asked.out is not None:
        table = json.loads(asked.out.read_text(encoding="utf-8"))
        table["parts"].update(rows)
        asked.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["broken"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
