"""Finds the parts of a function that would break or split a capture, by capturing it in the simulator.

The recorder that keeps captures alive recognises each operation that cannot be captured before it runs. So one
capture on the simulated device lists them all: nothing is guessed from source text, and no GPU is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import gfxgraph
from gfxgraph.capture.graph import BridgedGraph
from gfxgraph.capture.record.user_lines import line_of, line_of_error, user_frame
from gfxgraph.capture.replay.program import Program, ReadStep
from gfxgraph.core.unsafe import Kind
from gfxgraph.errors import CaptureError, CommandError, GfxGraphError
from gfxgraph.process import calls, process
from gfxgraph.reporting.read_capture import read_capture
from gfxgraph.reporting.rewrites import rewrite, why_unsafe

SPLITS, BREAKS = "splits", "breaks"
ONCE, BAKED = "once", "baked in"
LEVELS = {SPLITS: "warning", BREAKS: "error", ONCE: "notice", BAKED: "notice"}
"""How GitHub shows each kind."""


@dataclass(frozen=True, slots=True)
class UncapturedPlace:
    """One place of the function that a graph cannot contain.

    Args:
        kind: "splits" (the graph is cut there, the host does that part at each replay), "breaks" (the capture
            fails), "once" (it happens in the capture alone) or "baked in" (a number is a constant of the graph).
        then: what a replay does where the host reads another value than the capture did.
    """

    kind: str
    op: str
    file: str
    line: int
    reason: str
    rewrite: str
    n_times: int = 1
    then: str = ""

    def annotation(self) -> str:
        """As a command of GitHub's workflows, which shows it on its line of a diff."""
        told = "; ".join(
            filter(
                None,
                [f"{self.kind}: {self.op}: {self.reason}", self.then, self.rewrite and f"instead: {self.rewrite}"],
            )
        )
        return annotation(LEVELS[self.kind], told, self.file, self.line)

    def text(self) -> str:
        """In a compiler's format, with a relative path if the file is in the working directory."""
        often = f" ({self.n_times} times)" if self.n_times > 1 else ""
        where = f"{self.file}:{self.line}".removeprefix(f"{Path.cwd()}/")
        lines = [f"{where}: {self.kind}: {self.op}{often}: {self.reason}"]
        lines += [f"    {label}: {told}" for label, told in (("then", self.then), ("instead", self.rewrite)) if told]
        return "\n".join(lines)


def annotation(level: str, told: str, file: str = "", line: int = 0) -> str:
    """A command of GitHub's workflows."""
    escaped = told.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    place = f" file={os.path.relpath(file)},line={line}" if file else ""
    return f"::{level}{place}::{escaped}"


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one capture: how many graphs it takes, and why it is not one."""

    target: str
    findings: tuple[UncapturedPlace, ...]
    n_graphs: int
    n_operations: int
    notes: tuple[UncapturedPlace, ...] = ()
    """What a graph holds otherwise than a reader of the function may think; no reason against a capture."""
    inputs: tuple[str, ...] = ()
    """What a replay reads from outside, by the places that hold it."""
    replay: dict[str, int] | None = None
    """How one replay ran: by way, as ``gfxgraph.stats()["calls"]`` counts it; None if there was none."""

    @property
    def is_one_graph(self) -> bool:
        return self.n_graphs <= 1 and not self.findings

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"is_one_graph": self.is_one_graph}


class CannotCheck(CommandError):
    """`function_unusable`: the function was not found, or does not run even without a capture."""

    def __init__(self, target: str, problem: str, where: str = "") -> None:
        self.place = _place(where)
        problem = f"{problem} at {where}" if where else problem
        super().__init__("function_unusable", target=target or '""', problem=problem)


def load(target: str) -> Any:
    """The object named by ``module:name`` or ``path/file.py:name``, or an instance if it is a class; a name may have
    dots.

    Raises:
        CannotCheck: there is no such object.
    """
    module_name, _, name = target.rpartition(":")
    if not module_name or not name:
        raise CannotCheck(target, "it names no function")
    try:
        module = _module(module_name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the user's module does as it is imported)
        raise CannotCheck(target, f"{module_name} cannot be imported: {_text(error)}") from error
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            import difflib

            near = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise CannotCheck(target, f"{module_name} has no {name}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise CannotCheck(target, f"it is not callable, it is of type {type(found).__name__}")
    if not isinstance(found, type):
        body = getattr(found, "forward", found)
        if inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise CannotCheck(target, "calling it runs nothing yet (a generator or async def): name a plain function")
        return found
    try:
        return found()
    except (Exception, SystemExit) as error:  # noqa: BLE001  (likewise)
        raise CannotCheck(
            target, f"an object of this class cannot be made without arguments: {_text(error)}"
        ) from error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _module(name: str) -> object:
    if not name.endswith(".py"):
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(name)
    path = Path(name)
    if not path.exists():
        raise ImportError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.absolute()))
    spec.loader.exec_module(module)
    return module


def arguments(fn: Callable[..., object], expressions: Sequence[str], target: str = "") -> list[object]:
    """The values of ``expressions``, which may use ``torch``; as many as the function requires.

    Raises:
        CannotCheck: one is not an expression, or there are too few.
    """
    values = []
    for text in expressions:
        try:
            values.append(eval(text, {"torch": torch}))
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the user's expression raises)
            raise CannotCheck(target, f"--arg {text!r}: {_text(error)}") from error
    needed = [
        p.name
        for p in _parameters(fn)
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(values) < len(needed):
        example = " ".join("--arg \"torch.randn(2, 8, device='cuda')\"" for _ in needed[len(values) :])
        raise CannotCheck(target, f"it needs values for {', '.join(needed[len(values) :])}: {example}")
    return values


def _parameters(fn: Callable[..., object]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(getattr(fn, "forward", fn)).parameters.values())
    except (TypeError, ValueError):
        return []


def check(fn: Callable[..., object], args: Sequence[object] = (), *, target: str = "") -> Checked:
    """Capture ``fn(*args)`` on the simulated device, which must be installed, and list what cannot be captured.

    Raises:
        CannotCheck: it does not run without a capture either.
    """
    seen = _Effects()
    try:
        with seen:
            fn(*args)
        torch.cuda.synchronize()
    except (Exception, SystemExit) as error:
        raise CannotCheck(target, f"it fails without a capture: {_text(error)}", line_of_error(error)) from error
    home = _place(line_of(fn)) or ("?", 0)
    gfxgraph.reset_stats()
    graph = torch.cuda.CUDAGraph()
    broken: list[UncapturedPlace] = []
    try:
        with torch.cuda.graph(graph):
            fn(*args)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (what a capture alone makes the function raise is a finding)
        broken.append(_of_error(error, home))
    events = process.require().counters.events
    kept: dict[tuple[str, str, int, str], UncapturedPlace] = {}
    for found in (*_of_events(events, home), *broken):  # of two for one operation at one place, the first
        kept.setdefault((found.op, found.file, found.line, found.kind), found)
    program = graph._program
    outcomes = _outcomes(program) if program is not None else {}
    segments = program.segments if program is not None else []
    n_operations = sum(len(segment.tape.rows) for segment in segments)
    if not kept and not n_operations:
        raise CannotCheck(target, 'it computes nothing on the GPU; make its tensors with device="cuda"')
    findings = sorted(kept.values(), key=lambda f: (f.file, f.line, f.op))
    findings = [replace(f, then=outcomes.get((f.file, f.line), "") if f.kind == SPLITS else "") for f in findings]
    notes = [*seen.found.values(), *_baked(fn, args)]
    for _, _, value, attribute, entry in graph._held.numbers if graph._held is not None else ():
        notes.append(
            UncapturedPlace(BAKED, f"{attribute} = {value}", *(_place(str(entry.where)) or home), _STAYS, "")
        )
    inputs = read_capture(graph).inputs if graph._program is not None else ()
    name = target or getattr(fn, "__qualname__", str(fn))
    return Checked(name, tuple(findings), len(segments), n_operations, tuple(notes), inputs, _replayed(graph))


def _replayed(graph: BridgedGraph) -> dict[str, int] | None:
    """How one replay runs, as the account of calls has it."""
    if graph._program is None or graph.account is None:
        return None
    with suppress(GfxGraphError):
        graph.replay()
    table = graph.account.table()
    return {way: calls.n_of(table, way) for way in calls.WAYS}


def _outcomes(program: Program) -> dict[tuple[str, int], str]:
    """By line: what the capture decided on values that the host read."""
    found: dict[tuple[str, int], list[str]] = {}
    for step in program.steps:
        for guard in step.guards if isinstance(step, ReadStep) else ():
            place = _place(str(guard.where))
            if place is not None:
                question = f"{program.numbers.text(guard.subject)} was {guard.expected!r}"
                found.setdefault(place, []).append(question)
    return {
        place: f"the capture went on with {', '.join(dict.fromkeys(asked))}: a replay that finds another outcome "
        "raises GuardMismatch"
        for place, asked in found.items()
    }


class _Effects:
    """Finds calls of a run that replays do not repeat: prints, logs, files."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], UncapturedPlace] = {}

    def __enter__(self) -> None:
        self._outer = sys.getprofile()
        sys.setprofile(self._note)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._outer)

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:
        is_said = event == "c_call" and arg in (print, input, open)
        if is_said or (event == "call" and frame.f_code is logging.Logger.callHandlers.__code__):
            name = f"{arg.__name__}()" if is_said else "logging"
            at = user_frame(frame)
            while at is not None and at.f_globals.get("__name__") == "logging":
                at = at.f_back
            if at is not None:
                place = (at.f_code.co_filename, at.f_lineno)
                self.found.setdefault(place, UncapturedPlace(ONCE, name, *place, _ONCE, ""))


_STAYS = "the capture's values stay; another value needs another capture, or a tensor on the device"
_ONCE = "it runs once, in the capture; no replay repeats it"


def _baked(fn: Callable[..., object], args: Sequence[object]) -> Iterator[UncapturedPlace]:
    """Numbers that become constants of the graph: arguments, and what the function's code names outside of itself."""
    body = inspect.unwrap(getattr(fn, "forward", fn))
    place = _place(line_of(fn))
    if place is None:
        return
    names = [parameter.name for parameter in _parameters(fn)]
    found = {name: value for name, value in zip(names, args) if type(value) in (int, float)}
    outside = inspect.getclosurevars(body)
    for values in (outside.nonlocals, outside.globals):
        found |= {name: value for name, value in values.items() if type(value) in (int, float)}
    if found:
        told = ", ".join(f"{name} = {value!r}" for name, value in found.items())
        yield UncapturedPlace(BAKED, told, *place, _STAYS, "")


def run(target: str, expressions: Sequence[str] = (), profile: str = "hip") -> Checked:
    """Check what ``target`` names; this switches the simulator on in the process, so use a separate one.

    Raises:
        CannotCheck: see ``load`` and ``arguments``.
    """
    gfxgraph.enable(simulate=profile, validate=False)
    fn = load(target)
    return check(fn, arguments(fn, expressions, target), target=target)


def _of_events(events: Mapping[tuple[str, str, str, str], int], home: tuple[str, int]) -> Iterator[UncapturedPlace]:
    for (kind, reason, op, line), n in events.items():
        if kind in ("split", "fallback", "not_recorded"):
            known = rewrite(op, kind=reason) or (rewrite(op, kind=Kind.HOST_READ) if op.startswith("Tensor.") else "")
            where = _place(line) or home
            how = SPLITS if kind == "split" else BREAKS
            yield UncapturedPlace(how, op or "the capture", *where, why_unsafe(op) or reason, known, n)


def _of_error(error: BaseException, home: tuple[str, int]) -> UncapturedPlace:
    """Where a line is not known, the function's own: code scanning requires one."""
    text = str(error).splitlines()[0] if str(error) else "it raises inside a capture"
    if isinstance(error, GfxGraphError):
        op, reason = (str(error.fields.get(name, "")) for name in ("op", "reason"))
        name = op or (error.code if isinstance(error, CaptureError) else type(error).__name__)
        place = _place(str(error.fields.get("where", "")))
        return UncapturedPlace(BREAKS, name, *(place or home), reason or text, rewrite(op))
    return UncapturedPlace(BREAKS, type(error).__name__, *(_place(line_of_error(error)) or home), text, "")


def _place(where: str) -> tuple[str, int] | None:
    file, _, line = where.rpartition(":")
    return (file, int(line)) if file and line.isdigit() and not file.startswith("<no ") else None
