"""A number that changes at every call, as a tensor of one element on the device: it is an input of the graph.

Problem: an operation with a Python number (``x * lr``, ``buffer[i] = row``) has it among its kernel's parameters, so
a graph replays the number that it was captured with. Idea: each such operation has a form that takes a tensor, and
that computes the same bits. The forms are few and written down here; an operation that has none runs eagerly.

    x + n, x - n, x * n, comparisons   the number is rounded to the type that the operation computes in, as its kernel
                                       rounds it
    what else takes a tensor there     the same, where the device has the number's bits
    full(shape, n), tensor([n]), ...   the tensor, repeated; ``arange(n, n + 4)`` counts on from it
    x / n, n / x, and halves           kernels differ from device to device: the device is asked which of a few forms
                                       has its bits; if none has, the operation has none
    x[n], x[n:n+4]                     is an ``index_select``, where nobody can tell a view from a copy
    x[n] = y, x[n:n+4] = y             is an ``index_copy_``

Invariant: the bits are eager's (tests/conformance/test_graphed_numbers.py on each form). An index out of range never
reaches the device: ``Ranges`` are checked at each call.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from gfxgraph import torch_names

_HALVES = (torch.float16, torch.bfloat16)
_ARITHMETIC = {"add", "sub", "mul"}
_IN_PLACE = {"iadd", "isub", "imul", "add_", "sub_", "mul_"}
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
_WRAPPING = {*_ARITHMETIC, *_IN_PLACE, *_COMPARISONS}
_WIDE = (torch.float32, torch.float64, torch.int64)
"""Types that hold a number; for a narrower one torch refuses what overflows, where a tensor would wrap."""
_DIVISIONS = {"truediv", "div", "true_divide"}
_CREATIONS = {"full", "full_like", "new_full", "tensor", "arange"}
_READERS = {
    *_ARITHMETIC, *_COMPARISONS, *_DIVISIONS, "matmul", "sqrt", "exp", "log", "sin", "cos", "rsqrt", "pow", "neg",
    "sum", "mean", "abs", "tanh", "sigmoid", "cat", "stack",
}  # fmt: skip
"""Operations whose result is new memory."""


@dataclass(frozen=True)
class Range:
    """An index or a slice of some length that must lie within a size."""

    begin: fx.Node
    length: int
    size: int

    def holds(self, begin: int) -> bool:
        """Whether it does."""
        return 0 <= begin <= self.size - self.length


Form = tuple[Callable[[fx.Graph, Mapping[fx.Node, fx.Node]], fx.Node], list[Range]]


class OnDevice:
    """Operations of an FX graph that take changing numbers, in the form that takes tensors.

    Args:
        nodes: all operations of the graph.
        numbers: what changes.
        returned: what the graph returns.
    """

    def __init__(self, nodes: list[fx.Node], numbers: frozenset[fx.Node], returned: list[fx.Node]) -> None:
        self._numbers = numbers
        self._returned = set(returned)
        self._writes = [node for node in nodes if _writes(node)]

    def form(self, node: fx.Node) -> Form | None:
        """The operation's form, if it has one: what adds it to a graph, and what must hold for its numbers."""
        if node.op not in ("call_function", "call_method"):
            return None
        name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
        if name in ("getitem", "setitem") and node.op == "call_function":
            index = node.args[1]
            return self._indexing(node, name, index if isinstance(index, tuple) else (index,))
        if name == "select" and len(node.args) == 3 and type(node.args[1]) is int and node.args[1] >= 0:
            return self._indexing(node, "getitem", (*[slice(None)] * node.args[1], node.args[2]))
        if name in _CREATIONS:
            return self._created(node, name)
        is_binary = not node.kwargs and len(node.args) == 2 and (node.op == "call_method" or _is_plain(node.target))
        return (self._binary(node, name) if is_binary else None) or self._taking_a_tensor(node, name)

    def _binary(self, node: fx.Node, name: str) -> Form | None:
        """A division, or arithmetic of halves: in the form that has the bits."""
        at = next((i for i, each in enumerate(node.args) if each in self._numbers), -1)
        number, other, out = node.args[at], node.args[1 - at], _value(node)
        x, n = _value(other), _value(number)
        if not (isinstance(x, Tensor) and isinstance(out, Tensor)) or other in self._numbers or not x.is_cuda:
            return None
        is_float = isinstance(n, (torch.SymFloat, float))
        is_half = torch.result_type(x, 1.0 if is_float else 1) in _HALVES
        if name not in _DIVISIONS and not (name in _ARITHMETIC and is_half):
            return None
        form = _measured(name, at, x.dtype, out.dtype, is_float, x.device)
        return (lambda graph, made: graph.call_function(form, (made[other], made[number])), []) if form else None

    def _taking_a_tensor(self, node: fx.Node, name: str) -> Form | None:
        """With a tensor in the number's place, of the type in which it is computed."""
        out, given = _value(node), {**dict(enumerate(node.args)), **node.kwargs}
        places = [place for place, each in given.items() if each in self._numbers]
        tensors = {place: value for place, each in given.items() if isinstance(value := _value(each), Tensor)}
        rest = tuple((place, each) for place, each in given.items() if place not in tensors and place not in places)
        is_plain = not any(isinstance(each, (fx.Node, list, slice)) for _, each in rest)
        if len(places) != 1 or not tensors or not is_plain or not isinstance(out, Tensor) or not out.is_cuda:
            return None
        number = given[places[0]]
        is_float = isinstance(_value(number), (torch.SymFloat, float))
        first = next(iter(tensors.values()))
        dtype = torch.result_type(first, 1.0 if is_float else 1) if out.dtype is torch.bool else out.dtype
        is_safe = dtype in _WIDE or name in _WRAPPING and dtype not in _HALVES
        if not is_safe or out.grad_fn is not None and name not in _ARITHMETIC:
            return None
        kinds = tuple((place, each.dtype, each.dim() > 0) for place, each in tensors.items())
        if not _has_the_same_bits(node.op, node.target, places[0], kinds, rest, dtype, is_float, out.device):
            return None

        def emit(graph: fx.Graph, made: Mapping[fx.Node, fx.Node]) -> fx.Node:
            moved = {**made, number: graph.call_method("to", (made[number], dtype))}
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: moved.get(each, each))
            return graph.create_node(node.op, node.target, args, kwargs)

        return emit, []

    def _created(self, node: fx.Node, name: str) -> Form | None:
        """A new tensor that holds the number, or those that follow it."""
        out, numbers = _value(node), [each for each in node.all_input_nodes if each in self._numbers]
        if not isinstance(out, Tensor) or not out.is_cuda or out.requires_grad or not out.is_contiguous():
            return None
        shape, is_range = tuple(out.shape), name == "arange"
        length = _length(*node.args) if is_range and len(node.args) == 2 and out.dtype is torch.int64 else 0
        if len(numbers) != 1 + is_range or not (length or all(type(n) is int for n in shape)):
            return None
        if is_range and not length or name == "tensor" and out.numel() != 1 or out.dtype not in _WIDE:
            return None

        def emit(graph: fx.Graph, made: Mapping[fx.Node, fx.Node]) -> fx.Node:
            if length:
                return graph.call_function(_following, (made[node.args[0]], length))
            return graph.call_method("repeat", (graph.call_method("to", (made[numbers[0]], out.dtype)), shape))

        return emit, []

    def _indexing(self, node: fx.Node, name: str, places: tuple[Any, ...]) -> Any:
        base = node.args[0]
        x = _value(base)
        if not isinstance(x, Tensor) or not x.is_cuda or not all(type(n) is int for n in x.shape):
            return None
        found = self._place(x, places)
        if found is None:
            return None
        dim, begin, length, is_slice = found
        shape = [*x.shape[:dim], *([length] if is_slice else []), *x.shape[dim + 1 :]]
        ranges = [Range(begin, length, x.shape[dim])]

        def at(graph: fx.Graph, made: Mapping[fx.Node, fx.Node]) -> fx.Node:
            first = graph.call_method("reshape", (made[begin], (1,)))
            return first if length == 1 else graph.call_function(_following, (first, length))

        def select(graph: fx.Graph, made: Mapping[fx.Node, fx.Node]) -> fx.Node:
            taken = graph.call_method("index_select", (made[base], dim, at(graph, made)))
            return taken if is_slice else graph.call_method("squeeze", (taken, dim))

        def put(graph: fx.Graph, made: Mapping[fx.Node, fx.Node]) -> fx.Node:
            value = node.args[2]
            given = made[value] if isinstance(value, fx.Node) else value
            return graph.call_function(_put, (made[base], dim, at(graph, made), given, shape, not is_slice))

        if name == "setitem":
            value = _value(node.args[2])
            is_fine = node.args[2] not in self._numbers and isinstance(value, (Tensor, int, float))
            return (put, ranges) if is_fine and not x.requires_grad else None
        return (select, ranges) if self._is_only_read(node, base) else None

    def _place(self, x: Tensor, places: tuple[Any, ...]) -> Any:
        """The dim that a number indexes, where it begins, how long that is, and whether it is a slice."""
        here: Any = None
        for dim, each in enumerate(places):
            if isinstance(each, fx.Node) and each in self._numbers and isinstance(_value(each), torch.SymInt):
                new: Any = (dim, each, 1, False)
            elif isinstance(each, slice) and each.step is None and isinstance(each.start, fx.Node):
                length = _length(each.start, each.stop)
                new = (dim, each.start, length, True) if each.start in self._numbers and length else None
            elif isinstance(each, slice) and (each.start, each.stop, each.step) == (None, None, None):
                continue
            else:
                return None
            if new is None or here is not None:
                return None
            here = new
        return here

    def _is_only_read(self, node: fx.Node, base: object) -> bool:
        """Whether a copy serves as well as a view: nothing is written, and only new memory comes of it."""
        if self._writes or node in self._returned:
            return False
        return all(_name(user) in _READERS for user in node.users)


def _length(begin: fx.Node, end: object) -> int:
    """How much is between two numbers, if always the same."""
    a, b = _value(begin), _value(end)
    if not isinstance(a, torch.SymInt) or not isinstance(b, torch.SymInt):
        return 0
    apart = b.node.expr - a.node.expr
    return int(apart) if apart.is_number and apart > 0 else 0


def _value(item: Any) -> Any:
    return item.meta.get("example_value") if isinstance(item, fx.Node) else item


def _name(node: fx.Node) -> str:
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))


def _is_plain(target: Any) -> bool:
    return getattr(target, "__module__", "") in ("_operator", "torch", torch_names.OF_FUNCTIONS) or (
        getattr(torch, getattr(target, "__name__", ""), None) is target
    )


def _writes(node: fx.Node) -> bool:
    name = _name(node)
    return node.op.startswith("call_") and (
        name == "setitem"
        or name in _IN_PLACE
        or (name.endswith("_") and not name.endswith("__"))
        or "out" in node.kwargs
    )


# -- what runs in the graph ------------------------------------------------------------------------------------


_Form = Callable[[Tensor, Tensor], Tensor]
_DIVIDED: tuple[_Form, ...] = (
    lambda x, n: x / n.to(x.dtype),
    lambda x, n: x * n.to(x.dtype).reciprocal(),
    lambda x, n: x * n.double().reciprocal().to(x.dtype),
)
_DIVIDING: tuple[_Form, ...] = (lambda x, n: x.reciprocal() * n.to(x.dtype), lambda x, n: n.to(x.dtype) / x)
_TRIED = {
    True: (0.1, 0.3, 1.7, -2.3, 1e-3, 1e-8, 70001.3, 0.5, 2.0, -1.0),
    False: (1, 3, 7, -13, 2049, 70001, (1 << 24) + 1, 0, 2, -1),
}
"""Numbers; some are rounded by halves, or too large for them, some have a way of their own in ``pow``."""


@functools.cache
def _measured(
    name: str, at: int, given: torch.dtype, dtype: torch.dtype, is_float: bool, device: torch.device
) -> _Form | None:
    """The form of an operation that has the bits of the device's kernel for a number; None if there is none.

    Two ways to compute it differ for one value in four or so, so a few thousand tell.

    Args:
        at: position of the number.
        given: type of the tensor.
        dtype: type of the result.
    """
    op: Any = operator.truediv if name in _DIVISIONS else getattr(operator, name)
    eager: Any = op if at else lambda x, n: op(n, x)
    forms = (_DIVIDED if at else _DIVIDING) if name in _DIVISIONS else (lambda x, n: eager(x, n.to(x.dtype)),)
    with torch.no_grad(), torch_names._disable_current_modes():
        x = torch.linspace(-3, 5, 4099, device=device).mul(1 if given.is_floating_point else 99).to(given)
        numbers = torch.tensor(_TRIED[is_float], dtype=torch.float64 if is_float else torch.int64)
        for wide in dict.fromkeys((dtype, torch.float32) if dtype in _HALVES else (dtype,)):
            for form in forms:
                made = _computed(form, wide, dtype)
                if all(torch.equal(made(x, n.to(device)), eager(x, n.item())) for n in numbers):
                    return made
    return None


class _OnlyComputing(torch_names.TorchDispatchMode):  # type: ignore[misc, valid-type]
    """Refuses what draws, and what reads the tensor back to make a number of it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output}.intersection(func.tags):
            raise NotImplementedError(f"{func} does more than compute")
        return func(*args, **(kwargs or {}))


@functools.cache
def _has_the_same_bits(
    op: str, target: Any, at: Any, kinds: Any, rest: Any, dtype: torch.dtype, is_float: bool, device: torch.device
) -> bool:
    """Whether an operation gives the same with a number and with a tensor in its place: ``dtype`` is the result's."""
    with torch.no_grad(), torch_names._disable_current_modes():
        numbers = torch.tensor(_TRIED[is_float], dtype=torch.float64 if is_float else torch.int64)

        def made(n: Any) -> Tensor:
            x = torch.linspace(-3, 5, 4099, device=device)
            samples = {
                k: (x.roll(177 * i) * (1 if kind.is_floating_point else 99)).to(kind) if is_wide else x[7].to(kind)
                for i, (k, kind, is_wide) in enumerate(kinds)
            }
            given = {**samples, **dict(rest), at: n}
            args = [given.pop(i) for i in range(len(given)) if i in given]
            called = target if op == "call_function" else getattr(args.pop(0), target)
            with _OnlyComputing() if isinstance(n, Tensor) else contextlib.nullcontext():
                return called(*args, **given)

        try:
            return all(
                torch.equal(made(n.to(device).to(dtype)).nan_to_num(), made(n.item()).nan_to_num()) for n in numbers
            )
        except (NotImplementedError, RuntimeError, TypeError):
            return False


def _computed(form: _Form, wide: torch.dtype, dtype: torch.dtype) -> _Form:
    def with_number(x: Tensor, n: Tensor) -> Tensor:
        return form(x.to(wide), n).to(dtype)

    return with_number


def _following(first: Tensor, length: int) -> Tensor:
    return first + torch.arange(length, device=first.device)


def _put(base: Tensor, dim: int, at: Tensor, value: Any, shape: list[int], is_one: bool) -> None:
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=base.dtype, device=base.device)
    while value.dim() > len(shape) and value.shape[0] == 1:
        value = value[0]
    value = value.to(base.dtype).expand(shape)
    base.index_copy_(dim, at, value.unsqueeze(dim) if is_one else value)
