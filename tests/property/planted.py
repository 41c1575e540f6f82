"""Failures at every line of what runs beside captures: switching on and off, threads of ours, forks, a process's end.

Run whole, it writes what it counted:  python -m tests.property.planted [--every N] [--only PART] [--out FILE]
A part of it is in `make test` (test_planted.py).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import errno
import functools
import gc
import json
import os
import pickle
import platform
import select
import signal
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import gfxgraph
from gfxgraph import files, simulator
from gfxgraph.capture import capture_lock
from gfxgraph.capture.record import modes
from gfxgraph.capture.replay import hang_watch
from gfxgraph.process import bridge, process
from gfxgraph.reporting import write_process_file
from tests.conformance.bench import attributes, patched
from tests.property import faults

KINDS = (KeyboardInterrupt, MemoryError)
Struck = tuple[str, bool, list[str]]
"""A position, whether the failure struck there, and what is wrong afterwards."""


def on() -> None:
    gfxgraph.enable(simulate="hip", validate=False)


def nothing() -> None:
    pass


def struck_at(call: Callable[[], object], line: Any, nth: int, kind: type) -> bool:
    """Run a call, and raise at one line of ours; whether the line was reached."""
    planted = faults.Lines(line, nth, kind)
    try:
        planted.run(call)
    except (KeyboardInterrupt, MemoryError, RuntimeError):
        pass
    return planted.left == 0


def lines(call: Callable[[], object], most_hits: int = 40) -> list[tuple[tuple[str, int], int]]:
    """Every line of ours that a call reaches, with which time."""
    counting = faults.Lines()
    counting.run(call)
    return [(line, nth) for line, n in sorted(counting.seen.items()) for nth in range(1, min(n, most_hits) + 1)]


@contextmanager
def card_in_place() -> Iterator[None]:
    """A simulated card that stays when the bridge is switched off, as a real one does."""
    gfxgraph.disable()
    saved = simulator.install
    with simulator.install("hip"):
        simulator.install = lambda *_, **__: types.SimpleNamespace(undo=nothing)
        try:
            yield
        finally:
            gfxgraph.disable()
            simulator.install = saved


def in_thread(call: Callable[[], object]) -> None:
    """Run a call in another thread, and wait for it; what it raises is dropped."""

    def run() -> None:
        with suppress(BaseException):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


# -- switching on and off -------------------------------------------------------------------------------


def off_with_graph() -> None:
    graph, _ = faults.captured(lambda: torch.ones(4, device="cuda") * 2)
    graph.replay()
    gfxgraph.disable()


def off_in_capture() -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(4, device="cuda") * 2
        gfxgraph.disable()


def off_and_on() -> None:
    gfxgraph.disable()
    on()


SWITCHES: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "disable": (on, gfxgraph.disable),
    "disable with a graph": (on, off_with_graph),
    "disable, enable": (on, off_and_on),
    "enable": (gfxgraph.disable, on),
    "enable again": (on, on),
}
THEN = {"disable": gfxgraph.disable, "enable": on, "nothing": nothing}


def after_switch(stock: Any, then: Callable[[], None]) -> list[str]:
    """What is wrong after a switch that was struck, if the program then does that."""
    bad: list[str] = []
    gc.collect()  # a turn that could not be given dies with the frame that had it
    try:
        then()
        if then is gfxgraph.disable and gfxgraph.is_enabled():
            bad.append("it cannot be switched off")
        if then is on and not gfxgraph.is_enabled():
            bad.append("it cannot be switched on")
        if not gfxgraph.is_enabled():
            bad += [f"{name} stays replaced" for name in patched(stock)]
        else:
            x = torch.ones(8, device="cuda")
            kept = faults.before(faults.capture, x)
            bad += faults.faults_left(x, kept)
            del kept, x
        gc.collect()
        gfxgraph.disable()
        bad += [f"{name} stays replaced after disable()" for name in patched(stock)]
        on()
        x = torch.ones(8, device="cuda")
        bad += faults.faults_left(x, faults.before(faults.capture, x))
    except BaseException as error:
        bad.append(f"{type(error).__name__}: {str(error).splitlines()[:1]}")
    return bad


def switching(every: int = 1, names: Any = tuple(SWITCHES)) -> Iterator[Struck]:
    """Each line of each switch."""
    with card_in_place():
        for name in names:
            start, call = SWITCHES[name]
            start()
            call()
            gfxgraph.disable()
            stock = attributes()
            start()
            gc.collect()
            gc.freeze()  # what is there now is not looked through at each position
            n = 0
            for line, nth in lines(call)[::every]:
                for kind in KINDS:
                    n += 1
                    then = list(THEN)[n % len(THEN)]
                    start()
                    struck = struck_at(call, line, nth, kind)
                    bad = after_switch(stock, THEN[then])
                    place = f"{line[0].removeprefix(faults.OURS)}:{line[1]}, time {nth}"
                    yield f"{name}: {kind.__name__} at {place}, then {then}", struck, bad
                    if bad:
                        repair(stock)


def repair(stock: Any) -> None:
    """Put torch back by hand, so that the next position begins as the first did."""
    process.sessions().clear()
    for _ in range(3):
        with suppress(BaseException):
            gfxgraph.disable()
    bridge.undo.clear()
    for owner, names in stock:
        for name, value in names.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)


# -- threads of ours --------------------------------------------------------------------------------------


class Round:
    """A thread of ours whose rounds come fast; ``works`` says whether one has done its work since it was asked last."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        state = process.require()
        self.stop: Callable[[], object] = nothing
        if name == "watch":
            self.watch = hang_watch.Deadline(state, 0.004)
            self.turn = capture_lock.Turn(thread=0, where="a test", begun=1.0)
            self.stop = self.watch.stop

    def begin(self) -> None:
        if self.name == "watch":
            capture_lock._turns.append(weakref.ref(self.turn))
            self.watch.begin()
        else:
            write_process_file.PERIOD_S = 0.001
            ended = threading.Event()
            self.stop = ended.set
            settings = replace(process.require().settings, report=str(self.folder))
            threading.Thread(
                target=write_process_file._keep_writing, args=(settings, os.getpid(), ended), daemon=True
            ).start()

    def works(self) -> bool:
        if self.name == "watch":
            self.watch._seen.clear()
            return soon(lambda: any(seen.is_told for seen in list(self.watch._seen.values())))
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)  # a file on its way has another name
        return soon(lambda: any(self.folder.iterdir()))


def soon(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + 5
    while not is_so() and time.monotonic() < end:
        time.sleep(0.001)
    return is_so()


def watchers(every: int = 1, names: Any = ("watch", "report")) -> Iterator[Struck]:
    """Each line that a round of a thread of ours reaches, below its loop: the next rounds do their work."""
    on()
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.capture, x)
    level = process.log.level
    process.log.setLevel("CRITICAL")
    for name in names:
        counting = in_round(name, None, 0, MemoryError)[1]
        # The loop itself, and the call that reports what a round raised, have nobody above them.
        below = [
            line for line in sorted(counting.seen) if name_of(line) not in ("_run", "run", "attempt", "_keep_writing")
        ]
        for n, line in enumerate(below[::every]):
            kind = (MemoryError, OSError, RuntimeError, KeyboardInterrupt)[n % 4]
            works, planted = in_round(name, line, 1, kind)
            bad = [] if works else ["it no longer works"]
            where = f"{name}: {kind.__name__} at {line[0].removeprefix(faults.OURS)}:{line[1]}"
            yield where, planted.left == 0, bad + faults.faults_left(x, kept)
    process.log.setLevel(level)
    gfxgraph.disable()


def in_round(name: str, line: Any, nth: int, kind: type) -> tuple[bool, faults.Lines]:
    """Run a thread of ours with a failure planted; whether it works afterwards."""
    planted = faults.Lines(line, nth, kind)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        one = Round(name, Path(folder))
        threading.settrace(planted)
        hook, threading.excepthook = threading.excepthook, lambda _: None
        try:
            one.begin()
            threading.settrace(None)  # type: ignore[arg-type]
            if line is None:
                time.sleep(0.2)
            else:
                soon(lambda: planted.left == 0)
            return kind is KeyboardInterrupt or one.works(), planted  # an interrupt ends the thread
        finally:
            threading.settrace(None)  # type: ignore[arg-type]
            one.stop()
            threading.excepthook = hook


def name_of(line: tuple[str, int]) -> str:
    """The function that a line is in."""
    return _functions(line[0]).get(line[1], "")


@functools.cache
def _functions(path: str) -> dict[int, str]:
    found = {}
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            found.update(dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), node.name))
    return found


# -- files of ours ------------------------------------------------------------------------------------------


def own_files() -> Iterator[Struck]:
    """Each call that writes or reads a file of ours fails once, with a full disk."""
    gfxgraph.disable()
    gfxgraph.enable(simulate="hip", validate=False, guard=2)
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.graphed_replay, x)

    def program() -> None:
        graph, _ = faults.captured(lambda: faults.program(x))
        graph.replay()
        made = gfxgraph.graphed(faults.program, assume_pure=True, mode="adaptive")
        for _ in range(6):
            made(x)
        gfxgraph.stats()

    program()
    for name in ("write", "new_folder", "read", "read_json"):
        for nth in range(1, 100):
            n, bad = _with_full_disk(program, name, nth)
            if n < nth:
                break
            yield f"files.{name}, call {nth}: OSError", True, bad + faults.faults_left(x, kept)
    gfxgraph.disable()


def _with_full_disk(program: Callable[[], None], name: str, nth: int) -> tuple[int, list[str]]:
    real, n = getattr(files, name), 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal n
        n += 1
        if n == nth:
            raise OSError(errno.ENOSPC, "No space left on device", "a file")
        return real(*args, **kwargs)

    setattr(files, name, failing)
    try:
        program()
    except Exception as error:
        return n, [f"the program sees {type(error).__name__}: {error}"]
    finally:
        setattr(files, name, real)
    return n, []


# -- forks ------------------------------------------------------------------------------------------------------


def in_child(what: Callable[[], object], planted: faults.Lines | None = None) -> str:
    """What a forked child answers; "hangs" or how it died if it does not."""
    reading, writing = os.pipe()
    sys.settrace(planted)
    pid = os.fork()
    if pid == 0:
        sys.settrace(None)
        try:
            text = repr(what()) if planted is None or planted.target else json.dumps([*planted.seen.items()])
        except BaseException as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        os.write(writing, text.encode())
        os._exit(planted.left if planted is not None and planted.target else 0)
    sys.settrace(None)
    os.close(writing)
    answers, _, _ = select.select([reading], [], [], 20)
    text = os.read(reading, 1 << 20).decode() if answers else "hangs"
    if not answers:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(reading)
    return text if answers else f"hangs ({status})"


def child_state() -> list[str]:
    """What a child inherited that is its parent's business, and whether it can work."""
    bad = []
    if not gc.isenabled():
        bad.append("the collector is off")
    if torch.Tensor.item is not faults.STOCK[0]:
        bad.append("torch's names are replaced")
    if torch._C._len_torch_dispatch_stack():
        bad.append("a mode is left on")
    if capture_lock.is_held_here():
        bad.append("the parent's turn is held")
    if not torch.autograd.is_multithreading_enabled():
        bad.append("autograd is restricted")
    if float((torch.ones(4) * 2).sum()) != 8.0 or not 0 <= torch.rand(1).item() < 1:
        bad.append("work on the CPU is wrong")
    gfxgraph.stats()
    torch.cuda.CUDAGraph()
    gc.collect()
    gfxgraph.disable()
    return [*bad, *(["it is still on"] if gfxgraph.is_enabled() else [])]


def refused(graph: Any) -> list[str]:
    """A child may not replay its parent's graph."""
    try:
        graph.replay()
    except gfxgraph.ReplayError as error:
        return [] if error.code == "graph_in_forked_child" else [error.code]
    return ["the parent's graph was replayed"]


@contextmanager
def beside(block: Callable[[], Any]) -> Iterator[None]:
    """Another thread is inside a block meanwhile."""
    is_in, is_over = threading.Event(), threading.Event()

    def run() -> None:
        with block():
            is_in.set()
            is_over.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    is_in.wait(60)
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def capturing() -> Iterator[None]:
    x = torch.ones(8, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x * 2
        yield


FORKS: dict[str, Callable[[], Any]] = {
    "outside": contextlib.nullcontext,
    "in a capture": capturing,
    "beside a capture": lambda: beside(capturing),
    "beside a holder of the turns' lock": lambda: beside(lambda: capture_lock.lock),
    "beside a holder of the counters' lock": lambda: beside(lambda: process.require().counters._lock),
    "beside a holder of the bridge's lock": lambda: beside(lambda: bridge.lock),
    "beside a holder of the modes' lock": lambda: beside(lambda: modes._lock),
}


def forks(every: int = 1) -> Iterator[Struck]:
    """Children forked at moments that matter, and each line of ours that runs in one as it begins."""
    on()
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.capture, x)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    for name, moment in FORKS.items():
        for what in (child_state, lambda: refused(kept["graph"])):
            with moment():
                text = in_child(what)
            yield f"fork {name}", True, ([] if text == "[]" else [text]) + faults.faults_left(x, kept)
        with moment():
            listed = json.loads(in_child(nothing, faults.Lines()))
        for n, (line, _) in enumerate(listed[::every]):
            kind = KINDS[n % 2]
            with moment():
                # A struck child may keep what it inherited; it ends as it should, and its parent is whole.
                text = in_child(lambda: float((torch.ones(4) * 2).sum()), faults.Lines(tuple(line), 1, kind))
            bad = [] if text == "8.0" else [text]
            where = f"fork {name}: {kind.__name__} at {line[0].removeprefix(faults.OURS)}:{line[1]}"
            yield where, True, bad + faults.faults_left(x, kept)
    sys.unraisablehook = hook
    gfxgraph.disable()


# -- copies and pickles -------------------------------------------------------------------------------------


def copied() -> Iterator[Struck]:
    """Each line of ours while a graphed callable is copied or pickled; it and later copies work."""
    on()
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.graphed_replay, x)
    made = kept["graphed"]
    for name, call in (("copy", lambda: copy.deepcopy(made)), ("pickle", lambda: pickle.loads(pickle.dumps(made)))):
        for n, (line, nth) in enumerate(lines(call)):
            kind = KINDS[n % 2]
            struck = struck_at(call, line, nth, kind)
            bad = [] if torch.equal(call()(x), faults.program(x)) else ["a later copy is wrong"]
            where = f"{name}: {kind.__name__} at {line[0].removeprefix(faults.OURS)}:{line[1]}, time {nth}"
            yield where, struck, bad + faults.faults_left(x, kept)
    gfxgraph.disable()


# -- whole ----------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[int], Iterator[Struck]]] = {
    "switching on and off": lambda every: switching(every),
    "threads of ours": lambda every: watchers(every),
    "files of ours": lambda every: own_files(),
    "forks": lambda every: forks(),
    "copies and pickles": lambda every: copied(),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="of the lines of a part, one in so many")
    parser.add_argument("--only", default="", help="parts, separated by commas")
    parser.add_argument("--commit", default="", help="of the source, for the table")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows: dict[str, Any] = {}
    for part, run in PARTS.items():
        if asked.only and part not in asked.only.split(","):
            continue
        row = rows[part] = {"positions": 0, "every": asked.every, "broken": []}
        for where, struck, bad in run(asked.every):
            row["positions"] += struck
            if bad:
                row["broken"].append([where, bad])
                print(where, bad, file=sys.stderr, flush=True)
        print(part, row["positions"], len(row["broken"]), file=sys.stderr, flush=True)
    result = {
        "device": "none (simulator, hip)",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": asked.commit,
        "parts": rows,
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")
    return 1 if any(row["broken"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
