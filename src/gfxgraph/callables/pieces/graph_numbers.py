"""An FX graph with its numbers apart: a counter or a schedule is computed in Python, and is part of no signature.

Problem: an attribute that changes at each call (``self.step += 1``, a learning rate) is a number that Dynamo hands
to the FX graph, also where the graph only adds one to it and hands it back. As an argument of a captured piece each
value is a signature of its own, and none is met twice. Idea: what is computed of numbers alone runs in Python at each
call, and only what an operation takes goes on to the pieces. Where an operation takes a number that is never at rest,
the graph is cut there: that operation runs eagerly, what lies between is captured.

    numbers ── Python ──> numbers that the program keeps
                └── at rest ──> piece                      (one signature for each value)
                └── restless ──> piece ── operation, eagerly ── piece

Invariants: operations run in the order of the FX graph; numbers, which have no effects, before all of them. A graph
is cut only where no state of torch's (autocast, grad mode) is switched inside it.

Source: decision 0202; tests/conformance/test_graphed_numbers.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, fx

from gfxgraph.callables.pieces.device_numbers import OnDevice, Range
from gfxgraph.callables.pieces.region import Piece, Region
from gfxgraph.callables.trace.dynamo import local, note_inputs
from gfxgraph.callables.trace.trace_result import RESTLESS_NUMBER, Found

MOST_VALUES = 6
"""Values of a number that operations take as captures of their own; with more it is restless."""

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
Env = dict[fx.Node, object]


def numbers_in(graph: fx.Graph) -> list[fx.Node]:
    """What is computed of numbers from outside alone, in order; empty where the graph has no such number."""
    found: dict[fx.Node, None] = {}
    boxed: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            argument = node.meta.get("grapharg")
            if argument is None or type(argument.source).__name__ == "TensorPropertySource":
                continue  # a size, which is that of a tensor
            if isinstance(node.meta.get("example_value"), _NUMBERS):
                found[node] = None
            elif argument.pass_arg_as_tensor and all(each.target == "item" for each in node.users):
                boxed.add(node)  # a float travels as a tensor on the host
        elif node.op.startswith("call_"):
            value, needs = node.meta.get("example_value"), node.all_input_nodes
            is_unboxed = node.target == "item" and needs[0] in boxed
            is_boxing = node.target is torch.scalar_tensor
            if is_unboxed or (isinstance(value, _NUMBERS) or is_boxing) and needs and all(n in found for n in needs):
                found[node] = None
    return list(found)


class InParts:
    """A callable in the place of an FX graph that is given numbers.

    Args:
        found: what Dynamo found.
        numbers: ``numbers_in`` its graph.
        make: a piece for a part of it.
    """

    def __init__(self, found: Found, numbers: list[fx.Node], make: Callable[[Found], Piece]) -> None:
        self._found = found
        self._make = make
        self._numbers = numbers
        nodes = list(found.graph.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._returned = nodes[-1].args[0]
        apart = {*numbers, *self._placeholders, nodes[-1]}
        self._rest = [node for node in nodes if node not in apart]
        self._taken = [node for node in numbers if any(user not in apart for user in node.users)]
        self._values: dict[fx.Node, set[object]] = {node: set() for node in self._taken}
        self._can_be_cut = not found.why_eager and not any(map(_switches, self._rest))
        self._steps: list[_Stretch] = []
        self._gone: list[Piece] = []
        """Pieces of before the graph was cut."""
        self._boxed: dict[fx.Node, fx.Node] = {}
        """By number: the input of pieces that is its tensor on the device."""
        self._ranges: list[Range] = []
        """What indices must lie in."""
        self._cut(frozenset())
        self._has_forms = self._can_be_cut and all(map(self._on_device(frozenset(numbers)).can, self._takers()))

    @property
    def _pieces(self) -> list[Piece]:
        return [*self._gone, *[step.piece for step in self._steps]]

    @property
    def regions(self) -> list[Region]:
        """Those of its pieces."""
        return [region for piece in self._pieces for region in piece.regions]

    @property
    def restless(self) -> tuple[str, ...]:
        """Names of the numbers that operations take and that have had too many values."""
        return self._names(self._restless() - self._boxed.keys())

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
        most = 1 if self._has_forms else MOST_VALUES
        return frozenset(node for node, values in self._values.items() if len(values) > most)

    def _takers(self) -> list[fx.Node]:
        return [node for node in self._rest if not set(self._taken).isdisjoint(node.all_input_nodes)]

    def _on_device(self, numbers: frozenset[fx.Node]) -> OnDevice:
        returned: list[fx.Node] = []
        fx.map_arg(self._returned, returned.append)
        return OnDevice(self._rest, numbers, returned)

    @staticmethod
    def _device(inputs: Iterable[object]) -> object:
        found = next((each.device for each in inputs if isinstance(each, Tensor) and each.is_cuda), None)
        return found if found is not None else torch.device("cuda", torch.cuda.current_device())

    @property
    def is_drawless(self) -> bool:
        """No first run took random numbers from the device's default generator."""
        return all(step.piece.is_drawless for step in self._steps)

    @property
    def draws_of_host(self) -> bool:
        """Some first run took numbers from the host's generators."""
        return any(piece.draws_of_host for piece in self._pieces)

    def __call__(self, *inputs: object) -> object:
        note_inputs(inputs)
        env: Env = dict(zip(self._placeholders, inputs))
        for node in self._numbers:
            if node.op != "placeholder":
                env[node] = _compute(node, env)
        if not local.is_raw:
            self._look_at_numbers(env)
        if not all(each.holds(env[each.begin]) for each in self._ranges):  # type: ignore[arg-type]
            local.n_eager += 1
            return self._found.graph.forward(*inputs)
        for node, boxed in self._boxed.items():
            env[boxed] = torch.full((), env[node], dtype=_dtype(env[node]), device=self._device(inputs))  # type: ignore[arg-type]
        for step in self._steps:
            values = step.piece(*[env[node] for node in step.takes])
            assert isinstance(values, tuple | list)
            env.update(zip(step.gives, values))
        return fx.map_arg(self._returned, env.__getitem__)

    def _look_at_numbers(self, env: Env) -> None:
        """Cut the graph where a number has turned out to be restless."""
        is_new, most = False, 1 if self._has_forms else MOST_VALUES
        for node, values in self._values.items():
            if len(values) <= most and env[node] not in values:
                values.add(env[node])
                is_new = is_new or len(values) > most
        if is_new and self._can_be_cut:
            self._gone = self._pieces
            for piece in self._gone:
                piece.give_up()
            self._cut(self._restless())

    def _cut(self, restless: frozenset[fx.Node]) -> None:
        parts: list[tuple[bool, list[fx.Node]]] = []
        forms = self._on_device(restless)
        takers = [node for node in self._rest if not restless.isdisjoint(node.all_input_nodes)]
        here = {node for node in takers if forms.can(node)}
        self._ranges = [each for node in here for each in forms.ranges(node)]
        inputs = fx.Graph()
        taken = [n for node in here for n in node.all_input_nodes if n in restless]
        self._boxed = {n: inputs.placeholder(n.name) for n in dict.fromkeys(taken)}
        is_eager: dict[fx.Node, bool] = {}
        for node in self._rest:
            of = node.args[0] if node.target is operator.getitem else None
            takes = not restless.isdisjoint(node.all_input_nodes) and node not in here
            is_eager[node] = is_eager.get(of, takes) if isinstance(of, fx.Node) and _is_several(of) else takes
            if node.op == "get_attr":
                is_eager[node] = bool(parts) and parts[-1][0]
            if not parts or parts[-1][0] is not is_eager[node]:
                parts.append((is_eager[node], []))
            parts[-1][1].append(node)
        self._steps = [
            self._step(nodes, restless if is_eager else frozenset(), here, forms) for is_eager, nodes in parts
        ]

    def _step(
        self, nodes: list[fx.Node], restless: frozenset[fx.Node], here: set[fx.Node], forms: OnDevice
    ) -> _Stretch:
        inside = set(nodes)
        needs = [
            self._boxed.get(n, n) if node in here else n
            for node in nodes
            for n in node.all_input_nodes
            if n not in inside
        ]
        takes = list(dict.fromkeys(needs))
        gives = [node for node in nodes if any(user not in inside for user in node.users)]
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in takes}
        of_numbers = {n: made[boxed] for n, boxed in self._boxed.items() if boxed in made}
        for node in nodes:
            if node in here:
                made[node] = forms.emit(graph, node, {**made, **of_numbers})
            else:
                made[node] = graph.node_copy(node, made.__getitem__)
        graph.output(tuple(made[node] for node in gives))
        module = fx.GraphModule(self._found.graph, graph)
        why_eager = self._found.why_eager
        if restless:
            names = self._names(node for node in takes if node in restless)
            why_eager = f"{', '.join(names) or 'a number'} {RESTLESS_NUMBER}"
        outside = {self._placeholders[i] for i in self._found.outside}
        part = Found(self._found.root, module, [], why_eager=why_eager)
        part.names = [self._name(node) for node in takes]
        part.outside = [i for i, node in enumerate(takes) if node in outside]
        return _Stretch(takes, gives, self._make(part))


class _Stretch:
    """Operations of the graph that run together."""

    def __init__(self, takes: list[fx.Node], gives: list[fx.Node], piece: Piece) -> None:
        self.takes, self.gives, self.piece = takes, gives, piece


def _dtype(number: object) -> torch.dtype:
    return torch.float64 if isinstance(number, float) else torch.int64


def _compute(node: fx.Node, env: Env) -> object:
    args = fx.map_arg(node.args, env.__getitem__)
    kwargs = fx.map_arg(node.kwargs, env.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _is_several(node: fx.Node) -> bool:
    return not isinstance(node.meta.get("example_value"), Tensor)


def _switches(node: fx.Node) -> bool:
    """Whether the node may change a state of torch's: it computes no tensor, of none."""
    about = [each.meta.get("example_value") for each in (node, *node.all_input_nodes)]
    return node.op != "get_attr" and not any(isinstance(value, Tensor | tuple | list) for value in about)


def make_piece(found: Found, *, name: str, max_graphs: int = 64) -> Piece | InParts:
    """Make a callable for an FX graph of the function called ``name``."""
    numbers = numbers_in(found.graph.graph)
    if not numbers:
        return Piece(found, name, max_graphs)
    return InParts(found, numbers, lambda part: Piece(part, name, max_graphs))
