"""What two runs of a step must agree in: results, arguments, the world outside, random generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables.padding.nearness import is_near
from gfxgraph.callables.padding.proof import Problem, Run
from gfxgraph.callables.padding.witness import (
    Write,
    front,
)
from gfxgraph.capture.memory import storage_address

if TYPE_CHECKING:
    from gfxgraph.callables.padding.prover import Prover


class Comparing:
    """What ``Attempt`` inherits; the attributes without a value are its own."""

    prover: Prover
    padded: Mapping[int, Mapping[int, str]]

    def _difference(self, one: Run, other: Run, truth: Run, exact: bool) -> Problem | None:
        against = "depends on what the padding holds" if exact else "is not what the function gives without padding"
        if one.structure != other.structure or len(one.outputs) != len(other.outputs):
            return Problem("the structure of the result, or a number in it, depends on the size", "the result")
        for i, (a, b, real) in enumerate(zip(one.outputs, other.outputs, truth.outputs)):
            name = f"result {i}" if len(one.outputs) > 1 else "the result"
            if a.layout is not torch.strided or b.layout is not torch.strided:
                return Problem(f"{name} is sparse", name)
            mine, theirs = front(a.detach(), real.size()), front(b.detach(), real.size())
            if mine is None or theirs is None or a.dtype != b.dtype:
                return Problem(f"{name} is {_size(b)} in the bucket and {_size(real)} without padding", name)
            if exact and a.size() != b.size():
                return Problem(f"the size of {name} depends on what the padding holds", name)
            if not is_near(mine, theirs, exact):
                return Problem(f"{name} {against}", name)
        for i, own in enumerate(truth.inputs):
            if i in self.padded and own.layout is torch.strided:
                mine, theirs = self._after(one, i, own), self._after(other, i, own)
                if mine is None or theirs is None or not is_near(mine, theirs, exact):
                    name = self.prover.names[i]
                    return Problem(f"what is written to {name} {against}", name)
        problem = self._effects(one, other, truth, exact, against) or self._reads(one, other, exact, against)
        if problem is not None:
            return problem
        for a, b in zip(one.generators, other.generators):
            if not torch.equal(a, b):
                op = one.watch.first_draw or other.watch.first_draw
                return Problem("it draws as many random numbers as its input has rows", "the random generator", op)
        return None

    def _after(self, run: Run, i: int, real: Tensor) -> Tensor | None:
        """Argument ``i`` after the run, its real part."""
        tensor = run.inputs[i]
        for write in run.watch.writes.values():
            if storage_address(write.tensor) == storage_address(tensor) and write.after is not None:
                # Writes are undone by now: take the memory as it was, look, and put it back.
                run.watch.redo()
                try:
                    after = tensor.detach().clone()
                finally:
                    run.watch.undo()
                return front(after, real.size())
        return front(tensor.detach(), real.size())

    def _effects(self, one: Run, other: Run, truth: Run, exact: bool, against: str) -> Problem | None:
        mine, theirs = self._outside(one), self._outside(other)
        for key in [k for k in mine if k in theirs]:
            a, b = mine.pop(key), theirs.pop(key)
            if a.after is not None and b.after is not None and not is_near(a.after, b.after, exact):
                return Problem(f"{_outside(a)} {against}", _outside(a), b.op)
        # Written in one of the two only: there it must have changed nothing. What compiled code made and autograd
        # keeps looks like that in both, at two addresses; those are compared with each other.
        left, right = list(mine.values()), list(theirs.values())
        real = [w for key, w in self._outside(truth).items() if w in left or key not in self._outside(other)]
        names = [[write.op.name for write in writes] for writes in (left, right, real)]
        if names[0] == names[1] == names[2]:
            fronts = [(_front(a, r), _front(b, r)) for a, b, r in zip(left, right, real)]
            if all(a is not None and b is not None and is_near(a, b, exact) for a, b in fronts):
                return None
        for write in (*left, *right):
            if write.after is not None and not is_near(write.after, write.before, True):
                return Problem(f"{_outside(write)} {against}", _outside(write), write.op)
        return None

    def _reads(self, one: Run, other: Run, exact: bool, against: str) -> Problem | None:
        """A value that the host reads steers: where it is of other rows than the call's, it steers elsewhere soon."""
        mine, theirs = one.watch.read, other.watch.read
        for (_, a), (op, b) in zip(mine, theirs):
            if type(a) is not type(b) or not is_near(torch.tensor(a), torch.tensor(b), exact):
                return Problem(f"a value that the host reads {against}", "the value", op)
        if len(mine) != len(theirs):
            return Problem(f"how many values the host reads {against}", "the value", (mine or theirs)[-1][0])
        return None

    def _outside(self, run: Run) -> dict[tuple[Any, ...], Write]:
        own = {storage_address(run.inputs[i]) for i in self.padded}
        return {key: w for key, w in run.watch.writes.items() if storage_address(w.tensor) not in own}


def _front(write: Write, real: Write) -> Tensor | None:
    """The part of what was written that a run without padding writes too."""
    return front(write.after, real.tensor.size()) if write.after is not None else None


def _size(tensor: Tensor) -> str:
    return str(list(tensor.size()))


def _outside(write: Write) -> str:
    dtype = str(write.tensor.dtype).removeprefix("torch.")
    return f"what is written to a tensor outside ({_size(write.tensor)} {dtype})"
