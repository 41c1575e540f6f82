"""Compares one call with the same call run in another way: at its bucket's size, or in chunks.

The call itself runs eagerly and its result goes to the caller. The other run is the second line of defence behind the
verdict on the graph: it is compared with capture/replay/tolerance.py, and all of its effects are undone.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.padding.content import front
from gfxgraph.callables.signature import NotATree, flatten
from gfxgraph.capture.replay.replay_steps import is_operations_own
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.replay.tolerance import is_near
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.errors import GfxGraphError, first_line
from gfxgraph.guard.localize import is_fault
from gfxgraph.process import process

Written = tuple[str, Tensor, Tensor]
"""An argument that is written to: its name, the call's own tensor, the other run's tensor."""
NO_MEMORY = "there is not enough memory to compare a padded run"


@dataclass
class Compared:
    """The call's own result, and how the other run differs; "" if it does not."""

    result: Any = None
    structure: Any = None
    outputs: list[Tensor] = field(default_factory=list)
    problem: str = ""
    failed: str = ""
    """How the device failed in the other run, which says nothing about it; "" if it did not."""


def compare(
    found: Compared,
    call: Callable[[], Any],
    other: Callable[[], Any],
    outside: Sequence[Tensor],
    written: Sequence[Written],
    device: int,
) -> None:
    """Run ``call``, then ``other``, and leave the state as after ``call`` alone.

    Args:
        found: filled in; has the result even if ``other`` raises.
        outside: external tensors that either of them writes to.
        written: arguments that are written to.

    Raises whatever ``call`` raises.
    """
    generators = torch.default_generator, torch.cuda.default_generators[device]
    places = [t.detach() for t in outside]
    try:
        before = Rollback(places, generators)
    except torch.OutOfMemoryError:
        found.result, found.problem = call(), NO_MEMORY
        return
    found.result = call()
    try:
        found.structure = flatten(found.result, found.outputs)
    except NotATree as error:
        found.problem = f"its result cannot be taken apart: {error}"
        return
    after = Rollback((), generators)
    try:
        after.save(places)
        # A later write to memory shared with a result would show in it.
        kept = [t.detach().clone() if outside else t.detach() for t in found.outputs]
        before.put_back()
        found.problem = _difference(found, kept, other()) or _effects(after, written)
        if not found.problem and after.has_drawn():
            found.problem = "it draws different random numbers at the bucket's size"
    except torch.OutOfMemoryError:
        found.problem = NO_MEMORY
    except Exception as error:  # whatever the function raises at a size that it was not called with
        if is_interrupt(error):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        if is_operations_own(error) or (isinstance(error, GfxGraphError) and not is_fault(error)):
            found.problem = f"the function fails on it: {said}"
        else:
            found.failed = said
            what = "the device failed while a call was compared with its bucket or its pieces"
            process.require().report("fallback", what, said)
    finally:
        after.put_back()


def _difference(found: Compared, kept: Sequence[Tensor], result: Any) -> str:
    outputs: list[Tensor] = []
    if flatten(result, outputs) != found.structure:
        return "the structure of the result, or a number in it, depends on the size"
    for i, (mine, real) in enumerate(zip(outputs, kept)):
        name = f"result {i}" if len(outputs) > 1 else "the result"
        if mine.layout is not torch.strided or real.layout is not torch.strided:
            return f"{name} is sparse"
        if mine.dim() != real.dim() or any(a < b for a, b in zip(mine.size(), real.size())):
            return f"{name} is {list(mine.size())} in the bucket and {list(real.size())} without padding"
        if not is_near(front(mine.detach(), real.size()), real):
            return f"{name} differs from the function's result without padding"
    if _places(outputs, found.outputs) != _places(found.outputs, found.outputs):
        return "results that share memory with each other are laid out differently in the bucket"
    return ""


def _places(tensors: Sequence[Tensor], real: Sequence[Tensor]) -> list[object]:
    """For results that share memory in eager execution: with which result, at which offset, and their strides."""
    homes = [id(t) if not t.numel() else t.untyped_storage().data_ptr() for t in real]
    first = {home: t.storage_offset() for home, t in reversed([*zip(homes, tensors)])}
    several = Counter(home for home, _ in {(home, id(t)) for home, t in zip(homes, real)})
    return [(h, t.stride(), t.storage_offset() - first[h]) for h, t in zip(homes, tensors) if several[h] > 1]


def _effects(after: Rollback, written: Sequence[Written]) -> str:
    if not all(is_near(t, real) for t, real in zip(after.tensors, after.contents)):
        return "what is written to a tensor outside the function differs from what it writes without padding"
    for name, real, mine in written:
        if not is_near(front(mine.detach(), real.size()), real.detach()):
            return f"what is written to {name} differs from what the function writes without padding"
    return ""
