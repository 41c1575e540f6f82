"""Padding is proved: a bucket may serve a smaller call only where nobody can tell.

Problem: a step captured at 8 rows is to serve a call of 5. Three rows are invented. If anything that
the caller sees depends on them, or on the 8, the answer is wrong, silently.

Idea: the truth is at hand, the call itself run eagerly without padding. The step is run at the
bucket's size as well, with the padding that replays will use, and must give the same results (their
front, as large as the call's own) and the same effects on the world outside: caches, running
statistics, counters, random generators. That could be so by accident of this call's data, so the
padding is exchanged twice for values that pull both ways, which must not change one bit; a call
nearly as large as its bucket hides what divides by the size, so it is repeated on fewer rows; data
without contrast (zeros, ones) is replaced by data with; masks, flags, gates, indices and magnitudes
that the call does not have, but a later one may, are tried as well (docs/decisions/0104).

    content "zero"   real results may not depend on the padding at all
    content "last"   the padding repeats the last row, so it depends on the data by design: the data
                     is exchanged instead. This is what lets a step write to a cache by index: the
                     repeated row writes what the real one writes.
    a number         the caller's promise that the step ignores this value in this argument
                     (a label of -100, a mask of -inf): held, and compared with the truth

By default zero is tried, then last. Integers are indices until proved otherwise, so padding never
invents one: it is zero or taken from a real row, and ``witness.py`` stops a run before an operation
would assert on it. Integers and floats that are all 0 or 1, and bools, are taken for masks and held.

Whatever is found out, the process is left as if the function had been called once, and the result of
that call is handed back. Each size is looked at when it is first seen (``confirm``): a step may
branch on it. Source: docs/decisions/0068; tests/conformance/test_padding.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.padding.attempt import Attempt
from gfxgraph.callables.padding.invent import Content
from gfxgraph.callables.padding.outside import Outside, changed, marks
from gfxgraph.callables.padding.proof import Proof, Run, Status, set_states, states_of
from gfxgraph.callables.padding.pystate import PythonState
from gfxgraph.callables.padding.witness import (
    Watch,
    one_thread_for_autograd,
)
from gfxgraph.callables.signature import NotATree, flatten
from gfxgraph.capture.memory import storage_address

Call = Callable[[list[Tensor]], Any]
Dims = Mapping[int, Mapping[int, str]]
"""By position of the tensor, then by dim: the dynamic dim's name."""


class Prover:
    """Proves buckets of one function.

    Args:
        call: the function, given the call's tensors in their order.
        names: each tensor's path, for messages.
        dims: which dims of which tensors are dynamic.
        pads: what the caller wants as padding, by position; the others are chosen here.
        outside: tensors that the function can reach without being given them.
        fn: the function itself, whose Python state the runs must leave alone.
        is_transparent: every kernel that the function launches comes from an operation of torch, so no
            index goes unchecked: then integers that no call has had may be tried too.
    """

    def __init__(
        self,
        call: Call,
        names: Sequence[str],
        dims: Dims,
        pads: Mapping[int, Content] | None = None,
        *,
        outside: Outside = list,
        fn: Any = None,
        is_transparent: bool = False,
    ) -> None:
        self.call = call
        self.names = names
        self.dims = dims
        self.pads = dict(pads or {})
        self.outside = outside
        self.fn = fn
        self.is_transparent = is_transparent
        self.python = PythonState(None)
        self._unseen: list[weakref.ref[Tensor]] = []
        self._n_runs = 0
        self._known: set[int] = set()
        """Addresses of storages that were there before the call."""

    @property
    def unseen(self) -> list[Tensor]:
        """Tensors that the function was found to write to without torch's dispatcher."""
        return [t for ref in self._unseen if (t := ref()) is not None]

    def prove(self, tensors: list[Tensor], actual: Mapping[str, int], bucket: Mapping[str, int]) -> Proof:
        """The call, eagerly; then whether its bucket would have given the same.

        Raises whatever the function raises for the call itself.
        """
        return self._examined(tensors, actual, bucket, lambda attempt, proof: attempt.prove(proof))

    def confirm(
        self, tensors: list[Tensor], actual: Mapping[str, int], bucket: Mapping[str, int], known: Proof
    ) -> Proof:
        """The same for another size of a bucket that is proved: the truth and the padding in use, no more."""
        return self._examined(tensors, actual, bucket, lambda attempt, proof: attempt.confirm(proof, known.content))

    def compare(
        self, tensors: list[Tensor], other: Call, sizes: list[Any], varying: Mapping[int, Collection[int]]
    ) -> Proof:
        """The call, eagerly; then whether ``other`` gives the same on the same tensors, effects included.

        Args:
            sizes: filled with the size of each tensor of the call's result before ``other`` runs.
            varying: by position, dims along which ``other`` takes a tensor apart.
        """

        def judge(attempt: Attempt, proof: Proof) -> None:
            sizes[:] = proof.sizes
            problem = attempt.agrees(other, varying)
            if problem is None:
                proof.status = Status.PROVED
            else:
                attempt.refuse(proof, problem)
                proof.reason = proof.reason.replace("without padding", "at once")

        return self._examined(tensors, {}, {}, judge)

    def _examined(
        self,
        tensors: list[Tensor],
        actual: Mapping[str, int],
        bucket: Mapping[str, int],
        judge: Callable[[Attempt, Proof], None],
    ) -> Proof:
        self._n_runs = 0
        before = states_of(tensors)
        known_unseen = self.unseen
        reachable = self.outside()
        self._known = {storage_address(t) for t in (*reachable, *tensors) if t.layout is torch.strided}
        outside = marks(reachable)
        self.python = PythonState(self.fn)
        real = self._run(tensors, Watch())
        seen = {storage_address(write.tensor) for write in real.watch.writes.values()}
        unseen = [t for t in changed(outside) if storage_address(t) not in seen]
        proof = Proof(Status.REFUSED, result=real.result)
        if unseen:  # there is no copy from before: the next call's proof takes one
            self._unseen += [weakref.ref(t) for t in unseen if not any(t is u for u in known_unseen)]
            proof.status, proof.reason = Status.AGAIN, "it writes to a tensor outside, unseen by torch's dispatcher"
            return proof
        try:
            real.structure = flatten(real.result, real.outputs)
        except NotATree as error:
            proof.reason = f"its result cannot be taken apart: {error}"
            return proof
        proof.sizes = [tuple(t.size()) for t in real.outputs]
        if real.watch.sized_by_data is not None:
            op = real.watch.sized_by_data
            proof.reason = "the size of something depends on the data, not only on the input's size"
            proof.op, proof.where = op.name, str(op.where)
            return proof
        python = self.python.again()
        real.watch.leave_out_own(real.outputs, self._known)
        real.watch.take()
        real.keep_outputs()
        try:
            real.watch.undo()
            set_states(tensors, before)
            judge(Attempt(self, tensors, actual, bucket, real, before), proof)
        except torch.OutOfMemoryError:
            proof.status, proof.reason = Status.REFUSED, "there is not enough memory to prove it"
        finally:
            real.watch.redo()
            set_states(tensors, real.generators)
            python.put_back()
        proof.n_runs = self._n_runs
        return proof

    def _run(self, tensors: list[Tensor], watch: Watch) -> Run:
        self._n_runs += 1
        watch.expect(self.unseen)
        with one_thread_for_autograd(), watch:
            result = self.call(tensors)
        return Run(watch, result, None, [], states_of(tensors), tensors)


__all__ = ["Proof", "Prover", "Status"]
