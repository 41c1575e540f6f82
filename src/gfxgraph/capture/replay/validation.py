"""Validation: replay against eager execution on the same inputs.

The reference is the tape, run operation by operation into fresh memory *before* the graph (the
graph may reuse the memory of its own inputs), with external tensors and generators restored in between. If the two
agree, the graph's effects stand; if they differ, the eager ones do, and the graph is retired.

If the segment has launches that the tape does not know, the node walk is the reference:
the same kernels, one at a time. What could not be compared is reported as skipped, never as passed.

Tolerances: bitwise where every operation gives the same bits each time it runs on the same input; else by dtype, wide
enough for another algorithm of the same library (tests/property/test_fuzz.py runs without false alarms). A run with
another shape, or of a nondeterministic operation, rounds differently, by more the larger its terms are, so they are
relative to the largest magnitude, in the whole tensor or by row. By row is stricter, for runs that must give the same
rows: one huge row does not hide errors in the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.replay.eager_tape import Env, run_tape
from gfxgraph.capture.replay.graph_tensors import Layout, flat, overwrite, tensor_of
from gfxgraph.capture.replay.node_walk import can_walk, walk
from gfxgraph.capture.replay.program import HostStep, Program, SegmentStep, note_fallback
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.core.tape import Entry, TapeValue, leaves
from gfxgraph.errors import ValidationMismatch, first_line
from gfxgraph.process import process


def is_exact(entries: list[Entry]) -> bool:
    """True if every operation gives the same bits on each run with the same input, as elementwise ones do."""
    done = [entry.func for entry in entries if entry.code is not None]  # views do nothing
    return all(torch.Tag.pointwise in getattr(func, "tags", ()) for func in done)


def replay_validated(program: Program, retire: Callable[[], None]) -> bool:
    """Replay once and compare every graph segment; the results are right either way.

    It counts as validated if every graph of the program was launched and compared.

    Returns:
        False if a segment differed (its eager result stands, the graph is retired).
    """
    agreed = True
    n_compared = n_skipped = 0
    for step in program.due_steps():
        if isinstance(step, SegmentStep) and step.graph is not None:
            verdict = _segment(program, step)
            if verdict is None:
                n_skipped += 1
                continue
            n_compared += 1
            agreed = agreed and verdict
        else:
            step.run(program)
    if not agreed:
        retire()
    elif n_compared and not n_skipped:
        process.require().counters.add("validated")
    return agreed


def _segment(program: Program, step: SegmentStep) -> bool | None:
    state = process.require()
    if not step.tape.is_complete and not can_walk(step):
        opaque = step.tape.opaque
        reason = f"{len(opaque)} launches outside torch, and the nodes cannot be run one by one"
        state.report("validation_skipped", reason, "opaque launch", opaque[0].where, logging.INFO)
        step.run(program)
        return None
    before: Rollback | None = None
    try:
        before = Rollback(_places(program, step), program.generators)
        reference = step.compute(program) if step.tape.is_complete else _by_walk(program, step)
        eager = Rollback(step.mutated, program.generators)
    except (RuntimeError, TypeError) as error:
        if before is not None:
            before.restore()
        if is_interrupt(error):
            raise
        _skipped(step, error)
        step.run(program)
        return None
    before.restore()
    if not step.launch(program):
        program.n_by_tape += len(step.tape.entries)
        return None  # a fallback ran, and was reported
    try:
        differing = _compared(program, step, reference, eager, before)
    except torch.OutOfMemoryError as error:  # the replay is done; only the comparison needs more memory
        _skipped(step, error)
        return None
    if not differing:
        return True
    culprit = _first_wrong(step, differing)
    with torch_names._InferenceMode(True):
        for value, place in step.live:
            if value in reference:
                overwrite(tensor_of(place), reference[value])
    eager.restore()
    state.counters.add("validation_failed")
    mismatch = ValidationMismatch("validation_mismatch", n_nodes=step.n_nodes, **culprit)
    process.log.error("%s", str(mismatch))
    note_fallback("replay differed from eager; the eager result was returned", str(culprit["op"]), culprit["where"])
    program.n_by_tape += len(step.tape.entries)
    return False


def _places(program: Program, step: SegmentStep) -> list[Tensor | Layout]:
    """What two runs of the segment may change."""
    # A segment after a split may overwrite memory that it reads from earlier ones, once it has used it.
    places = [*step.mutated, *program.pool_inputs(step)]
    if step.tape.opaque:  # nothing says what they write
        places += [
            out for each in program.steps if isinstance(each, HostStep) for out in flat(each.out) if out.is_cuda
        ]
    return places


def _skipped(step: SegmentStep, error: Exception) -> None:
    reason = f"the reference could not be computed or compared: {first_line(error)}"
    process.require().report("validation_skipped", reason, "", step.where, logging.INFO)


def _compared(program: Program, step: SegmentStep, reference: Env, eager: Rollback, before: Rollback) -> Differing:
    """The results and effects of the replay that differ from the reference, by address."""
    exact = is_exact(step.tape.entries) if step.tape.is_complete else True
    step.wait_for_host_results()
    with torch_names._InferenceMode(True):
        live = [(value, tensor_of(place)) for value, place in step.live if value in reference]
        replayed = Rollback(step.mutated, program.generators)
        pairs = [(tensor, reference[value]) for value, tensor in live]
        pairs += list(zip(replayed.contents, eager.contents))
        addresses = [tensor.data_ptr() for tensor in (*(tensor for _, tensor in live), *replayed.tensors)]
        differing = _differing(addresses, pairs, exact)
        if differing and step.tape.is_complete and any(map(_is_undefined, step.tape.entries)):
            try:
                pairs = _defined(program, step, [value for value, _ in live], before, pairs)
                differing = _differing(addresses, pairs, exact)
            finally:
                replayed.restore()
    return differing


def _is_undefined(entry: Entry) -> bool:
    return entry.name.startswith(("aten::empty", "aten::new_empty"))


def _defined(
    program: Program, step: SegmentStep, live: list[TapeValue], before: Rollback, pairs: list[tuple[Tensor, Tensor]]
) -> list[tuple[Tensor, Tensor]]:
    """The pairs without elements that come from uninitialized memory, which may differ between runs.

    The tape is run twice with fresh memory filled differently: such elements differ.
    """
    runs: list[list[Tensor]] = []
    for filling in (0, 1):

        def fill(position: int, entry: Entry, env: Env, filling: int = filling) -> None:
            if _is_undefined(entry):
                for value in leaves(entry.outputs):
                    made = env[value]
                    made.fill_(float("nan") if filling and made.is_floating_point() else filling)

        before.restore()
        env = run_tape(step.tape, program.lookup, set(live), after=fill)
        after = Rollback(step.mutated, ())
        runs.append([env[value] for value in live] + after.contents)
    found = []
    for (replayed, eager), one, other in zip(pairs, *runs):
        unsettled = (one != other) & ~((one != one) & (other != other))
        found.append((torch.where(unsettled, eager, replayed), eager))
    return found


def _by_walk(program: Program, step: SegmentStep) -> Env:
    """Run the segment node by node and copy its results out of the graph's memory."""
    walk(step, program)
    with torch_names._InferenceMode(True):
        return {value: tensor_of(place).clone() for value, place in step.live}


def _differing(addresses: list[int], pairs: list[tuple[Tensor, Tensor]], exact: bool) -> Differing:
    with torch_names._InferenceMode(True):
        found = [(address, compare(*pair, exact)) for address, pair in zip(addresses, pairs)]
    return {address: difference for address, difference in found if not difference.is_match}


def _first_wrong(step: SegmentStep, differing: Differing) -> dict[str, Any]:
    """Name the operation that made the first wrong result. What it was made from is gone, and may be wrong too."""
    made = {value.address: entry for entry in step.tape.entries for value in leaves(entry.outputs)}
    at = next((address for address in made if address in differing), next(iter(differing)))
    entry = made.get(at)
    return {
        "op": entry.name if entry else "unknown",
        "where": entry.where if entry else "",
        "max_difference": differing[at].largest,
        "tolerance": differing[at].allowed,
    }


# -- how near two runs must be -------------------------------------------------------------------------------


# Relative to the largest magnitude: a few hundred units in the last place, as for sums of a thousand terms in
# another order.
RELATIVE_TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
    torch.complex64: 2e-4,
    torch.complex128: 1e-10,
}
_ROW_FLOOR = 0.125
"""A row's magnitude counts as at least this share of the tensor's largest: its terms may have cancelled."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between two tensors, and the tolerance, in the dtype's own measure."""

    largest: float
    allowed: float

    @property
    def is_match(self) -> bool:
        return self.largest <= self.allowed


Differing = dict[int, Difference]
"""By the address of a result."""


def compare(one: Tensor, other: Tensor, exact: bool, *, by_row: bool = False) -> Difference:
    """Compare two tensors of the same shape and dtype; NaN equals NaN, and an infinity equals itself.

    Args:
        exact: require the same bits (NaN payloads aside).
        by_row: measure each row by its own magnitude; return the difference that exceeds its tolerance most.
    """
    if one.numel() == 0:
        return Difference(0.0, 0.0)
    with torch.no_grad():
        if one.is_complex():
            one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
        same = one == other
        if one.is_floating_point():
            same = same | (one.isnan() & other.isnan())
        if bool(same.all()):
            return Difference(0.0, 0.0)
        if one.dtype not in RELATIVE_TOLERANCE:
            return Difference(1.0, 0.0)
        a, b = one.double(), other.double()
        gap = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
        if exact:
            return Difference(float(gap.max()), 0.0)
        magnitude = torch.where(b.isfinite(), b.abs(), 0.0)
        scale = magnitude.max()
        if by_row:
            scale = scale * _ROW_FLOOR
            if b.dim():
                scale = torch.maximum(magnitude.amax(-1, keepdim=True), scale)
        allowed = (RELATIVE_TOLERANCE[one.dtype] * scale.clamp(min=torch.finfo(one.dtype).tiny * 16)).expand_as(gap)
        worst = int((gap - allowed).argmax())
        return Difference(float(gap.flatten()[worst]), float(allowed.flatten()[worst]))


def is_close(one: Tensor, other: Tensor) -> bool:
    """True if two tensors have the same dtype and size and agree by row, as far as autocast lets them."""
    if one.dtype != other.dtype or one.size() != other.size():
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else one.dtype
    found = compare(one, other, exact=False, by_row=True)
    more = RELATIVE_TOLERANCE.get(dtype, 0.0) / RELATIVE_TOLERANCE.get(one.dtype, 1.0)
    return found.is_match or found.largest <= found.allowed * more
