"""``gfxgraph.graphed``: a function or module that is captured per signature and replayed.

The way of one call:

    fast path: same signature as the last call ── copy in, replay, results
    slow path: tree -> signature -> route ── new: eager (warm-up), then capture
                                          ── known: copy in, replay, results
                                          ── cannot be captured: eager, with the reason kept

Every way that is not a replay is the function itself, called with the caller's own arguments, so
that an error inside it is its own and a side effect happens once.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gfxgraph import config
from gfxgraph.runtime import activation, process
from gfxgraph.runtime.callables import engine
from gfxgraph.runtime.callables.dims import Bucketed, Dims, TooLarge, argument_paths, buckets_of
from gfxgraph.runtime.callables.entry import RING, Entry, Instance, RunEagerly
from gfxgraph.runtime.callables.fast import MISS, Fast, make_fast, never
from gfxgraph.runtime.callables.gradients import NEEDS_GRADIENTS, ForwardFailed, WithGradients, leaves_of
from gfxgraph.runtime.callables.inputs import Buffers
from gfxgraph.runtime.callables.memory import Arena, arena_of
from gfxgraph.runtime.callables.proof import Verdict, prove, size_after
from gfxgraph.runtime.callables.signature import NotATree, flatten, mode_key, tensor_key
from gfxgraph.runtime.callables.watch import Watch
from gfxgraph.runtime.effects import Effects
from gfxgraph.types import ReplayMode

MAX_ROUTES = 4096
MAX_ENTRIES = 1024
"""Signatures remembered; beyond, those that were never captured are forgotten."""
HOST_CONSTANT_NUMEL = 16
"""CPU tensors up to this size are constants, compared by content."""


class Route:
    """Where calls of one exact signature go."""

    __slots__ = ("bucketed", "entry", "fast", "fast_of", "result_sizes", "why_eager")

    def __init__(self, entry: Entry | None, bucketed: Bucketed | None = None, why_eager: str = "") -> None:
        self.entry = entry
        self.bucketed = bucketed
        self.why_eager = why_eager
        self.fast: Fast | None = None
        self.fast_of: tuple[Instance, ...] = ()
        self.result_sizes: Sequence[Sequence[int] | None] | None = None


class Graphed:
    """A captured callable; made by ``gfxgraph.graphed``."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        dims: Dims | None,
        mode: ReplayMode,
        warmup: int,
        max_graphs: int,
    ) -> None:
        self._fn = fn
        self._mode = mode
        self._warmup = warmup
        self._max_graphs = max_graphs
        self._name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self._fast: Fast = never
        self._near: dict[Any, Fast] = {}
        """The last fast path of calls with this tree and these shapes; it checks everything itself."""
        self._routes: dict[Any, Route] = {}
        self._entries: dict[Any, Entry] = {}
        self._eager: Counter[str] = Counter()
        self._n_captures = 0
        self._is_clean: bool | None = None
        """Whether the first recorded capture was one plain segment."""
        self._writes_outside = False
        self._dims = dims
        self._watch = Watch(fn)
        self._seen_tensors = -1
        self._n_gone = 0
        """Replays of signatures that have been forgotten."""
        self._buffers = Buffers()
        self._state: process.Process | None = None
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    # -- one call ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._fast(args, kwargs)
        return result if result is not MISS else self._slow(args, kwargs)

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = activation.process_for_callables()
        if state is None:
            return self._run_eagerly("there is no GPU", args, kwargs)
        if torch.cuda.is_current_stream_capturing() or torch.compiler.is_compiling():
            return self._fn(*args, **kwargs)  # part of what is being captured
        if state is not self._state:
            self._start(state)
        tensors: list[Tensor] = []
        try:
            structure = flatten((args, kwargs), tensors)
        except NotATree as error:
            return self._run_eagerly(f"an argument cannot be compared: {error}", args, kwargs)
        near = (structure, *[t.shape for t in tensors])
        fast = self._near.get(near)
        if fast is not None and fast is not self._fast:
            self._fast = fast
            result = fast(args, kwargs)
            if result is not MISS:
                return result
        device, problem = _device_of(tensors)
        if problem:
            return self._run_eagerly(problem, args, kwargs)
        rest = self._rest_of_key(tensors)
        key = (structure, *[tensor_key(t) for t in tensors], *rest)
        arena = arena_of(state, device)
        with arena.lock:
            route = self._routes.get(key)
            if route is None:
                route = self._route(arena, key, structure, rest, args, kwargs, tensors)
            result = self._routed(arena, route, key, args, kwargs, tensors)
            if route.fast is not None and route.fast is not never:
                if len(self._near) >= MAX_ROUTES:
                    self._near.clear()
                self._near[near] = route.fast
            return result

    def _rest_of_key(self, tensors: list[Tensor]) -> tuple[Any, ...]:
        """What steers the function besides its tree and the kinds of its tensors."""
        host = tuple(t.tolist().__repr__() for t in tensors if not t.is_cuda)
        token = self._watch.look()
        if self._watch.tensors_token != self._seen_tensors:
            # What was captured reads tensors that are no more, and would keep them.
            self._seen_tensors = self._watch.tensors_token
            for entry in self._entries.values():
                if entry.is_captured:
                    entry.evict("the tensors that the function reads have been replaced")
            self._forget(lambda entry: True)
        return host, mode_key(), _aliases(tensors), token

    def _route(
        self, arena: Arena, key: Any, structure: Any, rest: Any, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Route:
        """Where calls of this exact signature go: to their bucket's entry, or one of their own."""
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
            self._near.clear()
        bucketed = None
        if self._dims is not None:
            try:
                bucketed = self._dims.bucketed(
                    structure, tensors, lambda: argument_paths(self._fn, args, kwargs)
                )
            except TooLarge as error:
                name, n = error.args
                self._routes[key] = route = Route(None, why_eager=f"{name}={n} is larger than every bucket")
                return route
        if bucketed is None:
            route = Route(self._entry_for(arena, key, _label(tensors)))
        else:
            route = Route(self._entry_in_bucket(arena, structure, rest, tensors, bucketed), bucketed)
        self._routes[key] = route
        return route

    def _entry_in_bucket(
        self, arena: Arena, structure: Any, rest: Any, tensors: list[Tensor], bucketed: Bucketed
    ) -> Entry:
        shapes = [
            tensor_key(t) if size is None else (type(t), size, t.dtype, t.device, t.requires_grad)
            for t, size in zip(tensors, bucketed.sizes)
        ]
        label = ", ".join(f"{name}={n}" for name, n in bucketed.bucket.items())
        return self._entry_for(arena, (structure, *shapes, *rest), label)

    def capture_all(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Capture every bucket now, largest first, with arguments of any size as an example.

        The function runs ``warmup`` times in each bucket, on the example's values with zeros for padding.
        What all of it will take is predicted from two captures in a pool that is thrown away; buckets that
        would go over the limit are left to be captured when they are called for.

        Returns:
            ``n_captured``, ``n_left``, ``predicted_bytes``.
        """
        state = activation.process_for_callables()
        tensors: list[Tensor] = []
        structure = flatten((args, kwargs), tensors)
        device, problem = _device_of(tensors)
        if state is None or problem or self._dims is None:
            return {"n_captured": 0, "n_left": 0, "predicted_bytes": 0}
        if state is not self._state:
            self._start(state)
        arena = arena_of(state, device)
        rest = self._rest_of_key(tensors)
        with arena.lock:
            todo: list[tuple[Entry, Bucketed]] = []
            for bucketed in self._dims.all_buckets(
                structure, tensors, lambda: argument_paths(self._fn, args, kwargs)
            ):
                entry = self._entry_in_bucket(arena, structure, rest, tensors, bucketed)
                if not entry.is_captured and not entry.why_eager:
                    todo.append((entry, bucketed))
            return self._capture_ahead(arena, todo, args, kwargs, tensors)

    def _capture_ahead(
        self, arena: Arena, todo: list[tuple[Entry, Bucketed]], args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> dict[str, int]:
        arena.stream.wait_stream(torch.cuda.current_stream(arena.device_index))

        def trial(entry: Entry, bucketed: Bucketed) -> Callable[[Any], Any]:
            def make(pool: Any) -> Any:
                self._ready(entry, bucketed, args, kwargs, tensors)
                instance = entry.capture(recorded=not self._may_go_unrecorded(), pool=pool)
                self._learn(entry, instance)
                return instance

            return make

        def ahead(entry: Entry, bucketed: Bucketed) -> bool:
            if not entry.statics:
                self._ready(entry, bucketed, args, kwargs, tensors)
            entry.n_seen = self._warmup
            entry.ring.append(self._one_more(entry))
            arena.n_uses += 1
            entry.used_at = arena.n_uses
            return True

        n_done, predicted = 0, 0
        try:
            prediction = arena.predict([trial(*item) for item in todo])
            predicted = prediction.total(len(todo))
            room = arena.cap() - arena.graph_nbytes()
            for item in todo[: prediction.how_many(len(todo), room)]:
                n_done += ahead(*item)
        except (engine.CaptureDied, torch.OutOfMemoryError, NotATree) as error:
            arena.state.report("fallback", "capturing ahead stopped", self._name, _first_line(error))
        for entry, _ in todo:
            if not entry.is_captured:
                entry.evict_buffers()
        torch.cuda.current_stream(arena.device_index).wait_stream(arena.stream)
        return {"n_captured": n_done, "n_left": len(todo) - n_done, "predicted_bytes": predicted}

    def _ready(self, entry: Entry, bucketed: Bucketed, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        """Static inputs of the bucket's size with the example's values, and the warm-up on them."""
        entry.prepare(args, kwargs, tensors, bucketed.sizes)
        with torch.cuda.stream(entry.arena.stream):
            fits = [
                t.detach()[tuple(slice(0, n) for n in s.tensor.size())] for t, s in zip(tensors, entry.statics)
            ]
            entry.fill(fits, [0.0] * len(fits))
        entry.run_once(self._warmup)

    def _routed(
        self, arena: Arena, route: Route, key: Any, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Any:
        entry, bucketed = route.entry, route.bucketed
        if entry is None:
            return self._run_eagerly(route.why_eager, args, kwargs)
        if entry.why_eager:
            if entry.gradients is not None and not (bucketed is not None and bucketed.is_padded):
                return self._with_gradients(arena, entry, args, kwargs, tensors)
            return self._run_eagerly(entry.why_eager, args, kwargs)
        if bucketed is not None and bucketed.is_padded and route.result_sizes is None:
            verdict = entry.verdicts.get(bucketed.padded_names)
            if verdict is None:
                return self._prove(arena, route, key, args, kwargs, tensors)
            if verdict.refused:
                entry = route.entry = self._entry_for(arena, key, _label(tensors))
                route.bucketed = None
            else:
                route.result_sizes = [
                    size_after(r.made, rules, bucketed.actual) if r.made is not None else None
                    for r, rules in zip(entry.results, verdict.rules)
                ]
        if not entry.is_captured:
            if entry.n_seen < self._warmup:
                entry.n_seen += 1
                return self._warm_up(arena, entry, args, kwargs)
            if not self._capture(arena, entry, args, kwargs, tensors, route.bucketed):
                return self._run_eagerly(entry.why_eager or "no memory for a capture", args, kwargs)
        try:
            result = self._replay(arena, entry, route, tensors)
        except RunEagerly as why:
            return self._run_eagerly(str(why), args, kwargs)
        self._fast = self._fast_for(route, entry, args, kwargs, tensors)
        return result

    def _with_gradients(self, arena: Arena, entry: Entry, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """A call whose results need gradients: a graph for the forward, one for the backward."""
        arena.follow(torch.cuda.current_stream(arena.device_index))
        try:
            if isinstance(entry.gradients, list):
                entry.gradients = WithGradients(arena, self._fn, args, kwargs, tensors, entry.gradients)
                self._n_captures += 1
            return entry.gradients(tensors)
        except ForwardFailed as error:
            return self._run_eagerly(f"the replay failed: {error}", args, kwargs)
        except (RuntimeError, NotATree) as error:
            entry.gradients, entry.why_eager = None, f"{NEEDS_GRADIENTS}, and they were not captured: {error}"
            why = f"forward and backward were not captured: {_first_line(error)}"
            arena.state.report("fallback", why, self._name)
            return self._run_eagerly(entry.why_eager, args, kwargs)

    def _fast_for(self, route: Route, entry: Entry, args: Any, kwargs: Any, tensors: list[Tensor]) -> Fast:
        """The fast path of calls like this one; made once, and again when the entry was captured again."""
        graphs = tuple(entry.ring)
        if route.fast is None or route.fast_of != graphs:
            hot = self._mode is ReplayMode.HOT
            made = make_fast(entry, route, args, kwargs, tensors, route.result_sizes, hot, self._watch)
            route.fast, route.fast_of = made or never, graphs
        return route.fast

    def _prove(
        self, arena: Arena, route: Route, key: Any, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Any:
        """The call itself, eagerly; then whether its bucket would have given the same."""
        entry, bucketed = route.entry, route.bucketed
        assert entry is not None and bucketed is not None
        result = self._warm_up(arena, entry, args, kwargs)
        if entry.why_eager:
            return result
        if not entry.is_captured and not self._capture(arena, entry, args, kwargs, tensors, bucketed):
            return result
        instance = entry.ring[0]
        arena.follow(torch.cuda.current_stream(arena.device_index))
        expected: list[Tensor] = []
        flatten(result, expected)
        if self._writes_outside or entry.mutates:
            verdict = Verdict("the function writes to tensors that are not its own")
        else:
            before = Effects((), instance.generators)

            def run(content: float) -> list[Tensor]:
                entry.fill(tensors, [content] * len(tensors))
                entry.replay(instance)
                instance.n_trials += 1
                given: list[Tensor] = []
                flatten(instance.outputs.give(tensors, None, own=True), given)
                return given

            try:
                verdict = prove(run, expected, bucketed.actual, bucketed.bucket)
            except RunEagerly as why:
                return result if why else result
            finally:
                before.put_back()
        entry.verdicts[bucketed.padded_names] = verdict
        if verdict.refused:
            arena.state.report("padding_refused", verdict.refused, self._name, entry.label)
        return result

    def _replay(self, arena: Arena, entry: Entry, route: Route, tensors: list[Tensor]) -> Any:
        arena.follow(torch.cuda.current_stream(arena.device_index))
        instance, own = self._instance(entry)
        entry.fill(tensors, [0.0] * len(tensors), route)
        entry.replay(instance)
        if entry.mutates:
            entry.give_back_mutated(tensors)
        arena.n_uses += 1
        entry.used_at = arena.n_uses
        return instance.outputs.give(tensors, route.result_sizes, own)

    def _instance(self, entry: Entry) -> tuple[Instance, bool]:
        """The graph to launch, and whether its results are to be copied out."""
        if self._mode is not ReplayMode.HOT:
            return entry.ring[0], True
        for instance in entry.ring:
            if not instance.outputs.in_use():
                return instance, False
        try:
            if len(entry.ring) < RING:
                entry.ring.append(self._one_more(entry))
                return entry.ring[-1], False
            if entry.spare is None:
                entry.spare = self._one_more(entry)
            return entry.spare, True
        except (engine.CaptureDied, torch.OutOfMemoryError, NotATree) as error:
            raise RunEagerly(f"every result buffer is in use, and another capture failed: {error}") from error

    def _one_more(self, entry: Entry) -> Instance:
        self._n_captures += 1
        return entry.capture(recorded=not self._may_go_unrecorded())

    # -- capture ----------------------------------------------------------------------------------

    def _start(self, state: process.Process) -> None:
        """The bridge was switched on, off, or this is the first call."""
        self._state = state
        self._forget(lambda entry: True)
        self._buffers = Buffers()
        self._is_clean = None

    def _entry_for(self, arena: Arena, key: Any, label: str) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= MAX_ENTRIES:
                self._forget(lambda entry: not entry.is_captured)
            entry = self._entries[key] = Entry(
                arena, self._fn, label, self._name, self._buffers, self._mode is not ReplayMode.HOT
            )
        return entry

    def _forget(self, which: Callable[[Entry], bool]) -> None:
        gone = [key for key, entry in self._entries.items() if which(entry)]
        self._n_gone += sum(self._entries.pop(key).n_replays() for key in gone)
        self._routes.clear()
        self._near.clear()
        self._fast = never

    def _warm_up(self, arena: Arena, entry: Entry, args: Any, kwargs: Any) -> Any:
        """The call itself, eagerly, on the stream that will capture: libraries keep handles by stream."""
        current = torch.cuda.current_stream(arena.device_index)
        arena.stream.wait_stream(current)
        try:
            with torch.cuda.stream(arena.stream):
                result = self._fn(*args, **kwargs)
        finally:
            current.wait_stream(arena.stream)
        self._eager["warm-up"] += 1
        made: list[Tensor] = []
        try:
            flatten(result, made)
        except NotATree as error:
            entry.why_eager = f"its result cannot be taken apart: {error}"
        entry.warm = [weakref.ref(t) for t in made]
        if torch.is_grad_enabled() and any(t.requires_grad for t in made):
            entry.why_eager = NEEDS_GRADIENTS
            entry.gradients = leaves_of(made)
        return result

    def _capture(
        self, arena: Arena, entry: Entry, args: Any, kwargs: Any, tensors: list[Tensor], bucketed: Bucketed | None
    ) -> bool:
        """Capture the entry; False where it stays eager, for now or for good."""
        captured = [e for e in self._entries.values() if e.is_captured]
        if len(captured) >= self._max_graphs:
            min(captured, key=lambda e: e.used_at).evict("more signatures than max_graphs")
        needed = max((e.pool_nbytes for e in captured), default=0)
        if not arena.make_room(needed, keep=entry):
            entry.n_seen = 0
            return False
        arena.stream.wait_stream(torch.cuda.current_stream(arena.device_index))
        for attempt in range(2):
            try:
                entry.prepare(args, kwargs, tensors, bucketed.sizes if bucketed else [None] * len(tensors))
                entry.fill(tensors, [0.0] * len(tensors))
                recorded = not self._may_go_unrecorded()
                entry.ring.append(entry.capture(recorded=recorded))
            except torch.OutOfMemoryError:
                arena.state.report("fallback", "out of memory in a capture; the call ran eagerly", self._name)
                arena.drop_all()
                if attempt:
                    entry.why_eager = "out of memory in its capture"
                continue
            except engine.CaptureDied as error:
                if not recorded and not attempt:
                    self._is_clean = False  # the recorder can split there
                    continue
                entry.why_eager = f"it could not be captured: {error}"
            except NotATree as error:
                entry.why_eager = f"its result cannot be taken apart: {error}"
            break
        if entry.why_eager or not entry.ring:
            arena.state.report("fallback", entry.why_eager or "no memory", self._name, entry.label)
            return False
        self._n_captures += 1
        self._learn(entry, entry.ring[0])
        torch.cuda.current_stream(arena.device_index).wait_stream(arena.stream)
        return True

    def _learn(self, entry: Entry, instance: Instance) -> None:
        """What the first recorded capture says of all others."""
        if self._is_clean is None and instance.is_recorded:
            program = instance.graph._program
            self._is_clean = program.is_plain and not instance.has_guards
            self._writes_outside = any(step.mutated for step in program.steps) and not entry.mutates

    def _may_go_unrecorded(self) -> bool:
        return bool(self._is_clean) and self._state is not None and engine.may_go_unrecorded(self._state)

    # -- eager ------------------------------------------------------------------------------------

    def _run_eagerly(self, why: str, args: Any, kwargs: Any) -> Any:
        self._eager[why] += 1
        return self._fn(*args, **kwargs)

    # -- what users ask ---------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """``captures``, ``replays``, ``eager`` (calls by reason), ``signatures``."""
        return {
            "captures": self._n_captures,
            "replays": self._n_replays(),
            "eager": dict(self._eager),
            "signatures": len(self._entries),
        }

    def _n_replays(self) -> int:
        return self._n_gone + sum(entry.n_replays() for entry in self._entries.values())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__wrapped__":
            raise AttributeError(name)
        return getattr(self._fn, name)

    def __repr__(self) -> str:
        return f"<graphed {self._name}: {len(self._entries)} signatures, {self._n_replays()} replays>"


def graphed(
    fn: Callable[..., Any] | None = None,
    *,
    dynamic: Mapping[str, Any] | str | None = None,
    buckets: Any = None,
    mode: ReplayMode | str | None = None,
    warmup: int = 1,
    max_graphs: int = 64,
) -> Any:
    """Make ``fn`` a callable that is captured as GPU graphs and replayed.

    Args:
        fn: a function, method or module.
        dynamic: which dims vary, ``{"x": {0: "batch"}}``; "infer" finds them from the first two different
            calls (the default where ``buckets`` is given).
        buckets: sizes that dynamic dims are rounded up to: a list, "powers_of_two", something with
            ``pick(n)``, or one of these by dim name.
        mode: "standard", "adaptive" or "hot"; by default GFXGRAPH_REPLAY_MODE.
        warmup: eager calls of a signature before it is captured.
        max_graphs: captured signatures of this callable; the least recently used goes first.
    """
    if fn is None:
        return functools.partial(
            graphed, dynamic=dynamic, buckets=buckets, mode=mode, warmup=warmup, max_graphs=max_graphs
        )
    chosen = ReplayMode(mode) if mode is not None else config.load().replay_mode
    dims = None
    if dynamic is not None or buckets is not None:
        declared = dict(dynamic) if isinstance(dynamic, Mapping) else None
        dims = Dims(declared, buckets_of(buckets))
    return Graphed(fn, dims=dims, mode=chosen, warmup=warmup, max_graphs=max_graphs)


def _device_of(tensors: list[Tensor]) -> tuple[int, str]:
    device = -1
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            return -1, f"an argument is a {tensor.layout} tensor"
        if tensor.is_cuda:
            index = tensor.get_device()
            if device not in (-1, index):
                return -1, "its arguments are on several devices"
            device = index
        elif tensor.device.type != "cpu":
            return -1, f"an argument is on {tensor.device}"
        elif tensor.numel() > HOST_CONSTANT_NUMEL:
            return -1, "an argument is a CPU tensor"
    return (device if device >= 0 else torch.cuda.current_device()), ""


def _aliases(tensors: list[Tensor]) -> tuple[int, ...]:
    """Which arguments share memory: for each the first one with the same storage, () where none does."""
    if len(tensors) < 2:
        return ()
    seen: dict[int, int] = {}
    pattern = tuple(seen.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors))
    return () if len(seen) == len(tensors) else pattern


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _label(tensors: list[Tensor]) -> str:
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.size())}" for t in tensors) or "no tensors"
