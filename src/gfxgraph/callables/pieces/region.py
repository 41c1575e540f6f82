"""One callable compiled by Inductor, or one FX graph from Dynamo, captured and replayed by a graphed callable.

Problem: Inductor's callables take everything as inputs, parameters included: hundreds of tensors that never
move, and a few that change each time. Copying all of them costs more than the replay. Idea: inputs that
Inductor declares static, and those that the region writes to, are bound to their addresses, and one C
call compares all of these; the rest goes to a graphed callable, with its buffers, memory limit and fallbacks.

    inputs ── all addresses those of the variant that came next the last time? ──> variant ──> graphed callable
                      └── no ──> another variant, for the present addresses
                                   └── too many ──> inputs that move are copied; written ones make it eager

One region may serve many modules of a kind, such as layers that are compiled one by one: each has a variant, and in
the next step they come in the same order.

Invariants: a variant runs only while a tensor of the present call lies at each of its addresses, so nothing
has to be kept alive for it. The backward's inputs are results of the forward, whose memory must be free to
be handed out again: the variant's own tensors over them are views by address that own nothing.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gfxgraph import torch_names
from gfxgraph.callables.captured import CapturedCallable, Options
from gfxgraph.callables.graphed import MOST_HOST_VALUES, Graphed
from gfxgraph.callables.signature import HOST_CONSTANT_NUMEL, RunEagerly, mode_key, tensor_key
from gfxgraph.callables.trace.in_dynamo import RESTLESS_NUMBER, Found
from gfxgraph.callables.training.gradients import Gradients, Siblings
from gfxgraph.callables.worlds import homes_in_use, homes_of
from gfxgraph.capture.replay.graph_tensors import Layout, has_layout, tensor_at
from gfxgraph.types import ReplayMode
from gfxgraph.watching.watch import same_addresses

MAX_VARIANTS = 128
"""Sets of addresses kept captured, as many as torch's own graphs; the least recently used is evicted first."""
MAX_PLACES = 4
"""Addresses at which one static input is seen before it is copied instead: eager results, two sets of buffers. So
many for each module; those of a parameter, `MAX_VARIANTS` at most, tell how many modules there are."""
ALIGNMENT = 16
"""The alignment of addresses that Inductor's kernels assume, in bytes."""

Boxed = Callable[[list[Any]], Any]
_regions: weakref.WeakSet[Region] = weakref.WeakSet()


def live_regions() -> list[Region]:
    """Every region that has not been dropped."""
    return list(_regions)


class Region(CapturedCallable):
    """A boxed callable that replaces Inductor's.

    Args:
        model: Inductor's; takes a list, which it empties.
        static: positions of inputs that stay in place, according to Inductor.
        mutated: positions of inputs that the callable writes to.
        is_backward, is_inference: what it was compiled from.
        is_partition: one of several parts of a compiled graph.
        max_graphs: most captured signatures at the same addresses.
        mode: of the graphed callables inside; hot ones hand out their buffers.
        name: for messages.
        alignment: what the callable assumes about addresses, in bytes; other inputs are copied for it.
    """

    says = "a compiled region runs without a graph: "
    names: Sequence[str] = ()
    """What the program calls its inputs."""

    def __init__(
        self,
        model: Boxed,
        static: Sequence[int],
        mutated: Sequence[int],
        *,
        is_backward: bool = False,
        is_inference: bool = True,
        is_partition: bool = False,
        max_graphs: int = 64,
        mode: ReplayMode = ReplayMode.HOT,
        name: str = "",
        alignment: int = ALIGNMENT,
    ) -> None:
        kind = "backward" if is_backward else "inference" if is_inference else "forward"
        super().__init__(name or f"compiled {kind} {len(_regions)}")
        self.why_eager = torch_names.why_off("compiled regions")
        self.mutated = frozenset(mutated)
        self.run = functools.partial(_run, model, self.mutated, alignment)
        """The callable itself, with misaligned inputs copied."""
        self._alignment = alignment
        self._static = frozenset(static)
        self._is_backward = is_backward
        self.computes_into_arguments = is_backward or is_partition
        """Whether Inductor may compute into an argument whose last use is this region, if Inductor made it."""
        self.options = Options(mode=mode, max_graphs=max_graphs, assume_pure=True)
        self._copied: frozenset[int] = frozenset()
        """Static inputs that turned out to move."""
        self._variants: dict[Any, Variant] = {}
        """By the addresses of the bound inputs."""
        self._with_gradients: dict[Any, Gradients] = {}
        """Graphs of forward and backward, by key of their calls."""
        self._siblings: Siblings | None = None
        self._places: dict[int, set[int]] = {}
        """Addresses at which static inputs have been seen."""
        self._is_looked_at = not is_backward and not mutated
        self._last: Variant | None = None
        _regions.add(self)

    def __call__(self, inputs: list[Any]) -> Any:
        last = self._last
        variant = last.following() if last is not None else None
        if (
            variant is None
            or not same_addresses(inputs, variant.addresses, variant.positions)
            or (self._is_backward and _layouts(inputs, variant.positions) != variant.layouts)
        ):
            if not self._is_looked_at:
                result = self.run_first_call(inputs)
                self.eager.count(self.why_eager or "warm-up")
                return result
            variant = self._find(inputs)
            if variant is None:
                self.eager.count(self.why_eager)
                return self.run(inputs)
            if last is not None:
                last.following = weakref.ref(variant)
        self._last = variant
        given = [inputs[i] for i in variant.moving]
        # What the forward saved is bound by its address, and this list may be all that holds it.
        held = inputs.copy()
        inputs.clear()  # as Inductor's callables do
        result = variant(*given)
        del held
        return result

    def _find(self, inputs: list[Any]) -> Variant | None:
        """The variant for the inputs' addresses; None if the region runs eagerly."""
        if self.why_eager:
            return None
        for i, value in enumerate(inputs):
            if isinstance(value, Tensor):
                if not value.is_cuda and i in self.mutated:
                    self.fall_back("it writes to a tensor on the host")
                    return None
            elif type(value) is not int and type(value) is not float and type(value) is not bool:
                self.fall_back(f"an input is a {type(value).__qualname__}")
                return None
        fixed = self._fixed(inputs)
        # What a forward saved may lie where, in a call of another size, something else did.
        key = (*fixed, *[inputs[i].data_ptr() for i in fixed], *_layouts(inputs, fixed))
        found = self._variants.pop(key, None)
        if found is None:
            if self._restless(inputs, fixed):
                return self._find(inputs)
            gone = [key for key, each in self._variants.items() if each.is_of_no_module]
            if len(self._variants) - len(gone) >= MAX_VARIANTS:
                gone.append(next(iter(self._variants)))
            for old in gone:
                self._keep_counts(self._variants.pop(old))
            found = Variant(self, inputs, fixed)
        self._variants[key] = found  # the most recently used comes last
        return found

    def _fixed(self, inputs: list[Any]) -> tuple[int, ...]:
        wanted = sorted((self._static - self._copied) | self.mutated)
        return tuple(
            i
            for i in wanted
            if isinstance(inputs[i], Tensor)
            and inputs[i].is_cuda
            and has_layout(inputs[i])
            and (i in self.mutated or inputs[i].data_ptr() % self._alignment == 0)
        )

    def _restless(self, inputs: Sequence[Any], fixed: tuple[int, ...]) -> bool:
        """Whether to stop: some inputs move too often to be bound, or the region to be captured."""
        for i in fixed:
            self._places.setdefault(i, set()).add(inputs[i].data_ptr())
        places = {i: len(self._places[i]) for i in fixed}
        n_modules = max([1, *(n for i, n in places.items() if isinstance(inputs[i], Parameter))])
        most = {i: MAX_VARIANTS if isinstance(inputs[i], Parameter) else MAX_PLACES * n_modules for i in fixed}
        moving = {i for i in fixed if places[i] > most[i]}
        if moving & self.mutated:
            self.fall_back("a tensor that it writes to has a new address each time")
        else:
            self._copied |= moving
        return bool(moving)

    def drop(self) -> None:
        """Let go of the graphs; how often they ran is kept."""
        for inner in self.inner():
            self._keep_counts(inner)
        for each in self._with_gradients.values():
            each.drop()
        self._variants.clear()
        self._with_gradients.clear()
        self._last = None

    def inner(self) -> list[Any]:
        """What captures its calls, for callers of the region."""
        return [*self._with_gradients.values(), *self._variants.values()]

    def _keep_counts(self, inner: Any) -> None:
        found = inner.stats()
        self.n_captures += found["captures"]
        self.n_replays += found["replays"]
        self.eager.update(found["eager"])

    def run_first_call(self, inputs: list[Any]) -> Any:
        """Run the first call with Inductor's callable on the caller's own tensors, to see what its results share.

        A result that lies in an input must be a view of the caller's own tensor, so that input is not bound.
        """
        self._is_looked_at = True
        homes = homes_of(inputs, self._fixed(inputs))
        results = self.run(inputs)
        shared = homes_in_use(homes, results)
        if shared & self.mutated:
            self.fall_back("it returns a tensor that it writes to")
        self._copied |= shared
        return results

    def owns(self, position: int) -> bool:
        """True if the tensor may be kept alive: a parameter or buffer, not a result of the forward."""
        return position in self._static and position not in self.mutated and not self._is_backward

    def stats(self) -> dict[str, Any]:
        """Sums over the variants: ``captures``, ``replays``, ``eager`` calls by reason."""
        total = {**super().stats(), "variants": len(self._variants)}
        for found in (each.stats() for each in self.inner()):
            total["captures"] += found["captures"]
            total["replays"] += found["replays"]
            total["eager"] = dict(Counter(total["eager"]) + Counter(found["eager"]))
        return {**total, "why_eager": self.why_eager} if self.why_eager else total

    def explain(self) -> str:
        """How each variant runs, and why."""
        lines = [f"{self.name}: {self.why_eager or f'{len(self._variants)} sets of addresses'}"]
        for each in self._with_gradients.values():
            lines.append(f"  forward and backward: {each.why_eager or f'{each.n_replays} replays'}")
        for variant in self._variants.values():
            lines += ["  " + line for line in variant.explain().splitlines()]
        return "\n".join(lines)


class Variant(Graphed):
    """The region with some of its inputs at fixed addresses, as a function of those that move."""

    _is_part = True

    def __init__(self, region: Region, inputs: list[Any], fixed: tuple[int, ...]) -> None:
        self.positions = list(fixed)
        self.layouts = _layouts(inputs, fixed)
        self.addresses: list[int | None] = [None] * len(inputs)
        bound: list[Any] = [None] * len(inputs)
        for i in fixed:
            self.addresses[i] = inputs[i].data_ptr()
            bound[i] = inputs[i].detach() if region.owns(i) else tensor_at(Layout.of(inputs[i]))
        self.following: weakref.ref[Variant] = weakref.ref(self)
        """The variant of the call after the last one of this."""
        self._parameters = [weakref.ref(inputs[i]) for i in fixed if isinstance(inputs[i], Parameter)]
        moving = self.moving = [i for i in range(len(inputs)) if self.addresses[i] is None]
        whole, is_apart = region.run, region.computes_into_arguments

        def run(*given: Any) -> Any:
            inputs = list(bound)
            for i, value in zip(moving, given):
                inputs[i] = value
            results = whole(inputs)
            return _apart(results, given) if is_apart else results

        homes = frozenset(t.untyped_storage().data_ptr() for t in bound if isinstance(t, Tensor) and t.numel())
        vars(run).update(homes=homes, names=[region.names[i] for i in moving] if region.names else [])
        super().__init__(run, region.options, name=region.name)

    @property
    def is_of_no_module(self) -> bool:
        """Whether a parameter that it is bound to is gone, so that its call cannot come again."""
        return any(parameter() is None for parameter in self._parameters)


def _layouts(inputs: Sequence[Any], which: Sequence[int]) -> list[Any]:
    return [(inputs[i].size(), inputs[i].stride()) for i in which]


def _apart(results: Any, given: Sequence[Any]) -> list[Any]:
    """The results, with those that lie in an argument copied.

    Inductor computes into an argument whose last use it is, and returns that: in a partition, and in a backward. To a
    graphed callable this would look like a function that returns its argument, and so would the caller's result.
    """
    homes = {t.untyped_storage().data_ptr() for t in given if isinstance(t, Tensor) and t.numel()}

    def is_inside(result: Any) -> bool:
        return isinstance(result, Tensor) and bool(result.numel()) and result.untyped_storage().data_ptr() in homes

    return [_clone(result) if is_inside(result) else result for result in results]


def _run(model: Boxed, mutated: frozenset[int], alignment: int, inputs: list[Any]) -> Any:
    """Run a callable with misaligned inputs copied: Inductor leaves that to the capture.

    An alignment of 1 copies none: an FX graph writes to its inputs, and returns views of them.

    An input that is written to is not copied: if it is misaligned now, it was when its kernels were compiled. A fake
    one, where a padding is judged, has no address.
    """
    for i, value in enumerate(inputs if alignment > 1 else ()):
        if (
            isinstance(value, Tensor)
            and value.is_cuda
            and i not in mutated
            and not isinstance(value, torch_names.FakeTensor)
        ):
            if value.data_ptr() % alignment:
                inputs[i] = _clone(value)
    return model(inputs)


def _clone(tensor: Tensor) -> Tensor:
    """A copy with the same strides."""
    with torch.no_grad():
        n = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
        flat = tensor.as_strided((n,), (1,), tensor.storage_offset()).clone()
        return flat.as_strided(tensor.size(), tensor.stride(), 0)


class Piece(Region):
    """A callable that replaces one FX graph from Dynamo, where Dynamo's code calls it.

        inputs ── no result needs gradients ──> as any region
               ── one does ──> forward and backward as two graphs; every tensor is an argument, parameters too

    Made when a call first runs in pieces; what the graph's run before that did stands in ``found``.
    Inputs from outside the function's arguments (parameters, buffers, attributes) are expected
    to stay in place; one that moves is copied from then on. Dynamo has checked its guards before a piece runs.
    """

    restless: tuple[str, ...] = ()
    """Sources of numbers that differ from call to call: it is given none."""

    def __init__(self, found: Found, name: str, max_graphs: int) -> None:
        graph = self._graph = found.graph.forward
        nodes = found.graph.graph.nodes
        n = sum(node.op != "placeholder" for node in nodes)
        super().__init__(
            lambda inputs: graph(*inputs),
            found.outside,
            [],
            max_graphs=max_graphs,
            mode=ReplayMode.STANDARD,
            alignment=1,
            name=f"{name}, a piece of {n} operations",
        )
        self.n_operations = n
        self._is_empty = not any(node.op.startswith("call_") for node in nodes)
        self._outside = found.outside
        self.names = found.names
        self._numbers_met: set[tuple[str, ...]] = set()
        """What small host tensors have held, in calls that may be differentiated."""
        if found.why_eager or found.effect:
            self.fall_back(found.why_eager or found.effect)
        self._has_gradients = found.has_gradients

    def __call__(self, inputs: Sequence[Any]) -> Any:
        if self._is_empty:
            return self._graph(*inputs)
        if self.why_eager:
            self.eager.count(self.why_eager)
            return self._graph(*inputs)
        if self._has_gradients and torch.is_grad_enabled():
            try:
                return self._differentiable(inputs)
            except RunEagerly as eager:
                self.eager.count(eager.why)
                return self._graph(*inputs)
        return super().__call__(list(inputs))

    def _differentiable(self, inputs: Sequence[Any]) -> Any:
        """Run a call that may be differentiated.

        Raises:
            RunEagerly: the FX graph itself must run.
        """
        if torch_names._current_graph_task_id() != -1 or torch_names._top_saved_tensors_default_hooks(True):
            raise RunEagerly("saved-tensor hooks (checkpointing) replace what autograd saves")
        in_place = [
            i for i in self._outside if i not in self._copied and isinstance(inputs[i], Tensor) and inputs[i].is_cuda
        ]
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
            if len(self._numbers_met) >= MOST_HOST_VALUES:
                at = next(i for i, t in enumerate(inputs) if isinstance(t, Tensor) and not t.is_cuda)
                raise RunEagerly(f"{self.names[at] or 'a number'} {RESTLESS_NUMBER}")
            self._numbers_met.add(values)
        if self._restless(inputs, tuple(in_place)):
            return self._differentiable(inputs)
        addresses = tuple(inputs[i].data_ptr() for i in in_place)
        key = (*[tensor_key(t) for t in tensors], others, values, addresses, mode_key())
        known = self._with_gradients.get(key)
        if known is None:
            if len(self._with_gradients) >= self.options.max_graphs:
                raise RunEagerly("more signatures than max_graphs")
            self._siblings = self._siblings or Siblings(self._graph, self.names)
            known = self._with_gradients[key] = Gradients(self._siblings, inputs, frozenset(in_place))
        return known(inputs)

    def note_run(self, inputs: Sequence[Any]) -> None:
        """Note a call that ran as it is, before this was made."""
        if not self._is_empty:
            self.eager.count(self.why_eager or "warm-up")

    @property
    def regions(self) -> list[Region]:
        """What captures it."""
        return [self]
