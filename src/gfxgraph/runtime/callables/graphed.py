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
import hashlib
import logging
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gfxgraph import config
from gfxgraph.core.buckets import Above, Budget, Plan
from gfxgraph.runtime import activation, process
from gfxgraph.runtime.callables import engine
from gfxgraph.runtime.callables.adaptive import Adaptive, Store, timed_call
from gfxgraph.runtime.callables.chunks import join, prove_chunks, split
from gfxgraph.runtime.callables.dims import Bucketed, Dims, TooLarge, argument_paths
from gfxgraph.runtime.callables.entry import RING, Entry, Instance, RunEagerly
from gfxgraph.runtime.callables.fast import MISS, Fast, can_be_fast, make_fast, never
from gfxgraph.runtime.callables.invent import Content, Pad
from gfxgraph.runtime.callables.memory import Arena, arena_of
from gfxgraph.runtime.callables.padding import Proof, Status
from gfxgraph.runtime.callables.plans import Proofs, Sizes, refusal
from gfxgraph.runtime.callables.signature import NotATree, flatten, mode_key, replace, tensor_key
from gfxgraph.runtime.callables.watch import Watch
from gfxgraph.types import ReplayMode

MAX_ROUTES = 4096
HOST_CONSTANT_NUMEL = 16
"""CPU tensors up to this size are constants, compared by content."""


class Route:
    """Where calls of one exact signature go."""

    __slots__ = (
        "bucketed", "content", "entry", "fast", "fast_of", "proof", "result_sizes", "too_large", "why_eager",
    )  # fmt: skip

    def __init__(self, entry: Entry | None, bucketed: Bucketed | None = None, why_eager: str = "") -> None:
        self.entry = entry
        self.bucketed = bucketed
        self.why_eager = why_eager
        self.too_large: TooBig | None = None
        self.fast: Fast | None = None
        self.fast_of: tuple[Instance, ...] = ()
        self.proof: Proof | None = None
        """That the bucket may serve this size; None until then, and where nothing is padded."""
        self.content: Sequence[Content] | None = None
        self.result_sizes: Sequence[Sequence[int] | None] | None = None


class TooBig:
    """A call above the largest bucket: which dim, every dim's size, and how pieces are joined, once known."""

    __slots__ = ("dims", "joints", "name", "pieces", "sizes")

    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        self.name = name
        self.sizes = sizes
        self.pieces: tuple[int, ...] = ()
        self.dims: Mapping[int, Mapping[int, str]] = {}
        self.joints: list[int] | None = None


class Graphed:
    """A captured callable; made by ``gfxgraph.graphed``."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        dims: Dims | None,
        sizes: Sizes,
        proofs: Proofs,
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
        self._routes: dict[Any, Route] = {}
        self._entries: dict[Any, Entry] = {}
        self._eager: Counter[str] = Counter()
        self._n_captures = 0
        self._is_clean: bool | None = None
        """Whether the first recorded capture was one plain segment."""
        self._is_transparent: bool | None = None
        """Whether every kernel of the first recorded capture came from an operation of torch."""
        self._dims = dims
        self._sizes = sizes
        self._proofs = proofs
        self._adaptive: Adaptive | None = None
        self._last: tuple[Mapping[str, int], Entry, int] | None = None
        self._watch = Watch(fn)
        self._state: process.Process | None = None
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    # -- one call ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            result = self._fast(args)
            if result is not MISS:
                return result
        return self._slow(args, kwargs)

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
        device, problem = _device_of(tensors)
        if problem:
            return self._run_eagerly(problem, args, kwargs)
        host = tuple(t.tolist().__repr__() for t in tensors if not t.is_cuda)
        rest = (host, mode_key(), _aliases(tensors), self._watch.look())
        key = (structure, *[tensor_key(t) for t in tensors], *rest)
        arena = arena_of(state, device)
        with arena.lock:
            if self._dims is not None:
                self._count_fast_calls()
            route = self._routes.get(key)
            if route is None:
                route = self._route(arena, key, structure, rest, args, kwargs, tensors)
            result = self._routed(arena, route, key, args, kwargs, tensors)
            if route.bucketed is not None or route.too_large is not None:
                self._count(route)
            return result

    def _route(
        self, arena: Arena, key: Any, structure: Any, rest: Any, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Route:
        """Where calls of this exact signature go: to their bucket's entry, or one of their own."""
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        bucketed = None
        if self._dims is not None:
            try:
                bucketed = self._dims.bucketed(
                    structure, tensors, lambda: argument_paths(self._fn, args, kwargs)
                )
            except TooLarge as error:
                name, sizes = error.args
                self._routes[key] = route = Route(None, why_eager=f"{name}={sizes[name]} is larger than every bucket")
                route.too_large = TooBig(name, sizes)
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
        entry = self._entry_for(arena, (structure, *shapes, *rest), label)
        entry.bucket = bucketed.bucket
        return entry

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
        rest = (tuple(t.tolist().__repr__() for t in tensors if not t.is_cuda), mode_key(), _aliases(tensors), self._watch.look())
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
            entry.fill(fits, [Pad.ZERO] * len(fits), pad_again=True)
        entry.run_once(self._warmup)

    def _routed(
        self, arena: Arena, route: Route, key: Any, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Any:
        entry, bucketed = route.entry, route.bucketed
        if route.too_large is not None and self._sizes.above is Above.CHUNKS:
            return self._in_chunks(route, route.too_large, key, args, kwargs, tensors)
        if entry is None:
            return self._run_eagerly(route.why_eager, args, kwargs)
        if entry.why_eager:
            return self._run_eagerly(entry.why_eager, args, kwargs)
        if bucketed is not None and bucketed.is_padded and route.proof is None:
            return self._prove(arena, route, key, args, kwargs, tensors)
        if not entry.is_captured:
            if entry.n_seen < self._warmup and route.proof is None:
                entry.n_seen += 1
                return self._warm_up(arena, entry, args, kwargs)
            if not self._capture(arena, entry, args, kwargs, tensors, route.bucketed):
                return self._run_eagerly(entry.why_eager or "no memory for a capture", args, kwargs)
        if route.proof is not None and route.result_sizes is None and not self._cut(route, entry):
            return self._run_eagerly(route.why_eager, args, kwargs)
        if self._mode is ReplayMode.ADAPTIVE:
            return self._the_faster(arena, entry, route, key, args, kwargs, tensors)
        try:
            result = self._replay(arena, entry, route, tensors)
        except RunEagerly as why:
            return self._run_eagerly(str(why), args, kwargs)
        self._fast = self._fast_for(route, entry, args, kwargs, tensors)
        return result

    def _the_faster(
        self, arena: Arena, entry: Entry, route: Route, key: Any, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Any:
        """The way that was measured to be faster; while that is open, one of them with its time taken."""
        if self._adaptive is None:
            self._adaptive = Adaptive(self._fn, arena.device_index, Store(arena.state.settings.state_dir))
        signature = _label([static.tensor for static in entry.statics]) + f" {_digest(key[0])}"

        def graph() -> Any:
            fast = self._fast_for(route, entry, args, kwargs, tensors)
            result = fast(args)
            return self._replay(arena, entry, route, tensors) if result is MISS else result

        try:
            result, is_eager, is_decided = timed_call(
                self._adaptive.of(signature), lambda: self._fn(*args, **kwargs), graph
            )
        except RunEagerly as why:
            return self._run_eagerly(str(why), args, kwargs)
        if is_eager:
            self._eager["measured to be faster" if is_decided else "timed against the graph"] += 1
        elif is_decided:
            self._fast = self._fast_for(route, entry, args, kwargs, tensors)
        return result

    def _fast_for(self, route: Route, entry: Entry, args: Any, kwargs: Any, tensors: list[Tensor]) -> Fast:
        """The fast path of calls like this one; made once, and again when the entry was captured again."""
        graphs = tuple(entry.ring)
        if route.fast is None or route.fast_of != graphs:
            made = None
            if can_be_fast(args, kwargs, tensors):
                hot = self._mode is ReplayMode.HOT
                made = make_fast(entry, route, tensors, route.result_sizes, hot, self._watch, route.content)
            route.fast, route.fast_of = made or never, graphs
        return route.fast

    def _prove(
        self, arena: Arena, route: Route, key: Any, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Any:
        """The call itself, eagerly; and whether its bucket would have given the same."""
        entry, bucketed = route.entry, route.bucketed
        assert entry is not None and bucketed is not None and self._dims is not None

        call = self._caller(args, kwargs)
        names = argument_paths(self._fn, args, kwargs)
        dims = self._dims.of(key[0], tensors, lambda: names)
        current = torch.cuda.current_stream(arena.device_index)
        arena.follow(current)
        arena.stream.wait_stream(current)
        try:
            with torch.cuda.stream(arena.stream):
                proof = self._proofs.examine(
                    call,
                    key[0],
                    names,
                    dims,
                    tensors,
                    bucketed.actual,
                    bucketed.bucket,
                    is_transparent=bool(self._is_transparent),
                )
        finally:
            current.wait_stream(arena.stream)
        self._eager["proving that padding changes nothing"] += 1
        result, proof.result = proof.result, None
        self._look_at(entry, result)
        if entry.why_eager:
            return result
        if proof.status is Status.REFUSED:
            route.entry = None
            error = refusal(proof, bucketed.bucket)
            route.why_eager = f"padding refused: {proof.reason}"
            if arena.state.counters.event("padding_refused", proof.reason, proof.op, proof.where):
                process.log.warning("%s: %s", self._name, error)
        elif proof.is_proved:
            if proof.may_learn_more and self._is_transparent is None:
                # Integers may be tried once it is known that every index can be checked; a capture tells.
                if not self._capture(arena, entry, args, kwargs, tensors, bucketed) or self._is_transparent:
                    self._proofs.forget(proof)
                    return result
            route.proof = proof
            route.content = [proof.content.get(i, Pad.ZERO) for i in range(len(tensors))]
        return result

    def _caller(self, args: Any, kwargs: Any, fn: Callable[..., Any] | None = None) -> Callable[[list[Tensor]], Any]:
        """The function of the call's tensors, all else as in the call."""

        def call(given: list[Tensor]) -> Any:
            rest = iter(given)
            mine = replace(tuple(args), lambda _: next(rest))
            return (fn or self._fn)(*mine, **replace(dict(kwargs), lambda _: next(rest)))

        return call

    def _in_chunks(
        self, route: Route, big: TooBig, key: Any, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Any:
        """A call above the largest bucket in pieces, once it is proved that they give the same."""
        assert self._dims is not None
        if big.joints is None:
            names = argument_paths(self._fn, args, kwargs)
            big.dims = self._dims.of(key[0], tensors, lambda: names)
            big.pieces = self._sizes[big.name].chunks(big.sizes[big.name])
            proof, joints = prove_chunks(
                self._caller(args, kwargs), names, tensors, big.dims, big.name, big.pieces
            )
            self._eager["proving that pieces give the same"] += 1
            if proof.is_proved:
                big.joints = joints
            elif proof.status is Status.REFUSED:
                route.too_large = None
                route.why_eager += f", and pieces do not give the same: {proof.reason}"
                self._proofs.refusals[f"{big.name}={big.sizes[big.name]}"] = proof
            return proof.result
        piecewise = self._caller(args, kwargs, self._slow_call)
        return join([piecewise(piece) for piece in split(tensors, big.dims, big.name, big.pieces)], big.joints)

    def _slow_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._slow(args, kwargs)

    def _cut(self, route: Route, entry: Entry) -> bool:
        """Make out how a replay's results are cut to the call's size; False where they cannot be."""
        assert route.proof is not None
        sizes: list[Sequence[int] | None] = []
        if len(route.proof.sizes) != len(entry.results):
            route.entry, route.why_eager = None, "the captured function returned something else than before"
            return False
        for size, result in zip(route.proof.sizes, entry.results):
            if result.of_input >= 0 and not result.layout[0]:
                route.entry, route.why_eager = None, "a result is a view of a padded argument"
                return False
            made = result.made
            sizes.append(size if made is not None and tuple(made.size()) != tuple(size) else None)
        route.result_sizes = sizes
        return True

    # -- sizes ------------------------------------------------------------------------------------

    def _count(self, route: Route) -> None:
        """One more call of this size; learn buckets when it is time."""
        if route.bucketed is None:
            assert route.too_large is not None
            self._sizes.note(route.too_large.sizes)
        else:
            self._sizes.note(route.bucketed.actual)
        if route.bucketed is not None and route.entry is not None:
            self._last = (route.bucketed.actual, route.entry, route.entry.n_replays())
        if not self._sizes.look():
            return
        plan = self._sizes.plan()
        self._fast, self._last = never, None
        self._routes.clear()
        for key, entry in list(self._entries.items()):
            bucket = [entry.bucket.get(name, 0) for name in plan.dims]
            if entry.bucket and plan.pick(bucket) != tuple(bucket):
                entry.evict("another plan of buckets was learned", logging.INFO)
                del self._entries[key]

    def _count_fast_calls(self) -> None:
        """Calls that took the fast path since the last slow one: all were of that one's size."""
        if self._last is not None:
            actual, entry, n = self._last
            n_fast = entry.n_replays() - n
            if n_fast > 0:
                self._sizes.note(actual, n_fast)
            self._last = None

    def _replay(self, arena: Arena, entry: Entry, route: Route, tensors: list[Tensor]) -> Any:
        arena.follow(torch.cuda.current_stream(arena.device_index))
        instance, own = self._instance(entry)
        # What the function writes to its arguments it writes to their padding too.
        entry.fill(tensors, route.content or [Pad.ZERO] * len(tensors), pad_again=bool(entry.mutates))
        entry.filled_for = route
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
        self._fast = never
        self._routes.clear()
        self._entries.clear()
        self._is_clean = self._is_transparent = None
        self._adaptive = self._last = None

    def _entry_for(self, arena: Arena, key: Any, label: str) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(arena, self._fn, label, self._name)
        return entry

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
        self._look_at(entry, result)
        return result

    def _look_at(self, entry: Entry, result: Any) -> None:
        """What an eager result says of captures to come."""
        made: list[Tensor] = []
        try:
            flatten(result, made)
        except NotATree as error:
            entry.why_eager = f"its result cannot be taken apart: {error}"
        entry.warm = [weakref.ref(t) for t in made]
        if torch.is_grad_enabled() and any(t.requires_grad for t in made):
            entry.why_eager = "its result needs gradients"

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
                entry.fill(tensors, [Pad.ZERO] * len(tensors))
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
            self._is_transparent = all(step.tape.is_complete for step in program.segments)

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

    def plan(self) -> Plan:
        """The buckets in force and the sizes seen; ``print(f.plan().table())`` shows them."""
        self._count_fast_calls()
        return self._sizes.plan()

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write the plan where ``graphed(..., buckets="plan.json")`` reads it."""
        Path(path).write_text(self.plan().to_json(), encoding="utf-8")

    def why(self) -> str:
        """Why calls run as they do: what was measured, which padding was refused, what ran eagerly."""
        lines = [f"mode: {self._mode.value}"]
        if self._adaptive is not None:
            lines += self._adaptive.why().splitlines()
        for label, proof in self._proofs.refusals.items():
            place = f" at {proof.where}" if proof.where else ""
            lines.append(f"{label}: eager, {proof.reason}; first {proof.op or 'in the result'}{place}")
        lines += [f"{n} calls ran eagerly: {reason}" for reason, n in self._eager.most_common()]
        return "\n".join(lines)

    def _n_replays(self) -> int:
        return sum(entry.n_replays() for entry in self._entries.values())

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
    above: Above | str = Above.EAGER,
    budget: Budget | None = None,
    pad: Any = None,
    mode: ReplayMode | str | None = None,
    policy: ReplayMode | str | None = None,
    warmup: int = 1,
    max_graphs: int = 64,
) -> Any:
    """Make ``fn`` a callable that is captured as GPU graphs and replayed.

    Args:
        fn: a function, method or module.
        dynamic: which dims vary, ``{"x": {0: "batch"}}``; "infer" finds them from the first two different
            calls (the default where ``buckets`` is given).
        buckets: sizes that dynamic dims are rounded up to: a list, "auto" (learned from the sizes seen, the
            default), "powers", "ladder" (vLLM's), a saved plan's path, something with ``pick(n)``, or one
            of these by dim name.
        above: a call larger than every bucket runs "eager" or in "chunks".
        budget: limits for learned buckets.
        pad: what padding holds: "zero", "last" (the last row again), a number that the function ignores,
            or one of these by argument; by default zero, or last where zero would be noticed.
        mode: "standard", "adaptive" or "hot"; by default GFXGRAPH_REPLAY_MODE. ``policy`` is another
            name for it.
        warmup: eager calls of a signature before it is captured.
        max_graphs: captured signatures of this callable; the least recently used goes first.
    """
    if fn is None:
        return functools.partial(
            graphed,
            dynamic=dynamic,
            buckets=buckets,
            above=above,
            budget=budget,
            pad=pad,
            mode=mode,
            policy=policy,
            warmup=warmup,
            max_graphs=max_graphs,
        )
    mode = mode if mode is not None else policy
    chosen = ReplayMode(mode) if mode is not None else config.load().replay_mode
    sizes = Sizes(buckets, Above(above), budget)
    dims = None
    if dynamic is not None or buckets is not None:
        dims = Dims(dict(dynamic) if isinstance(dynamic, Mapping) else None, sizes)
    return Graphed(
        fn, dims=dims, sizes=sizes, proofs=Proofs(fn, pad), mode=chosen, warmup=warmup, max_graphs=max_graphs
    )


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


def _digest(structure: Any) -> str:
    return hashlib.sha256(repr(structure).encode()).hexdigest()[:8]


def _label(tensors: list[Tensor]) -> str:
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.size())}" for t in tensors) or "no tensors"
