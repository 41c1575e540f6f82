"""The operations of a graph on fake tensors, with symbols for its dynamic dims or at one size.

The caller's graph, or function, is run again on fake tensors: no data, no device. Its dynamic dims
are symbols, so a size that becomes a number in the graph is noticed, and assumptions about sizes
(``n > 3``, ``n == m``) are kept. Operations are ATen's, in-place ones among them: what shares memory has one fake
storage, so a write is seen by whoever follows the operations.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, free_symbols

from gfxgraph.callables.trace.dynamo import Waiting

Dynamic = Mapping[int, Mapping[int, str]]
"""By position of the argument, then by dim: the dynamic dim's name."""


class NotTraced(Exception):
    """The graph cannot be traced with sizes other than the example's; the text says why."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as it was called."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    stack_trace: str | None

    @property
    def leaves(self) -> list[Any]:
        return list(self.out) if isinstance(self.out, (list, tuple)) else [self.out]


@dataclass(frozen=True)
class SymbolicTape:
    """The operations in order, and the meaning of their symbols. Tensors are fake; they are compared by identity."""

    tape: list[Operation]
    inputs: list[Any]
    results: Any
    env: ShapeEnv
    symbols: dict[str, Any]
    """The symbol by the dynamic dim's name."""

    def assumed(self) -> list[Any]:
        """What the trace assumes about sizes, as expressions."""
        return [guard.expr for guard in self.env.guards]


def traced(
    call: Callable[..., Any], inputs: Sequence[Any], dynamic: Dynamic, hints: Mapping[str, int] | None = None
) -> SymbolicTape:
    """Trace ``call`` on tensors like ``inputs``; branches on sizes go the way that ``hints`` go.

    Raises:
        NotTraced: it fails on other sizes, or does something that fake tensors cannot.
    """
    if isinstance(call, fx.GraphModule):
        _refuse_numbers(call, dynamic)
    env = ShapeEnv(duck_shape=False)
    mode = _Recorder(env)
    symbols, sizes = _symbols(env, inputs, dynamic, hints or {})
    with Waiting():
        fakes = [_fake(mode, value, dynamic.get(i, {}), sizes) for i, value in enumerate(inputs)]
        try:
            # Below autograd: above it, C++ takes whole operations apart.
            with enable_python_dispatcher(), torch._C._AutoDispatchBelowAutograd():
                if isinstance(call, fx.GraphModule):
                    _bind_sizes(call, fakes, dynamic, sizes)
                    call = _WithLines(call, mode).run
                with mode:
                    mode.is_recording = True
                    results = call(*fakes)
        except _FAILURES as error:
            lines = str(error).strip().splitlines()
            raise NotTraced(f"{type(error).__name__}: {lines[0] if lines else ''}") from error
    return SymbolicTape(mode.tape, fakes, results, env, symbols)


_WHOLE = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("linear", "default"), ("matmul", "default"), ("scaled_dot_product_attention", "default"),
        ("lstm", "input"), ("gru", "input"), ("rnn_tanh", "input"), ("rnn_relu", "input"),
    )
)  # fmt: skip
"""Operations that are judged as one: torch takes them apart by merging dims, or by kernels of one device."""


class _Recorder(FakeTensorMode):
    """Records each operation as it reaches the fake tensors: after decomposition."""

    def __init__(self, env: ShapeEnv) -> None:
        super().__init__(shape_env=env, allow_non_fake_inputs=True)
        self.tape: list[Operation] = []
        self.stack_trace: str | None = None
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
            if any(not isinstance(t, FakeTensor) for t in written_by(func, args, kwargs)):
                raise NotTraced(f"{func._schema.name} writes to a tensor that is no argument")
        self.is_recording = False  # operations run by an operation's fake implementation are part of it
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.is_recording = True
        self.tape.append(Operation(func, args, kwargs, out, self.stack_trace))
        return out


def written_by(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
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


class _WithLines(fx.Interpreter):
    """Runs a graph, and tells the recorder the source line of each node."""

    def __init__(self, module: fx.GraphModule, recorder: _Recorder) -> None:
        super().__init__(module)
        self._recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        self._recorder.stack_trace = n.meta.get("stack_trace")
        return super().run_node(n)


def example_of(node: fx.Node) -> Any:
    """What stood for a node when it was traced."""
    return node.meta.get("val", node.meta.get("example_value"))


def _refuse_numbers(graph: fx.GraphModule, dynamic: Dynamic) -> None:
    """Refuse a graph in which a dynamic dim is already a number: it says nothing about other sizes."""
    for i, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        known = example_of(node)
        for dim in dynamic.get(i, {}) if isinstance(known, Tensor) else ():
            if isinstance(known.shape[dim], int):
                size = known.shape[dim]
                raise NotTraced(f"the graph was traced with {size} rows in dim {dim} of argument {i} fixed")


def _symbols(
    env: ShapeEnv, inputs: Sequence[Any], dynamic: Dynamic, hints: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """For each dynamic dim's name a symbol, and the size that it stands for."""
    symbols: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    for i, dims in dynamic.items():
        for dim, name in dims.items():
            if name not in symbols:
                hint = max(hints.get(name, int(inputs[i].shape[dim])), 2)
                source = ConstantSource(f"size_{name}")
                symbols[name] = env.create_symbol(hint, source, DimDynamic.DYNAMIC, constraint_dim=None)
                sizes[name] = env.create_symintnode(symbols[name], hint=hint, source=source)
    return symbols, sizes


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
    """Sizes that the graph takes as separate arguments are those of its tensors."""
    examples = [example_of(node) for node in graph.graph.find_nodes(op="placeholder")]
    known: dict[Any, str] = {}
    for i, value in enumerate(examples):
        for dim, name in dynamic.get(i, {}).items():
            if isinstance(value, Tensor):
                known[value.shape[dim].node.expr] = name
    for i, value in enumerate(examples):
        if isinstance(value, torch.SymInt) and i < len(fakes) and not isinstance(fakes[i], Tensor):
            bound = known.get(value.node.expr)
            if bound is not None:
                fakes[i] = sizes[bound]
            elif any(s in free_symbols(value) for s in known):
                raise NotTraced(f"argument {i} is a size computed from dynamic ones")
            else:
                fakes[i] = int(fakes[i])
