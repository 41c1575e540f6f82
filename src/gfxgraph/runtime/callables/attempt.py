"""One proof underway: the call, what it truly gives, and the runs against that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.runtime.callables.compare import Comparing
from gfxgraph.runtime.callables.invent import Content, Exchange, Pad, contrast, is_flat, is_uniform, padded_copy
from gfxgraph.runtime.callables.proof import UNTRIED, Answer, Failed, Problem, Proof, Run, Status, Unclear, set_states
from gfxgraph.runtime.callables.signature import flatten
from gfxgraph.runtime.callables.witness import (
    Comparison,
    Op,
    Watch,
    WouldFault,
)
from gfxgraph.runtime.recorder import storage_address

if TYPE_CHECKING:
    from gfxgraph.runtime.callables.padding import Prover


_KNOWN = ("aten::", "prim::")


class Attempt(Comparing):
    """One proof underway: the call's data, what it truly gives, and the runs against that."""

    def __init__(
        self,
        prover: Prover,
        tensors: list[Tensor],
        actual: Mapping[str, int],
        bucket: Mapping[str, int],
        real: Run,
        states: list[Tensor],
    ) -> None:
        self.prover = prover
        self.tensors = tensors
        self.actual = actual
        self.bucket = bucket
        self.real = real
        self.states = states
        self.padded = {
            i: {dim: name for dim, name in dims.items() if bucket[name] != actual[name]}
            for i, dims in prover.dims.items()
            if any(bucket[name] != actual[name] for name in dims.values())
        }

    # -- what a proof consists of -----------------------------------------------------------------

    def prove(self, proof: Proof) -> None:
        first: Problem | None = None
        wanted = [Pad.ZERO, Pad.LAST] if any(i not in self.prover.pads for i in self.padded) else [Pad.ZERO]
        for default in wanted:
            content = {i: self.prover.pads.get(i, default) for i in self.padded}
            problem = self._try(proof, content)
            if problem is None:
                proof.content = dict(content)
                return
            first = first or problem
        assert first is not None
        self.refuse(proof, first)

    def confirm(self, proof: Proof, content: Mapping[int, Content]) -> None:
        chosen = {i: content.get(i, self.prover.pads.get(i, Pad.ZERO)) for i in self.padded}
        problem = self._agrees(self.tensors, self.real, chosen, {})
        if problem is None:
            proof.status, proof.content = Status.PROVED, dict(chosen)
        else:
            self.refuse(proof, problem)

    def agrees(self) -> Problem | None:
        """Whether the prover's call, as it is now, gives the same on the call's own tensors."""
        return self._agrees(self.tensors, self.real, {}, {})

    def _try(self, proof: Proof, content: Mapping[int, Content]) -> Problem | None:
        """All that must hold for this content; None where it does, with the proof's status set."""
        real = self.real
        used = self._padded_run(self.tensors, content, {})
        if isinstance(used, Problem):
            return used
        problem = self._differs(real, used, real, exact=False, what=(self.tensors, content, {}))
        if problem is not None:
            return problem
        is_blind = False
        if Pad.LAST in content.values():
            for exchange in (Exchange.LAST_HIGH, Exchange.LAST_LOW):
                answer = self._on_other_data(content, exchange)
                if isinstance(answer, Problem):
                    return answer
        else:
            for exchange in (Exchange.HIGH, Exchange.LOW):
                problem = self._same_with_other_padding(used, content, exchange)
                if problem is not None:
                    return problem
            if any(is_flat(self.tensors[i]) for i in self.padded):
                answers = [
                    self._on_other_data(content, exchange)
                    for exchange in (Exchange.CONTRAST, Exchange.ABOVE, Exchange.BELOW)
                ]
                if isinstance(answers[0], Problem):
                    return answers[0]
                # What may be a mask is never below zero; what may be data soon is. Calls to come will tell.
                is_blind = any(isinstance(answer, Problem) for answer in answers)
        for i in self._whole_numbers(content):
            is_flat_here = is_uniform(self.tensors[i])
            trials = [Exchange.COUNT] if is_flat_here else []
            if not self._is_mask(i):
                trials.insert(0, Exchange.NEGATIVE)
            answers = [self._on_other_data(content, exchange, i) for exchange in trials]
            for answer in answers:
                if isinstance(answer, Problem):
                    return answer
            is_blind |= is_flat_here and answers[-1] is UNTRIED
        problem = self._on_fewer_rows(content)
        if problem is None:
            proof.status = Status.AGAIN if is_blind else Status.PROVED
            proof.may_learn_more = not self.prover.is_transparent and bool(self._whole_numbers(content))
        return problem

    def _same_with_other_padding(
        self, used: Run, content: Mapping[int, Content], exchange: Exchange
    ) -> Problem | None:
        """The content exchanged for another must not change a bit of what is real."""
        other = self._padded_run(self.tensors, content, {"padding": exchange})
        if isinstance(other, Problem):
            # It computes an index or a probability from the padding: values like the real ones, then.
            other = self._padded_run(self.tensors, content, {"padding": Exchange.WITHIN})
            if isinstance(other, Problem):
                return other
        problem = self._differs(used, other, self.real, exact=True, what=None)
        if problem is None:
            return None
        # Atomics and split sums give other bits in every run; that is not the padding's doing.
        again = self._padded_run(self.tensors, content, {})
        if isinstance(again, Run) and self._differs(used, again, self.real, exact=True, what=None) is not None:
            near = self._differs(used, other, self.real, exact=False, what=None)
            if near is None:
                return None
        return self._named(problem, (self.tensors, content, {}), (self.tensors, content, {"padding": exchange}), True)

    def _on_other_data(self, content: Mapping[int, Content], exchange: Exchange, only: int = -1) -> Answer:
        """The truth again, on other real data of the same sizes, where the function takes such data.

        Args:
            only: exchange this argument, an integer one; -1 for every float and mask.
        """
        if only >= 0 and not self._checks_every_index():
            return UNTRIED
        data = list(self.tensors)
        for i, dims in self.padded.items():
            if only in (-1, i):
                data[i] = contrast(self.tensors[i], dims, exchange)
        if all(a is b for a, b in zip(data, self.tensors)):
            return UNTRIED if only >= 0 else None
        try:
            truth = self._guarded(data)
        except Failed:
            return UNTRIED
        if [t.size() for t in truth.outputs] != [t.size() for t in self.real.outputs]:
            return Problem("the size of the result depends on the data, not only on the input's size", "the result")
        return self._agrees(data, truth, content, {})

    def _on_fewer_rows(self, content: Mapping[int, Content]) -> Problem | None:
        """A call far smaller than the bucket, where the call at hand nearly fills it."""
        fewer = {
            name: max(1, self.bucket[name] // 2)
            for name, n in self.actual.items()
            if n != self.bucket[name] and n > max(1, self.bucket[name] // 2)
        }
        if not fewer:
            return None
        data = []
        for i, tensor in enumerate(self.tensors):
            for dim, name in self.prover.dims.get(i, {}).items():
                if name in fewer:
                    tensor = tensor.narrow(dim, 0, fewer[name])
            data.append(tensor.contiguous() if tensor is not self.tensors[i] else tensor)
        try:
            truth = self._guarded(data)
        except Failed:
            return None
        problem = self._agrees(data, truth, content, {})
        if problem is None:
            return None
        # A step that takes another way for small calls says nothing about this bucket's own sizes.
        same_program = [op.name for op in truth.watch.ops] == [op.name for op in self.real.watch.ops]
        return problem if same_program else None

    # -- runs ---------------------------------------------------------------------------------------

    def _agrees(
        self, data: list[Tensor], truth: Run, content: Mapping[int, Content], exchange: Mapping[str, Exchange]
    ) -> Problem | None:
        used = self._padded_run(data, content, exchange)
        if isinstance(used, Problem):
            return used
        return self._differs(truth, used, truth, exact=False, what=(data, content, exchange))

    def _guarded(self, data: list[Tensor], each: Any = None) -> Run:
        """A run whose effects are undone. Raises Failed for whatever it raises."""
        watch = Watch(checks_values=True, each=each)
        self.prover.python.put_back()
        try:
            run = self.prover._run(data, watch)
            run.structure = flatten(run.result, run.outputs)
            watch.leave_out_own(run.outputs, {*self.prover._known, *self.real.watch.own})
            for write in watch.writes.values():
                if storage_address(write.tensor) in self.real.watch.own:
                    raise Unclear("it returns memory from outside that it writes to")
            watch.take()
            run.keep_outputs()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a function may raise on input it never saw
            raise Failed(watch.ops[-1] if watch.ops else None, error) from error
        finally:
            watch.undo()
            set_states(data, self.states)
        return run

    def _padded_run(
        self, data: list[Tensor], content: Mapping[int, Content], exchange: Mapping[str, Exchange], each: Any = None
    ) -> Run | Problem:
        """The step at the bucket's size; what is wrong where it cannot even run."""
        given = self._padded(data, content, exchange)
        try:
            return self._guarded(given, each)
        except Failed as failed:
            op, error = failed.args
            if isinstance(error, WouldFault):
                return Problem(f"an index or value computed from the padding is not allowed: {error}", "it", op)
            if isinstance(error, Unclear):
                return Problem(str(error), "the result", op)
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            return Problem(f"the function fails on it: {text}", "it", op)

    def _padded(
        self, data: list[Tensor], content: Mapping[int, Content], exchange: Mapping[str, Exchange]
    ) -> list[Tensor]:
        how = exchange.get("padding")
        made = []
        for i, tensor in enumerate(data):
            if i not in self.padded:
                made.append(tensor)
                continue
            size = list(tensor.size())
            for dim, name in self.padded[i].items():
                size[dim] = self.bucket[name]
            is_held = how is None or not isinstance(content[i], Pad) or self._is_mask(i)
            made.append(padded_copy(tensor, size, content[i], None if is_held else how))
        return made

    def _whole_numbers(self, content: Mapping[int, Content]) -> list[int]:
        """Padded integers that are no masks, or may not be, and whose padding the caller does not vouch for."""
        return [
            i
            for i in self.padded
            if isinstance(content[i], Pad)
            and not (self.tensors[i].is_floating_point() or self.tensors[i].is_complex())
            and self.tensors[i].dtype is not torch.bool
            and (is_uniform(self.tensors[i]) or not self._is_mask(i))
        ]

    def _checks_every_index(self) -> bool:
        """Only torch's own operations are known by what they assert on."""
        return self.prover.is_transparent and all(op.name.startswith(_KNOWN) for op in self.real.watch.ops)

    def _is_mask(self, i: int) -> bool:
        tensor = self.tensors[i]
        if tensor.dtype is torch.bool:
            return True
        # Zeros alone mask everything, which nobody would compute: data, then.
        return tensor.numel() > 0 and bool(((tensor == 0) | (tensor == 1)).all() and (tensor == 1).any())

    # -- comparing ----------------------------------------------------------------------------------

    def _differs(self, one: Run, other: Run, truth: Run, *, exact: bool, what: Any) -> Problem | None:
        """The first thing a caller could see in which two runs differ.

        Args:
            truth: the un-padded run, whose sizes say what is real.
            what: how to repeat ``other`` in search of the operation to name; None leaves that out.
        """
        problem = self._difference(one, other, truth, exact)
        if problem is not None and what is not None:
            return self._named(problem, None, what, exact)
        return problem

    # -- naming -------------------------------------------------------------------------------------

    def _named(self, problem: Problem, one: Any, other: Any, exact: bool) -> Problem:
        """The problem with the operation that causes it, by running both once more side by side."""
        if problem.op is not None and problem.output == "the random generator":
            return problem
        comparison = Comparison(exact)
        data, content, exchange = other

        def keep_and_measure(position: int, op: Op, given: Any, out: Any) -> None:
            comparison.keep(position, op, given, out)
            comparison.measure(position, op, given, out)

        try:
            if one is None:
                self._guarded(data, keep_and_measure)
            else:
                self._guarded(data, comparison.measure)
                self._padded_run(one[0], one[1], one[2], comparison.keep)
            self._padded_run(data, content, exchange, comparison.compare)
        except (Failed, torch.OutOfMemoryError):
            return problem
        return Problem(problem.reason, problem.output, comparison.culprit or problem.op)

    def refuse(self, proof: Proof, problem: Problem) -> None:
        proof.status = Status.REFUSED
        proof.reason, proof.output = problem.reason, problem.output
        op = problem.op or (self.real.watch.ops[-1] if self.real.watch.ops else None)
        if op is not None:
            proof.op, proof.where = op.name, str(op.where)
