"""An FX graph with its numbers apart: a counter or a schedule is computed in Python, and is part of no signature.

Problem: an attribute that changes at each call (``self.step += 1``, a learning rate) is a number that Dynamo hands
to the FX graph, also where the graph only adds one to it and hands it back. As an argument of a captured piece each
value is a signature of its own, and none is met twice. Idea: what is computed of numbers alone runs in Python at each
call. A number that an operation takes is a constant of the piece while it is at rest; one that is not becomes a
tensor on the device, where the operations that take it have a form for that (device_numbers.py).

    numbers ── Python ──> numbers that the program keeps
                └── at rest ──> piece                      (one signature for each value)
                └── restless ──> piece that takes a tensor
                                 └── an operation has no form: eager, with the number's name

Invariant: operations run in the order of the FX graph; numbers, which have no effects, before all of them.

Source: tests/conformance/test_graphed_numbers.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, fx

from gfxgraph.callables.pieces.device_numbers import Form, OnDevice, Range
from gfxgraph.callables.pieces.region import Piece, Region
from gfxgraph.callables.trace.dynamo import local
from gfxgraph.callables.trace.in_dynamo import RESTLESS_NUMBER, Found

MOST_VALUES = 6
"""Values of a number that operations take as captures of their own; with more it is restless."""

Env = dict[fx.Node, object]


class WithNumbers:
    """A callable in the place of an FX graph that is given numbers.

    Args:
        found: what Dynamo found.
        make: a piece for a graph.
    """

    def __init__(self, found: Found, make: Callable[[Found], Piece]) -> None:
        numbers = found.numbers
        self._found = found
        self._make = make
        self._numbers = numbers
        nodes = list(found.graph.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._returned = nodes[-1].args[0]
        apart = {*numbers, *self._placeholders, nodes[-1]}
        self._rest = [node for node in nodes if node not in apart]
        returned: list[fx.Node] = []
        fx.map_arg(self._returned, returned.append)
        self._gives = [node for node in dict.fromkeys(returned) if node not in numbers]
        taken = [node for node in numbers if any(user not in apart for user in node.users)]
        self._values: dict[fx.Node, set[object]] = {node: set() for node in taken}
        """By number that operations take: what it has been."""
        used = {*self._gives, *(each for node in self._rest for each in node.all_input_nodes)}
        self._takes = [node for node in (*self._placeholders, *numbers) if node in used and node not in self._rest]
        self._takes = list(dict.fromkeys(self._takes))
        self._ranges: list[Range] = []
        """What indices must lie in."""
        self._boxed: frozenset[fx.Node] = frozenset()
        """Numbers that are tensors on the device."""
        self._most = 1 if self._forms(frozenset(taken)) is not None else MOST_VALUES
        self._gone: list[Piece] = []
        """Pieces of before a number was restless."""
        self._piece = self._built(None, found.why_eager)

    @property
    def regions(self) -> list[Region]:
        """Those of its pieces."""
        return [region for piece in (*self._gone, self._piece) for region in piece.regions]

    @property
    def restless(self) -> tuple[str, ...]:
        """Names of the numbers that operations take and that have had too many values."""
        return self._names(self._restless() - self._boxed)

    def note_run(self, inputs: Sequence[object]) -> None:
        """As `Piece.note_run`."""
        self._look_at_numbers(self._computed(inputs))
        self._piece.note_run(inputs)

    def _computed(self, inputs: Sequence[object]) -> Env:
        """What is computed of numbers alone."""
        env: Env = dict(zip(self._placeholders, inputs))
        for node in self._numbers:
            if node.op != "placeholder":
                env[node] = _compute(node, env)
        return env

    def __call__(self, inputs: Sequence[object]) -> object:
        env = self._computed(inputs)
        self._look_at_numbers(env)
        if not all(each.holds(env[each.begin]) for each in self._ranges):  # type: ignore[arg-type]
            local.n_eager += 1
            return self._found.graph.forward(*inputs)
        given = [self._on_device(env[n], inputs) if n in self._boxed else env[n] for n in self._takes]
        env.update(zip(self._gives, self._piece(given)))
        return fx.map_arg(self._returned, env.__getitem__)

    # -- inside ---------------------------------------------------------------------------------------

    def _names(self, numbers: Iterable[fx.Node]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for node in numbers:
            while node.op != "placeholder" and node.all_input_nodes:
                node = node.all_input_nodes[0]
            found[self._name(node)] = None
        return tuple(filter(None, found))

    def _name(self, node: fx.Node) -> str:
        """What the program calls an input; "" for what is computed."""
        return self._found.names[self._placeholders.index(node)] if node in self._placeholders else ""

    def _restless(self) -> frozenset[fx.Node]:
        return frozenset(node for node, values in self._values.items() if len(values) > self._most)

    def _forms(self, numbers: frozenset[fx.Node]) -> dict[fx.Node, Form] | None:
        """For each operation that takes one of the numbers, the form that takes tensors; None if one has none."""
        forms = OnDevice(self._rest, numbers, self._gives)
        found = {node: forms.form(node) for node in self._rest if not numbers.isdisjoint(node.all_input_nodes)}
        return None if None in found.values() else found  # type: ignore[return-value]

    def _look_at_numbers(self, env: Env) -> None:
        """Build another piece where a number has turned out to be restless."""
        is_new = False
        for node, values in self._values.items():
            if len(values) <= self._most and env[node] not in values:
                values.add(env[node])
                is_new = is_new or len(values) > self._most
        if not is_new or self._found.why_eager:
            return
        restless = self._restless()
        forms = self._forms(restless)
        self._piece.drop()
        self._gone.append(self._piece)
        if forms is None:
            self._boxed, self._ranges = frozenset(), []
            self._piece = self._built(None, f"{', '.join(self._names(restless)) or 'a number'} {RESTLESS_NUMBER}")
        else:
            self._boxed = restless
            self._ranges = [each for _, ranges in forms.values() for each in ranges]
            self._piece = self._built(forms, "")

    def _built(self, forms: dict[fx.Node, Form] | None, why_eager: str) -> Piece:
        """A piece of the operations, some of them in the form that takes tensors."""
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in self._takes}
        for node in self._rest:
            form = forms.get(node) if forms is not None else None
            made[node] = form[0](graph, made) if form is not None else graph.node_copy(node, made.__getitem__)
        graph.output(tuple(made[node] for node in self._gives))
        outside = {self._placeholders[i] for i in self._found.outside}
        module = fx.GraphModule(self._found.graph, graph)
        part = dataclasses.replace(self._found, graph=module, sources=[], why_eager=why_eager)
        part.names = [self._name(node) for node in self._takes]
        part.outside = [i for i, node in enumerate(self._takes) if node in outside]
        return self._make(part)

    @staticmethod
    def _on_device(number: object, inputs: Iterable[object]) -> Tensor:
        device = next((each.device for each in inputs if isinstance(each, Tensor) and each.is_cuda), None)
        dtype = torch.float64 if isinstance(number, float) else torch.int64
        return torch.full((), number, dtype=dtype, device=device or "cuda")  # type: ignore[arg-type]


def _compute(node: fx.Node, env: Env) -> object:
    args = fx.map_arg(node.args, env.__getitem__)
    kwargs = fx.map_arg(node.kwargs, env.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def make_piece(found: Found, *, name: str, max_graphs: int = 64) -> Piece | WithNumbers:
    """Make a callable for an FX graph of the function called ``name``."""
    if not found.numbers:
        return Piece(found, name, max_graphs)
    return WithNumbers(found, lambda part: Piece(part, name, max_graphs))
