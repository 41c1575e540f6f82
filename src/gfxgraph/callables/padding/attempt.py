"""One proof underway: the call, what it truly gives, and the runs against that."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gfxgraph.callables.padding.compare import Comparing
from gfxgraph.callables.padding.invent import Content, Exchange, Pad, contrast, is_flat, is_uniform, padded_copy
from gfxgraph.callables.padding.proof import UNTRIED, Answer, Failed, Problem, Proof, Run, Status, Unclear, set_states
from gfxgraph.callables.padding.witness import (
    Comparison,
    Op,
    Watch,
    WouldFault,
    counted_from_the_end,
)
from gfxgraph.callables.signature import flatten
from gfxgraph.capture.memory import storage_address

if TYPE_CHECKING:
    from gfxgraph.callables.padding.prover import Call, Prover


_KNOWN = ("aten::", "prim::")
_SMALL = 1 << 16
"""Elements of an argument that is not padded, of which a copy with other data is made."""
_SINGLY = 8
"""Up to so many such arguments are exchanged one by one, too."""


_IN_PIECES: tuple[tuple[Exchange, Exchange | None], ...] = (
    (Exchange.CONTRAST, None),
    (Exchange.HOLES, Exchange.LAST_HIGH),
    (Exchange.FLIPPED, Exchange.LAST_LOW),
)
"""What is done to the data before pieces are compared with the whole; the second to floats that the first leaves."""


class Exchanged(NamedTuple):
    """Padding that is not what replays use: of one argument, or of all."""

    how: Exchange
    only: int = -1


class FromTheEnd:
    """Called after each operation of a run: whether one takes ``numbers`` as they are for places from the end.

    A length less one is no such place: a length is never negative.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers.flatten()
        self.is_seen = False

    def __call__(self, position: int, op: Op, given: Any, out: Any) -> None:
        self.is_seen = self.is_seen or any(
            t.numel() == self.numbers.numel() and bool((t.flatten() == self.numbers).all())
            for t in counted_from_the_end(op, given)
        )


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
        self._is_blind = False
        """Whether the call's data could not tell."""
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
        problem = self._agrees(self.tensors, self.real, chosen, None)
        if problem is None:
            proof.status, proof.content = Status.PROVED, dict(chosen)
        else:
            self.refuse(proof, problem)

    def agrees(self, other: Call, varying: Mapping[int, Collection[int]]) -> Problem | None:
        """Whether ``other`` gives the same as the prover's call, on the call's own tensors and on other data.

        Args:
            varying: by position, dims along which ``other`` takes a tensor apart; its data is exchanged whatever
                its size, as that of padded ones is.
        """
        first = self.prover.call

        def agree(data: list[Tensor], truth: Run) -> Problem | None:
            self.prover.call = other
            try:
                return self._agrees(data, truth, {}, None)
            finally:
                self.prover.call = first

        problem = agree(self.tensors, self.real)
        if problem is not None:
            return problem
        for exchange, otherwise in _IN_PIECES:
            data = list(self.tensors)
            for i, t in enumerate(self.tensors):
                if self._may_be_exchanged(i, varying):
                    data[i] = contrast(t, varying.get(i, ()), exchange)
                    if data[i] is t and otherwise is not None and t.is_floating_point():
                        data[i] = contrast(t, varying.get(i, ()), otherwise)
            truth = self._truth_on(data)
            if isinstance(truth, Run) and self._is_same_program(truth):
                problem = agree(data, truth)
                if problem is not None:
                    return problem
        return None

    def _try(self, proof: Proof, content: Mapping[int, Content]) -> Problem | None:
        """All that must hold for this content; None where it does, with the proof's status set."""
        used = self._padded_run(self.tensors, content, None)
        if isinstance(used, Problem):
            return used
        problem = self._differs(self.real, used, self.real, exact=False, what=(self.tensors, content, None))
        if problem is not None:
            return problem
        self._is_blind = False
        problem = (
            self._with_other_padding(used, content)
            or self._with_other_masks(content)
            or self._with_other_numbers(content)
            or self._with_other_arguments(content)
            or self._on_fewer_rows(content)
        )
        if problem is None:
            proof.status = Status.AGAIN if self._is_blind else Status.PROVED
            proof.may_learn_more = not self.prover.is_transparent and bool(self._whole_numbers(content))
        return problem

    # -- what is exchanged --------------------------------------------------------------------------

    def _with_other_padding(self, used: Run, content: Mapping[int, Content]) -> Problem | None:
        """The padding exchanged, and the data where that is of a kind that hides what happens to it."""
        if Pad.LAST in content.values():
            for exchange in (Exchange.LAST_HIGH, Exchange.LAST_LOW, Exchange.LARGE):
                answer = self._on_other_data(content, exchange)
                if isinstance(answer, Problem):
                    return answer
            return None
        for exchange in (Exchange.HIGH, Exchange.LOW):
            problem = self._same_with_other_padding(self.tensors, used, content, exchange)
            if problem is not None:
                return problem
        large = self._other_data(Exchange.LARGE)
        if isinstance(self._truth_on(large), Run):
            # A threshold, or an index computed from the data, that the call's own never passes. Sums of numbers so
            # large and so small are not compared with the truth's.
            problem = self._same_with_other_padding(large, None, content, Exchange.HIGH)
            if problem is not None:
                return problem.with_("larger values")
        if any(is_flat(self.tensors[i]) for i in self.padded):
            answers = [
                self._on_other_data(content, exchange)
                for exchange in (Exchange.CONTRAST, Exchange.ABOVE, Exchange.BELOW)
            ]
            if isinstance(answers[0], Problem):
                return answers[0]
            # What may be a mask is never below zero; what may be data soon is. Calls to come will tell.
            self._is_blind = any(isinstance(answer, Problem) for answer in answers)
        return None

    def _with_other_masks(self, content: Mapping[int, Content]) -> Problem | None:
        """Masks with holes: one that is on everywhere hides what is done where it is off."""
        answer = self._on_other_data(content, Exchange.HOLES)
        return answer.with_("masks that are off here and there") if isinstance(answer, Problem) else None

    def _with_other_numbers(self, content: Mapping[int, Content]) -> Problem | None:
        """Integers that no call has had, singly, as far as that is safe."""
        for i in self._whole_numbers(content):
            if i in self.padded and is_uniform(self.tensors[i]):
                answer = self._on_other_data(content, Exchange.COUNT, i)
                if isinstance(answer, Problem):
                    # A length of zero has nothing to take a mean of, which tells nothing of other lengths.
                    answer = self._on_other_data(content, Exchange.COUNT_UP, i)
                if isinstance(answer, Problem):
                    return answer.with_(f"several values in {self.prover.names[i]}")
                self._is_blind |= answer is UNTRIED
            problem = self._with_negative_numbers(content, i) if self._checks_every_index() else None
            if problem is not None:
                return problem
        return None

    def _with_negative_numbers(self, content: Mapping[int, Content], i: int) -> Problem | None:
        """Argument ``i`` below zero: an index that counts from the end meets the padding first."""
        data = self._other_data(Exchange.NEGATIVE, only=i)
        from_end = FromTheEnd(data[i])
        truth = self._truth_on(data, from_end)
        if not isinstance(truth, Run):
            return truth if isinstance(truth, Problem) else None
        if from_end.is_seen:
            problem = self._agrees(data, truth, content, None)
            name = self.prover.names[i]
            return problem and problem.with_(f"negative numbers in {name}, which count from the end")
        if i not in self.padded or self._is_mask(i):
            return None
        if content[i] is Pad.LAST:
            return self._agrees(data, truth, content, None)
        # What is below zero without being an index may be a length, which means nothing then: whatever comes of
        # it, only this argument's own padding must not matter.
        return self._same_with_other_padding(data, None, content, Exchange.HIGH, only=i)

    def _with_other_arguments(self, content: Mapping[int, Content]) -> Problem | None:
        """Flags and gates that are not padded, the other way round: a factor of zero hides what it is taken of.

        All together, and each alone: what one of them hides another may show.
        """
        changed = {
            i: contrast(t, (), Exchange.FLIPPED)
            for i, t in enumerate(self.tensors)
            if i not in self.padded and self._may_be_exchanged(i)
        }
        changed = {i: t for i, t in changed.items() if t is not self.tensors[i]}
        groups = [list(changed)] if changed else []
        if 1 < len(changed) <= _SINGLY:
            groups += [[i] for i in changed]
        for group in groups:
            data = self._other_data(Exchange.CONTRAST)
            for i in group:
                data[i] = changed[i]
            truth = self._truth_on(data)
            # A flag that is read on the host steers; each way that it steers is looked at when it comes.
            if not isinstance(truth, Run) or not self._is_same_program(truth):
                continue
            problem = self._holds_on(data, truth, content)
            if problem is not None:
                return problem.with_(f"other values in {' and '.join(self.prover.names[i] for i in group)}")
        return None

    def _same_with_other_padding(
        self,
        data: list[Tensor],
        used: Run | None,
        content: Mapping[int, Content],
        exchange: Exchange,
        only: int = -1,
    ) -> Problem | None:
        """The content exchanged for another must not change a bit of what is real.

        Args:
            used: the run with the content itself, where there is one.
            only: exchange that of this argument; -1 for all.
        """
        what = Exchanged(exchange, only)
        if used is None:
            run = self._padded_run(data, content, None)
            if isinstance(run, Problem):
                return run
            used = run
        other = self._padded_run(data, content, what)
        if isinstance(other, Problem):
            # It computes an index or a probability from the padding: values like the real ones, then.
            other = self._padded_run(data, content, Exchanged(Exchange.WITHIN, only))
            if isinstance(other, Problem):
                return other
        problem = self._differs(used, other, self.real, exact=True, what=None)
        if problem is None:
            return None
        # Atomics and split sums give other bits in every run; that is not the padding's doing.
        again = self._padded_run(data, content, None)
        if isinstance(again, Run) and self._differs(used, again, self.real, exact=True, what=None) is not None:
            near = self._differs(used, other, self.real, exact=False, what=None)
            if near is None:
                return None
        return self._named(problem, (data, content, None), (data, content, what), True)

    def _on_other_data(self, content: Mapping[int, Content], exchange: Exchange, only: int = -1) -> Answer:
        """The truth again, on other real data of the same sizes, where the function takes such data."""
        if only >= 0 and not self._checks_every_index():
            return UNTRIED
        data = self._other_data(exchange, only)
        truth = self._truth_on(data)
        return self._holds_on(data, truth, content) if isinstance(truth, Run) else truth

    def _holds_on(self, data: list[Tensor], truth: Run, content: Mapping[int, Content]) -> Problem | None:
        """Whether the padding changes nothing for this data, whatever it holds."""
        used = self._padded_run(data, content, None)
        if isinstance(used, Problem):
            return used
        problem = self._differs(truth, used, truth, exact=False, what=(data, content, None))
        if problem is not None or Pad.LAST in content.values():
            return problem
        return self._same_with_other_padding(data, used, content, Exchange.HIGH)

    def _other_data(self, exchange: Exchange, only: int = -1) -> list[Tensor]:
        """The call's tensors, those that are padded exchanged.

        Args:
            only: exchange this argument, an integer one; -1 for every padded float and mask.
        """
        data = list(self.tensors)
        for i, dims in self.padded.items():
            if only < 0:
                data[i] = contrast(data[i], dims, exchange)
            elif data[i].is_floating_point():  # where all rows are alike, any index is as good as another
                data[i] = contrast(data[i], dims, Exchange.CONTRAST)
        if only >= 0:
            data[only] = contrast(data[only], (), exchange)
        return data

    def _truth_on(self, data: list[Tensor], each: Any = None) -> Run | Answer:
        """What the function gives for other data; UNTRIED where it does not take it, or it is the call's own."""
        if all(a is b for a, b in zip(data, self.tensors)):
            return UNTRIED
        try:
            truth = self._guarded(data, each)
        except Failed:
            return UNTRIED
        if [t.size() for t in truth.outputs] != [t.size() for t in self.real.outputs]:
            return Problem("the size of the result depends on the data, not only on the input's size", "the result")
        return truth

    def _may_be_exchanged(self, i: int, varying: Collection[int] = ()) -> bool:
        """Whether there may be a copy of argument ``i`` with other data."""
        tensor = self.tensors[i]
        is_plain = tensor.layout is torch.strided and (not tensor.is_floating_point() or tensor.element_size() > 1)
        return is_plain and (i in varying or tensor.numel() <= _SMALL)

    def _is_same_program(self, run: Run) -> bool:
        return [op.name for op in run.watch.ops] == [op.name for op in self.real.watch.ops]

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
        problem = self._on_the_fewer(data, content)
        if problem is None:
            return None
        # Numbers that say how many rows there are would say more than there are now.
        least, most = min(fewer.values()), max(self.actual[name] for name in fewer)
        adjusted = [_limited(tensor, least, most) for tensor in data]
        if all(a is b for a, b in zip(adjusted, data)):
            return problem
        return self._on_the_fewer(adjusted, content)

    def _on_the_fewer(self, data: list[Tensor], content: Mapping[int, Content]) -> Problem | None:
        try:
            truth = self._guarded(data)
        except Failed:
            return None
        problem = self._agrees(data, truth, content, None)
        # A step that takes another way for small calls says nothing about this bucket's own sizes.
        return problem if self._is_same_program(truth) else None

    # -- runs ---------------------------------------------------------------------------------------

    def _agrees(
        self, data: list[Tensor], truth: Run, content: Mapping[int, Content], exchange: Exchanged | None
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
        self, data: list[Tensor], content: Mapping[int, Content], exchange: Exchanged | None, each: Any = None
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
        self, data: list[Tensor], content: Mapping[int, Content], exchange: Exchanged | None
    ) -> list[Tensor]:
        made = []
        for i, tensor in enumerate(data):
            if i not in self.padded:
                made.append(tensor)
                continue
            size = list(tensor.size())
            for dim, name in self.padded[i].items():
                size[dim] = self.bucket[name]
            is_held = not isinstance(content[i], Pad) or self._is_mask(i)
            how = None if is_held or exchange is None or exchange.only not in (-1, i) else exchange.how
            made.append(padded_copy(tensor, size, content[i], how, like=self.tensors[i]))
        return made

    def _whole_numbers(self, content: Mapping[int, Content]) -> list[int]:
        """Integers that are no masks, or may not be, and whose padding the caller does not vouch for."""
        # What is read on the host may be a size; a replay asks for it again.
        is_read = any(op.name == "aten::_local_scalar_dense" for op in self.real.watch.ops)
        return [
            i
            for i, t in enumerate(self.tensors)
            if not (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool)
            and (
                isinstance(content[i], Pad) and (is_uniform(t) or not self._is_mask(i))
                if i in self.padded
                else self._may_be_exchanged(i) and not is_read
            )
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


def _limited(tensor: Tensor, least: int, most: int) -> Tensor:
    """Integers above ``least`` and up to ``most`` made ``least``; the tensor itself where there are none."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        return tensor
    is_above = (tensor > least) & (tensor <= most)
    return torch.where(is_above, least, tensor).to(tensor.dtype) if bool(is_above.any()) else tensor
