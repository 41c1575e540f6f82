"""Calls whose results need gradients: forward and backward as two graphs.

    forward   copy in ──> forward graph ──> results, owned by the caller
    backward  copy gradients in ──> backward graph ──> gradients, owned by the caller

Problem: what the forward graph saves for the backward lies at fixed addresses, so a second forward before
the first backward overwrites it: torch's make_graphed_callables then silently gives wrong gradients.
Here each result knows which forward it came from. If that is not the last one, the forward is replayed
for it again, on the same inputs and with the same random numbers, before its backward.

What the backward reads is held by its capture as an external input, so a second backward still finds it. Of a
backward nothing is needed once its gradients are copied out: all backwards of a device share one pool, and run in
turn.

Results that are not differentiated have no gradient, and neither has what depends only on them: a backward is
captured for each set of results that receive gradients. A new set runs the function itself, and the next forward
captures again, with a backward for that set too.

Every tensor that the function reads is one of its arguments, parameters included: Dynamo provides it that way. So
the whole is one step of autograd, each argument's gradient leaves it once, and hooks, accumulation and
a parameter passed twice are handled by autograd itself.

The forwards of one function at its sizes share a pool: the last forward to run there is the one whose backward can
run. Sizes that a program runs at once, queries and documents before one backward, get memory of their own.

A known call does not go through Dynamo's code: a generated function checks what that would check, and applies the
step (`Gradients.make_fast`). Source: decision 0303.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.arena import Arena, Order, arena_of, carries, replay, writes_of, written_inputs
from gfxgraph.callables.buffers import Buffers, StaticInput, builder, copy_all, is_dense
from gfxgraph.callables.captured import CapturedCallable, label_of
from gfxgraph.callables.fast_path import GuardWriter
from gfxgraph.callables.joined_launch import CopiedReplay
from gfxgraph.callables.signature import Call, Fast, NotATree, RunEagerly, flatten, never
from gfxgraph.callables.trace.corrections import shield
from gfxgraph.callables.trace.dynamo import local
from gfxgraph.callables.trace.world import World
from gfxgraph.capture.replay.graph_tensors import Layout
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.errors import ReplayError
from gfxgraph.process import bridge

_BATCHED: tuple[Callable[[Any], bool], ...] = (torch_names.is_batchedtensor, torch_names.is_legacy_batchedtensor)
"""Tests for tensors that stand for several, without memory: those of torch.func, and of is_grads_batched."""
MAX_BACKWARDS = 4
"""Most sets of differentiated results that get a backward of their own; others run the function itself."""
SMALL_NBYTES, MOST_SHARED, ALIGNMENT = 1 << 16, 32, 512
"""Gradients up to this size share an allocation, at most so many, each at a multiple of the last, as torch's are."""
_OVER_CAP = "a capture would exceed the memory limit"


class Gradients(CapturedCallable):
    """The calls of one kind: warm-up, record, replay, eager.

    Under the cap on memory as every capture; a backward that waits keeps the graphs of its forward.

    Args:
        siblings: the function, and what it shares with the calls of other kinds.
        inputs: tensors on the device, and constants, small host tensors among them.
        in_place: positions of tensors that stay in place; the others are copied in.
    """

    def __init__(self, siblings: Siblings, inputs: Sequence[Any], in_place: frozenset[int]) -> None:
        super().__init__("graphed")
        self.siblings, self.fn, self.in_place = siblings, siblings.fn, in_place
        self.at = [i for i, each in enumerate(inputs) if isinstance(each, Tensor) and each.is_cuda]
        at = set(self.at)
        self.inputs = [
            None if i in at else each.clone() if isinstance(each, Tensor) else each for i, each in enumerate(inputs)
        ]
        self.label = label_of([inputs[i] for i in self.at if i not in in_place])
        self.arrivals: list[tuple[bool, ...]] = []
        """Which results receive gradients, for each backward to capture besides the one for all of them."""
        self._is_warm = False
        self._pair: _Pair | None = None
        self.fast: Fast = never
        """The call of the function for whose graph this is, from arguments to results."""
        self._n_slow = self._n_seen = 0
        self.nbytes = self.used_at = 0

    @property
    def is_captured(self) -> bool:
        return self._pair is not None

    def drop(self) -> None:
        self._pair, self.nbytes, self.fast = None, 0, never

    def evict(self, why: str) -> None:
        """Drop the graphs; the next call captures again."""
        if self._pair is not None:
            self._pair.arena.wait_for_all()
            self._pair.arena.state.report("eviction", why, self.name, self.label, logging.INFO)
            self.drop()

    def report(self) -> dict[str, Any]:
        """Its row in ``memory_report()``."""
        pair = self._pair
        return {
            "function": self.name,
            "signature": f"{self.label}, with gradients",
            "input_bytes": sum(pair.statics[k].nbytes for k in pair.copied) if pair is not None else 0,
            "output_bytes": sum(t.nbytes for t in pair.made) if pair is not None else 0,
            "pool_bytes": self.nbytes,
            "n_graphs": 1 + len(pair.backwards) if pair is not None else 0,
            "n_calls": self.n_replays,
            "why_eager": self.why_eager,
        }

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Return a call's results, with a backward that replays.

        Raises:
            RunEagerly: nothing has happened; the function itself must run.
        """
        given = [inputs[i] for i in self.at]
        if self.why_eager:
            raise RunEagerly(self.why_eager)
        if not self._is_warm and not local.is_warm:  # a warm-up for the libraries of its kernels
            self._is_warm = True
            raise RunEagerly("warm-up")
        arena = arena_of(bridge.process_for_callables(), given[0].get_device())
        with arena.lock, torch.cuda.device(arena.device_index):
            pair = self._pair
            if pair is None or len(pair.backwards) <= len(self.arrivals):
                pair = self._record(arena, given)
            arena.follow(torch.cuda.current_stream(arena.device_index))
            arena.n_uses += 1
            self.used_at = arena.n_uses
            have = [*given, *_Replay.apply(pair, *given)]
        self.n_replays += 1
        made = pair.build(iter([have[at] if part is None else part.of(have[at]) for at, part in pair.places]))
        if local.noted is not None:
            local.noted.append((self, inputs, made))
        return made

    @property
    def is_due(self) -> bool:
        """Whether to make a fast path: at once if the last one has served a call, else after ever more calls."""
        n, self._n_seen = self.n_replays - self._n_seen, self.n_replays
        self._n_slow = 1 if n > 1 else self._n_slow + 1
        return self._n_slow.bit_count() == 1

    def make_fast(self, world: World, call: Call, inputs: Sequence[Any], made: Sequence[Any], result: Any) -> None:
        """Make the fast path for calls like this one, whose ``inputs`` and results ``made`` were the graph's."""
        if self._pair is not None:
            self.fast = _fast(self._pair, world, call, [inputs[i] for i in self.at], made, result) or never

    def _record(self, arena: Arena, given: list[Tensor]) -> _Pair:
        needed = sum(t.nbytes for i, t in zip(self.at, given) if i not in self.in_place)
        if not arena.make_room(max(needed, self.nbytes), keep=self):
            raise RunEagerly(self.fall_back(_OVER_CAP))
        before = arena.reserved()
        for order in (arena, arena.backwards):
            order.follow(torch.cuda.current_stream(arena.device_index))
        try:
            pair = self._pair = _Pair(self, arena, given)
            if pair.is_outdated:  # a backward cannot be captured twice
                pair = self._pair = _Pair(self, arena, given)
        except (RuntimeError, NotATree) as error:
            if is_interrupt(error):
                raise
            self.siblings.homes.pop(arena, None)  # a failed capture may have left something there
            raise RunEagerly(self.fall_back("forward and backward could not be captured", error)) from error
        self.nbytes += max(0, arena.reserved() - before)  # what earlier ones took there serves again
        arena.entries.add(self)
        self.n_captures += 1
        if arena.graph_nbytes() > arena.cap() and not arena.make_room(0, keep=self):
            raise RunEagerly(self.fall_back(_OVER_CAP))
        return pair


class _Home(Order):
    """The memory of forwards: what the last one that ran there has saved is in it."""

    number = 0

    def begin(self, pair: _Pair) -> int:
        """Count a forward of the pair."""
        self.last = weakref.ref(pair)
        self.number += 1
        return self.number


@dataclass
class Siblings:
    """What the calls of one function share, whatever their sizes.

    Attributes:
        fn: takes ``inputs`` in their order and reads nothing else.
        names: what the program calls its inputs; "" for what is computed.
        homes: memory of its forwards.
        arrivals: which results received gradients, where not all did.
    """

    fn: Callable[..., Any]
    names: Sequence[str]
    homes: dict[Arena, _Home] = field(default_factory=dict)
    arrivals: list[tuple[bool, ...]] = field(default_factory=list)


class _Pair:
    """A forward and its backwards, over one memory."""

    def __init__(self, owner: Gradients, arena: Arena, given: list[Tensor]) -> None:
        self.owner, self.arena = owner, arena
        self.copied = [k for k, i in enumerate(owner.at) if i not in owner.in_place]
        static = [
            StaticInput(t.detach().requires_grad_(t.requires_grad))
            if i in owner.in_place
            else StaticInput.like(t, None, Buffers(), 0)
            for i, t in zip(owner.at, given)
        ]
        self.statics = [each.tensor for each in static]
        moving = [static[k] for k in self.copied]
        self._spans = [each.span for each in moving]
        self._targets = [each.tensor.detach() if each.span is None else each.span for each in moving]
        self._memory = memory = arena.backwards
        self.is_outdated, self.lock = False, memory.lock
        self._home = owner.siblings.homes.setdefault(arena, _Home(arena.state, arena.device_index, arena.stream))
        self._home.begin(self)  # a capture that is split runs its parts
        copy_all(self._targets, self._moved(given))
        # Each a new leaf: if it were a view, as eager's argument may be, gradients would bypass it.
        inputs = self._with(self.statics)
        with torch.enable_grad():
            self._forward, result = arena.capture(lambda: owner.fn(*inputs), self._home.pool)
        self.build = builder(result)
        written = written_inputs(self._forward, list(self.statics))
        for k in set(self.copied).intersection(written):
            name = owner.siblings.names[owner.at[k]] or "a tensor that it computed earlier"
            raise RuntimeError(f"it writes to {name} where a result needs gradients: write to {name}.clone()")
        self.is_saved = [k not in written for k in range(len(self.statics))]
        """Which inputs must be the same in the backward: all but those that the forward writes."""
        self._carried = [self.statics[k].detach() for k in written] if carries(self._forward) else []
        """What the forward writes and later forwards depend on."""
        flatten(result, results := list[Tensor]())
        if not all(t.is_cuda and t.layout is torch.strided for t in results):
            raise RuntimeError("a result is not a tensor on the device")
        self._sources, self.places = _taken_apart(results, self.statics)
        self.made = [_source(results, *each) for each in self._sources]
        ends = [t for t in self.made if t.requires_grad]
        buffers = memory.buffers = memory.buffers or Buffers()
        self._arriving = [StaticInput.like(t.detach(), None, buffers, i).tensor for i, t in enumerate(ends)]
        like = torch_names.TensorGuards(*self._arriving, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._are_like_arriving = like.check
        self.backwards: dict[tuple[bool, ...], _Backward] = {}
        """By which results receive gradients."""
        self._all = (True,) * len(ends)
        known = dict.fromkeys((*owner.arrivals, *owner.siblings.arrivals))
        owner.arrivals = [each for each in known if len(each) == len(ends)][: MAX_BACKWARDS - 1]
        for arrivals in (*owner.arrivals, self._all):
            self.backwards[arrivals] = self._whole = self._backward(ends, arrivals)
        self._generators = list(self._forward._program.generators)
        self.is_plain = self._forward.is_plain
        self.needs = [t.requires_grad for t in self.made]
        # Only the results' memory is needed from here on, not their autograd history.
        self.made = [t.detach() for t in self.made]
        run = functools.partial(replay, self._forward)
        self._run = CopiedReplay(arena, self._forward, run, self._targets, self.made, _allocator(self.made), arena)

    def _moved(self, given: Sequence[Tensor]) -> list[Tensor]:
        """What is copied into the graph's memory."""
        pairs = zip([given[k] for k in self.copied], self._spans)
        return [t if flat is None else t.as_strided(flat.size(), (1,), t.storage_offset()) for t, flat in pairs]

    def _with(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The function's inputs, these tensors among them."""
        inputs = list(self.owner.inputs)
        for i, tensor in zip(self.owner.at, tensors):
            inputs[i] = tensor
        return inputs

    def _backward(self, ends: list[Tensor], arrivals: tuple[bool, ...]) -> _Backward:
        """Capture a backward; return what replays it: of the gradients that arrive, those of each input."""
        from_, arriving = list(compress(ends, arrivals)), list(compress(self._arriving, arrivals))
        at = [k for k, t in enumerate(self.statics) if t.requires_grad]
        wanted = [self.statics[k] for k in at]
        is_last = all(arrivals)
        with torch.enable_grad():
            graph, found = self.arena.capture(
                lambda: torch.autograd.grad(from_, wanted, arriving, allow_unused=True, retain_graph=not is_last),
                self._memory.pool,
                after=self._forward,
            )
        self.is_outdated |= graph._program.is_outdated
        of = {k: grad for k, grad in zip(at, found) if grad is not None}
        made = sorted(of, key=lambda k: of[k].nbytes > SMALL_NBYTES)
        pick = itemgetter(-1, *[made.index(k) if k in made else -1 for k in range(len(self.statics))])
        sources = [Layout.of(of[k]).tensor() for k in made]  # which do not keep the memory from other captures
        allocate, run = _parts_allocator(sources), functools.partial(replay, graph)
        replayed = CopiedReplay(self.arena, graph, run, arriving, sources, allocate, self._memory)
        return lambda came, are_alike: pick((*replayed.replay(came, are_alike), None))

    # -- replay ---------------------------------------------------------------------------------------

    def run_forward(self, given: Sequence[Tensor]) -> tuple[_Before, list[Tensor]]:
        """Replay the forward; return what was before it, and results owned by the caller."""
        states = [each.get_state() for each in self._generators] if self._run.draws is not False else []
        carried = [t.clone() for t in self._carried]
        results = self._run.replay(self._moved(given))
        return (self._home.begin(self), states, carried), results

    def run_backward(self, before: _Before, saved: Sequence[Tensor], grads: Sequence[Any]) -> tuple[Any, ...]:
        """Replay the backward of a forward; return gradients owned by the caller, for each input."""
        came = list(compress(grads, self.needs))
        are_alike = self._are_like_arriving(*came)
        try:
            if are_alike and before[0] == self._home.number:
                return self._whole(came, True)
            if (found := self._replayed(before, saved, came, are_alike)) is not None:
                return found
        except RunEagerly as error:
            self.owner.eager.count(str(error))
        with self._as_then(before):
            return self._grad(saved, grads, create_graph=False)

    def _replayed(
        self, before: _Before, saved: Sequence[Tensor], came: list[Any], are_alike: bool
    ) -> tuple[Any, ...] | None:
        """Replay the backward of an earlier forward, or of some results; None where no graph does that."""
        arrivals = self._all if are_alike else tuple([grad is not None for grad in came])
        if not are_alike and any(grad is not None and is_one(grad) for grad in came for is_one in _BATCHED):
            self.owner.eager.count("several gradients arrive at once (is_grads_batched, vmap)")
        elif arrivals not in self.backwards:
            self.owner.eager.count("only some of its results are differentiated, for the first time")
            if len(self.owner.arrivals) + 1 < MAX_BACKWARDS and arrivals not in self.owner.arrivals:
                self.owner.arrivals.append(arrivals)  # the next forward captures one for it
                self.owner.siblings.arrivals.append(arrivals)
        else:
            if before[0] != self._home.number:  # restore what the forward saved for these inputs
                if self._home.last() not in (self, None) and self.owner._pair is self:
                    # Its next capture has memory that no other size uses.
                    self.owner.siblings = replace(self.owner.siblings, homes={})
                    self.owner.drop()
                with self._as_then(before):
                    copy_all(self._targets, self._moved(self._given(saved)))
                    replay(self._forward)
                self._home.begin(self)
            return self.backwards[arrivals]([grad for grad in came if grad is not None], are_alike)
        return None

    def _given(self, saved: Sequence[Tensor]) -> list[Tensor]:
        """A call's inputs, by those that were saved."""
        rest = iter(saved)
        return [next(rest) if is_saved else static for static, is_saved in zip(self.statics, self.is_saved)]

    def run_differentiable(self, before: _Before, saved: Sequence[Tensor], grads: Sequence[Any]) -> tuple[Any, ...]:
        """Compute differentiable gradients with the function itself: a graph gives only numbers."""
        self.owner.eager.count("its gradients are differentiated again")
        with self._as_then(before):
            return self._grad(saved, grads, create_graph=True)

    def _grad(self, saved: Sequence[Tensor], grads: Sequence[Any], *, create_graph: bool) -> tuple[Any, ...]:
        """Compute gradients with the function itself."""
        with torch.enable_grad():
            # Views, because a tensor's hooks must run once, for the gradient that leaves the whole.
            own = [t.view_as(t) if t.requires_grad else t for t in self._given(saved)]
            flatten(self.owner.fn(*self._with(own)), results := list[Tensor]())
        made = [_source(results, *each) for each in self._sources]
        ends = [(t, grad) for t, grad, needs in zip(made, grads, self.needs) if needs and grad is not None]
        wanted = [t for t, static in zip(own, self.statics) if static.requires_grad]
        found = iter(
            torch.autograd.grad(
                [t for t, _ in ends], wanted, [grad for _, grad in ends], create_graph=create_graph, allow_unused=True
            )
        )
        return (None, *[next(found) if static.requires_grad else None for static in self.statics])

    @contextmanager
    def _as_then(self, before: _Before) -> Iterator[None]:
        """Draw the forward's random numbers again, and undo what is written (running statistics) a second time."""
        _, states, carried = before
        now = Rollback(writes_of(self._forward), self._generators if states else ())
        for generator, state in zip(self._generators, states):
            generator.set_state(state)
        try:
            with torch.no_grad():
                copy_all(self._carried, carried)
            yield
        finally:
            now.restore()


_Backward = Callable[[list[Tensor], bool], tuple[Any, ...]]
"""Given the gradients that arrive, and whether they are laid out as the graph's own."""
_Before = tuple[int, list[Any], list[Tensor]]
"""A forward's number, the random states before it, and what it changed of what forwards depend on."""


def _allocator(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """A function that allocates tensors like these, bypassing the dispatcher if possible, as compiled code does."""
    empty, like, current = torch_names._empty_strided_cuda, torch.empty_like, torch_names._cuda_getDevice
    about = [(tuple(t.size()), like(t).stride(), t.dtype) for t in tensors]
    try:
        if about and empty is not None:
            empty(*about[0])
            columns, device = list(zip(*about)), tensors[0].get_device()
            return lambda: list(map(empty, *columns) if current() == device else map(like, tensors))
    except RuntimeError:  # a torch without it for this device
        pass
    return lambda: list(map(like, tensors))


def _parts_allocator(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """As above; the small ones, which come first, are parts of few allocations, each with a version of its own."""
    part_of = torch_names._reinterpret_tensor
    small = [t for t in tensors if t.nbytes <= SMALL_NBYTES and part_of is not None]
    sizes: dict[tuple[torch.dtype, int], int] = {}
    """Of each allocation the number of elements."""
    parts = []
    for i, t in enumerate(small):
        whole = t.dtype, i // MOST_SHARED
        at = sizes.get(whole, 0)
        sizes[whole] = at - t.nbytes // -ALIGNMENT * ALIGNMENT // t.itemsize
        parts.append(([*sizes].index(whole), tuple(t.size()), torch.empty_like(t).stride(), at))
    flat = [tensors[0].new_empty((), dtype=dtype).expand(n) for (dtype, _), n in sizes.items()]
    numbers, *about = zip(*parts) if parts else ((), (), (), ())
    allocate, n = _allocator([*flat, *tensors[len(small) :]]), len(flat)
    return lambda: [*map(part_of, map((made := allocate()).__getitem__, numbers), *about), *made[n:]]


@dataclass(frozen=True)
class _Part:
    """A result that is a part of another tensor: of an argument, or of what several results are parts of."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_detached: bool

    def of(self, whole: Tensor) -> Tensor:
        """The part as autograd's view of the caller's tensor: a gradient goes through it into the whole."""
        whole = whole.detach() if self.is_detached else whole
        return whole.as_strided(self.size, self.stride, whole.storage_offset() + self.offset)


def _taken_apart(
    results: list[Tensor], statics: Sequence[Tensor]
) -> tuple[list[tuple[int, bool]], list[tuple[int, _Part | None]]]:
    """How results are made from the arguments and from tensors that have memory of their own.

    Returns:
        The tensors to make, as a result's number and whether it is what that result is a view of; and for each
        result its place among the arguments and these, and which part of that it is.

    Raises:
        RuntimeError: results share memory in a way that autograd does not know.
    """
    homes = [t.untyped_storage().data_ptr() if t.numel() else -1 for t in results]
    whole: list[Tensor] = list(statics)
    sources: list[tuple[int, bool]] = []
    places: list[tuple[int, _Part | None]] = [(0, None)] * len(results)
    for i in sorted(range(len(results)), key=lambda i: not results[i].requires_grad):  # detached ones come last
        t, home = results[i], homes[i]
        shared = [k for k, w in enumerate(whole) if w is t or home >= 0 and w.untyped_storage().data_ptr() == home]
        if not shared:
            has_base = homes.count(home) > 1 and t._base is not None
            whole.append(t._base if has_base else t)  # type: ignore[arg-type]
            sources.append((i, has_base))
            shared = [len(whole) - 1]
        at = next((k for k in shared if whole[k] is t), shared[0])
        w = whole[at]
        if w is t:
            places[i] = at, None
            continue
        if w.dtype != t.dtype or not is_dense(w) or (t.requires_grad and t._base is not w):
            raise RuntimeError("a result shares memory with another one or with an argument")
        offset = t.storage_offset() - w.storage_offset()
        places[i] = at, _Part(tuple(t.size()), t.stride(), offset, not t.requires_grad)
    return sources, places


def _source(results: Sequence[Tensor], i: int, is_base: bool) -> Tensor:
    found = results[i]._base if is_base else results[i]
    assert found is not None
    return found


class _Replay(torch.autograd.Function):
    """The two graphs as one step of autograd."""

    @staticmethod
    def forward(ctx: Any, pair: _Pair, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.pair, ctx.materialize_grads = pair, False  # set as by the methods, without their frames, as is to_save
        with pair.lock:
            ctx.before, results = pair.run_forward(given)
        # Saved through autograd: changing an input in place before the backward raises torch's own error.
        ctx.to_save = tuple(compress(given, pair.is_saved))
        if not all(pair.needs):
            ctx.mark_non_differentiable(*[t for t, needs in zip(results, pair.needs) if not needs])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        pair: _Pair = ctx.pair
        if torch.is_grad_enabled():  # create_graph=True
            return pair.run_differentiable(ctx.before, ctx.saved_tensors, grads)
        with pair.lock:
            return pair.run_backward(ctx.before, ctx.saved_tensors, grads)


shield(_Replay.backward, from_us=True)  # called between a function's pieces, it is not a part of what is traced
_apply: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, _Replay).apply
"""`_Replay.apply` without what torch does before it for its transforms, around which no fast path runs."""


def _fast(
    pair: _Pair, world: World, call: Call, given: Sequence[Tensor], made: Sequence[Any], result: Any
) -> Fast | None:
    """The fast path of calls like this one; None if they need Dynamo's code."""
    writer = GuardWriter(pair.arena, call.tensors)
    names = {id(t): f"w{k}" for k, t in enumerate(world.tensors)}
    is_plain = pair.is_plain and all(t.is_cuda and id(t) not in names for t in call.tensors)
    if not is_plain or not writer.takes(call.args, call.kwargs):
        return None
    writer.names |= {name: t for name, t in zip(names.values(), world.tensors)}
    names |= {id(t): f"t{i}" for i, t in enumerate(call.tensors)}
    taken = [names.get(id(t), "") for t in given]
    like = torch_names.TensorGuards(*given, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    writer.names |= {"check_all": like.check, "hooks": torch_names._top_saved_tensors_default_hooks}
    writer.line(f"if not check_all({', '.join(taken)}): return MISS")
    writer.guards(world, True, are_checked={id(t) for t in given}.issuperset(map(id, call.tensors)))
    writer.names |= {"apply": _apply, "pair": pair, "owner": pair.owner, "arrivals": pair.owner.arrivals}
    writer.names |= {"task": torch_names._current_graph_task_id, "ReplayError": (ReplayError, RunEagerly)}
    writer.line("if task() != -1 or hooks(True): return MISS")
    writer.line(f"if owner._pair is not pair or len(arrivals) >= {len(pair.backwards)}: return MISS")
    writer.line(f"made = apply(pair, {', '.join(taken)})")
    whole = [*taken, *[f"made[{k}]" for k in range(len(pair.made))]]
    writer.line("arena.n_uses = owner.used_at = arena.n_uses + 1; owner.n_replays += 1")
    for i, (each, (at, part)) in enumerate(zip(made, pair.places)):
        names[id(each)], writer.names[f"part{i}"] = f"out{i}", part
        writer.line(f"out{i} = {whole[at]}" if part is None else f"out{i} = part{i}.of({whole[at]})")
    flatten(result, tensors := list[Tensor]())
    gives = [names.get(id(t), "") for t in tensors]
    writer.names["build"] = builder(result)
    writer.line(f"return {gives[0]}" if result is tensors[0] else f"return build(iter([{', '.join(gives)}]))")
    return writer.function() if all(taken) and all(gives) else None
