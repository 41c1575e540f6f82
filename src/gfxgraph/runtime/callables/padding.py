"""Padding is proved: a bucket may serve a smaller call only where nobody can tell.

Problem: a step captured at 8 rows is to serve a call of 5. Three rows are invented. If anything that
the caller sees depends on them, or on the 8, the answer is wrong, silently.

Idea: the truth is at hand, the call itself run eagerly without padding. The step is run at the
bucket's size as well, with the padding that replays will use, and must give the same results (their
front, as large as the call's own) and the same effects on the world outside: caches, running
statistics, counters, random generators. That could be so by accident of this call's data, so the
padding is exchanged twice for values that pull both ways, which must not change one bit; a call
nearly as large as its bucket hides what divides by the size, so it is repeated on fewer rows; data
without contrast (zeros, ones) is replaced by data with.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from gfxgraph.runtime.callables.invent import Content, Exchange, Pad, contrast, is_flat, is_uniform, padded_copy
from gfxgraph.runtime.callables.nearness import is_near
from gfxgraph.runtime.callables.outside import Outside, changed, marks
from gfxgraph.runtime.callables.pystate import PythonState
from gfxgraph.runtime.callables.signature import NotATree, flatten
from gfxgraph.runtime.callables.witness import (
    Comparison,
    Op,
    Watch,
    WouldFault,
    Write,
    front,
    one_thread_for_autograd,
)
from gfxgraph.runtime.recorder import storage_address

Call = Callable[[list[Tensor]], Any]
Dims = Mapping[int, Mapping[int, str]]
"""By position of the tensor, then by dim: the dynamic dim's name."""


class Status(StrEnum):
    """How a proof ended."""

    PROVED = "proved"
    REFUSED = "refused"
    AGAIN = "again"
    """This call's data could not tell; the next may."""


@dataclass(slots=True)
class Proof:
    """What is known about one bucket serving one size.

    ``result`` is what the function gave for the call, eagerly; ``sizes`` cut each tensor of a replay's
    result to the call's. ``content`` is what replays must pad with, by argument.
    """

    status: Status
    result: Any = None
    content: dict[int, Content] = field(default_factory=dict)
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    reason: str = ""
    output: str = ""
    op: str = ""
    where: str = ""
    n_runs: int = 0
    may_learn_more: bool = False
    """Integers were not tried, for want of knowing that every index is checked."""

    @property
    def is_proved(self) -> bool:
        return self.status is Status.PROVED


@dataclass(slots=True)
class _Run:
    """One run of the step and what it left behind."""

    watch: Watch
    result: Any
    structure: Any
    outputs: list[Tensor]
    generators: list[Tensor]
    inputs: list[Tensor]
    """The arguments after the run; their own memory where they were padded."""

    def keep_outputs(self) -> None:
        """Before the run is undone: results that lie in memory which that changes are copied."""
        written = {storage_address(write.tensor) for write in self.watch.writes.values()}
        self.outputs = [
            t.detach().clone() if t.layout is torch.strided and storage_address(t) in written else t
            for t in self.outputs
        ]


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why two runs do not agree."""

    reason: str
    output: str
    op: Op | None = None


class _Untried:
    """The function does not take such data, or it would not be safe to try."""


_KNOWN = ("aten::", "prim::")
_UNTRIED = _Untried()
_Answer = _Problem | _Untried | None


class _Failed(Exception):
    """The run on padded input raised; ``args`` are the operation it stood at and the error."""


class _Unclear(Exception):
    """What a run did cannot be told apart from what it found there."""


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

    def compare(self, tensors: list[Tensor], other: Call, sizes: list[Any]) -> Proof:
        """The call, eagerly; then whether ``other`` gives the same on the same tensors, effects included.

        Args:
            sizes: filled with the size of each tensor of the call's result before ``other`` runs.
        """

        def judge(attempt: _Attempt, proof: Proof) -> None:
            sizes[:] = proof.sizes
            call, self.call = self.call, other
            try:
                problem = attempt.agrees()
            finally:
                self.call = call
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
        judge: Callable[[_Attempt, Proof], None],
    ) -> Proof:
        self._n_runs = 0
        before = _states(tensors)
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
            _set_states(tensors, before)
            judge(_Attempt(self, tensors, actual, bucket, real, before), proof)
        except torch.OutOfMemoryError:
            proof.status, proof.reason = Status.REFUSED, "there is not enough memory to prove it"
        finally:
            real.watch.redo()
            _set_states(tensors, real.generators)
            python.put_back()
        proof.n_runs = self._n_runs
        return proof

    def _run(self, tensors: list[Tensor], watch: Watch) -> _Run:
        self._n_runs += 1
        watch.expect(self.unseen)
        with one_thread_for_autograd(), watch:
            result = self.call(tensors)
        return _Run(watch, result, None, [], _states(tensors), tensors)


class _Attempt:
    """One proof underway: the call's data, what it truly gives, and the runs against that."""

    def __init__(
        self,
        prover: Prover,
        tensors: list[Tensor],
        actual: Mapping[str, int],
        bucket: Mapping[str, int],
        real: _Run,
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
        first: _Problem | None = None
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

    def agrees(self) -> _Problem | None:
        """Whether the prover's call, as it is now, gives the same on the call's own tensors."""
        return self._agrees(self.tensors, self.real, {}, {})

    def _try(self, proof: Proof, content: Mapping[int, Content]) -> _Problem | None:
        """All that must hold for this content; None where it does, with the proof's status set."""
        real = self.real
        used = self._padded_run(self.tensors, content, {})
        if isinstance(used, _Problem):
            return used
        problem = self._differs(real, used, real, exact=False, what=(self.tensors, content, {}))
        if problem is not None:
            return problem
        is_blind = False
        if Pad.LAST in content.values():
            for exchange in (Exchange.LAST_HIGH, Exchange.LAST_LOW):
                answer = self._on_other_data(content, exchange)
                if isinstance(answer, _Problem):
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
                if isinstance(answers[0], _Problem):
                    return answers[0]
                # What may be a mask is never below zero; what may be data soon is. Calls to come will tell.
                is_blind = any(isinstance(answer, _Problem) for answer in answers)
        for i in self._whole_numbers(content):
            is_flat_here = is_uniform(self.tensors[i])
            trials = [Exchange.COUNT] if is_flat_here else []
            if not self._is_mask(i):
                trials.insert(0, Exchange.NEGATIVE)
            answers = [self._on_other_data(content, exchange, i) for exchange in trials]
            for answer in answers:
                if isinstance(answer, _Problem):
                    return answer
            is_blind |= is_flat_here and answers[-1] is _UNTRIED
        problem = self._on_fewer_rows(content)
        if problem is None:
            proof.status = Status.AGAIN if is_blind else Status.PROVED
            proof.may_learn_more = not self.prover.is_transparent and bool(self._whole_numbers(content))
        return problem

    def _same_with_other_padding(
        self, used: _Run, content: Mapping[int, Content], exchange: Exchange
    ) -> _Problem | None:
        """The content exchanged for another must not change a bit of what is real."""
        other = self._padded_run(self.tensors, content, {"padding": exchange})
        if isinstance(other, _Problem):
            # It computes an index or a probability from the padding: values like the real ones, then.
            other = self._padded_run(self.tensors, content, {"padding": Exchange.WITHIN})
            if isinstance(other, _Problem):
                return other
        problem = self._differs(used, other, self.real, exact=True, what=None)
        if problem is None:
            return None
        # Atomics and split sums give other bits in every run; that is not the padding's doing.
        again = self._padded_run(self.tensors, content, {})
        if isinstance(again, _Run) and self._differs(used, again, self.real, exact=True, what=None) is not None:
            near = self._differs(used, other, self.real, exact=False, what=None)
            if near is None:
                return None
        return self._named(problem, (self.tensors, content, {}), (self.tensors, content, {"padding": exchange}), True)

    def _on_other_data(self, content: Mapping[int, Content], exchange: Exchange, only: int = -1) -> _Answer:
        """The truth again, on other real data of the same sizes, where the function takes such data.

        Args:
            only: exchange this argument, an integer one; -1 for every float and mask.
        """
        if only >= 0 and not self._checks_every_index():
            return _UNTRIED
        data = list(self.tensors)
        for i, dims in self.padded.items():
            if only in (-1, i):
                data[i] = contrast(self.tensors[i], dims, exchange)
        if all(a is b for a, b in zip(data, self.tensors)):
            return _UNTRIED if only >= 0 else None
        try:
            truth = self._guarded(data)
        except _Failed:
            return _UNTRIED
        if [t.size() for t in truth.outputs] != [t.size() for t in self.real.outputs]:
            return _Problem("the size of the result depends on the data, not only on the input's size", "the result")
        return self._agrees(data, truth, content, {})

    def _on_fewer_rows(self, content: Mapping[int, Content]) -> _Problem | None:
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
        except _Failed:
            return None
        problem = self._agrees(data, truth, content, {})
        if problem is None:
            return None
        # A step that takes another way for small calls says nothing about this bucket's own sizes.
        same_program = [op.name for op in truth.watch.ops] == [op.name for op in self.real.watch.ops]
        return problem if same_program else None

    # -- runs ---------------------------------------------------------------------------------------

    def _agrees(
        self, data: list[Tensor], truth: _Run, content: Mapping[int, Content], exchange: Mapping[str, Exchange]
    ) -> _Problem | None:
        used = self._padded_run(data, content, exchange)
        if isinstance(used, _Problem):
            return used
        return self._differs(truth, used, truth, exact=False, what=(data, content, exchange))

    def _guarded(self, data: list[Tensor], each: Any = None) -> _Run:
        """A run whose effects are undone. Raises _Failed for whatever it raises."""
        watch = Watch(checks_values=True, each=each)
        self.prover.python.put_back()
        try:
            run = self.prover._run(data, watch)
            run.structure = flatten(run.result, run.outputs)
            watch.leave_out_own(run.outputs, {*self.prover._known, *self.real.watch.own})
            for write in watch.writes.values():
                if storage_address(write.tensor) in self.real.watch.own:
                    raise _Unclear("it returns memory from outside that it writes to")
            watch.take()
            run.keep_outputs()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a function may raise on input it never saw
            raise _Failed(watch.ops[-1] if watch.ops else None, error) from error
        finally:
            watch.undo()
            _set_states(data, self.states)
        return run

    def _padded_run(
        self, data: list[Tensor], content: Mapping[int, Content], exchange: Mapping[str, Exchange], each: Any = None
    ) -> _Run | _Problem:
        """The step at the bucket's size; what is wrong where it cannot even run."""
        given = self._padded(data, content, exchange)
        try:
            return self._guarded(given, each)
        except _Failed as failed:
            op, error = failed.args
            if isinstance(error, WouldFault):
                return _Problem(f"an index or value computed from the padding is not allowed: {error}", "it", op)
            if isinstance(error, _Unclear):
                return _Problem(str(error), "the result", op)
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            return _Problem(f"the function fails on it: {text}", "it", op)

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

    def _differs(self, one: _Run, other: _Run, truth: _Run, *, exact: bool, what: Any) -> _Problem | None:
        """The first thing a caller could see in which two runs differ.

        Args:
            truth: the un-padded run, whose sizes say what is real.
            what: how to repeat ``other`` in search of the operation to name; None leaves that out.
        """
        problem = self._difference(one, other, truth, exact)
        if problem is not None and what is not None:
            return self._named(problem, None, what, exact)
        return problem

    def _difference(self, one: _Run, other: _Run, truth: _Run, exact: bool) -> _Problem | None:
        against = "depends on what the padding holds" if exact else "is not what the function gives without padding"
        if one.structure != other.structure or len(one.outputs) != len(other.outputs):
            return _Problem("the structure of the result, or a number in it, depends on the size", "the result")
        for i, (a, b, real) in enumerate(zip(one.outputs, other.outputs, truth.outputs)):
            name = f"result {i}" if len(one.outputs) > 1 else "the result"
            if a.layout is not torch.strided or b.layout is not torch.strided:
                return _Problem(f"{name} is sparse", name)
            mine, theirs = front(a.detach(), real.size()), front(b.detach(), real.size())
            if mine is None or theirs is None or a.dtype != b.dtype:
                return _Problem(f"{name} is {_size(b)} in the bucket and {_size(real)} without padding", name)
            if exact and a.size() != b.size():
                return _Problem(f"the size of {name} depends on what the padding holds", name)
            if not is_near(mine, theirs, exact):
                return _Problem(f"{name} {against}", name)
        for i, own in enumerate(truth.inputs):
            if i in self.padded and own.layout is torch.strided:
                mine, theirs = self._after(one, i, own), self._after(other, i, own)
                if mine is None or theirs is None or not is_near(mine, theirs, exact):
                    name = self.prover.names[i]
                    return _Problem(f"what is written to {name} {against}", name)
        problem = self._effects(one, other, truth, exact, against)
        if problem is not None:
            return problem
        for a, b in zip(one.generators, other.generators):
            if not torch.equal(a, b):
                op = one.watch.first_draw or other.watch.first_draw
                return _Problem("it draws as many random numbers as its input has rows", "the random generator", op)
        return None

    def _after(self, run: _Run, i: int, real: Tensor) -> Tensor | None:
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

    def _effects(self, one: _Run, other: _Run, truth: _Run, exact: bool, against: str) -> _Problem | None:
        mine, theirs = self._outside(one), self._outside(other)
        for key in [k for k in mine if k in theirs]:
            a, b = mine.pop(key), theirs.pop(key)
            if a.after is not None and b.after is not None and not is_near(a.after, b.after, exact):
                return _Problem(f"{_outside(a)} {against}", _outside(a), b.op)
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
                return _Problem(f"{_outside(write)} {against}", _outside(write), write.op)
        return None

    def _outside(self, run: _Run) -> dict[tuple[Any, ...], Write]:
        own = {storage_address(run.inputs[i]) for i in self.padded}
        return {key: w for key, w in run.watch.writes.items() if storage_address(w.tensor) not in own}

    # -- naming -------------------------------------------------------------------------------------

    def _named(self, problem: _Problem, one: Any, other: Any, exact: bool) -> _Problem:
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
        except (_Failed, torch.OutOfMemoryError):
            return problem
        return _Problem(problem.reason, problem.output, comparison.culprit or problem.op)

    def refuse(self, proof: Proof, problem: _Problem) -> None:
        proof.status = Status.REFUSED
        proof.reason, proof.output = problem.reason, problem.output
        op = problem.op or (self.real.watch.ops[-1] if self.real.watch.ops else None)
        if op is not None:
            proof.op, proof.where = op.name, str(op.where)


def _generators(tensors: Sequence[Tensor]) -> list[Any]:
    devices = sorted({t.get_device() for t in tensors if t.is_cuda}) or [torch.cuda.current_device()]
    return [torch.cuda.default_generators[i] for i in devices] + [torch.default_generator]


def _states(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [generator.get_state() for generator in _generators(tensors)]


def _set_states(tensors: Sequence[Tensor], states: Sequence[Tensor]) -> None:
    for generator, state in zip(_generators(tensors), states):
        generator.set_state(state)


def _front(write: Write, real: Write) -> Tensor | None:
    """The part of what was written that a run without padding writes too."""
    return front(write.after, real.tensor.size()) if write.after is not None else None


def _size(tensor: Tensor) -> str:
    return str(list(tensor.size()))


def _outside(write: Write) -> str:
    dtype = str(write.tensor.dtype).removeprefix("torch.")
    return f"what is written to a tensor outside ({_size(write.tensor)} {dtype})"


__all__ = ["NotATree", "Proof", "Prover", "Status"]
