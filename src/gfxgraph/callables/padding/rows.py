"""Whether a call may run at a larger size: decided from the graph, not by running it.

Problem: a step captured at 8 rows should serve a call of 5. Three rows are padding. If they can affect
anything that the caller sees, the answer is wrong, silently, and perhaps only in a later call.

Idea: the graph, or the function, runs on fake tensors (no data, no device) with a symbol for each dynamic dim, and
each dim is followed from operation to operation. A bucket is allowed if every result and everything written holds the
rows of the call at the front of one dim, or does not depend on the dim at all. A write is one to the memory that
tensors share (`Memory`): a wrong one spoils all of them. Nothing is concluded from values, so the verdict holds for
every later call of the same graph.

    ``rules.py`` says which operations keep rows apart; one without a rule is refused by name;
    the shape of a result shows where its rows are: in the one dim whose size depends on the symbol;
    a size that becomes a number is noticed, and assumptions about sizes (``n > 3``, ``n == m``) are conditions.

The verdict is about a graph. It does not cover a size that Python read while the graph was traced elsewhere: the
tracer's own guards must do that. Two arguments that share memory, one of which is written, must be refused by the
caller.

Source: docs/decisions/0110; tests/unit/callables/padding/test_rows.py.
"""

# ruff: noqa: TID253

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, free_symbols
from torch.utils._pytree import tree_leaves

from gfxgraph.callables.padding.rules import (
    RULES,
    SIZES,
    Cause,
    JudgedOperation,
    Memory,
    SymbolicSizes,
    Value,
    Why,
    rule_of,
    view,
)
from gfxgraph.callables.trace.dynamo import Waiting

Dynamic = Mapping[int, Mapping[int, str]]
"""By position of the argument, then by dim: the dynamic dim's name."""


class NotTraced(Exception):
    """The graph cannot be traced with sizes other than the example's; the text says why."""


class RowsRefused(Exception):
    """No bucket can be used, whatever happens to the operation's result; ``args[0]`` is the cause."""


@dataclass(frozen=True)
class DimVerdict:
    """The effect of padding along one dynamic dim.

    Attributes:
        name: the dynamic dim's.
        written: positions of the inputs that are written to. Their own rows are right.
        needs_last: padded rows of the inputs must repeat the last row; else they may hold zeros.
        refusal: why no bucket may be used; "" if one may.
        op: the operation that the refusal is about; "" if there is none.
        where: the source line of that operation.
    """

    name: str
    written: frozenset[int] = frozenset()
    needs_last: bool = False
    refusal: str = ""
    op: str = ""
    where: str = ""

    def explain(self) -> str:
        """One sentence."""
        filled = " with a repetition of the last row" if self.needs_last else ""
        return self.refusal or f"{self.name} may be padded{filled}: no row reaches another"


@dataclass(frozen=True)
class Independence:
    """The verdict for each dynamic dim, and the sizes for which it holds."""

    dims: Mapping[str, DimVerdict]
    conditions: tuple[sympy.Basic, ...] = ()
    """What the trace assumes about sizes, in terms of the names of the dynamic dims."""

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the verdict covers calls of these sizes; check both the call's and the bucket's."""
        given = {_named(name): sympy.Integer(size) for name, size in sizes.items()}
        return all(condition.xreplace(given) == sympy.true for condition in self.conditions)


def rows_independent(
    graph: fx.GraphModule | Callable[..., Any],
    inputs: Sequence[Any],
    dynamic: Dynamic,
) -> Independence:
    """Decide for each dynamic dim whether the graph may run with more rows than the call has.

    Args:
        graph: traced with symbols for the dynamic dims (Dynamo, export, make_fx), or a function or module of
            tensors that can be traced here.
        inputs: one call's, in the order of the graph's placeholders.
        dynamic: by position of the input, then by dim: the dynamic dim's name. Equal names are equal sizes.

    Returns:
        The verdicts. A graph that cannot be traced is refused for every dim.
    """
    env = ShapeEnv(duck_shape=False)
    sizes = _symbols(env, inputs, dynamic)
    symbols = {name: size.node.expr for name, size in sizes.items()}
    mode = _Follower(env)
    try:
        fakes, results = _run(graph, inputs, dynamic, mode, sizes)
    except NotTraced as error:
        why = f"size ({error}); do not use that size in Python or in constant tensors"
        refusal = "is not padded: the function cannot be traced with a symbol for its"
        return Independence({name: DimVerdict(name, refusal=f"{name} {refusal} {why}") for name in symbols})
    back = {symbol: _named(name) for name, symbol in symbols.items()}
    now = {name: size.node.expr for name, size in sizes.items()}  # what the run made of each symbol
    dims = {name: _Rows(mode, name, each, fakes, results).verdict() for name, each in now.items()}
    equal = (sympy.Eq(symbol, now[name]) for name, symbol in symbols.items() if now[name] != symbol)
    conditions = (sympy.sympify(each).xreplace(back) for each in (*(g.expr for g in env.guards), *equal))
    return Independence(dims, tuple(each for each in conditions if each != sympy.true))


def _named(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


# -- the operations ------------------------------------------------------------------------------------


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


def _run(
    call: Callable[..., Any], inputs: Sequence[Any], dynamic: Dynamic, mode: _Follower, sizes: Mapping[str, Any]
) -> tuple[list[Any], Any]:
    """The fake inputs and results.

    Raises:
        NotTraced: it fails on other sizes, or does something that fake tensors cannot.
    """
    with Waiting():
        fakes = [_fake(mode, value, dynamic.get(i, {}), sizes) for i, value in enumerate(inputs)]
        try:
            # Below autograd: above it, C++ takes whole operations apart.
            with enable_python_dispatcher(), torch._C._AutoDispatchBelowAutograd():
                if isinstance(call, fx.GraphModule):
                    _bind_sizes(call, fakes, dynamic, sizes)
                    call = fx.Interpreter(call).run
                with fx.traceback.preserve_node_meta(), mode:
                    mode.is_recording = True
                    return fakes, call(*fakes)
        except _FAILURES as error:
            lines = str(error).strip().splitlines()
            raise NotTraced(f"{type(error).__name__}: {lines[0] if lines else ''}") from error


_WHOLE = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("linear", "default"), ("matmul", "default"), ("scaled_dot_product_attention", "default"),
        ("lstm", "input"), ("gru", "input"), ("rnn_tanh", "input"), ("rnn_relu", "input"),
    )
)  # fmt: skip
"""Operations that are judged as one: torch takes them apart by merging dims, or by kernels of one device."""
_CONVOLUTION = torch.ops.aten.convolution.default


class _Follower(FakeTensorMode):
    """Records each operation as it reaches the fake tensors: after decomposition."""

    def __init__(self, env: ShapeEnv) -> None:
        super().__init__(shape_env=env, allow_non_fake_inputs=True)
        self.env = env
        self.tape: list[Operation] = []
        self.is_recording = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.is_recording or getattr(func, "namespace", "") == "prim":  # prim: queries a device or layout
            return super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(func, torch._ops.OpOverload):
            if func._can_decompose() and func not in _WHOLE:
                with self:
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            if any(not isinstance(t, FakeTensor) for t in _written_by(func, args, kwargs)):
                raise NotTraced(f"{func._schema.name} writes to a tensor that is no argument")
        self.is_recording = False  # operations run by an operation's fake implementation are part of it
        # Which kernel a convolution takes for how many rows is no other program.
        is_any = self.env.suppress_guards() if func is _CONVOLUTION else contextlib.nullcontext()
        try:
            with is_any:
                out = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.is_recording = True
        self.tape.append(Operation(func, args, kwargs, out, fx.traceback.get_current_meta().get("stack_trace")))
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


def example_of(node: fx.Node) -> Any:
    """What stood for a node when it was traced."""
    return node.meta.get("val", node.meta.get("example_value"))


def _symbols(env: ShapeEnv, inputs: Sequence[Any], dynamic: Dynamic) -> dict[str, Any]:
    """A symbolic size for each dynamic dim's name."""
    sizes: dict[str, Any] = {}
    for i, dim, name in ((i, dim, name) for i, dims in dynamic.items() for dim, name in dims.items()):
        if name not in sizes:
            hint, source = max(int(inputs[i].shape[dim]), 2), ConstantSource(f"size_{name}")
            symbol = env.create_symbol(hint, source, DimDynamic.DYNAMIC, constraint_dim=None)
            sizes[name] = env.create_symintnode(symbol, hint=hint, source=source)
    return sizes


def _fake(mode: FakeTensorMode, value: Any, dims: Mapping[int, str], sizes: Mapping[str, Any]) -> Any:
    if not isinstance(value, Tensor):
        return value
    if not dims:
        return mode.from_tensor(value, static_shapes=True)
    shape = [sizes[dims[d]] if d in dims else int(n) for d, n in enumerate(value.shape)]
    # Keep the order of the example's strides: a transposed argument stays transposed.
    order = sorted(range(value.dim()), key=lambda d: (value.stride(d), value.size(d)))
    strides: list[Any] = [0] * value.dim()
    step: Any = 1
    for d in order:
        strides[d] = step
        step = step * shape[d]
    with mode:
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def _bind_sizes(graph: fx.GraphModule, fakes: list[Any], dynamic: Dynamic, sizes: Mapping[str, Any]) -> None:
    """Sizes that the graph takes as separate arguments are those of its tensors.

    Raises:
        NotTraced: a dynamic dim is already a number in the graph, which so says nothing about other sizes.
    """
    examples = [example_of(node) for node in graph.graph.find_nodes(op="placeholder")]
    known: dict[Any, str] = {}
    for i, value in enumerate(examples):
        for dim, name in dynamic.get(i, {}).items() if isinstance(value, Tensor) else ():
            size = value.shape[dim]
            if isinstance(size, int):
                raise NotTraced(f"the graph was traced with {size} rows in dim {dim} of argument {i} fixed")
            known[size.node.expr] = name
    for i, value in enumerate(examples):
        if isinstance(value, torch.SymInt) and i < len(fakes) and not isinstance(fakes[i], Tensor):
            bound = known.get(value.node.expr)
            if bound is None and any(s in free_symbols(value) for s in known):
                raise NotTraced(f"argument {i} is a size computed from dynamic ones")
            fakes[i] = int(fakes[i]) if bound is None else sizes[bound]


# -- one dim ------------------------------------------------------------------------------------------


class _Rows:
    """Follows one dynamic dim through the operations.

    Args:
        symbol: the dim's size, as the whole trace has it.
    """

    def __init__(self, found: _Follower, name: str, symbol: Any, inputs: Sequence[Any], results: Any) -> None:
        self.tape, self.inputs, self.results = found.tape, inputs, results
        self.name = name
        self.sizes = SymbolicSizes(symbol, found.env.replace)
        self.known: dict[int, Value] = {}
        """Each tensor, by id: the tape keeps them all alive."""
        self.memories: dict[int, Memory] = {}
        self.needs_last = False

    def verdict(self) -> DimVerdict:
        try:
            return self._verdict()
        except RowsRefused as refused:
            cause: Cause = refused.args[0]
            where = _where(cause.stack_trace)
            at = f" ({where})" if where else ""
            said = f"{cause.op or 'the function'}{at} {cause.why.value.format(dim=self.name)}"
            if cause.why is Why.FIXED:
                said += f" ({self.name} is {self.sizes.symbol})"
            return DimVerdict(self.name, refusal=f"{self.name} is not padded: {said}", op=cause.op, where=where)

    def _verdict(self) -> DimVerdict:
        if not isinstance(self.sizes.symbol, sympy.Symbol):
            raise RowsRefused(Cause("", None, Why.FIXED))
        for value in self.inputs:
            if isinstance(value, Tensor):
                made = self.known[id(value)] = self._placed(value, Cause("an argument", None, Why.GROWS))
                made.memory.is_given = True
        for entry in self.tape:
            self._follow(entry)
        for result in tree_leaves(self.results):
            self._return(result)
        inputs = {i: v for i, v in enumerate(self.inputs) if isinstance(v, Tensor)}
        written = frozenset(i for i, v in inputs.items() if self.known[id(v)].memory.is_written)
        for i in written:
            self._return(inputs[i])
        return DimVerdict(self.name, written, self.needs_last)

    def _placed(self, tensor: Tensor, by: Cause) -> Value:
        """The tensor, with its rows in the one dim whose size depends on their number."""
        ends = [d for d, size in enumerate(tensor.shape) if self.sizes.depends(size)]
        unknown = replace(by, why=Why.MIXES) if len(ends) > 1 else None  # rows beside rows
        if len(ends) == 1 and self.sizes.times(tensor.shape[ends[0]]) is None:
            unknown = replace(by, why=Why.GROWS)
        place = ends[0] if ends and unknown is None else None
        memory = self.memories.setdefault(_home(tensor), Memory(bool(ends)))
        return Value(tuple(tensor.shape), tensor.dtype, place, unknown, memory=memory)

    def _follow(self, entry: Operation) -> None:
        leaves = entry.leaves
        if not isinstance(entry.op, torch._ops.OpOverload):
            given = [self._value(leaf) for leaf in tree_leaves((entry.args, entry.kwargs))]
            if any(not v.is_free if isinstance(v, Value) else self._depends(v) for v in given):
                raise RowsRefused(Cause(str(entry.op), entry.stack_trace, Why.NO_RULE))
            return
        step = JudgedOperation(entry.op, entry.stack_trace, self._bound(entry), leaves, self.sizes)
        written = _written_by(entry.op, entry.args, entry.kwargs)
        problem = self._problem(step)
        self.needs_last = self.needs_last or step.needs_last
        for tensor in written:
            self._write(step, self._value(tensor), problem)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if not any(_home(leaf) == _home(tensor) for tensor in written):
                    self.known[id(leaf)] = self._result(step, leaf, problem)
            elif isinstance(leaf, (list, tuple)):
                raise RowsRefused(step.cause(Why.NO_RULE))

    def _problem(self, step: JudgedOperation) -> Cause | None:
        """Why the results are unknown; None if rows stay apart, or do not reach the operation."""
        touched = [name for name, value in step.args.items() if self._depends(value)]
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
                raise RowsRefused(step.cause(unknown))
            return mixed or step.cause(unknown)
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
            if value.place is None:
                problem = step.cause(Why.MIXES)
            else:
                problem = self._layout(step, value) if memory.has_rows else step.cause(Why.WRITES)
        memory.mixed = memory.mixed or problem
        memory.is_written, memory.is_given, memory.is_count = True, False, False
        memory.has_positions = any(map(_is_by_place, carrying))

    def _result(self, step: JudgedOperation, leaf: Tensor, problem: Cause | None) -> Value:
        made, carrying = self._placed(leaf, step.cause(Why.NO_RULE)), step.carrying()
        counts = not carrying and step.name in ("aten::arange", "prims::iota", "aten::slice")
        made = replace(made, is_by_place=counts or any(map(_is_by_place, carrying)))
        if problem is not None:
            return replace(made, place=None, unknown=problem)
        if not any(made.memory is each.memory for each in step.tensors()):
            self._note(step, made)
        if made.place is None:
            return replace(made, unknown=made.unknown or step.cause(Why.MIXES)) if carrying else made
        why = None if RULES.get(step.name) is view else self._layout(step, made)
        return made if why is None else replace(made, place=None, unknown=why)

    def _layout(self, step: JudgedOperation, made: Value) -> Cause | None:
        """Why rows do not lie in the result as they do in the arguments."""
        given = [self.sizes.times(v.shape[v.place]) for v in step.carrying() if v.place is not None]
        made_times = self.sizes.times(made.shape[made.place or 0])
        return step.cause(Why.GROWS) if any(each != made_times for each in given) else None

    def _note(self, step: JudgedOperation, made: Value) -> None:
        """What is known of the content of new memory."""
        memory, carrying = made.memory, step.carrying()
        is_index = made.dtype in (torch.int64, torch.int32)
        if step.name in ("aten::arange", "prims::iota") and made.place is not None:
            is_plain = not step["start"] and step["step"] in (None, 1) and is_index
            memory.is_count = is_plain and self.sizes.times(made.shape[made.place]) == 1
        elif step.name in ("aten::clone", "aten::_to_copy") and carrying and is_index:
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

    def _bound(self, entry: Operation) -> dict[str, Any]:
        """The operation's arguments by their names in the schema, defaults included."""
        about = entry.op._schema.arguments
        given = {each.name: each.default_value for each in about} | dict(zip((a.name for a in about), entry.args))
        return {name: self._value(value) for name, value in (given | entry.kwargs).items()}

    def _return(self, result: Any) -> None:
        """Refuse what the caller may not see."""
        if self._depends(result):
            raise RowsRefused(Cause("result", None, Why.RETURNS))
        if isinstance(result, Tensor) and (mixed := self._value(result).mixed) is not None:
            raise RowsRefused(mixed)


_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_TORCH = str(torch.__path__[0])
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


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
