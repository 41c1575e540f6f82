"""The operations of a graph, with symbols for its dynamic dims and without mutation.

The caller's graph, or function, is run again on fake tensors: no data, no device. Its dynamic dims
are symbols, so a size that becomes a number in the graph is noticed, and assumptions about sizes
(``n > 3``, ``n == m``) are kept. Operations are ATen's, and writes become results: what
was written to an argument is an additional one. Parameters, buffers and
constants of the graph become inputs, so that writes to them are noticed as well. Writes take
functionalization, two thirds of the time: the first trace runs without it, until an operation writes.
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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, free_symbols
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_map_only

from gfxgraph.callables.trace.dynamo import Waiting

Dynamic = Mapping[int, Mapping[int, str]]
"""By position of the argument, then by dim: the dynamic dim's name."""


class _OperationWrites(BaseException):
    """An operation writes to a tensor. The traced function's ``except Exception`` must not catch it."""


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


@dataclass(frozen=True)
class SymbolicTape:
    """The operations in order, and the meaning of their symbols. Tensors are fake; they are compared by identity."""

    tape: list[Operation]
    inputs: list[Any]
    results: Any
    written: dict[str, Tensor]
    """Final contents of written inputs, arguments by position and others by name."""
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
    with Waiting():
        try:
            return _traced(call, inputs, dynamic, hints, may_write=False)
        except _OperationWrites:
            return _traced(call, inputs, dynamic, hints, may_write=True)


def _traced(
    call: Callable[..., Any],
    inputs: Sequence[Any],
    dynamic: Dynamic,
    hints: Mapping[str, int] | None,
    may_write: bool,
) -> SymbolicTape:
    env = ShapeEnv(duck_shape=False)
    mode = _Recorder(env, may_write)
    symbols, sizes = _symbols(env, inputs, dynamic, hints or {})
    fakes = [_fake(mode, value, dynamic.get(i, {}), sizes) for i, value in enumerate(inputs)]
    try:
        with enable_python_dispatcher():
            if isinstance(call, fx.GraphModule):
                _bind_sizes(call, fakes, dynamic, sizes)
            return _functional(call, mode, env, fakes, symbols)
    except _FAILURES as error:
        lines = str(error).strip().splitlines()
        raise NotTraced(f"{type(error).__name__}: {lines[0] if lines else ''}") from error


def _functional(
    call: Callable[..., Any], mode: _Recorder, env: ShapeEnv, fakes: Sequence[Any], symbols: dict[str, Any]
) -> SymbolicTape:
    """The graph with its own tensors as inputs, and with what is written to inputs as results.

    This does not cover a plain function's own tensors: it is refused if it writes rows to them.
    """
    state = _state(call) if isinstance(call, fx.GraphModule) else {}
    lifted = [mode.from_tensor(t, static_shapes=True) for t in state.values()]
    n = len(fakes)
    written: list[int] = []

    def flat(*values: Any) -> Any:
        if not isinstance(call, fx.GraphModule):
            return call(*values)
        held = dict(zip(state, values[n:]))
        with _reparametrize_module(call, {k: v for k, v in held.items() if k in _named(call)}):
            return _Lifted(call, held, mode).run(*values[:n])

    def functional(*values: Any) -> Any:
        """``flat``, and what it wrote to its arguments."""
        without = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))
        with without, _Functional():
            wrapped = [FunctionalTensor.to_functional(v) if isinstance(v, Tensor) else v for v in values]
            results = tree_map_only(FunctionalTensor, _plain, flat(*wrapped))
            for i, value in enumerate(wrapped):
                if isinstance(value, FunctionalTensor):
                    torch._sync(value)
                    if torch._functionalize_has_metadata_mutation(value.elem):
                        raise NotTraced(f"the shape of argument {i} is changed in place")
                    if torch._functionalize_has_data_mutation(value.elem):
                        written.append(i)
            return results, [torch._from_functional_tensor(wrapped[i].elem) for i in written]

    with torch._C._AutoDispatchBelowAutograd(), mode:  # above it, C++ takes whole operations apart
        mode.is_recording = True
        results, after = functional(*fakes, *lifted) if mode.may_write else (flat(*fakes, *lifted), [])
        mode.is_recording = False
    if mode.writes and not mode.may_write:
        raise _OperationWrites
    names = [*(f"argument {i}" for i in range(n)), *state]
    return SymbolicTape(
        mode.tape, [*fakes, *lifted], results, {names[i]: t for i, t in zip(written, after)}, env, symbols
    )


def _plain(value: FunctionalTensor) -> Tensor:
    torch._sync(value)
    return torch._from_functional_tensor(value.elem)


_WHOLE = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("linear", "default"), ("matmul", "default"), ("scaled_dot_product_attention", "default"),
        ("lstm", "input"), ("gru", "input"), ("rnn_tanh", "input"), ("rnn_relu", "input"),
    )
)  # fmt: skip
"""Operations that are judged as one: torch takes them apart by merging dims, or by kernels of one device."""


class _Functional(FunctionalTensorMode):
    """Functionalization that leaves whole operations whole."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _WHOLE:
            return super().__torch_dispatch__(func, types, args, kwargs)
        given = tree_map_only(FunctionalTensor, _plain, (args, kwargs or {}))
        out = func(*given[0], **given[1])
        with self:
            return tree_map_only(Tensor, FunctionalTensor.to_functional, out)


class _WritesToOwn(NotTraced):
    """An operation below functionalization writes."""


class _Recorder(FakeTensorMode):
    """Records each operation as it reaches the fake tensors: after functionalization and decomposition."""

    def __init__(self, env: ShapeEnv, may_write: bool) -> None:
        super().__init__(shape_env=env, allow_non_fake_inputs=True)
        self.may_write = may_write
        """Operations come by way of functionalization."""
        self.writes = False
        self.tape: list[Operation] = []
        self.stack_trace: str | None = None
        self.is_recording = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.is_recording or getattr(func, "namespace", "") == "prim":  # prim: queries a device or layout
            return super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(func, torch._ops.OpOverload) and func._can_decompose() and func not in _WHOLE:
            n_before = len(self.tape)
            try:
                with self:
                    out = func.decompose(*args, **kwargs)
            except _WritesToOwn:  # its own temporaries, as torch.rms_norm does
                del self.tape[n_before:]
                with self, FunctionalTensorMode():
                    given = tree_map_only(Tensor, FunctionalTensor.to_functional, (args, kwargs))
                    out = tree_map_only(FunctionalTensor, _plain, func.decompose(*given[0], **given[1]))
            if out is not NotImplemented:
                return out
        if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable:  # else it is a result by now
            if not self.may_write:
                self.writes = True
                raise _OperationWrites
            raise _WritesToOwn(f"{func._schema.name} writes to a tensor that is no argument")
        self.is_recording = False  # operations run by an operation's fake implementation are part of it
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.is_recording = True
        self.tape.append(Operation(func, args, kwargs, out, self.stack_trace))
        return out


# What tracing unknown code on fake tensors may raise; torch's own errors are RuntimeErrors.
_FAILURES = (
    RuntimeError, TypeError, ValueError, AssertionError, LookupError, AttributeError, ArithmeticError,
)  # fmt: skip


class _Lifted(fx.Interpreter):
    """Runs a graph with the given tensors in place of its own."""

    def __init__(self, module: fx.GraphModule, held: Mapping[str, Any], recorder: _Recorder) -> None:
        super().__init__(module)
        self.held = held
        self.recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.stack_trace = n.meta.get("stack_trace")
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.held[target] if target in self.held else super().get_attr(target, args, kwargs)


def _named(module: torch.nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _state(graph: fx.GraphModule) -> dict[str, Tensor]:
    """The tensors that a graph holds, each once."""
    found = _named(graph)
    for node in graph.graph.find_nodes(op="get_attr"):
        value: Any = graph
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
        if isinstance(value, Tensor):
            found.setdefault(str(node.target), value)
    return found


def _refuse_numbers(graph: fx.GraphModule, dynamic: Dynamic) -> None:
    """Refuse a graph in which a dynamic dim is already a number: it says nothing about other sizes."""
    for i, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        known = node.meta.get("val", node.meta.get("example_value"))
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
    nodes = graph.graph.find_nodes(op="placeholder")
    known: dict[Any, str] = {}
    for i, node in enumerate(nodes):
        value = node.meta.get("val", node.meta.get("example_value"))
        for dim, name in dynamic.get(i, {}).items():
            if isinstance(value, Tensor):
                known[value.shape[dim].node.expr] = name
    for i, node in enumerate(nodes):
        value = node.meta.get("val", node.meta.get("example_value"))
        if isinstance(value, torch.SymInt) and i < len(fakes) and not isinstance(fakes[i], Tensor):
            bound = known.get(value.node.expr)
            if bound is not None:
                fakes[i] = sizes[bound]
            elif any(s in free_symbols(value) for s in known):
                raise NotTraced(f"argument {i} is a size computed from dynamic ones")
            else:
                fakes[i] = int(fakes[i])


__all__ = ["Dynamic", "NotTraced", "SymbolicTape", "traced"]
