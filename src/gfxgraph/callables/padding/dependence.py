"""Whether a call may run at a larger size: decided from the graph, not by running it.

Problem: a step captured at 8 rows should serve a call of 5. Three rows are padding. If they can affect
anything that the caller sees, the answer is wrong, silently, and perhaps only in a later call.

Idea: each dynamic dim is followed through the graph, operation by operation. A bucket is allowed if every
result and everything written holds the rows of the call at the front of one dim, or does not depend on the dim
at all. A write is one to the memory that tensors share (`Memory`): a wrong one spoils all of them. Nothing is
concluded from values, so the verdict holds for every later call of the same graph.

    1. ``symbolic.py`` traces the graph again with a symbol for each dynamic dim;
    2. ``rules.py`` says which operations keep rows apart; one without a rule is refused by name;
    3. the shape of a result shows where its rows are: in the one dim whose size depends on the symbol;
    4. results and writes are checked.

The verdict is about a graph. It does not cover a size that Python read while the graph was traced elsewhere: the
tracer's own guards must do that. Two arguments that share memory, one of which is written, must be refused by the
caller.

Source: docs/decisions/0110; tests/unit/callables/padding/test_dependence.py.
"""

# ruff: noqa: TID253

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from gfxgraph.callables.padding.rules import (
    COPIES,
    RULES,
    SIZES,
    WRITERS,
    Cause,
    JudgedOperation,
    Memory,
    RowsRefused,
    SymbolicSizes,
    Value,
    Why,
    blocks_of,
    rule_of,
    view,
)
from gfxgraph.callables.padding.symbolic import Dynamic, NotTraced, Operation, SymbolicTape, traced, written_by


@dataclass(frozen=True)
class DimVerdict:
    """The effect of padding along one dynamic dim.

    Attributes:
        name: the dynamic dim's.
        outputs: for each result, the dim whose front holds the call's rows; None for results without rows.
        written: positions of the inputs that are written to. Their own rows are right.
        needs_last: padded rows of the inputs must repeat the last row; else they may hold zeros.
        refusal: why no bucket may be used; None if one may.
        reason: the operation that the refusal is about, and where it is called.
    """

    name: str
    outputs: tuple[int | None, ...] = ()
    written: frozenset[int] = frozenset()
    needs_last: bool = False
    refusal: str | None = None
    reason: Cause | None = None

    @property
    def allowed(self) -> bool:
        return self.refusal is None

    @property
    def op(self) -> str:
        """The operation that the refusal is about; empty if there is none."""
        return self.reason.op if self.reason is not None else ""

    @property
    def where(self) -> str:
        """Source line of that operation."""
        return where_of(self.reason.stack_trace) if self.reason is not None else ""

    def explain(self) -> str:
        """One sentence."""
        if self.refusal is not None:
            return self.refusal
        filled = " with a repetition of the last row" if self.needs_last else ""
        return f"{self.name} may be padded{filled}: no row reaches another"


@dataclass(frozen=True)
class Independence:
    """The verdict for each dynamic dim, and the sizes for which it holds."""

    dims: Mapping[str, DimVerdict]
    conditions: tuple[sympy.Basic, ...] = ()
    """What the trace assumes about sizes, in terms of the names of the dynamic dims."""

    def __getitem__(self, name: str) -> DimVerdict:
        return self.dims[name]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the verdict covers calls of these sizes; check both the call's and the bucket's."""
        given = {_named(name): sympy.Integer(size) for name, size in sizes.items()}
        return all(condition.xreplace(given) == sympy.true for condition in self.conditions)

    def explain(self) -> str:
        """A sentence for each dim."""
        return "\n".join(verdict.explain() for verdict in self.dims.values())


def rows_independent(
    graph: fx.GraphModule | Callable[..., Any],
    inputs: Sequence[Any],
    dynamic: Dynamic,
    hints: Mapping[str, int] | None = None,
) -> Independence:
    """Decide for each dynamic dim whether the graph may run with more rows than the call has.

    Args:
        graph: traced with symbols for the dynamic dims (Dynamo, export, make_fx), or a function or module of
            tensors that can be traced here.
        inputs: one call's, in the order of the graph's placeholders.
        dynamic: by position of the input, then by dim: the dynamic dim's name. Equal names are equal sizes.
        hints: sizes of the dynamic dims by which torch chooses between kernels; the inputs' by default.

    Returns:
        The verdicts. A graph that cannot be traced is refused for every dim.
    """
    names = list(dict.fromkeys(name for dims in dynamic.values() for name in dims.values()))
    try:
        found = traced(graph, inputs, dynamic, hints)
    except NotTraced as error:
        why = f"size ({error}); do not use that size in Python or in constant tensors"
        refusal = "is not padded: the function cannot be traced with a symbol for its"
        return Independence({name: DimVerdict(name, refusal=f"{name} {refusal} {why}") for name in names})
    simplify = found.env.replace
    back = {symbol: _named(name) for name, symbol in found.symbols.items()}
    judged = {
        name: _Judgement(found, name, simplify(symbol), simplify).verdict() for name, symbol in found.symbols.items()
    }
    equal = (sympy.Eq(symbol, simplify(symbol)) for symbol in found.symbols.values() if simplify(symbol) != symbol)
    conditions = tuple(sympy.sympify(each).xreplace(back) for each in (*found.assumed(), *equal))
    return Independence(judged, tuple(each for each in conditions if each != sympy.true))


def _named(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


class _Judgement:
    """Follows one dynamic dim through one graph."""

    def __init__(self, found: SymbolicTape, name: str, symbol: Any, simplify: Callable[[Any], Any]) -> None:
        self.found = found
        self.name = name
        self.sizes = SymbolicSizes(symbol, simplify)
        self.known: dict[int, Value] = {}
        """Each tensor, by id: the trace keeps them all alive."""
        self.memories: dict[int, Memory] = {}
        self.needs_last = False

    def verdict(self) -> DimVerdict:
        try:
            if not isinstance(self.sizes.symbol, sympy.Symbol):
                raise RowsRefused(Cause("", None, Why.FIXED, f"{self.name} is {self.sizes.symbol}"))
            for value in self.found.inputs:
                if isinstance(value, Tensor):
                    made = self.known[id(value)] = self._placed(value, Cause("an argument", None, Why.GROWS))
                    made.memory.is_given = True
            for entry in self.found.tape:
                self._follow(entry)
            outputs = tuple(map(self._returned, tree_leaves(self.found.results)))
            inputs = {i: v for i, v in enumerate(self.found.inputs) if isinstance(v, Tensor)}
            written = frozenset(i for i, v in inputs.items() if self.known[id(v)].memory.is_written)
            for i in written:
                self._returned(inputs[i])
        except RowsRefused as refused:
            cause = refused.cause
            return DimVerdict(self.name, refusal=sentence(self.name, cause), reason=cause)
        return DimVerdict(self.name, outputs, written, self.needs_last)

    def _placed(self, tensor: Tensor, by: Cause) -> Value:
        """The tensor, with its rows in the one dim whose size depends on their number."""
        ends = [d for d, size in enumerate(tensor.shape) if self.sizes.depends(size)]
        unknown = replace(by, why=Why.MIXES) if len(ends) > 1 else None  # rows beside rows
        if len(ends) == 1 and self.sizes.times(tensor.shape[ends[0]]) is None:
            unknown = replace(by, why=Why.GROWS)
        place = ends[0] if ends and unknown is None else None
        memory = self.memories.setdefault(_home(tensor), Memory(bool(ends)))
        return Value(tuple(tensor.shape), tensor.dtype, place, unknown, 1, memory)

    # -- one operation --------------------------------------------------------------------------------

    def _follow(self, entry: Operation) -> None:
        leaves = entry.leaves
        if not isinstance(entry.op, torch._ops.OpOverload):
            given = [self._value(leaf) for leaf in tree_leaves((entry.args, entry.kwargs))]
            if any(not v.is_free if isinstance(v, Value) else self._depends(v) for v in given):
                raise RowsRefused(Cause(str(entry.op), entry.stack_trace, Why.NO_RULE))
            return
        step = JudgedOperation(entry.op, entry.stack_trace, _bound(entry, self._value), leaves, self.sizes)
        written = written_by(entry.op, entry.args, entry.kwargs)
        problem = self._problem(step)
        self.needs_last = self.needs_last or step.needs_last
        for tensor in written:
            self._write(step, self._value(tensor), problem)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if not any(_home(leaf) == _home(tensor) for tensor in written):
                    self.known[id(leaf)] = self._result(step, leaf, problem)
            elif isinstance(leaf, (list, tuple)):
                raise RowsRefused(step.cause(Why.NO_RULE, "lists within its results"))

    def _problem(self, step: JudgedOperation) -> Cause | None:
        """Why the results are unknown; None if rows stay apart, or do not reach the operation."""
        touched = [name for name, value in step.args.items() if self._depends(value)]
        if not touched and all(value.is_free for value in step.tensors()):
            return None
        tags = set(step.op.tags)
        found = None if torch.Tag.inplace_view in tags else rule_of(step)
        if found is None:
            draws = torch.Tag.nondeterministic_seeded in tags
            unknown = Why.DRAWS if draws else Why.READS if _READS & tags else Why.NO_RULE
            is_torchs = step.op.namespace in ("aten", "prims") and not step.op._schema.is_mutable
            if unknown is not Why.NO_RULE or not is_torchs:
                raise RowsRefused(step.cause(unknown))
            return _first_mixed(step) or step.cause(unknown)
        mixed = _first_mixed(step)
        if mixed is not None:
            return mixed
        why = Why.SIZE if not SIZES.issuperset(touched) else found(step)
        if why in (Why.DRAWS, Why.READS):
            raise RowsRefused(step.cause(why))
        return step.cause(why) if why is not None else None

    def _write(self, step: JudgedOperation, value: Value, problem: Cause | None) -> None:
        """What a write does to everything that shares the memory."""
        memory, carrying = value.memory, step.carrying()
        if problem is None and carrying:
            if value.place is not None and not memory.has_rows:
                problem = step.cause(Why.WRITES)
            elif value.place is None and step.kind not in WRITERS:
                problem = step.cause(Why.MIXES)
            elif value.place is not None:
                problem = self._layout(step, value)
        memory.mixed = memory.mixed or problem
        memory.is_written, memory.is_given, memory.is_count = True, False, False
        memory.has_positions = any(each.has_positions for each in carrying)

    def _result(self, step: JudgedOperation, leaf: Tensor, problem: Cause | None) -> Value:
        made = self._placed(leaf, step.cause(Why.NO_RULE))
        memory, carrying = made.memory, step.carrying()
        if problem is not None:
            return replace(made, place=None, unknown=problem)
        if not any(memory is each.memory for each in step.tensors()):
            self._note(step, made)
        if made.place is None:
            if carrying and made.unknown is None and not (step.kind in WRITERS and step["self"].is_free):
                return replace(made, unknown=step.cause(Why.MIXES))
            return made
        if RULES.get(step.name) is view:
            return replace(made, blocks=blocks_of(step))
        why = self._layout(step, made)
        if why is not None:
            return replace(made, place=None, unknown=why)
        return replace(made, blocks=carrying[0].blocks) if carrying else made

    def _layout(self, step: JudgedOperation, made: Value) -> Cause | None:
        """Why rows do not lie in the result as they do in the arguments."""
        layouts = {(self.sizes.times(v.shape[v.place]), v.blocks) for v in step.carrying() if v.place is not None}
        if not layouts or (
            len(layouts) == 1 and next(iter(layouts))[0] == self.sizes.times(made.shape[made.place or 0])
        ):
            return None
        return step.cause(Why.GROWS)

    def _note(self, step: JudgedOperation, made: Value) -> None:
        """What is known of the content of new memory."""
        memory, carrying = made.memory, step.carrying()
        memory.has_positions = any(each.has_positions for each in carrying)
        if step.name in ("aten::arange", "prims::iota") and made.place is not None:
            counts = not step["start"] and step["step"] in (None, 1) and made.dtype in _INDICES
            memory.is_count = counts and self.sizes.times(made.shape[made.place]) == 1
            memory.has_positions = not memory.is_count
        elif step.name in COPIES and carrying and made.dtype in _INDICES:
            memory.is_given, memory.is_count = carrying[0].memory.is_given, carrying[0].memory.is_count

    def _depends(self, value: Any) -> bool:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.sizes.depends(value)
        return isinstance(value, (list, tuple)) and any(self._depends(v) for v in value)

    def _value(self, value: Any) -> Any:
        """An argument in the form in which rules take it."""
        if isinstance(value, Tensor):
            known = self.known.get(id(value))  # without: a constant, made by no recorded operation
            unknown = Cause("an untraced tensor", None, Why.NO_RULE)
            is_same = not any(map(self.sizes.depends, value.shape))
            return known or Value(tuple(value.shape), value.dtype, unknown=None if is_same else unknown)
        return [self._value(v) for v in value] if isinstance(value, (list, tuple)) else value

    # -- what the caller sees ----------------------------------------------------------------------------

    def _returned(self, result: Any) -> int | None:
        """The dim of a result that holds rows."""
        if self._depends(result):
            raise RowsRefused(Cause("result", None, Why.RETURNS))
        if not isinstance(result, Tensor):
            return None
        value: Value = self._value(result)
        if value.mixed is not None:
            raise RowsRefused(value.mixed)
        if value.blocks != 1:
            by = next(each for each in reversed(self.found.tape) if any(leaf is result for leaf in each.leaves))
            raise RowsRefused(Cause(by.op._schema.name, by.stack_trace, Why.GROWS))
        return value.place


_INDICES = (torch.int64, torch.int32)
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def _home(tensor: Tensor) -> int:
    """The same for tensors that share memory."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _first_mixed(step: JudgedOperation) -> Cause | None:
    return next((value.mixed for value in step.tensors() if value.mixed is not None), None)


def _bound(entry: Operation, value: Callable[[Any], Any]) -> dict[str, Any]:
    """The operation's arguments by their names in the schema, defaults included."""
    bound: dict[str, Any] = {}
    for i, argument in enumerate(entry.op._schema.arguments):
        if i < len(entry.args):
            bound[argument.name] = value(entry.args[i])
        elif argument.name in entry.kwargs:
            bound[argument.name] = value(entry.kwargs[argument.name])
        else:
            bound[argument.name] = argument.default_value if argument.has_default_value() else None
    return bound


_TORCH = str(torch.__path__[0])
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def where_of(stack_trace: str | None) -> str:
    """The user's source line in a node's stack trace; empty if unknown."""
    frames = _FRAME.findall(stack_trace or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def sentence(name: str, cause: Cause) -> str:
    """The refusal as a sentence."""
    what = cause.why.value.format(dim=name)
    where = where_of(cause.stack_trace)
    at = f" ({where})" if where else ""
    detail = f" ({cause.detail})" if cause.detail else ""
    return f"{name} is not padded: {cause.op or 'the function'}{at} {what}{detail}"
