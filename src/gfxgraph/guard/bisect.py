"""Finds the operation that a graph gets wrong, and the smallest script that reproduces it.

The tape runs eagerly alongside the graph, node by node; the first operation whose result differs is
at fault. Then scripts are tried, from that operation alone with made-up inputs up to everything
before it with the original values, each in its own process; the first that reproduces the fault is kept.
"""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph import config, files
from gfxgraph.capture import validate
from gfxgraph.capture.execute import Env, run_tape
from gfxgraph.capture.rollback import Rollback
from gfxgraph.capture.steps import SegmentStep
from gfxgraph.capture.tolerance import RELATIVE
from gfxgraph.capture.walk import can_walk, walk
from gfxgraph.core.reproducer import Alias, FaultKind, Input, inputs_of, needed, script
from gfxgraph.core.strides import Oddity, oddities
from gfxgraph.core.tape import Entry, Tape, TapeValue, leaves
from gfxgraph.guard.localize import is_fault, status_of
from gfxgraph.guard.names import layout_text
from gfxgraph.guard.nodes import SegmentNode, nodes_of
from gfxgraph.process import process

if TYPE_CHECKING:
    from gfxgraph.capture.program import Program

# Larger values are not embedded as text.
_EMBED_NBYTES = 8 << 20
_TRIAL_S = 120.0


@dataclass(frozen=True, slots=True)
class Bisection:
    """The result of bisecting.

    Attributes:
        kind: the kind of fault.
        op: the first wrong operation.
        where: its source line.
        detail: the difference, or the error.
        script: a file that reproduces it; None if no script did.
        n_ops: operations in the script.
        n_ops_before: operations in the graph.
    """

    kind: FaultKind
    op: str
    where: str
    detail: str
    script: Path | None
    n_ops: int
    n_ops_before: int

    def __str__(self) -> str:
        said = {
            FaultKind.DIFFERS: "graph and eager differ from here on",
            FaultKind.CAPTURE: "this operation cannot be captured",
            FaultKind.FAULT: "this operation faults in the replay",
        }[self.kind]
        lines = [f"{self.op} at {self.where}: {said} ({self.detail})"]
        if self.script is not None:
            lines.append(f"shown by {self.script}: {self.n_ops} of {self.n_ops_before} operations")
        else:
            lines.append("no script of its operations alone shows it: it depends on something outside them")
        return "\n".join(lines)


Snapshot = Callable[[int, Sequence[TapeValue]], dict[TapeValue, Tensor]]


class BisectProgress:
    """Records what is about to run, so that a fault can be attributed; this base class records nothing."""

    def at(self, stage: str, segment: int, position: int = -1, entry: Entry | None = None) -> None:
        """Called before an operation runs eagerly ("eager") or as a node ("walk"), or a segment as a graph
        ("launch").
        """

    def outside(self, segment: int, node: SegmentNode) -> None:
        """Called before a node runs that torch did not launch."""


def bisect_program(
    program: Program, target: Path | None = None, progress: BisectProgress | None = None
) -> Bisection | None:
    """Find the first operation whose graphed result differs; None if graph and eager agree.

    Afterwards the state that the program changes is as after one eager run.
    """
    for number, step in enumerate(program.segments):
        if step.graph is None or not step.tape.is_complete:
            if progress is not None:
                progress.at("launch", number)
            step.run(program)
            if progress is not None:
                torch.cuda.synchronize()
            continue
        culprit = _differs(program, step, number, progress)
        if culprit is not None:
            position = int(culprit.get("position", len(step.tape.entries) - 1))
            entry = step.tape.entries[position]
            detail = f"largest difference {culprit['max_difference']:.3g}, allowed {culprit['tolerance']:.3g}"
            reference = _Recorded(program, step.tape)
            found = write_script(FaultKind.DIFFERS, step.tape, position, reference.values_before, target)
            return Bisection(
                FaultKind.DIFFERS,
                entry.name,
                str(entry.where),
                detail,
                found[0] if found else None,
                found[1] if found else 0,
                len(step.tape.entries),
            )
    return None


def _differs(
    program: Program, step: SegmentStep, number: int, progress: BisectProgress | None
) -> dict[str, Any] | None:
    """Validation's description of the first difference; the segment's eager results stand afterwards."""
    before = Rollback([*step.mutated, *program.pool_inputs(step)], program.generators)
    entries = step.tape.entries

    def after(position: int, entry: Entry, env: Env) -> None:
        if progress is not None:
            torch.cuda.synchronize()  # a fault must show before the next operation
            if position + 1 < len(entries):
                progress.at("eager", number, position + 1, entries[position + 1])

    if progress is not None and entries:
        progress.at("eager", number, 0, entries[0])
    reference = run_tape(step.tape, program.lookup, {value for value, _ in step.live}, after)
    eager = Rollback(step.mutated, program.generators)
    before.put_back()
    if progress is not None:
        progress.at("launch", number)
    step.launch(program)
    if progress is not None:
        torch.cuda.synchronize()
    worst = validate._compared(program, step, reference, eager, before)
    if worst.is_match:
        return None
    before.put_back()
    culprit = validate._first_difference(program, step, worst)
    before.put_back()
    return culprit


def walk_program(program: Program, progress: BisectProgress) -> None:
    """Run the program's graphs node by node, and report the owner of each node before it runs."""
    for step in program.steps:
        if not isinstance(step, SegmentStep) or step.graph is None or not can_walk(step):
            step.run(program)
            continue
        number = program.segments.index(step)
        nodes = nodes_of(step, program)
        position_of = {id(entry): position for position, entry in enumerate(step.tape.entries)}

        def before(
            at: int, node: int, nodes: Any = nodes, number: int = number, position_of: Any = position_of
        ) -> None:
            entry = nodes[at].entry if at < len(nodes) else None
            if entry is not None:
                progress.at("walk", number, position_of[id(entry)], entry)
            elif at < len(nodes):
                progress.outside(number, nodes[at])

        walk(step, program, before=before)


def script_of_fault(
    program: Program, segment: int, position: int, target: Path
) -> tuple[Entry, tuple[Path, int] | None, int]:
    """Make a script for an operation known to fault: (operation, script and its length, the segment's length)."""
    at = program.segments[segment]
    for step in program.steps:
        if step is at:
            break
        step.run(program)
    entries = at.tape.entries
    found = None
    if at.tape.is_complete:  # otherwise the effects of launches outside torch are unknown
        reference = _Recorded(program, at.tape)
        found = write_script(FaultKind.FAULT, at.tape, position, reference.values_before, target)
    return entries[position], found, len(entries)


class _Recorded:
    """Values of a tape during an eager run, computed on demand."""

    def __init__(self, program: Program, tape: Tape) -> None:
        self.program = program
        self.tape = tape

    def values_before(self, position: int, wanted: Sequence[TapeValue]) -> dict[TapeValue, Tensor]:
        """Copies of ``wanted`` from before the operation at ``position`` runs."""
        taken: dict[TapeValue, Tensor] = {}

        def take(env: Env) -> None:
            for value in wanted:
                held = env.get(value)
                if held is None and (value.is_external or value.segment != self.tape.segment):
                    held = self.program.lookup(value)
                if held is not None:
                    taken[value] = _copy(held)

        def after(at: int, entry: Entry, env: Env) -> None:
            if at == position - 1:
                take(env)
                raise _Taken  # the next operation may be the one that faults

        state = [t for t in self.program.externals.values() if isinstance(t, Tensor)]
        before = Rollback(state, self.program.generators)
        try:
            if position == 0:
                take({})
            else:
                with suppress(_Taken):
                    run_tape(self.tape, self.program.lookup, set(wanted), after)
        finally:
            before.put_back()
        return taken


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the same layout; contiguous if elements overlap."""
    plain = tensor.detach()
    odd = oddities(tuple(tensor.size()), tuple(tensor.stride()))
    if Oddity.OVERLAPPING in odd or tensor.is_conj() or tensor.is_neg():
        return plain.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    for dim, (size, stride) in enumerate(zip(tensor.size(), tensor.stride())):
        if stride == 0 and size > 1:
            plain = plain.narrow(dim, 0, 1)
    made = torch.empty_strided(plain.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(plain).expand(tensor.size())


def write_script(
    kind: FaultKind,
    tape: Tape,
    position: int,
    values_before: Snapshot,
    target: Path | None,
    entries: Sequence[Entry] | None = None,
) -> tuple[Path, int] | None:
    """Write the smallest script that reproduces one operation's fault; (file, operations), None if none does."""
    entries = list(entries if entries is not None else tape.entries)
    target = target or Path(f"gfxgraph-{kind.value}-{position}.py").absolute()
    for begin, exact in _attempts(position, kind):
        window = needed(list(enumerate(entries))[begin : position + 1], position)
        aliases = [
            Alias(before, made, base, repr(layout[0]), *layout[1:])
            for before, made, base, layout in tape.aliases
            if begin <= before <= position
        ]
        used = {value for _, entry in window for value in (*leaves(entry.args), *leaves(entry.kwargs))}
        aliases = [alias for alias in aliases if alias.made in used]
        wanted = inputs_of(window, aliases)
        try:
            values = values_before(begin, wanted)
            given = [Input(value, _source(values[value], number, exact)) for number, value in enumerate(wanted)]
        except (RuntimeError, KeyError, _TooLarge) as error:
            process.log.debug("no script from operation %d on: %r", begin, error)
            continue
        results = list(leaves(entries[position].outputs)) or wanted
        culprit = entries[position]
        title = f"{culprit.name}: {_TITLES[kind]} ({culprit.where})."
        for setup in _setups(kind):
            text = script(kind, title, setup, given, window, aliases, results, _tolerance(values, culprit))
            if _shows(text, kind):
                files.write(target, text)
                return target, len(window)
    return None


_TITLES = {
    FaultKind.DIFFERS: "graph and eager differ",
    FaultKind.CAPTURE: "it cannot be captured",
    FaultKind.FAULT: "its replay faults",
}


def _attempts(position: int, kind: FaultKind) -> Iterator[tuple[int, bool]]:
    """(first operation, whether to use the original values), from the smallest script to the largest."""
    yield position, False
    yield position, True
    n = 2
    while n <= position:
        yield position + 1 - n, True
        n *= 4
    if position:
        yield 0, True


def _setups(kind: FaultKind) -> Iterator[list[str]]:
    """Lines after the imports: torch alone first, then with gfxgraph in case only that reproduces the fault."""
    state = process.require()
    if state.platform == "simulator":
        profile = state.settings.simulate
        yield ["from gfxgraph import simulator", "", f"simulator.install({profile!r})"]
    else:
        yield []
    if kind is FaultKind.CAPTURE:
        how = (
            f"simulate={state.settings.simulate!r}"
            if state.platform == "simulator"
            else f"allow_cuda={state.platform == 'cuda'}"
        )
        yield ["import gfxgraph", "", f'gfxgraph.enable({how}, on_unsafe="raise", validate=False)']


class _Taken(Exception):
    """All values were collected; the rest of the tape need not run."""


class _TooLarge(Exception):
    """The values do not fit into a script."""


def _source(tensor: Tensor, number: int, exact: bool) -> str:
    """An expression that recreates the tensor, or one like it."""
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    form = f"{tensor.dtype}, {size}, {stride}"
    if not exact:
        low, high = _range(tensor)
        return f"random({number}, {form}, {low!r}, {high!r})"
    if tensor.nbytes > _EMBED_NBYTES:
        raise _TooLarge(layout_text(size, stride, tensor.dtype))
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return f"data({base64.b85encode(zlib.compress(raw, 9)).decode()!r}, {form})"


def _range(tensor: Tensor) -> tuple[float, float]:
    if not tensor.numel() or tensor.is_complex():
        return 0, 1
    wide = tensor.detach().cpu().to(torch.float64).nan_to_num(posinf=1.0, neginf=0.0)
    low, high = wide.min().item(), wide.max().item()
    if not tensor.is_floating_point():
        return int(low), int(high)
    return (low, high) if high > low else (low, low + 1)


def _tolerance(values: dict[TapeValue, Tensor], entry: Entry) -> float:
    if validate.is_exact([entry]):
        return 0.0
    dtypes = [t.dtype for t in values.values() if t.dtype in RELATIVE]
    return max((RELATIVE[dtype] for dtype in dtypes), default=0.0)


def _shows(text: str, kind: FaultKind) -> bool:
    """Run a script in its own process; True if the fault shows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trial.py"
        files.write(path, text)
        try:
            run = subprocess.run(
                [sys.executable, str(path)],
                capture_output=True,
                text=True,
                timeout=_TRIAL_S,
                check=False,
                env=_plain_environment(),
            )
        except subprocess.TimeoutExpired:
            return False
    process.log.debug("trial ended with %d: %s%s", run.returncode, run.stdout[-2000:], run.stderr[-2000:])
    if kind is FaultKind.FAULT and run.returncode == -signal.SIGABRT:
        return True
    return run.returncode != 0 and "REPRODUCED" in run.stdout


def _plain_environment() -> dict[str, str]:
    """This process's environment without the variables that enable gfxgraph."""
    return config.environment_without({"GFXGRAPH", "GFXGRAPH_GUARD", "GFXGRAPH_FLIGHT", "GFXGRAPH_SIMULATE"})


def explained(error: BaseException) -> str:
    """One line about an error that occurred while bisecting."""
    return status_of(error) if is_fault(error) else (str(error).splitlines() or [type(error).__name__])[0]
