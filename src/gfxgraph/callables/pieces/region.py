"""One callable compiled by Inductor, captured and replayed by a graphed callable.

Problem: Inductor's callables take everything as inputs, parameters included: hundreds of tensors that never
move, and a few that change each time. Copying all of them costs more than the replay. Idea: inputs that
Inductor declares static, and those that the region writes to, are bound to their addresses, and one C
call compares all of these; the rest goes to a graphed callable, with its buffers, buckets, memory limit
and fallbacks.

    inputs ── all bound addresses unchanged? ──> variant ──> graphed callable
                      └── no ──> another variant, for the present addresses
                                   └── too many ──> inputs that move are copied; written ones make it eager

Invariants: a variant runs only while a tensor of the present call lies at each of its addresses, so nothing
has to be kept alive for it. The backward's inputs are results of the forward, whose memory must be free to
be handed out again: the variant's own tensors over them are views by address that own nothing.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.captured import CapturedCallable
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.options import Options
from gfxgraph.callables.trace.watch import same_addresses
from gfxgraph.capture.replay.graph_tensors import Layout, has_layout, tensor_at
from gfxgraph.types import ReplayMode

Place = tuple[int, int]
"""Position of a tensor among the inputs, and its dim."""


class Sizes:
    """The observations of the calls seen so far."""

    def __init__(self) -> None:
        self._candidates: dict[int, set[Place]] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._where: dict[int, Place] | None = None
        self.is_hopeless = False

    def look(self, inputs: list[Any], numbers: list[int], tensors: list[int]) -> dict[int, Place] | None:
        """Each number's place; None until every number has been seen with two values, or if one has no place."""
        if self.is_hopeless:
            return None
        values = tuple([inputs[i] for i in numbers])
        if values in self._seen:
            return self._where
        self._seen.add(values)
        for number in numbers:
            found = {
                (at, dim) for at in tensors for dim, size in enumerate(inputs[at].size()) if size == inputs[number]
            }
            known = self._candidates.get(number)
            self._candidates[number] = found if known is None else known & found
        self.is_hopeless = not all(self._candidates[number] for number in numbers)
        if self.is_hopeless:
            self._where = None
        elif all(len({seen[at] for seen in self._seen}) > 1 for at in range(len(numbers))):
            self._where = {number: min(self._candidates[number]) for number in numbers}
        return self._where


MAX_VARIANTS = 4
"""Sets of addresses kept captured; the least recently used is evicted first."""
MAX_PLACES = 4
"""Addresses at which one static input is seen before it is copied instead: eager results, two sets of buffers."""
ALIGNMENT = 16
"""The alignment of addresses that Inductor's kernels assume, in bytes."""

Boxed = Callable[[list[Any]], Any]
_regions: weakref.WeakSet[Region] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class RegionOptions:
    """Options for our graphs from the caller of ``torch.compile``."""

    buckets: Any = None
    max_graphs: int = 64


def living() -> list[Region]:
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
        mode: of the graphed callables inside; hot ones hand out their buffers.
        name: for messages.
        alignment: what the callable assumes about addresses, in bytes; other inputs are copied for it.
    """

    says = "a compiled region runs without a graph: "

    def __init__(
        self,
        model: Boxed,
        static: Sequence[int],
        mutated: Sequence[int],
        *,
        is_backward: bool = False,
        is_inference: bool = True,
        is_partition: bool = False,
        wanted: RegionOptions = RegionOptions(),
        mode: ReplayMode = ReplayMode.HOT,
        name: str = "",
        alignment: int = ALIGNMENT,
    ) -> None:
        kind = "backward" if is_backward else "inference" if is_inference else "forward"
        super().__init__(name or f"compiled {kind} {len(_regions)}")
        self._model = model
        self.alignment = alignment
        self._static = frozenset(static)
        self._mutated = frozenset(mutated)
        self._is_backward = is_backward
        self.computes_into_arguments = is_backward or is_partition
        """Whether Inductor may compute into an argument whose last use is this region, if Inductor made it."""
        self.wanted = wanted
        self._sizes = Sizes() if wanted.buckets is not None and is_inference else None
        self._copied: frozenset[int] = frozenset()
        """Static inputs that turned out to move."""
        self._variants: dict[tuple[int, ...], Variant] = {}
        self._places: dict[int, set[int]] = {}
        """Addresses at which static inputs have been seen."""
        self._is_looked_at = not is_backward and not mutated
        self._last: Variant | None = None
        self.mode = mode
        self.gradients: list[Any] = []
        """Graphs of forward and backward, for callers of the region."""
        self._before: dict[str, Any] = {}
        """``stats`` of what it gave up."""
        _regions.add(self)

    def __call__(self, inputs: list[Any]) -> Any:
        variant = self._last
        if variant is None or not variant.is_at(inputs):
            if not self._is_looked_at:
                return self.look(inputs)
            variant = self._find(inputs)
            if variant is None:
                self.count_eager(self.why_eager)
                return self._model(_aligned_all(inputs, self._mutated, self.alignment))
            self._last = variant
        return variant.run(inputs)

    def _find(self, inputs: list[Any]) -> Variant | None:
        """The variant for the inputs' addresses; None if the region runs eagerly."""
        if self.why_eager:
            return None
        for i, value in enumerate(inputs):
            if isinstance(value, Tensor):
                if not value.is_cuda and i in self._mutated:
                    self.fall_back("it writes to a tensor on the host")
                    return None
            elif type(value) is not int and type(value) is not float and type(value) is not bool:
                self.fall_back(f"an input is a {type(value).__qualname__}")
                return None
        fixed = self._fixed(inputs)
        key = (*fixed, *[inputs[i].data_ptr() for i in fixed])
        found = self._variants.pop(key, None)
        if found is None:
            if self._restless(inputs, fixed):
                return self._find(inputs)
            if len(self._variants) >= MAX_VARIANTS:
                del self._variants[next(iter(self._variants))]
            found = Variant(self, inputs, fixed)
        self._variants[key] = found  # the most recently used comes last
        return found

    def _fixed(self, inputs: list[Any]) -> tuple[int, ...]:
        wanted = sorted((self._static - self._copied) | self._mutated)
        return tuple(
            i
            for i in wanted
            if isinstance(inputs[i], Tensor)
            and inputs[i].is_cuda
            and has_layout(inputs[i])
            and (i in self._mutated or inputs[i].data_ptr() % self.alignment == 0)
        )

    def _restless(self, inputs: list[Any], fixed: tuple[int, ...]) -> bool:
        """Whether to stop: some inputs move too often to be bound, or the region to be captured."""
        moving = set()
        for i in fixed:
            places = self._places.setdefault(i, set())
            places.add(inputs[i].data_ptr())
            if len(places) > MAX_PLACES:
                moving.add(i)
        if moving & self._mutated:
            self.fall_back("a tensor that it writes to has a new address each time")
        else:
            self._copied |= moving
        return bool(moving)

    @property
    def has_run(self) -> bool:
        """Whether any call came to it, other than to see what its results share."""
        return bool(self._variants or self.gradients or self.eager or self._before)

    def drop(self) -> None:
        self._variants.clear()
        self._last = None

    def give_up(self) -> None:
        """Drop what was captured: others capture it from now on. How often it ran is kept."""
        self._before = self.stats()
        self.drop()
        self.gradients.clear()
        self.eager.clear()

    def look(self, inputs: list[Any]) -> Any:
        """Run the first call with Inductor's callable on the caller's own tensors, to see what its results share.

        A result that lies in an input must be a view of the caller's own tensor, so that input is not bound.
        """
        self._is_looked_at = True
        bound = [i for i in self._fixed(inputs) if inputs[i].numel()]
        homes = {inputs[i].untyped_storage().data_ptr(): i for i in bound}
        results = self._model(_aligned_all(inputs, self._mutated, self.alignment))
        made = [each for each in results if isinstance(each, Tensor) and each.is_cuda and has_layout(each)]
        addresses = {tensor.untyped_storage().data_ptr() for tensor in made}
        shared = {homes[address] for address in addresses if address in homes}
        if shared & self._mutated:
            self.fall_back("it returns a tensor that it writes to")
        self._copied |= shared
        return results

    def owns(self, position: int) -> bool:
        """True if the tensor may be kept alive: a parameter or buffer, not a result of the forward."""
        return position in self._static and position not in self._mutated and not self._is_backward

    @property
    def model(self) -> Boxed:
        return self._model

    @property
    def mutated(self) -> frozenset[int]:
        return self._mutated

    @property
    def sizes(self) -> Sizes | None:
        return self._sizes

    def stats(self) -> dict[str, Any]:
        """Sums over the variants: ``captures``, ``replays``, ``eager`` calls by reason."""
        total: dict[str, Any] = {
            "captures": 0, "replays": 0, "eager": {}, **self._before, "variants": len(self._variants),
        }  # fmt: skip
        total["eager"] = dict(Counter(total["eager"]) + self.eager)
        for inner in (*self.gradients, *[graphed for each in self._variants.values() for graphed in each.graphed]):
            found = inner.stats()
            total["captures"] += found["captures"]
            total["replays"] += found["replays"]
            total["eager"] = dict(Counter(total["eager"]) + Counter(found["eager"]))
        if self.why_eager:
            total["why_eager"] = self.why_eager
        return total

    def explain(self) -> str:
        """How each variant runs, and why."""
        lines = [f"{self.name}: {self.why_eager or f'{len(self._variants)} sets of addresses'}"]
        for each in self.gradients:
            lines.append(f"  forward and backward: {each.why_eager or f'{each.n_replays} replays'}")
        for variant in self._variants.values():
            for graphed in variant.graphed:
                lines += ["  " + line for line in graphed.explain().splitlines()]
        return "\n".join(lines)


class Variant:
    """The region with some of its inputs at fixed addresses."""

    def __init__(self, region: Region, inputs: list[Any], fixed: tuple[int, ...]) -> None:
        self._region = weakref.ref(region)
        self._positions = list(fixed)
        self._addresses: list[int | None] = [None] * len(inputs)
        self._bound: list[Any] = [None] * len(inputs)
        for i in fixed:
            self._addresses[i] = inputs[i].data_ptr()
            self._bound[i] = inputs[i].detach() if region.owns(i) else tensor_at(Layout.of(inputs[i]))
        self._moving = [i for i in range(len(inputs)) if self._addresses[i] is None]
        self._tensors = [i for i in self._moving if isinstance(inputs[i], Tensor)]
        self._numbers = [i for i in self._moving if not isinstance(inputs[i], Tensor)]
        self._sizes = region.sizes
        options = Options(mode=region.mode, max_graphs=region.wanted.max_graphs, assume_pure=True)
        self._exact = Graphed(Bound(region, self._bound, self._moving), options)
        self._padded: Graphed | None = None

    @property
    def graphed(self) -> list[Graphed]:
        return [self._exact] if self._padded is None else [self._exact, self._padded]

    def is_at(self, inputs: list[Any]) -> bool:
        """True if all bound inputs lie at their addresses."""
        return same_addresses(inputs, self._addresses, self._positions)

    def run(self, inputs: list[Any]) -> Any:
        """Run one call; empties the list, as Inductor's callables do."""
        if self._sizes is not None and self._numbers:
            return self._run_sized(inputs)
        given = [inputs[i] for i in self._moving]
        inputs.clear()
        return self._exact(*given)

    def _run_sized(self, inputs: list[Any]) -> Any:
        """Run a call whose sizes vary: in a bucket, once it is known which dims the numbers are."""
        assert self._sizes is not None
        where = self._sizes.look(inputs, self._numbers, self._tensors)
        if where is None:
            given = [inputs[i] for i in self._moving]
            inputs.clear()
            return self._exact(*given)
        if self._padded is None:
            region = self._region()
            assert region is not None
            options = Options(
                dynamic="infer",
                buckets=region.wanted.buckets,
                mode=region.mode,
                max_graphs=region.wanted.max_graphs,
                assume_pure=True,
            )
            self._padded = Graphed(Bound(region, self._bound, self._tensors, where), options)
        given = [inputs[i] for i in self._tensors]
        inputs.clear()
        return self._padded(*given)


class Bound:
    """The region as a function of the inputs that are not bound to an address.

    Args:
        bound: the bound tensors, at their positions; None elsewhere.
        moving: positions of the arguments.
        numbers: by position, which dim of which argument a number is; empty if numbers are arguments.
    """

    def __init__(
        self, region: Region, bound: list[Any], moving: list[int], numbers: dict[int, tuple[int, int]] | None = None
    ) -> None:
        self._model = region.model
        self._mutated = region.mutated
        self._alignment = region.alignment
        self._into_arguments = region.computes_into_arguments
        self._inputs = bound
        self._moving = moving
        self._numbers = numbers or {}
        self.__qualname__ = region.name
        self.homes = frozenset(t.untyped_storage().data_ptr() for t in bound if isinstance(t, Tensor) and t.numel())
        """Storage addresses of the bound tensors."""

    def __call__(self, *given: Any) -> Any:
        inputs = list(self._inputs)
        for i, value in zip(self._moving, given):
            inputs[i] = value
        for i, (tensor, dim) in self._numbers.items():
            inputs[i] = inputs[tensor].size(dim)
        results = self._model(_aligned_all(inputs, self._mutated, self._alignment))
        return _apart(results, given) if self._into_arguments else results


def _apart(results: Any, given: Sequence[Any]) -> list[Any]:
    """The results, with those that lie in an argument copied.

    Inductor computes into an argument whose last use it is, and returns that: in a partition, and in a backward. To a
    graphed callable this would look like a function that returns its argument, and so would the caller's result.
    """
    homes = {t.untyped_storage().data_ptr() for t in given if isinstance(t, Tensor) and t.numel()}

    def is_inside(result: Any) -> bool:
        return isinstance(result, Tensor) and bool(result.numel()) and result.untyped_storage().data_ptr() in homes

    return [_clone(result) if is_inside(result) else result for result in results]


def _aligned_all(inputs: list[Any], mutated: frozenset[int], alignment: int) -> list[Any]:
    """The inputs, with misaligned ones copied: Inductor leaves that to the capture.

    An alignment of 1 copies none: an FX graph writes to its inputs, and returns views of them.

    An input that is written to is not copied: if it is misaligned now, it was when its kernels were compiled.
    """
    for i, value in enumerate(inputs if alignment > 1 else ()):
        if isinstance(value, Tensor) and value.is_cuda and value.data_ptr() % alignment and i not in mutated:
            inputs[i] = _clone(value)
    return inputs


def _clone(tensor: Tensor) -> Tensor:
    """A copy with the same strides."""
    with torch.no_grad():
        n = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
        flat = tensor.as_strided((n,), (1,), tensor.storage_offset()).clone()
        return flat.as_strided(tensor.size(), tensor.stride(), 0)
