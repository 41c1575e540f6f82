"""Results of a replay, and who owns their memory.

``own`` (the default): each result is copied, in one fused call, into memory owned by the caller, allocated
from torch's allocator as in eager execution. ``hot``: the graph's own buffers are handed out, and
the next replay may write to them only if nothing refers to them any more.

Those buffers are outside the pool, and the graph's last nodes copy into them. In the pool they could share
memory with intermediate results of graphs captured earlier, and a replay of one of those would
overwrite what a caller holds.

Whether a buffer is in use: each hand-out is a new tensor over it, so the storage's use count
includes every view, alias and saved-for-backward reference, in Python or C++. It does not include
a bare address that somebody kept.

A result that is one of the arguments, or a view of one, is returned as the same view of the caller's own
argument; one that the function returns from outside (a parameter) is that same tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.inputs import StaticInput, copy_all, front, is_dense, span
from gfxgraph.callables.signature import NotATree, children_of, flatten
from gfxgraph.capture.replay.graph_tensors import has_layout, kind_of, storage_address, storages_at

RING = 2
"""Graphs whose results may be handed out at the same time in ``hot`` mode."""
use_count: Callable[[int], int] = torch_names._storage_Use_Count


@dataclass(slots=True)
class GraphOutput:
    """One tensor of the captured result.

    Exactly one of ``made`` (the graph's buffer), ``of_input`` (position of the argument that it is a view
    of) and ``outside`` (a tensor that existed before) is set.
    """

    made: Tensor | None = None
    of_input: int = -1
    layout: tuple[Any, ...] = ()
    outside: Tensor | None = None
    is_host: bool = False


class Outputs:
    """What the captured function returned, and how each call's result is made from it.

    Args:
        result: what it returned.
        statics: the inputs, to recognize views of them.
        warm: the tensors of an eager call's result; one that is returned again comes from outside.
        homes: addresses of storages outside the arguments; a result in one of them comes from outside, too.
    """

    def __init__(
        self,
        result: Any,
        statics: Sequence[StaticInput],
        warm: Sequence[weakref.ref[Tensor]],
        homes: frozenset[int] = frozenset(),
    ) -> None:
        tensors: list[Tensor] = []
        self.structure = flatten(result, tensors)
        self.build = builder(result)
        self.results = [_kind(t, statics, warm, i, homes) for i, t in enumerate(tensors)]
        inside = [r for r in self.results if r.made is not None and r.made.numel() and not r.is_host]
        made = [r.made for r in inside if r.made is not None]
        self.is_shared = len({storage_address(t) for t in made}) < len(made)
        """Results share memory with each other, and the caller's results must do so as well."""
        first: dict[int, int] = {}
        self.twins = [first.setdefault(id(t), i) for i, t in enumerate(tensors)]
        """For each result the position of the first that is the same tensor."""
        # Copied out before anything else runs in the pool: later captures may reuse the memory.
        for found, tensor, whole in zip(inside, made, storages_at(made)):
            found.made = typed(whole, tensor)
        self._count_holders()

    def _count_holders(self) -> None:
        self.made = [r.made for r in self.results if r.made is not None and not r.is_host]
        self.storages = list({storage_address(t): t.untyped_storage() for t in self.made if t.numel()}.values())
        self.handles = [storage._cdata for storage in self.storages]
        self.idle = [use_count(handle) for handle in self.handles]

    def buffers(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Memory outside the pool like the results: for each the tensor to hand out, the copy's target, and its
        source.
        """
        return [_place_for(tensor, False) for tensor in self.made]

    def into(self, buffers: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Callable[[Any], Any]:
        """A function that copies another result of the same kind into ``buffers``, and returns that result."""
        targets = [to for _, to, _ in buffers]
        positions = [i for i, r in enumerate(self.results) if r.made is not None and not r.is_host]

        def copy(result: Any) -> Any:
            tensors: list[Tensor] = []
            flatten(result, tensors)
            made = [tensors[i].detach() for i in positions]
            copy_all(targets, [t if is_dense(t) else t.as_strided((span(t),), (1,)) for t in made])
            return result

        return copy

    def hand_out(self, buffers: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Use ``buffers`` as results from now on."""
        fresh = iter(buffers)
        for result in self.results:
            if result.made is not None and not result.is_host:
                result.made = next(fresh)[0]
        self._count_holders()

    @property
    def nbytes(self) -> int:
        return sum(span(tensor) * tensor.element_size() for tensor in self.made)

    def in_use(self) -> bool:
        """True while something else refers to one of the buffers."""
        for handle, idle in zip(self.handles, self.idle):
            if use_count(handle) > idle:
                return True
        return False

    def give(self, args: Sequence[Tensor], sizes: Sequence[Sequence[int] | None] | None, own: bool) -> Any:
        """The caller's result after a replay.

        Args:
            args: the call's tensors.
            sizes: for each result the size to cut it to; None if it is whole.
            own: copy, so that the caller owns the memory.
        """
        given: list[Tensor] = []
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        with torch.no_grad():
            for i, result in enumerate(self.results):
                if result.made is None:
                    given.append(from_before(result, args))
                    continue
                size = sizes[i] if sizes is not None else None
                static = front(result.made.detach(), size)
                if result.is_host:
                    given.append(static.clone())
                elif not own:
                    given.append(static)
                else:
                    fresh, to, source = _place_for(static, size is not None)
                    given.append(fresh)
                    targets.append(to)
                    sources.append(source)
            if targets:
                copy_all(targets, sources)
            if self.is_shared and own:
                given = self._sharing(given, sizes)
        return self.build(iter([given[i] for i in self.twins]))

    def _sharing(self, given: list[Tensor], sizes: Sequence[Sequence[int] | None] | None) -> list[Tensor]:
        """The results again; those that share memory in the graph share one copy of it."""
        copies: dict[int, Tensor] = {}
        for i, result in enumerate(self.results):
            made = result.made
            if made is None or result.is_host or not made.numel():
                continue
            home = storage_address(made)
            if [storage_address(m) for m in self.made if m.numel()].count(home) < 2:
                continue
            if home not in copies:
                copies[home] = typed(made, torch.empty(0, dtype=torch.uint8), made.untyped_storage().nbytes()).clone()
            given[i] = front(typed(copies[home], made), sizes[i] if sizes is not None else None)
        return given


def builder(value: Any) -> Callable[[Iterator[Any]], Any]:
    """A function that rebuilds the same tree around other tensors, taken from an iterator."""
    kind = type(value)
    if kind is Tensor or isinstance(value, Tensor):
        return next
    if kind is tuple or kind is list:
        items = [builder(item) for item in value]
        return lambda tensors: kind([make(tensors) for make in items])
    if kind is dict:
        named = [(name, builder(item)) for name, item in value.items()]
        return lambda tensors: {name: make(tensors) for name, make in named}
    children = children_of(value)
    if children is not None:
        _, parts, rebuild = children
        made = [builder(part) for part in parts]
        return lambda tensors: rebuild([make(tensors) for make in made])
    return lambda tensors: value


def typed(memory: Tensor, like: Tensor, n: int = -1) -> Tensor:
    """A tensor over the storage of ``memory``, with dtype and layout of ``like``, or flat with ``n`` elements."""
    made = torch.empty(0, dtype=like.dtype, device=memory.device)
    size, stride, offset = (like.size(), like.stride(), like.storage_offset()) if n < 0 else ((n,), (1,), 0)
    return made.set_(memory.untyped_storage(), offset, size, stride)


def _kind(
    tensor: Tensor,
    statics: Sequence[StaticInput],
    warm: Sequence[weakref.ref[Tensor]],
    i: int,
    homes: frozenset[int],
) -> GraphOutput:
    if has_layout(tensor) and tensor.numel() and storage_address(tensor) in homes:
        return GraphOutput(outside=tensor)
    if i < len(warm) and warm[i]() is tensor:
        return GraphOutput(outside=tensor)
    if type(tensor) is not Tensor or not has_layout(tensor):
        raise NotATree(kind_of(tensor))
    if tensor.is_conj() or tensor.is_neg():
        raise NotATree("a tensor whose conjugation or sign is pending; return resolve_conj() or resolve_neg() of it")
    if tensor.numel():
        address = storage_address(tensor)
        for position, static in enumerate(statics):
            if static.tensor.numel() and storage_address(static.tensor) == address:
                layout = (tensor.size(), tensor.stride(), tensor.storage_offset() - static.tensor.storage_offset())
                same = tensor.dtype == static.tensor.dtype and layout[0] == static.tensor.size()
                return GraphOutput(
                    of_input=position, layout=(tensor is static.tensor and same, tensor.dtype, *layout)
                )
    return GraphOutput(made=tensor.detach() if tensor.requires_grad else tensor, is_host=not tensor.is_cuda)


def from_before(result: GraphOutput, args: Sequence[Tensor]) -> Tensor:
    if result.outside is not None:
        return result.outside
    given = args[result.of_input]
    itself, dtype, size, stride, offset = result.layout
    if itself:
        return given
    view = given
    if given.dtype != dtype:  # all of its memory, in one dim: only that can be viewed whatever the sizes and strides
        view = given.as_strided((given.untyped_storage().nbytes() // given.itemsize,), (1,), 0).view(dtype)
        offset += given.storage_offset() * given.itemsize // dtype.itemsize
    return view.as_strided(size, stride, view.storage_offset() + offset)


def _place_for(static: Tensor, is_cut: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A caller-owned tensor like ``static``; the copy's target, and its source."""
    if is_cut:
        fresh = torch.empty_like(static)  # dense, with dims in the same order
        return fresh, fresh, static
    if is_dense(static):
        fresh = torch.empty_strided(static.size(), static.stride(), dtype=static.dtype, device=static.device)
        return fresh, fresh, static
    n = span(static)
    flat = torch.empty(n, dtype=static.dtype, device=static.device)
    source = static.as_strided((n,), (1,), static.storage_offset())
    return flat.as_strided(static.size(), static.stride()), flat, source
