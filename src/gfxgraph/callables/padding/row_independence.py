"""Whether a call may run at a larger size: decided from its operations, not from values.

Problem: a step captured at 8 rows should serve a call of 5. Three rows are padding. If they can affect
anything that the caller sees, the answer is wrong, silently, and perhaps only in a later call.

Idea: what the call runs, and what runs in the bucket, are both run on fake tensors (no data, no device), each at its
own size, and compared operation by operation (`Trace`). They must be the same operations, with the same arguments.
Then each tensor is followed from operation to operation: its rows lie in the one dim whose size is another one in
the bucket. A bucket is allowed if every result and everything written holds the rows of the call at the front of one
dim, or does not depend on the dim at all. A write is one to the memory that tensors share (`Memory`): a wrong one
spoils all of them. Nothing is concluded from given values, so the verdict holds for every call of these sizes.

    ``operator_rules.py`` says which operations keep rows apart; one without a rule is refused by name;
    a number that is another one in the bucket may be a size, and nothing else.

Two arguments that share memory, one of which is written, must be refused by the caller.

Source: decision 0110; tests/unit/callables/padding/test_row_independence.py.
"""

# ruff: noqa: TID253

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from gfxgraph import torch_names
from gfxgraph.callables.buffers import dense_strides, dim_order
from gfxgraph.callables.padding.operator_rules import (
    RULES,
    SIZES,
    Cause,
    JudgedOperation,
    Memory,
    Unequal,
    Value,
    Why,
    blocks_of,
    differs,
    false_at_least,
    follows_from_sizes,
    mixes_backward,
    rule_of,
    view,
)
from gfxgraph.callables.trace.corrections import Waiting


class PaddingRefusal(Exception):
    """Why a call is not padded.

    Args:
        reason: a sentence; ``{dim}`` in it is the dynamic dim's name.
        op: the operation that it is about; "" if there is none.
        where: the source line of that.
        is_final: False if a later call may get another verdict.
    """

    def __init__(self, reason: str, op: str = "", where: str = "", is_final: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.op, self.where, self.is_final = reason, op, where, is_final
        self.is_sized = False
        """Whether another bucket may get another verdict."""

    @classmethod
    def by(cls, cause: Cause, error: str = "") -> PaddingRefusal:
        """The refusal because of an operation, or because of what it raised."""
        where = _where(cause.stack_trace)
        at = f" ({where})" if where else ""
        said = f"{error or cause.op or 'the function'}{at} {cause.why.value}"
        return cls("{dim} is not padded: " + said, cause.op, where)

    def named(self, dim: str) -> PaddingRefusal:
        """The same of a dim, without the frames that raised it."""
        found = PaddingRefusal(self.reason.replace("{dim}", dim), self.op, self.where, self.is_final)
        found.is_sized = self.is_sized
        return found


@dataclass(frozen=True)
class DimVerdict:
    """What padding along one dynamic dim needs, where it is allowed.

    Attributes:
        written: the inputs that are written to, by name. Their own rows are right.
        needs_last: padded rows of the inputs must repeat the last row; else they may hold zeros.
        backward: the operation that takes rows together in its backward alone.
        is_sized: it holds for this bucket alone.
    """

    written: frozenset[Any]
    needs_last: bool
    backward: Cause | None = None
    is_sized: bool = False


# -- one run -------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """One operation as it was called."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    stack_trace: str | None

    @property
    def leaves(self) -> list[Any]:
        return list(self.out) if isinstance(self.out, (list, tuple)) else [self.out]


_WHOLE = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("linear", "default"), ("matmul", "default"), ("scaled_dot_product_attention", "default"),
        ("reshape", "default"),
        ("lstm", "input"), ("gru", "input"), ("rnn_tanh", "input"), ("rnn_relu", "input"),
    )
)  # fmt: skip
"""Operations that are judged as one: torch takes them apart by sizes and strides, or by kernels of one device."""


class Trace(torch_names.FakeTensorMode):  # type: ignore[misc, valid-type]
    """One run: each operation as it reaches the fake tensors, after decomposition."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.tape: list[Operation] = []
        self.inputs: dict[Any, Any] = {}
        self.results: Any = None
        self._is_recording = False

    def like(self, tensor: Tensor, size: Sequence[int] | None = None) -> Tensor:
        """A fake tensor; with a ``size``, dense, with its dims in the same order: a transposed one stays so."""
        if size is None:
            return self.from_tensor(tensor)  # type: ignore[no-any-return]
        strides = dense_strides(size, dim_order(tensor))
        with self:
            return torch.empty_strided(tuple(size), strides, dtype=tensor.dtype, device=tensor.device)

    def run(self, call: Callable[..., Any], inputs: Sequence[Any], names: Sequence[Any] = ()) -> Trace:
        """Run ``call``, a function of tensors or an FX graph.

        Args:
            names: what the inputs are known by in every run; by default their positions.

        Raises:
            PaddingRefusal: it fails at this size, or does something that fake tensors cannot.
        """
        with Waiting():
            real = [isinstance(each, Tensor) and not isinstance(each, torch_names.FakeTensor) for each in inputs]
            inputs = [self.like(each) if is_real else each for each, is_real in zip(inputs, real)]
            self.inputs = dict(zip(names or range(len(inputs)), inputs))
            call = fx.Interpreter(call).run if isinstance(call, fx.GraphModule) else call
            try:
                # Below autograd: above it, C++ takes whole operations apart.
                with torch_names.enable_python_dispatcher(), torch_names._AutoDispatchBelowAutograd():
                    with fx.traceback.preserve_node_meta(), self:
                        self._is_recording = True
                        self.results = call(*inputs)
            except _FAILURES as error:
                lines = str(error).strip().splitlines()
                said = f"{type(error).__name__}: {lines[0] if lines else ''}"
                raise PaddingRefusal.by(Cause("", None, Why.FAILS), said) from error
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._is_recording or getattr(func, "namespace", "") == "prim":  # prim: queries a device or layout
            return super().__torch_dispatch__(func, types, args, kwargs)
        stack_trace = fx.traceback.get_current_meta().get("stack_trace")
        if isinstance(func, torch_names.OpOverload):
            if func._can_decompose() and func not in _WHOLE:
                with self:
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            if any(not isinstance(t, torch_names.FakeTensor) for t in _written_by(func, args, kwargs)):
                raise PaddingRefusal.by(Cause(_name(func), stack_trace, Why.OUTSIDE))
        self._is_recording = False  # operations run by an operation's fake implementation are part of it
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
        except (torch_names.DataDependentOutputException, torch_names.DynamicOutputShapeException) as error:
            raise PaddingRefusal.by(Cause(_name(func), stack_trace, Why.READS)) from error
        finally:
            self._is_recording = True
        self.tape.append(Operation(func, args, kwargs, out, stack_trace))
        return out


def _written_by(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among its arguments that an operation writes to."""
    found: list[Tensor] = []
    for i, about in enumerate(op._schema.arguments if op._schema.is_mutable else ()):
        if about.alias_info is not None and about.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(about.name)
            found += value if isinstance(value, (list, tuple)) else [value] if value is not None else []
    return found


# What tracing unknown code on fake tensors may raise; torch's own errors are RuntimeErrors.
_FAILURES = (
    RuntimeError, TypeError, ValueError, AssertionError, LookupError, AttributeError, ArithmeticError,
)  # fmt: skip


# -- two runs, one dim ---------------------------------------------------------------------------------


def rows_independent(n: int, larger: int, own: Trace, bucket: Trace) -> DimVerdict:
    """Decide whether calls of ``n`` rows may run with ``larger`` ones.

    Args:
        own: what the call runs.
        bucket: what runs in the bucket, of which only this one dim differs.

    Raises:
        PaddingRefusal: they may not.
    """
    rows = _Rows(n, larger, own, bucket)
    try:
        return rows.verdict()
    except PaddingRefusal as refusal:
        refusal.is_sized = rows.is_sized
        raise


class _Rows:
    """Follows one dynamic dim through the operations of both runs."""

    def __init__(self, n: int, larger: int, own: Trace, bucket: Trace) -> None:
        self.n, self.larger, self.own, self.bucket = n, larger, own, bucket
        self.known: tuple[dict[int, Value], dict[int, Value]] = {}, {}
        """Each tensor of either run, by id: the tapes keep them all alive."""
        self.memories: tuple[dict[int, Memory], dict[int, Memory]] = {}, {}
        self.needs_last = self.is_sized = False
        self.backward: Cause | None = None

    def verdict(self) -> DimVerdict:
        """See `rows_independent`."""
        for name, one in self.own.inputs.items():
            other = self.bucket.inputs.get(name)
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                self._keep(one, other, self._placed(one, other, Cause("an argument", None, Why.GROWS)))
                self._value(one).memory.is_given = True
        for first, second in zip(self.own.tape, self.bucket.tape):
            self._follow(first, second)
        n_common = min(len(self.own.tape), len(self.bucket.tape))
        for rest in (*self.own.tape[n_common:], *self.bucket.tape[n_common:]):
            raise PaddingRefusal.by(Cause(_name(rest.op), rest.stack_trace, Why.OTHER))
        (results, mine), (others, theirs) = (
            torch_names.tree_flatten(self.own.results),
            torch_names.tree_flatten(self.bucket.results),
        )
        if mine != theirs:
            raise PaddingRefusal.by(Cause("result", None, Why.RETURNS))
        for pair in zip(results, others):
            self._return(self._pair(*pair))
        known = {name: self.known[0][id(t)] for name, t in self.own.inputs.items() if id(t) in self.known[0]}
        written = frozenset(name for name, value in known.items() if value.memory.is_written)
        for name in written:
            self._return(known[name])
        return DimVerdict(written, self.needs_last, self.backward, self.is_sized)

    def _keep(self, one: Tensor, other: Tensor, value: Value) -> None:
        self.known[0][id(one)] = self.known[1][id(other)] = value

    def _value(self, tensor: Tensor) -> Value:
        if id(tensor) not in self.known[0]:
            raise PaddingRefusal.by(Cause("a tensor that one of them alone has", None, Why.OTHER))
        return self.known[0][id(tensor)]

    def _placed(self, one: Tensor, other: Tensor, by: Cause) -> Value:
        """The tensor, with its rows in the one dim whose size is another one in the bucket."""
        if one.dim() != other.dim() or one.dtype is not other.dtype:
            raise PaddingRefusal.by(replace(by, why=Why.OTHER))
        ends = [d for d, (a, b) in enumerate(zip(one.shape, other.shape)) if a != b]
        is_pair = len(ends) == 2 and all((one.shape[d], other.shape[d]) == (self.n, self.larger) for d in ends)
        unknown = replace(by, why=Why.MIXES) if len(ends) > 1 and not is_pair else None  # rows beside rows
        place, each = (ends[0], one.shape[ends[0]] // self.n) if ends else (None, 1)
        if place is not None and (one.shape[place], other.shape[place]) != (each * self.n, each * self.larger):
            unknown = unknown or replace(by, why=Why.GROWS)
        homes, mine = (_home(one), _home(other)), Memory(bool(ends))
        is_new = [home not in known for home, known in zip(homes, self.memories)]
        memory, same = [known.setdefault(home, mine) for home, known in zip(homes, self.memories)]
        memory.is_torn = memory.is_torn or same is not memory or is_new[0] != is_new[1]
        also = ends[1] if is_pair else None
        return Value(tuple(one.shape), one.dtype, None if unknown else place, each, unknown, memory=memory, also=also)

    def _follow(self, entry: Operation, other: Operation) -> None:
        if entry.op is not other.op or len(entry.leaves) != len(other.leaves):
            raise PaddingRefusal.by(Cause(_name(entry.op), entry.stack_trace, Why.OTHER))
        leaves = [*zip(entry.leaves, other.leaves)]
        if not isinstance(entry.op, torch_names.OpOverload):
            given = [torch_names.tree_leaves((each.args, each.kwargs)) for each in (entry, other)]
            cause = Cause(str(entry.op), entry.stack_trace, Why.NO_RULE)
            pairs = [self._pair(*pair) for pair in zip(*given)]
            if any(not v.is_free if isinstance(v, Value) else differs(v) for v in pairs):
                raise PaddingRefusal.by(cause)
            for one, two in leaves:
                if isinstance(one, Tensor):
                    self._keep(one, two, self._placed(one, two, cause))
            return
        step = JudgedOperation(entry.op, entry.stack_trace, {}, [])
        try:
            step.args = self._bound(entry, other)
        except PaddingRefusal:
            raise PaddingRefusal.by(step.cause(Why.OTHER)) from None
        written = _written_by(entry.op, entry.args, entry.kwargs)
        kept = {_home(tensor) for tensor in written}
        fresh = [pair for pair in leaves if isinstance(pair[0], Tensor) and _home(pair[0]) not in kept]
        step.out = [self._placed(*pair, step.cause(Why.NO_RULE)) for pair in fresh]
        if len(fresh) == 1 and follows_from_sizes(step, step.out[0], fresh[0][1].numel()):
            is_exact = all(each.is_exact for each in step.tensors())
            one, two = (self._computed(each, run) for run, each in enumerate((entry, other)))
            front = two[tuple(slice(size) for size in one.size())]
            if not is_exact or front.equal(one):
                made = replace(step.out[0], computed=(one, two), is_exact=is_exact, is_by_place=True)
                return self._keep(*fresh[0], made)
        problem = self._problem(step)
        self.backward = self.backward or self._mixing(step)
        self.needs_last, self.is_sized = self.needs_last or step.needs_last, self.is_sized or step.is_sized
        for tensor in written:
            self._write(step, self._value(tensor), problem)
        for pair, made in zip(fresh, step.out):
            result = self._result(step, made, problem)
            if problem is None and result.place is not None:
                content = false_at_least(step, [tensor.size() for tensor in pair])
                result = replace(result, computed=content, is_exact=False)
            self._keep(*pair, result)
        if any(isinstance(leaf, (list, tuple)) for leaf in entry.leaves):
            raise PaddingRefusal.by(step.cause(Why.NO_RULE))

    def _computed(self, entry: Operation, run: int) -> Tensor:
        """What an operation makes of contents that follow from the sizes."""

        def real(each: Tensor) -> Tensor:
            return self.known[run][id(each)].content[run]  # type: ignore[index]

        args, kwargs = torch_names.tree_map_only(Tensor, real, (entry.args, {**entry.kwargs, **_on_host(entry.op)}))
        with torch.inference_mode(False), torch.no_grad():
            return entry.op(*args, **kwargs)  # type: ignore[no-any-return]

    @staticmethod
    def _mixing(step: JudgedOperation) -> Cause | None:
        return step.cause(Why.BACKWARD) if step.carrying() and mixes_backward(step) else None

    def _problem(self, step: JudgedOperation) -> Cause | None:
        """Why the results are unknown; None if rows stay apart, or do not reach the operation."""
        touched = [name for name, value in step.args.items() if differs(value)]
        if not touched and all(value.is_free for value in step.tensors()):
            return None
        tags = set(step.op.tags)
        found = None if torch.Tag.inplace_view in tags else rule_of(step)
        mixed = next((value.mixed for value in step.tensors() if value.mixed is not None), None)
        if found is None:
            draws = torch.Tag.nondeterministic_seeded in tags
            unknown = Why.DRAWS if draws else Why.READS if _READS & tags else Why.NO_RULE
            is_torchs = step.op.namespace in ("aten", "prims") and not step.op._schema.is_mutable
            if unknown is not Why.NO_RULE or not is_torchs:
                raise PaddingRefusal.by(step.cause(unknown))
            return mixed or step.cause(unknown)
        if mixed is not None:
            return mixed
        if any(value.also is not None for value in step.tensors()) and not step.keeps_pairs():
            return step.cause(Why.MIXES)
        why = Why.SIZE if not SIZES.issuperset(touched) else found(step)
        if why in (Why.DRAWS, Why.READS):
            raise PaddingRefusal.by(step.cause(why))
        return step.cause(why) if why is not None else None

    def _write(self, step: JudgedOperation, value: Value, problem: Cause | None) -> None:
        """What a write does to everything that shares the memory."""
        memory, carrying = value.memory, step.carrying()
        if problem is None and memory.is_torn:
            problem = step.cause(Why.OTHER)
        if problem is None and carrying:
            if value.place is None or any(each.also is not None for each in (value, *carrying)):
                problem = step.cause(Why.MIXES)
            else:
                problem = self._layout(step, value) if memory.has_rows else step.cause(Why.WRITES)
        memory.mixed = memory.mixed or problem
        memory.is_written, memory.is_given, memory.is_count = True, False, False
        memory.has_positions = any(map(_is_by_place, carrying))

    def _result(self, step: JudgedOperation, made: Value, problem: Cause | None) -> Value:
        carrying = step.carrying() if not step.name.startswith("aten::new_") else []
        counts = not carrying and step.name in ("aten::arange", "prims::iota", "aten::slice")
        made = replace(made, is_by_place=counts or any(map(_is_by_place, carrying)))
        if problem is None and made.also is not None and not step.keeps_pairs():
            problem = step.cause(Why.MIXES)
        if problem is not None:
            return replace(made, place=None, also=None, unknown=problem)
        if not any(made.memory is each.memory for each in step.tensors()):
            self._note(step, made)
        if made.place is None:
            return replace(made, unknown=made.unknown or step.cause(Why.MIXES)) if carrying else made
        if carrying:
            is_view = RULES.get(step.name) is view
            blocks = blocks_of(carrying[0], made) if is_view else carrying[0].blocks
            made = replace(made, each=made.each // blocks, blocks=blocks)
            if not is_view and (why := self._layout(step, made)) is not None:
                return replace(made, place=None, unknown=why)
        return made

    def _layout(self, step: JudgedOperation, made: Value) -> Cause | None:
        """Why rows do not lie in the result as they do in the arguments."""
        is_same = all((v.each, v.blocks) == (made.each, made.blocks) for v in step.carrying())
        return None if is_same else step.cause(Why.GROWS)

    def _note(self, step: JudgedOperation, made: Value) -> None:
        """What is known of the content of new memory."""
        memory, carrying = made.memory, step.carrying()
        is_index = made.dtype in (torch.int64, torch.int32)
        if step.name in ("aten::arange", "prims::iota") and made.place is not None:
            is_plain = not step["start"] and step["step"] in (None, 1) and is_index
            memory.is_count = is_plain and made.each == 1
        elif step.name in ("aten::clone", "aten::_to_copy") and carrying and is_index:
            memory.is_given, memory.is_count = carrying[0].memory.is_given, carrying[0].memory.is_count

    def _pair(self, one: Any, other: Any) -> Any:
        """An argument of both runs in the form in which rules take it.

        Raises:
            PaddingRefusal: it is one tensor in the call, and another one in the bucket.
        """
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            value, same = self.known[0].get(id(one)), self.known[1].get(id(other))
            if value is not same:
                raise PaddingRefusal.by(Cause("result", None, Why.OTHER))
            return _constant(one, other) if value is None else value
        if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
            return [self._pair(*pair) for pair in zip(one, other)]
        is_same = type(one) is type(other) and not isinstance(one, Tensor) and (one == other or one != one)
        return one if is_same else Unequal(one, other)

    def _bound(self, entry: Operation, other: Operation) -> dict[str, Any]:
        """The operation's arguments by their names in the schema, defaults included."""
        about = entry.op._schema.arguments
        names, defaults = [each.name for each in about], {each.name: each.default_value for each in about}
        mine, theirs = (defaults | dict(zip(names, each.args)) | each.kwargs for each in (entry, other))
        return {name: self._pair(value, theirs[name]) for name, value in mine.items()}

    def _return(self, result: Any) -> None:
        """Refuse what the caller may not see."""
        if differs(result):
            raise PaddingRefusal.by(Cause("result", None, Why.RETURNS))
        if isinstance(result, Value) and (result.mixed or result.also is not None or result.blocks > 1):
            raise PaddingRefusal.by(result.mixed or Cause("result", None, Why.GROWS))


_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_MOST_COMPARED = 4096
"""Most elements of a constant that are compared; a larger one is known by its identity."""
_TORCH = str(torch.__path__[0])
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def _constant(one: Tensor, other: Tensor) -> Value:
    """A tensor that is no argument and that no recorded operation made."""
    is_same = one is other
    if (
        not isinstance(one, torch_names.FakeTensor)
        and not isinstance(other, torch_names.FakeTensor)
        and one.numel() <= _MOST_COMPARED
    ):
        is_same = is_same or (one.shape, one.dtype) == (other.shape, other.dtype) and one.tolist() == other.tolist()
    return Value(tuple(one.shape), one.dtype, unknown=None if is_same else Cause("a constant", None, Why.SIZE))


def _on_host(op: Any) -> dict[str, str]:
    return {"device": "cpu"} if any(each.name == "device" for each in op._schema.arguments) else {}


def _name(op: Any) -> str:
    return str(op._schema.name) if isinstance(op, torch_names.OpOverload) else str(op)


def _home(tensor: Tensor) -> int:
    """The same for tensors that share memory."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _is_by_place(value: Value) -> bool:
    return value.is_by_place or value.memory.has_positions


def _where(stack_trace: str | None) -> str:
    """The user's source line in a node's stack trace; empty if unknown."""
    frames = _FRAME.findall(stack_trace or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""
