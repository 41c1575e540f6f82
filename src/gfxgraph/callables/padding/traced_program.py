"""A traced graph and its inputs: what each placeholder is, and whether two graphs are the same program.

A size of 1, a stride, or two sizes that happen to be equal give a call a trace of its own, though the function
does the same. Two traces are the same program at given sizes if their operations are equal, one by one, once sizes
are
substituted for symbols.
"""

# ruff: noqa: TID253

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from gfxgraph.callables.padding.symbolic import Dynamic


class FxProgram:
    """One of Dynamo's FX graphs, with the inputs of one call.

    Args:
        graph: the FX graph.
        sources: of its placeholders, as Dynamo writes them.
        scope: the namespace of the sources: the call's ``L``, and names of Dynamo's own.
    """

    def __init__(self, graph: fx.GraphModule, sources: Sequence[str], scope: Mapping[str, Any]) -> None:
        self.graph = graph
        self.sources = sources
        self.placeholders = graph.graph.find_nodes(op="placeholder")
        self.inputs = [
            eval(source, dict(scope)) if source else _hint(node) for node, source in zip(self.placeholders, sources)
        ]
        self._sizes: dict[Any, int] = {}
        for node, value in zip(self.placeholders, self.inputs):
            known = _example(node)
            if isinstance(known, torch.SymInt):
                self._bind(known, value)
            elif isinstance(known, Tensor) and isinstance(value, Tensor):
                for mine, real in zip((*known.shape, *known.stride()), (*value.shape, *value.stride())):
                    self._bind(mine, real)

    def _bind(self, symbolic: Any, value: int) -> None:
        if isinstance(symbolic, torch.SymInt) and symbolic.node.expr.is_Symbol:
            self._sizes.setdefault(symbolic.node.expr, int(value))

    def places(self, tensors: Sequence[Tensor]) -> dict[int, int]:
        """By position of the placeholder: the position of its tensor among the call's."""
        by_id = {id(t): i for i, t in enumerate(tensors)}
        return {at: by_id[id(value)] for at, value in enumerate(self.inputs) if id(value) in by_id}

    def dynamic(self, tensors: Sequence[Tensor], dims: Mapping[int, Mapping[int, str]]) -> Dynamic:
        """``dims`` by position of the placeholder."""
        return {at: dims[i] for at, i in self.places(tensors).items() if i in dims}

    def steps(self) -> list[Any]:
        """The operations on tensors, with the call's numbers; equal for the same program."""
        order: dict[fx.Node, int] = {}
        found: list[Any] = []
        tensors = [(n, s) for n, s in zip(self.placeholders, self.sources) if isinstance(_example(n), Tensor)]
        # Dynamo takes inputs in the order of first use; numbers among them do not change that order.
        for node, source in tensors:
            order[node] = len(order)
            found.append(source)
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                continue
            value = _example(node)
            if value is not None and _is_number(value):
                continue
            if node.op == "output":
                found.append([order[n] for n in node.all_input_nodes if n in order])
                continue
            target = self._held(node) if node.op == "get_attr" else node.target
            found.append((node.op, target, self._plain(node.args, order), self._plain(node.kwargs, order)))
            order[node] = len(order)
        return found

    def _held(self, node: fx.Node) -> Any:
        """A constant is identified by its content if it is small, otherwise by identity."""
        value = operator.attrgetter(str(node.target))(self.graph)
        if isinstance(value, Tensor) and value.numel() <= _MOST_COMPARED:
            return (value.dtype, tuple(value.shape), repr(value.tolist()))
        return id(value)

    def _plain(self, value: Any, order: Mapping[fx.Node, int]) -> Any:
        if isinstance(value, fx.Node):
            if value in order:
                return ("node", order[value])
            return self._plain(_example(value), order)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            # lazily: it takes long to import, and a symbolic number has already done so
            import sympy  # type: ignore[import-untyped]

            number = value.node.expr.xreplace({s: sympy.Integer(n) for s, n in self._sizes.items()})
            if number.free_symbols:
                return object()  # equal to nothing
            return repr(bool(number) if isinstance(value, torch.SymBool) else _number(number))
        if isinstance(value, (list, tuple)):
            return [self._plain(each, order) for each in value]
        if isinstance(value, Mapping):
            return {name: self._plain(each, order) for name, each in value.items()}
        if isinstance(value, slice):
            return ("slice", *[self._plain(each, order) for each in (value.start, value.stop, value.step)])
        return repr(value) if isinstance(value, (bool, int, float, complex)) else value


def is_same_program(one: FxProgram, other: FxProgram) -> bool:
    """Whether the two do the same for the calls that they were made with; False if unknown."""
    return one.graph is other.graph or bool(one.steps() == other.steps())


_MOST_COMPARED = 4096
"""Most elements of a graph's constant that are compared."""


def _example(node: fx.Node) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))


def _hint(node: fx.Node) -> Any:
    value = _example(node)
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value


def _is_number(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_number(each) for each in value)
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _number(value: Any) -> int | float:
    return int(value) if value.is_integer else float(value)
