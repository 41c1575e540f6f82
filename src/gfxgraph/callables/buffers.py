"""The memory of a call: static inputs, whose address never changes; results, and who owns theirs; copies between.

A static input has its argument's dtype and layout, so that the captured function sees the same as in eager
execution. If a dim is dynamic the buffer is as large as the bucket, dense, with its dims in the argument's
order (``dim_order``); a call fills the front of it and the rest is padding.

Results are given in one of two ways. ``own`` (the default): each is copied, in one fused call, into memory owned by
the caller, allocated from torch's allocator as in eager execution. ``hot``: the graph's own buffers are handed out,
and the next replay may write to them only if nothing refers to them any more. Those buffers are outside the pool, and
the graph's last nodes copy into them: in the pool a replay of a graph captured earlier would overwrite what a caller
holds. Whether one is in use: each hand-out is a new tensor over it, so the storage's use count includes every view,
alias and saved-for-backward reference, in Python or C++; not a bare address that somebody kept.

A result that is one of the arguments, or a view of one, is returned as the same view of the caller's own
argument; one that the function returns from outside (a parameter) is that same tensor.

Copies are one call: torch's fused copy, or one launch for the small ones (joined_launch.py).
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.signature import Args, Kwargs, NotATree, children_of, flatten, replace, twins_of
from gfxgraph.capture.replay.graph_tensors import has_layout, kind_of, storage_address, storages_at

RING = 2
"""Graphs whose results may be handed out at the same time in ``hot`` mode."""
use_count: Callable[[int], int] = torch_names._storage_Use_Count


# -- static inputs, and copies --------------------------------------------------------------------------------


def is_dense(tensor: Tensor) -> bool:
    """True if the elements fill the memory without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size())):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def dim_order(tensor: Tensor) -> tuple[int, ...]:
    """The dims from the outermost to the innermost: 0, 2, 3, 1 for channels last; in their own order if not dense."""
    dims = range(tensor.dim())
    if tensor.layout is not torch.strided or tensor.is_contiguous() or not is_dense(tensor):
        return tuple(dims)
    return tuple(sorted(dims, key=lambda dim: -tensor.stride(dim)))


def copied_key(tensor: Tensor, size: Sequence[int] | None = None) -> tuple[object, ...]:
    """Key of a tensor that is copied into a buffer, of ``size`` or its own: without strides."""
    size = tuple(tensor.size()) if size is None else size
    about = tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad
    return (type(tensor), size, dim_order(tensor), *about)


def dense_strides(size: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor with its dims in ``order``."""
    strides, step = [0] * len(size), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(1, size[dim])
    return tuple(strides)


def is_one_copy(target: Tensor, source: Tensor) -> bool:
    """True if copying the bytes in order copies every element to its own position."""
    if target.size() != source.size() or target.dtype != source.dtype or not is_dense(source):
        return False
    return all(a == b for a, b, n in zip(target.stride(), source.stride(), target.size()) if n > 1)


def span(tensor: Tensor) -> int:
    """Number of elements from the first to the last, gaps included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride()))


class Buffers:
    """Memory of one callable's static inputs: one flat tensor per argument, as long as its largest use.

    Captures of different sizes share it, since only one of them runs at a time.
    """

    def __init__(self) -> None:
        self._flat: dict[tuple[Any, ...], Tensor] = {}
        self.filled_for: Any = None
        """The route whose padding the buffers hold: that of the last call."""

    def take(self, position: int, numel: int, example: Tensor) -> tuple[Tensor, int]:
        """``numel`` elements for an argument, and the number of bytes newly allocated for it."""
        key = (position, example.dtype, example.device)
        flat = self._flat.get(key)
        new = 0
        if flat is None or flat.numel() < numel:
            # Graphs captured with the shorter one keep it.
            flat = self._flat[key] = torch.zeros(numel, dtype=example.dtype, device=example.device)
            new = numel * flat.element_size()
        return flat[:numel], new

    def clear(self) -> None:
        """Release all memory; graphs captured over it keep theirs."""
        self._flat.clear()
        self.filled_for = None


@dataclass(slots=True)
class StaticInput:
    """One argument's buffer.

    Args:
        tensor: what the captured function sees.
        span: its memory as one flat dimension, if the layout has gaps or repeats; else None.
        new_nbytes: memory newly allocated for it.
    """

    tensor: Tensor
    span: Tensor | None = None
    new_nbytes: int = 0

    @classmethod
    def like(cls, example: Tensor, size: Sequence[int] | None, buffers: Buffers, position: int) -> StaticInput:
        """A buffer for tensors like ``example``; with a ``size``, for all whose dims are in the same order."""
        with torch.inference_mode(False), torch.no_grad():
            wanted = tuple(size) if size is not None else tuple(example.size())
            has_gaps = size is None and not is_dense(example)
            strides = example.stride() if size is None else dense_strides(wanted, dim_order(example))
            flat, new = buffers.take(position, span(example) if has_gaps else math.prod(wanted), example)
            made = flat.as_strided(wanted, strides).detach().requires_grad_(example.requires_grad)
            return cls(made, flat if has_gaps else None, new)

    @property
    def nbytes(self) -> int:
        holder = self.tensor if self.span is None else self.span
        return holder.numel() * holder.element_size()

    def bits(self) -> Tensor:
        """Its memory as bytes."""
        held = self.tensor.detach() if self.span is None else self.span
        return held.as_strided((span(held),), (1,)).view(torch.uint8)

    def target(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """The target and the source of the copy for a call's tensor, both of the same size."""
        if self.span is not None:
            return self.span, given.as_strided(self.span.size(), (1,), given.storage_offset())
        static = self.tensor.detach()
        for dim, size in enumerate(given.size()):
            if static.size(dim) != size:
                static = static.narrow(dim, 0, size)
        return static, given.detach()


class Inputs:
    """The static inputs of one capture.

    Args:
        buffers: their memory.
        args, kwargs: of the call that is captured; ``tensors`` are those in them.
        sizes: for each tensor a bucket's size; None for the tensor's own.
        in_place: the tensors themselves, where they have that size.
    """

    def __init__(
        self,
        buffers: Buffers,
        args: Args,
        kwargs: Kwargs,
        tensors: Sequence[Tensor],
        sizes: Sequence[Sequence[int] | None],
        in_place: bool,
    ) -> None:
        self.buffers = buffers
        made = [
            StaticInput(t.detach().requires_grad_(t.requires_grad))
            if in_place and (size is None or tuple(size) == tuple(t.size()))
            else StaticInput.like(t, size, buffers, i)
            for i, (t, size) in enumerate(zip(tensors, sizes))
        ]
        self.twins = twins_of(tensors)
        """For each argument the position of the first that is the same tensor: inside it is one, too."""
        self.statics = [made[first] for first in self.twins]
        self.new_nbytes = sum(made[i].new_nbytes for i in set(self.twins))
        statics = iter(self.statics)
        self.args: Args = replace(tuple(args), lambda _: next(statics).tensor)
        self.kwargs: Kwargs = replace(dict(kwargs), lambda _: next(statics).tensor)

    def fill(self, tensors: Sequence[Tensor], repeats_last: bool = False, filled_for: Any = None) -> None:
        """Copy a call's tensors into the static inputs.

        Args:
            repeats_last: padding repeats the last row; else it is zero.
            filled_for: the call's route; padding already filled for the same route is left.
        """
        pads_again = filled_for is None or self.buffers.filled_for is not filled_for
        self.buffers.filled_for = filled_for
        targets, sources, padded = [], [], []
        for static, given in zip(self.statics, tensors):
            size = given.size()
            if size != static.tensor.size():
                padded.append((static.tensor, size))
            elif given.data_ptr() == static.tensor.data_ptr():
                continue
            target, source = static.target(given)
            targets.append(target)
            sources.append(source)
        for tensor, size in padded if pads_again else ():
            pad(tensor, size)
        copy_all(targets, sources)
        for tensor, size in padded if repeats_last else ():
            repeat_last(tensor, size)

    def give_back(self, tensors: Sequence[Tensor], which: Sequence[int]) -> None:
        """Copy what the function wrote to some of its arguments back to the caller's tensors."""
        with torch.no_grad():
            for i in which:
                target, source = self.statics[i].target(tensors[i])
                if target.data_ptr() != source.data_ptr():
                    source.copy_(target)


def copy_all(targets: list[Tensor], sources: list[Tensor], *, non_blocking: bool = True) -> None:
    """Copy all tensors, in one launch where torch can: it has no such kernel for complex halves."""
    with torch.no_grad():
        try:
            if len(targets) > 1:
                return torch_names._foreach_copy_(targets, sources, non_blocking=non_blocking)
        except NotImplementedError:
            pass
        for target, source in zip(targets, sources):
            target.copy_(source, non_blocking=non_blocking)


def front(tensor: Tensor, size: Sequence[int] | None) -> Tensor:
    """The part of ``tensor`` that holds the real rows; all of it if ``size`` is None."""
    for dim, n in enumerate(size or ()):
        tensor = tensor.narrow(dim, 0, n)
    return tensor


def dense_copy(tensor: Tensor, size: Sequence[int]) -> Tensor:
    """A dense tensor of ``size`` whose front is ``tensor``, with dims in the same order; the rest is zeros."""
    with torch.no_grad():
        given = tensor.detach()
        strides = dense_strides(size, dim_order(given))
        made = torch.empty_strided(tuple(size), strides, dtype=given.dtype, device=given.device).zero_()
        front(made, given.size()).copy_(given)
    return made.requires_grad_(tensor.requires_grad)


def resized(tensor: Tensor, size: Sequence[int] | None) -> Tensor:
    """A tensor of ``size`` that begins as ``tensor`` does and goes on with its last row; itself for None."""
    if size is None or tuple(size) == tuple(tensor.size()):
        return tensor
    kept = front(tensor, [min(n, wanted) for n, wanted in zip(tensor.size(), size)])
    made = dense_copy(kept, size)
    repeat_last(made, kept.size())
    return made


def pad(static: Tensor, size: Sequence[int]) -> None:
    """Fill everything of ``static`` beyond ``size`` with zeros."""
    with torch.no_grad():
        rest = static.detach()
        for dim, n in enumerate(size):
            if n < rest.size(dim):
                rest.narrow(dim, n, rest.size(dim) - n).zero_()
                rest = rest.narrow(dim, 0, n)


def repeat_last(static: Tensor, size: Sequence[int]) -> None:
    """Copy the last real row of each padded dim to all of its padding."""
    with torch.no_grad():
        for _, padding, last in last_rows(static.detach(), size):
            padding.copy_(last)


def last_rows(tensor: Tensor, size: Sequence[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each padded dim: the dim, its padding, and the last real row expanded to the same size.

    In this order each dim's padding covers the padded extent of earlier dims, so corners are filled too.
    """
    for dim, n in enumerate(size):
        if 0 < n < tensor.size(dim):
            padding = tensor.narrow(dim, n, tensor.size(dim) - n)
            yield dim, padding, tensor.narrow(dim, n - 1, 1).expand_as(padding)


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in torch_names.tree_leaves(tree) if isinstance(leaf, Tensor)]


# -- results --------------------------------------------------------------------------------------------------


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
    is_detached: bool = False
    """Whether it needs no gradients though its argument does."""


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
        self.twins = twins_of(tensors)
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
    own: dict[str, Any] = vars(value) if isinstance(value, OrderedDict) and dataclasses.is_dataclass(value) else {}
    if own and own.keys() >= value.keys() and all(value.get(name) is item for name, item in own.items()):
        # As transformers' __init__ leaves its results, which takes longer than a launch.
        named, blank = [(name, builder(item)) for name, item in value.items()], dict.fromkeys(own)

        def build(tensors: Iterator[Any]) -> Any:
            made = OrderedDict.__new__(kind)
            vars(made).update(blank)
            for name, make in named:
                vars(made)[name] = part = make(tensors)
                OrderedDict.__setitem__(made, name, part)
            return made

        return build
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
                about = (tensor is static.tensor and same, tensor.dtype, *layout)
                is_detached = static.tensor.requires_grad and not tensor.requires_grad
                return GraphOutput(of_input=position, layout=about, is_detached=is_detached)
    return GraphOutput(made=tensor.detach() if tensor.requires_grad else tensor, is_host=not tensor.is_cuda)


def from_before(result: GraphOutput, args: Sequence[Tensor]) -> Tensor:
    if result.outside is not None:
        return result.outside
    given = args[result.of_input]
    itself, dtype, size, stride, offset = result.layout
    if itself:
        return given
    view = given.detach() if result.is_detached else given
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
