"""Run a script so that the first capture or replay that goes wrong is bisected; for ``gfxgraph bisect``.

    python -m gfxgraph.startup.bisect_run RESULT.json TARGET.py AGAIN SCRIPT.py ARGS...

A process of its own, because it replaces the class of captures and the validation of replays. A fault ends
it and loses all values. It is then run again, with the place in AGAIN (a JSON object, or ``-`` the first time), to
walk through the graph that faulted, or to stop before the operation that faulted.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gfxgraph import files
from gfxgraph.capture import graph, validate
from gfxgraph.capture.host_values import HostValues
from gfxgraph.capture.places import place
from gfxgraph.capture.session import Session
from gfxgraph.core.reproducer import FaultKind
from gfxgraph.core.tape import Entry, Tape, TapeValue, where_of
from gfxgraph.errors import CaptureError
from gfxgraph.guard.bisect import (
    Bisection,
    BisectProgress,
    bisect_program,
    explained,
    script_of_fault,
    walk_program,
    write_script,
)
from gfxgraph.guard.localize import is_fault
from gfxgraph.guard.nodes import SegmentNode
from gfxgraph.process import process
from gfxgraph.process.health import stats
from gfxgraph.startup import activation

STATUS_FOUND = 1


class BisectRun:
    """The result and the file that it is written to."""

    def __init__(self, result: Path, target: Path) -> None:
        self.result = result
        self.target = target

    def found(self, bisection: Bisection) -> None:
        """Write the result and end the process: nothing after the first fault can be trusted."""
        self.end(asdict(bisection) | {"script": str(bisection.script) if bisection.script else None})

    def end(self, table: dict[str, Any]) -> None:
        files.write(self.result, json.dumps(table))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STATUS_FOUND)


class NotedProgress(BisectProgress):
    """Progress in a file beside the result, which shows what was running when the process died."""

    def __init__(self, path: Path) -> None:
        self._file = files.open_own(path)
        self.call = 0
        self.last: dict[str, Any] = {}

    def at(self, stage: str, segment: int, position: int = -1, entry: Entry | None = None) -> None:
        op, where = (entry.name, str(entry.where)) if entry is not None else ("the graph", "")
        self._note(stage, segment, position, op, where)

    def outside(self, segment: int, node: SegmentNode) -> None:
        self._note("outside", segment, -1, node.kernel or str(node.kind), node.where)

    def idle(self) -> None:
        """Clear the note: no trial of the bisection is running."""
        os.ftruncate(self._file, 0)

    def _note(self, stage: str, segment: int, position: int, op: str, where: str) -> None:
        self.last = {
            "call": self.call, "stage": stage, "segment": segment, "position": position, "op": op, "where": where
        }  # fmt: skip
        text = json.dumps(self.last).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))


class WatchedValues(HostValues):
    """Reads that the session remembers as operations."""

    def read_scalar(self, tensor: Tensor, name: str) -> Any:
        session = self._capturing()
        assert isinstance(session, WatchedSession)
        session.at = torch.ops.aten._local_scalar_dense.default, (tensor,), {}
        return super().read_scalar(tensor, name)


class WatchedSession(Session):
    """A capture that remembers its present operation, and bisects if that operation cannot be captured."""

    watch: BisectRun
    at: tuple[Any, Any, Any] | None = None

    values_type = WatchedValues

    def unsafe_op(self, row: Any, func: Any, args: Any, kwargs: Any) -> Any:
        self.at = func, args, kwargs
        return super().unsafe_op(row, func, args, kwargs)

    def op_failed(self, info: object, func: object, args: object, kwargs: object, error: RuntimeError) -> Any:
        self.at = func, args, kwargs
        return super().op_failed(info, func, args, kwargs, error)

    def abort(self, error: BaseException | None, dying: object = None) -> None:
        recorder, tape, at = self.recorder, self.recorder.tape, self.at
        is_first = not self.has_failed
        externals = dict(recorder.externals)
        row = None
        if at is not None and is_first:
            func, args, kwargs = at
            spec = tuple(recorder._spec(arg) for arg in args)
            row = Entry(func, spec, {k: recorder._spec(v) for k, v in kwargs.items()}, None, *place(), 0)
            externals |= recorder.externals
        super().abort(error, dying)
        if is_first and isinstance(error, CaptureError):
            self._bisect(error, tape, row, externals)

    def _bisect(self, error: CaptureError, tape: Tape, row: Entry | None, externals: dict[TapeValue, Tensor]) -> None:
        entries = [*tape.entries, row] if row is not None else list(tape.entries)
        op = str(error.fields.get("op") or (row.name if row is not None else "unknown"))
        where = str(error.fields.get("where") or where_of(*place()))
        script = None
        if row is not None:

            def values_before(position: int, wanted: Sequence[TapeValue]) -> dict[TapeValue, Tensor]:
                found = {value: externals[value] for value in wanted if value in externals}
                for value in wanted:
                    if value not in found:  # made in the capture, which computed nothing: any content will do
                        alive = value()
                        if alive is None:
                            raise KeyError(value)
                        fresh = torch.empty_strided(alive.size(), alive.stride(), dtype=alive.dtype)
                        found[value] = fresh.zero_()
                return found

            at = len(entries) - 1
            script = write_script(FaultKind.CAPTURE, tape, at, values_before, self.watch.target, entries)
        self.watch.found(
            Bisection(
                FaultKind.CAPTURE,
                op,
                where,
                explained(error),
                script[0] if script else None,
                script[1] if script else 0,
                len(entries),
            )
        )


class Replays:
    """Replaces the validation of replays.

    Args:
        again: where an earlier run faulted; empty in the first.
    """

    def __init__(self, watch: BisectRun, progress: NotedProgress, again: dict[str, Any]) -> None:
        self.watch = watch
        self.progress = progress
        self.again = again

    def __call__(self, program: Any, retire: Any) -> bool:
        self.progress.call += 1
        is_the_one = self.progress.call == self.again.get("call")
        try:
            if is_the_one and self.again["stage"] == "launch":
                walk_program(program, self.progress)
                found = None
            elif is_the_one:
                self._stop_before_fault(program)
            else:
                found = bisect_program(program, self.watch.target, self.progress)
        except (RuntimeError, IndexError) as error:
            if not (is_fault(error) or "out of bounds" in str(error)):
                raise
            self.watch.end({"kind": FaultKind.FAULT, "detail": explained(error), "at": self.progress.last})
            raise
        self.progress.idle()
        if found is not None:
            self.watch.found(found)
        return True

    def _stop_before_fault(self, program: Any) -> None:
        entry, script, n_before = script_of_fault(
            program, self.again["segment"], self.again["position"], self.watch.target
        )
        detail = str(self.again["detail"])
        shown, n_ops = script if script is not None else (None, 0)
        self.watch.found(Bisection(FaultKind.FAULT, entry.name, str(entry.where), detail, shown, n_ops, n_before))


def main(arguments: Sequence[str]) -> None:
    """Run the script; does not return if something was found."""
    result, target, again, *program = arguments
    watch = BisectRun(Path(result), Path(target))
    WatchedSession.watch = watch
    activation.enable(on_unsafe="raise", validate=True)
    vars(graph)["Session"] = WatchedSession
    process.require().validate_replays = 1 << 30
    progress = NotedProgress(Path(result).with_suffix(".progress"))
    validate.replay_validated = Replays(watch, progress, {} if again == "-" else json.loads(again))
    sys.argv = list(program)
    sys.path.insert(0, str(Path(program[0]).resolve().parent))
    try:
        runpy.run_path(program[0], run_name="__main__")
    finally:  # also if the script ends by sys.exit()
        files.write(Path(result).with_suffix(".captures"), str(stats()["capture_count"]))


if __name__ == "__main__":
    main(sys.argv[1:])
