"""One FX graph from Dynamo, captured and replayed where Dynamo's code calls it.

    inputs ── no gradients ──> region: static inputs are bound to their addresses, the rest is copied in
           ── gradients    ──> forward and backward as two graphs; every tensor is an argument, parameters too
           ── during a warm-up, comparison or capture by others ──> the FX graph itself

Inputs from outside the function's arguments (parameters, buffers, attributes) are expected
to stay in place; one that moves is copied from then on. Dynamo has checked its guards before a piece runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.effects import Draws
from gfxgraph.callables.pieces.graph_numbers import InParts, numbers_in
from gfxgraph.callables.pieces.region import Region, RegionOptions
from gfxgraph.callables.signature import HOST_CONSTANT_NUMEL, RunEagerly, mode_key, tensor_key, what_changed
from gfxgraph.callables.trace.dynamo import OnlyTraced, local, note_inputs
from gfxgraph.callables.trace.trace_result import RESTLESS_NUMBER, Found
from gfxgraph.callables.training.gradients import Gradients
from gfxgraph.capture.replay.graph_tensors import has_layout
from gfxgraph.process import bridge
from gfxgraph.types import ReplayMode

MAX_NUMBERS = 16
"""Values of small host tensors for which forward and backward are captured; with more, calls run eagerly.

Python's own numbers do not count here: graph_numbers.py keeps them out of the pieces.
"""


class Piece:
    """A callable that replaces one FX graph."""

    def __init__(self, found: Found, name: str, max_graphs: int) -> None:
        self._graph = found.graph.forward
        self._is_empty = not any(node.op.startswith("call_") for node in found.graph.graph.nodes)
        placeholders = [node for node in found.graph.graph.nodes if node.op == "placeholder"]
        self._static = found.outside
        self._names = found.names
        self._numbers_met: set[tuple[str, ...]] = set()
        """What small host tensors have held, in calls that may be differentiated."""
        self.region = Region(
            lambda inputs: self._graph(*inputs),
            self._static,
            [],
            wanted=RegionOptions(max_graphs=max_graphs),
            mode=ReplayMode.STANDARD,
            alignment=1,
            name=f"{name}, a piece of {len(found.graph.graph.nodes) - len(placeholders)} operations",
        )
        if found.why_eager:
            self.region.fall_back(found.why_eager)
        self._with_gradients: dict[Any, Gradients] = {}
        self._max_graphs = max_graphs
        self._has_run = False
        self.is_drawless = False
        """Its first run drew no random numbers from the device's default generator."""
        self.draws_of_host = False
        """Its first run drew random numbers from the host's generator."""

    def __call__(self, *inputs: Any) -> Any:
        if local.is_foreseeing:
            raise OnlyTraced
        state = bridge.process_for_callables()
        if self._is_empty or state is None or torch.cuda.is_current_stream_capturing():
            return self._graph(*inputs)
        if not self._has_run:
            return self._first(inputs)
        note_inputs(inputs)
        if local.is_raw:
            return self._graph(*inputs)
        if self.region.why_eager:
            self.region.count_eager(self.region.why_eager)
            return self._graph(*inputs)
        if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs):
            try:
                return self._differentiable(inputs)
            except RunEagerly as eager:
                self.region.count_eager(eager.why)
                return self._graph(*inputs)
        return self.region(list(inputs))

    def _first(self, inputs: Sequence[Any]) -> Any:
        """Run the first call eagerly, and find out whether it does something that no graph can, and what its results
        share.
        """
        self._has_run = True
        note_inputs(inputs)
        tensors = [t for t in inputs if isinstance(t, Tensor)]
        host = [t for t in tensors if not t.is_cuda and not t.is_inference()]
        versions, layouts = [t._version for t in host], [tensor_key(t) for t in tensors]
        on_device = [t.get_device() for t in tensors if t.is_cuda]
        with Draws(on_device[0] if on_device else torch.cuda.current_device()) as draws:
            result = self.region.look(list(inputs))
        self.is_drawless, self.draws_of_host = draws.none, draws.of_host
        changed = [tensor_key(t) for t in tensors]
        # Whether results need gradients because of what the graph does, rather than because of its inputs.
        has_gradients = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        begins = any(isinstance(t, Tensor) and t.requires_grad and t.grad_fn is not None for t in result)
        if draws.of_host:
            self.region.fall_back("it draws random numbers on the host")
        elif versions != [t._version for t in host]:
            self.region.fall_back("it writes to a tensor on the host")
        elif layouts != changed:
            self.region.fall_back(what_changed(layouts, changed))
        elif begins and not has_gradients:
            self.region.fall_back("it enables gradients inside, and the results of a graph have none")
        elif not local.is_raw:
            self.region.count_eager("warm-up")
        return result

    def _differentiable(self, inputs: Sequence[Any]) -> Any:
        """Run a call that may be differentiated.

        Raises:
            RunEagerly: the FX graph itself must run.
        """
        if torch._C._current_graph_task_id() != -1 or torch._C._autograd._top_saved_tensors_default_hooks(True):
            raise RunEagerly("saved-tensor hooks (checkpointing) replace what autograd saves")
        in_place = [i for i in self._static if isinstance(inputs[i], Tensor) and inputs[i].is_cuda]
        tensors = [each for each in inputs if isinstance(each, Tensor)]
        others = tuple(each for each in inputs if not isinstance(each, Tensor))
        # Dynamo hands a number that has changed over as a tensor on the host: a constant, as all small ones.
        host = [t for t in tensors if not t.is_cuda]
        if any(t.requires_grad or t.numel() > HOST_CONSTANT_NUMEL for t in host):
            raise RunEagerly("an input of a differentiable piece is not on the device")
        if not all(map(has_layout, tensors)):
            raise RunEagerly("an input of a differentiable piece is sparse, nested or a wrapper")
        if any(t.is_inference() for t in tensors):
            raise RunEagerly("an input was made under inference_mode, which autograd does not save")
        values = tuple(repr(t.tolist()) for t in host)
        if values and values not in self._numbers_met:
            if len(self._numbers_met) >= MAX_NUMBERS:
                at = next(i for i, t in enumerate(inputs) if isinstance(t, Tensor) and not t.is_cuda)
                raise RunEagerly(f"{self._names[at] or 'a number'} {RESTLESS_NUMBER}")
            self._numbers_met.add(values)
        addresses = tuple(inputs[i].data_ptr() for i in in_place)
        key = (*[tensor_key(t) for t in tensors], others, values, addresses, mode_key())
        known = self._with_gradients.get(key)
        if known is None:
            if len(self._with_gradients) >= self._max_graphs:
                raise RunEagerly("more signatures than max_graphs")
            known = self._with_gradients[key] = Gradients(self._graph, inputs, frozenset(in_place), self.is_drawless)
            self.region.gradients.append(known)
        return known(inputs)

    restless: tuple[str, ...] = ()
    """Sources of numbers that differ from call to call: it is given none."""

    @property
    def regions(self) -> list[Region]:
        """What captures it."""
        return [self.region]

    def give_up(self) -> None:
        """Drop what was captured; how often it ran is kept."""
        self.region.give_up()
        self._with_gradients.clear()


def make_piece(found: Found, *, name: str, max_graphs: int = 64) -> Piece | InParts:
    """Make a callable for an FX graph of the function called ``name``."""
    numbers = numbers_in(found.graph.graph)
    if not numbers:
        return Piece(found, name, max_graphs)
    return InParts(found, numbers, lambda part: Piece(part, name, max_graphs))
