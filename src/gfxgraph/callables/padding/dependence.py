"""Whether a call may run at a larger size: decided from the graph, not by running it.

Problem: a step captured at 8 rows should serve a call of 5. Three rows are padding. If they can affect
anything that the caller sees, the answer is wrong, silently, and perhaps only in a later call.

Idea: each dynamic dim is followed through the graph, operation by operation (``rows.py`` defines what is
known about each tensor). A bucket is allowed if every result and everything written holds the rows of the
call at the front of a dim, or does not depend on the dim at all. Nothing is concluded from values, so the
verdict holds for every later call of the same graph.

    1. ``symbolic.py`` traces the graph again with a symbol for each dynamic dim;
    2. one rule per operation says how its results depend on the rows (``row_rules.py``, ``layout_rules.py``,
       ``index_rules.py``); an operation without a rule is refused by name;
    3. whatever a rule says is checked against the shapes: a size depends on the symbol exactly where the rule
       puts rows;
    4. results and writes are checked.

The verdict is about a graph. It does not cover a size that Python read while the graph was traced elsewhere: the
tracer's own guards must do that. Two arguments that share memory, one of which is written, must be refused by the
caller.

Source: docs/decisions/0110; tests/unit/callables/padding/test_dependence.py.
"""

# ruff: noqa: TID253

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from gfxgraph.callables.padding import index_rules, layout_rules, row_rules
from gfxgraph.callables.padding.by_row import is_by_row
from gfxgraph.callables.padding.rows import (
    FREE,
    RULES,
    Cause,
    JudgedOperation,
    Padding,
    RowDependence,
    RowsRefused,
    RowValue,
    Ruled,
    SymbolicSizes,
    Why,
)
from gfxgraph.callables.padding.symbolic import Dynamic, NotTraced, Operation, SymbolicTape, traced

_TABLES = (index_rules, layout_rules, row_rules)  # imported for the rules that they register


@dataclass(frozen=True)
class Cut:
    """A dim of a result that holds the rows of the call at its front."""

    dim: int
    size: sympy.Expr
    """Size of the front, in terms of the names of the dynamic dims."""

    def at(self, sizes: Mapping[str, int]) -> int:
        """How many elements to keep for a call of these sizes."""
        return int(_at(self.size, sizes))


@dataclass(frozen=True)
class DimVerdict:
    """The effect of padding along one dynamic dim.

    Attributes:
        name: the dynamic dim's.
        outputs: for each result that is a tensor, the dims to cut; None for other results.
        written: by name of the input, how to cut what is written to it. Its own rows are right.
        padding: what the padded rows of the inputs must hold.
        refusal: why no bucket may be used; None if one may.
        reason: the operation that the refusal is about, and where it is called.
        in_pieces: the operation that prevents splitting a call along the dim; None if it may be split.
    """

    name: str
    outputs: tuple[tuple[Cut, ...] | None, ...] = ()
    written: Mapping[str, tuple[Cut, ...]] = field(default_factory=dict)
    padding: Padding = Padding.ANY
    refusal: str | None = None
    reason: Cause | None = None
    in_pieces: Cause | None = None

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
        last = "a repetition of the last row"
        filled = ("", f" with zeros or {last}", f" with {last}")[self.padding]
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
        return all(_at(condition, sizes) == sympy.true for condition in self.conditions)

    def explain(self) -> str:
        """A sentence for each dim."""
        return "\n".join(verdict.explain() for verdict in self.dims.values())


def rows_independent(
    graph: fx.GraphModule | Callable[..., Any],
    inputs: Sequence[Any],
    dynamic: Dynamic,
    results: Sequence[int] | None = None,
    hints: Mapping[str, int] | None = None,
) -> Independence:
    """Decide for each dynamic dim whether the graph may run with more rows than the call has.

    Args:
        graph: traced with symbols for the dynamic dims (Dynamo, export, make_fx), or a function or module of
            tensors that can be traced here.
        inputs: one call's, in the order of the graph's placeholders.
        dynamic: by position of the input, then by dim: the dynamic dim's name. Equal names are equal sizes.
        results: positions of the results that matter, among all leaves; all by default.
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
    simplify = found.env.replace if hasattr(found.env, "replace") else lambda expr: expr
    back = {symbol: sympy.Symbol(name, integer=True, positive=True) for name, symbol in found.symbols.items()}
    judged = {
        name: _Judgement(found, name, simplify(symbol), simplify, back).verdict(results)
        for name, symbol in found.symbols.items()
    }
    conditions = tuple(expr.xreplace(back) for expr in found.assumed())
    equal = tuple(
        sympy.Eq(back[symbol], simplify(symbol).xreplace(back))
        for symbol in found.symbols.values()
        if simplify(symbol) != symbol
    )
    return Independence(judged, tuple(c for c in (*conditions, *equal) if c != sympy.true))


class _Judgement:
    """Follows one dynamic dim through one graph."""

    def __init__(
        self, found: SymbolicTape, name: str, symbol: Any, simplify: Callable[[Any], Any], back: Any
    ) -> None:
        self.found = found
        self.name = name
        self.symbol = symbol
        self.sizes = SymbolicSizes(symbol, simplify)
        self.back = back
        self.rows: dict[int, RowDependence] = {}
        """Row dependence of each tensor, by id: the trace keeps them all alive."""
        self.last: dict[int, Operation] = {}
        """The operation that made each tensor."""
        self.needs = Padding.ANY
        self.written: dict[str, tuple[Cut, ...]] = {}
        self.in_pieces: Cause | None = None

    def verdict(self, results: Sequence[int] | None) -> DimVerdict:
        try:
            if not isinstance(self.symbol, sympy.Symbol):
                raise RowsRefused(Cause("", None, Why.FIXED, f"{self.name} is {self.symbol}"))
            outputs: tuple[tuple[Cut, ...] | None, ...] = ()
            for value in self.found.inputs:
                if isinstance(value, Tensor):
                    self.rows[id(value)] = self._argument(value)
            for entry in self.found.tape:
                self._call(entry)
            outputs = self._results(results)
        except RowsRefused as refused:
            cause = refused.cause
            return DimVerdict(self.name, padding=self.needs, refusal=sentence(self.name, cause), reason=cause)
        return DimVerdict(self.name, outputs, self.written, self.needs, in_pieces=self.in_pieces)

    def _argument(self, value: Tensor) -> RowDependence:
        dims = {d: 1 for d, size in enumerate(value.shape) if self.sizes.depends(size)}
        return RowDependence(dims, is_moved=bool(dims))

    # -- one operation --------------------------------------------------------------------------------

    def _call(self, entry: Operation) -> None:
        leaves = list(entry.out) if isinstance(entry.out, (list, tuple)) else [entry.out]
        if not isinstance(entry.op, torch._ops.OpOverload):
            self._unknown(entry)
            return
        step = JudgedOperation(entry.op, entry.stack_trace, _bound(entry, self._value), leaves, self.sizes)
        rows = self._ruled(step)
        self.needs = max(self.needs, step.needs)
        rows = [self._checked(step, each, leaf) for each, leaf in zip(rows, leaves)]
        made = [r for r, leaf in zip(rows, leaves) if isinstance(leaf, Tensor)]
        is_touched = any(map(self._depends, step.args.values()))
        if self.in_pieces is None and not is_by_row(step, made, is_touched):
            self.in_pieces = Cause(entry.op._schema.name, entry.stack_trace, Why.ROWS_BEFORE)
        for each, leaf in zip(rows, leaves):
            if isinstance(leaf, Tensor):
                self.rows[id(leaf)] = each
                self.last[id(leaf)] = entry
            elif isinstance(leaf, (list, tuple)):
                raise step.refuse(Why.NO_RULE, "lists within its results")

    def _ruled(self, step: JudgedOperation) -> list[RowDependence]:
        n = len(step.out)
        touched = [name for name, value in step.args.items() if self._depends(value)]
        tensors = list(step.tensors())
        if not touched and all(t.rows.is_free for t in tensors):
            return self._same_in_both(step)
        if step.op._schema.is_mutable:
            raise step.refuse(Why.NO_RULE, "it writes to its arguments")
        ruled = _rule_of(step.op)
        if ruled is None:
            if torch.Tag.nondeterministic_seeded in step.op.tags:
                raise step.refuse(Why.DRAWS)
            if step.op.namespace not in ("aten", "prims"):
                raise step.refuse(Why.NO_RULE)
            return [_first_mixed(tensors) or step.mixed(Why.NO_RULE)] * n
        if not ruled.takes_mixed:
            mixed = _first_mixed(tensors)
            if mixed is not None:
                return [mixed] * n
        if any(name not in ruled.sizes for name in touched):
            return [step.mixed(Why.SIZE)] * n
        rows = ruled.rule(step)
        return rows if isinstance(rows, list) else [rows] * n

    def _same_in_both(self, step: JudgedOperation) -> list[RowDependence]:
        """The dim does not reach this operation; keep only what its rule knows about signs."""
        ruled = _rule_of(step.op)
        if ruled is None or step.name not in _KNOWS_SIGNS:
            return [FREE] * len(step.out)
        rows = ruled.rule(step)
        each = rows if isinstance(rows, list) else [rows] * len(step.out)
        return [RowDependence(is_nonnegative=r.is_nonnegative) for r in each]

    def _checked(self, step: JudgedOperation, rows: RowDependence, leaf: Any) -> RowDependence:
        """The row dependence, checked against the shape of the result."""
        if not isinstance(leaf, Tensor) or rows.mixed is not None:
            return rows
        dims = {}
        for d, size in enumerate(leaf.shape):
            if not self.sizes.depends(size):
                continue  # the whole dim is the front
            values = self.sizes.at(size)
            if d not in rows.dims or list(values) != sorted(values) or values[0] < 0:
                return step.mixed(Why.GROWS)
            if values[0] % (rows.dims[d] or 1):
                return step.mixed(Why.GROWS)
            dims[d] = rows.dims[d]
        if any((outer or 1) != 1 and d not in dims for d, outer in rows.dims.items()):
            return step.mixed(Why.GROWS)
        return replace(rows, dims=dims, repeats=rows.repeats or not dims, counts=rows.counts if dims else None)

    def _depends(self, value: Any) -> bool:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.sizes.depends(value)
        return isinstance(value, (list, tuple)) and any(self._depends(v) for v in value)

    def _value(self, value: Any) -> Any:
        """An argument in the form in which rules take it."""
        if isinstance(value, Tensor):
            rows = self.rows.get(id(value))
            if rows is None:  # a constant, made by no recorded operation
                is_same = not any(map(self.sizes.depends, value.shape))
                rows = FREE if is_same else RowDependence(mixed=Cause("an untraced tensor", None, Why.NO_RULE))
            return RowValue(tuple(value.shape), value.dtype, rows)
        if isinstance(value, (list, tuple)):
            return [self._value(v) for v in value]
        return value

    def _unknown(self, entry: Operation) -> None:
        given = [self._value(leaf) for leaf in tree_leaves((entry.args, entry.kwargs))]
        if any(self._depends(v) or (isinstance(v, RowValue) and not v.rows.is_free) for v in given):
            raise RowsRefused(Cause(str(entry.op), entry.stack_trace, Why.NO_RULE))

    # -- what the caller sees ----------------------------------------------------------------------------

    def _results(self, wanted: Sequence[int] | None) -> tuple[tuple[Cut, ...] | None, ...]:
        made: list[tuple[Cut, ...] | None] = []
        for i, value in enumerate(tree_leaves(self.found.results)):
            if wanted is not None and i not in wanted:
                made.append(None)
                continue
            if self._depends(value):
                raise RowsRefused(Cause(f"result {i}", None, Why.RETURNS))
            made.append(self._cuts(value, Why.INTERLEAVED) if isinstance(value, Tensor) else None)
        for name, value in self.found.written.items():
            self.written[name] = self._cuts(value, Why.WRITES)
        return tuple(made)

    def _cuts(self, value: Tensor, why: Why) -> tuple[Cut, ...]:
        rows, entry = self._value(value).rows, self.last.get(id(value))
        if rows.mixed is not None:
            raise RowsRefused(rows.mixed)
        if any((outer or 1) != 1 for outer in rows.dims.values()):
            name = entry.op._schema.name if entry is not None else ""
            raise RowsRefused(Cause(name, entry.stack_trace if entry is not None else None, why))
        return tuple(Cut(d, self._named(value.shape[d])) for d in sorted(rows.dims))

    def _named(self, size: Any) -> sympy.Expr:
        expr = size.node.expr if hasattr(size, "node") else sympy.Integer(size)
        return expr.xreplace(self.back)


def _rule_of(op: Any) -> Ruled | None:
    name = op._schema.name
    ruled = RULES.get(name)
    if ruled is not None:
        return ruled
    if torch.Tag.pointwise in op.tags:
        return _POINTWISE if torch.Tag.nondeterministic_seeded not in op.tags else None
    if name.startswith("aten::_foreach_") and _is_pointwise(name.removeprefix("aten::_foreach_")):
        return _FOREACH
    return None


_KNOWS_SIGNS = frozenset(
    f"aten::{name}"
    for name in (
        "abs square clamp clamp_min mul add maximum minimum bitwise_and remainder where alias detach _to_copy clone "
        "view expand permute transpose t unsqueeze squeeze select slice index argmax argmin topk sort cumsum "
        "eq ne lt le gt ge logical_not logical_and logical_or embedding gather index_select cat stack"
    ).split()
)
_POINTWISE = Ruled(row_rules.pointwise, frozenset(), False)
_FOREACH = Ruled(row_rules.foreach, frozenset(), False)


def _is_pointwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and any(torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads())


def _first_mixed(tensors: Sequence[RowValue]) -> RowDependence | None:
    return next((t.rows for t in tensors if t.rows.mixed is not None), None)


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


def _at(expr: Any, sizes: Mapping[str, int]) -> Any:
    given = {sympy.Symbol(name, integer=True, positive=True): sympy.Integer(size) for name, size in sizes.items()}
    return sympy.sympify(expr).xreplace(given)


def operations_with_a_rule() -> Iterator[str]:
    """Names of ATen operations that have a rule."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name, None)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            if _rule_of(op) is not None:
                yield str(op)
