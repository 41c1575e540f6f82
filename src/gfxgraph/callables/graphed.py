"""``gfxgraph.graphed``: a function or module that is captured per signature and replayed.

The way of one call:

    fast path: same signature, same world as a call before ── copy in, replay, results
    slow path: tree -> signature -> world ── new: one eager call by way of Dynamo, which tells what was read
                                          ── one graph: route ── new: eager (warm-up), then capture
                                          │                   └─ known: copy in, replay, results
                                          ── Python between graphs, or gradients: Dynamo's code, its pieces
                                          │                                       captured one by one
                                          └─ neither: eager, with the reason kept
    a new size in a bucket ── verdict on the graph, one comparison ── replays from now on
                           └─ refused: eager, with the operation named
    above every bucket     ── in pieces, where the verdict allows it; else eager

Every way that is not a replay is the function itself, called with the caller's own arguments, so
that an error inside it is its own and a side effect happens once.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import types
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from gfxgraph import files
from gfxgraph.callables import engine, explanation
from gfxgraph.callables.adaptive import Adaptive, Store
from gfxgraph.callables.arena import Arena, arena_of
from gfxgraph.callables.buckets import AboveAll, Bucketed, Dims, argument_paths
from gfxgraph.callables.call import Call, GuardMiss, InPieces, RunEagerly, understand
from gfxgraph.callables.capture_all import capture_all
from gfxgraph.callables.capturing import Capturer
from gfxgraph.callables.chunks import join, split
from gfxgraph.callables.entry import Captures, Instance
from gfxgraph.callables.fast_path.fast import make_fast, never
from gfxgraph.callables.fast_path.writer import MISS, Fast
from gfxgraph.callables.inputs import Buffers
from gfxgraph.callables.options import Options
from gfxgraph.callables.outputs import RING
from gfxgraph.callables.padding.in_bucket import InBucket
from gfxgraph.callables.padding.judge import Judge, Padded, Refusal
from gfxgraph.callables.planned import Planned
from gfxgraph.callables.plans import Sizes, refusal
from gfxgraph.callables.reads import Promised, Reads
from gfxgraph.callables.route import REFUSED, Route, TooLarge
from gfxgraph.callables.signature import (
    Args,
    Kwargs,
    NotATree,
    Unguarded,
    copied_key,
    flatten,
    foreign_mode,
    skeleton,
    tensor_key,
    what_changed,
    why_in_pieces,
    zeros_in,
)
from gfxgraph.callables.trace import frontend
from gfxgraph.callables.trace.frontend import Frontend, Untraceable, is_compiled
from gfxgraph.callables.trace.world import World, holds_mapping
from gfxgraph.capture.holdings import unbroken
from gfxgraph.capture.memory import used_on
from gfxgraph.core.buckets import Above, BucketPlan
from gfxgraph.core.choice import Way
from gfxgraph.errors import CaptureError, DriverError
from gfxgraph.process import bridge, process
from gfxgraph.types import MovedInput, ReplayMode

MakePiece = Callable[..., Any]
"""Given what Dynamo found and a name: a callable for the FX graph (trace/pieces.py)."""
MAX_ROUTES = 4096
MAX_REBOUND = 4
"""How often a tensor from outside may be another one before it is an input like an argument."""
MAX_ENTRIES = 1024
"""Signatures remembered; beyond, those that were never captured are forgotten."""
SAMPLED_IN_ADAPTIVE = 512
"""One call in so many asks whether it is time to look at a decision again."""
JUDGING = "compared with a padded run"
JUDGING_PIECES = "compared with a run in pieces"


class Graphed:
    """A captured callable; made by ``gfxgraph.graphed``.

    What a signature goes through, one call after another; a call that cannot go on runs eagerly, with the reason:

    1. Trace: the call by way of Dynamo, eagerly, which tells what it reads (`_traced`); not with ``assume_pure``.
    2. Warm-up: the call, eagerly, on the stream that captures, ``warmup`` times (`Capturer.warm_up`). A call
       that its bucket is to serve is compared with a padded run meanwhile (`_judge`).
    3. Record: the function is captured over static inputs (`Capturer.capture`).
    4. Replay: copy in, launch, results (`_replay`); from the second on by a function made for such calls (`_fast`).
       A value that the capture read has changed: another capture of the signature, or this call eagerly.
    5. Eager for good: `Captures.fall_back` has said why. A change of what 1 has seen starts again at 1.

    Args:
        fn: the function, method or module.
        options: what ``gfxgraph.graphed`` was asked for.
        owner: whose arena: 0 the process's, else a thread's own.
        make_piece: makes a callable of each graph that Dynamo finds; where None, the function is not traced.
    """

    def __init__(
        self, fn: Callable[..., Any], options: Options, *, owner: int = 0, make_piece: MakePiece | None = None
    ) -> None:
        self._fn = fn
        self._options = options
        self._make_piece = make_piece
        self._owner = owner
        """Whose arena: 0 the process's, else a thread's own."""
        self._name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self._fast: Fast = never
        self._near: dict[Any, Route] = {}
        """The last route of calls with this tree and these shapes; its fast path checks everything itself."""
        self._routes: dict[Any, Route] = {}
        self._entries: dict[Any, Captures] = {}
        self._eager: Counter[str] = Counter()
        self._n_gone = 0
        """Replays of signatures that have been forgotten."""
        is_dynamic = options.dynamic is not None or options.buckets is not None
        declared = dict(options.dynamic) if isinstance(options.dynamic, Mapping) else None
        self._planned = Planned(Sizes(options.buckets, options.above, options.budget))
        self._padding = Judge(options.pad)
        self._adaptive: Adaptive | None = None
        self._dims = Dims(declared, self._planned.sizes) if is_dynamic else None
        self._front: Frontend | None = None
        self._promised: Promised | None = None
        self._run: Callable[..., Any] = fn
        """What is warmed up and captured."""
        if options.assume_pure or make_piece is None:
            self._promised = Promised(fn)
        else:
            self._front = Frontend(fn, functools.partial(make_piece, name=self._name), dynamic=is_dynamic)
            if not is_compiled(fn):
                self._run = self._front.run
        self._worlds: dict[Any, World] = {}
        """By signature: the world that the last call of it was in."""
        self._untraceable = self._changing = ""
        self._pieces: Counter[str] = Counter()
        """Calls in pieces, by reason."""
        self._capturer = Capturer(fn, self._run, self._front, self._name, options, self._eager, self._entries)
        forget = weakref.WeakMethod(self._evict_world)
        self._in_bucket = InBucket(fn, self._run, self._front, self._dims, self._padding, forget)
        self._state: process.Process | None = None
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    # -- one call ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():  # Dynamo reads this as True: part of what the frontend traces
            return self._fn(*args, **kwargs)
        result = self._fast(args, kwargs)
        return result if result is not MISS else self._slow(args, kwargs)

    @unbroken
    def _slow(self, args: Args, kwargs: Kwargs) -> Any:
        state = bridge.process_for_callables()
        if state is not None and (torch.cuda.is_current_stream_capturing() or torch.compiler.is_compiling()):
            return self._fn(*args, **kwargs)  # part of what is being captured
        try:
            if state is None:
                raise RunEagerly("there is no GPU")
            mode = foreign_mode()
            if mode:
                raise RunEagerly(f"{mode} is to see each operation")
            return self._graphed(state, args, kwargs)
        except InPieces as pieces:
            assert self._front is not None
            self._pieces[pieces.why] += 1
            return self._front.pieces(*args, **kwargs)
        except DriverError as error:  # before anything was launched: a launch's own failure is a ReplayError
            self._eager["a call of the driver's failed"] += 1
            if state is not None:
                why = "a call of the driver's failed; the call ran eagerly"
                state.report("fallback", why, self._name, engine.kind_and_line(error))
        except RunEagerly as eager:
            if self._options.strict and eager.error is not None:
                raise eager.error from eager.__cause__
            self._eager[eager.why] += 1
        return self._fn(*args, **kwargs)

    def _graphed(self, state: process.Process, args: Args, kwargs: Kwargs) -> Any:
        """The call by a graph, or one of the eager calls on the way to it.

        Raises:
            RunEagerly: the call is for the function itself.
        """
        tensors: list[Tensor] = []
        try:
            structure = flatten((args, kwargs), tensors)
        except Unguarded as error:
            raise RunEagerly(f"an argument is {error}") from None
        except NotATree as error:
            front = self._front
            if front is not None and (front.does_catch or front.does_ask_mappings and holds_mapping((args, kwargs))):
                raise RunEagerly(f"it catches errors, and an argument may lack what it asks for: {error}") from None
            if self._front is not None:
                raise InPieces(f"an argument is more than a tree of tensors and constants: {error}") from None
            problem = CaptureError("graphed_unknown_object", function=self._name, kind=str(error))
            raise RunEagerly(f"an argument cannot be compared: {error}", problem) from None
        near = (structure, *[t.shape for t in tensors])
        route = self._near.get(near)
        if route is not None and route.fast is not None and route.fast is not self._fast:
            if self._dims is not None:
                self._planned.count_fast_calls()
            self._fast = route.fast
            result = route.fast(args, kwargs)
            if result is not MISS:
                if route.bucketed is not None:
                    self._count(route)
                return result
        call = self._understand(state, structure, args, kwargs, tensors)
        arena = arena_of(state, call.device, self._owner)
        state.contexts.give(arena.device_index)
        with arena.lock:
            if self._dims is not None:
                self._planned.count_fast_calls()
            world = self._world_of(call)
            if world is None:
                return self._traced(arena, call)
            call.in_world(world)
            route = self._routes.get(call.key)
            if route is None:
                route = self._route(arena, call)
            try:
                result = self._routed(arena, route, call)
            finally:
                if self._dims is not None:
                    self._count(route)
            if route.fast is not None and route.fast is self._fast and self._fast is not never:
                if len(self._near) >= MAX_ROUTES:
                    self._near.clear()
                self._near[near] = route
            return result

    def _understand(
        self, state: process.Process, structure: Any, args: Args, kwargs: Kwargs, tensors: list[Tensor]
    ) -> Call:
        if state is not self._state:
            if self._state is not None:  # the bridge was switched on or off
                self._forget(lambda entry: True)
                self._capturer.forget()
                self._adaptive = None
            self._state = state
        by_address = self._options.moved is MovedInput.RECAPTURE
        return understand(self._name, args, kwargs, tensors, structure, by_address)

    # -- the world of a call --------------------------------------------------------------------------

    def _world_of(self, call: Call) -> Reads | None:
        """What a graph for this call reads besides its arguments; None for a call that is to be traced.

        Raises:
            InPieces, RunEagerly: the call is not for one graph.
        """
        if self._promised is not None:
            if not self._promised.is_same():
                token = self._promised.token
                self._promised.look()
                if self._promised.token != token:
                    self._evict(lambda entry: True)
            return self._promised
        assert self._front is not None
        if self._front.keeps:  # asked first: a call in pieces may have been the one that found it
            raise RunEagerly(self._front.keeps)
        if self._untraceable:
            raise InPieces(self._untraceable)
        if self._front.does_ask_by_name and any(vars(t) for t in call.tensors):
            raise RunEagerly("it asks for attributes by name, and an argument is a tensor that was given some")
        world = self._worlds.get(call.key)
        if world is None or not world.is_same():
            world = self._find(call)
            if world is None:
                why = self._front.why_no_more()
                if why:
                    raise RunEagerly(self._never_the_same(why, call))
                return None
        if world.why_eager:
            raise RunEagerly(world.why_eager)
        if not world.stores_are_there():
            raise InPieces("an attribute that each call sets has been set to something else")
        if world.why_pieces:
            raise InPieces(world.why_pieces)
        if world.written_homes and any(t.untyped_storage().data_ptr() in world.written_homes for t in call.tensors):
            raise RunEagerly("an argument lies in memory that the function writes to by another name")
        return world

    def _find(self, call: Call) -> World | None:
        """The world in which the call was traced before; its graphs are void where it reads other tensors now."""
        assert self._front is not None
        if len(self._worlds) >= MAX_ROUTES:
            self._worlds.clear()
        self._worlds.pop(call.key, None)
        args, kwargs = call.for_dynamo()
        world = self._front.find(args, kwargs)
        if world is None:
            return None
        if world.zeros != zeros_in(call.structure):
            raise RunEagerly("0.0 and -0.0, which Dynamo does not tell apart, have both been an argument")
        if world.skeleton not in (None, skeleton(call.structure)):
            raise RunEagerly("it catches errors, and Dynamo does not tell apart what arguments of two kinds lack")
        if not world.why_pieces and self._front.has_moved(world, args, kwargs):
            token = world.token
            self._evict_world(world)
            self._front.rebind(world, args, kwargs)
            assert world.token != token
            if world.n_rebound > MAX_REBOUND:
                world.why_pieces = "a tensor that it reads from outside is another one again and again"
        self._worlds[call.key] = world
        return world

    def _traced(self, arena: Arena, call: Call) -> Any:
        """The call itself, eagerly, by way of Dynamo: what does it read, and is it one graph?"""
        assert self._front is not None
        current = torch.cuda.current_stream(arena.device_index)
        # A call that may be differentiated stays on its own stream: backward runs where forward ran.
        stream = current if torch.is_grad_enabled() else arena.stream
        layouts = [tensor_key(t) for t in call.tensors]
        stream.wait_stream(current)
        args, kwargs = call.for_dynamo()
        try:
            with torch.cuda.stream(stream):
                result, world = self._front.trace(args, kwargs)
                result = call.given_back(result, args, kwargs)
        except Untraceable as error:
            self._untraceable, result = error.args
            self._pieces[self._untraceable] += 1
            return result
        except Exception:
            self._eager[frontend.RAISED] += 1
            raise
        finally:
            current.wait_stream(stream)
        self._eager["warm-up"] += 1
        self._worlds[call.key] = world
        world.zeros = zeros_in(call.structure)
        world.skeleton = skeleton(call.structure) if world.does_catch else None
        made: list[Tensor] = []
        world.why_pieces = world.why_pieces or why_in_pieces(result, made)
        world.why_eager = what_changed(layouts, [tensor_key(t) for t in call.tensors]) or world.why_eager
        if world.why_eager or world.why_pieces:
            for tensor in made:
                if tensor.is_cuda and tensor.layout is torch.strided:
                    used_on(tensor, current)
            return result
        call.in_world(world)
        route = self._route(arena, call)
        if route.entry is not None and self._run is not self._fn:
            route.entry.n_seen += 1
            route.entry.is_drawless = all(piece.is_drawless for _, piece in self._front.graphs)
            self._capturer.look_at(route.entry, result, current)
        return result

    def _never_the_same(self, why: str, call: Call) -> str:
        """Why tracing has been given up, and what differs from call to call."""
        if not self._changing:
            assert self._front is not None
            self._changing = why
            differs = self._front.why_not(call.args, call.kwargs)
            if differs:
                self._changing += f" (asked last: {differs}); a number that changes belongs in a tensor on the device"
        return self._changing

    def _evict_world(self, world: World) -> None:
        self._evict(lambda entry: entry.world is world)

    def _evict(self, which: Callable[[Captures], bool]) -> None:
        """What was captured reads tensors that are no more, and would keep them."""
        for entry in self._entries.values():
            if which(entry) and entry.is_captured:
                entry.evict("the tensors that the function reads have been replaced")
        self._forget(which)

    def _route(self, arena: Arena, call: Call) -> Route:
        """Where calls of this exact signature go: to their bucket's entry, or one of their own."""
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
            self._near.clear()
        bucketed = None
        if self._dims is not None:
            where = lambda: argument_paths(self._fn, call.args, call.kwargs)  # noqa: E731
            try:
                bucketed = self._dims.bucketed(call.structure, call.tensors, where)
            except AboveAll as error:
                name, sizes = error.args
                route = Route(None, why_eager=f"{name}={sizes[name]} is larger than every bucket")
                self._routes[call.key] = route
                route.too_large = TooLarge(name, sizes)
                return route
        if bucketed is None:
            route = Route(self._entry_for(arena, call.key, call.label))
        else:
            route = Route(self._entry_in_bucket(arena, call, bucketed), bucketed)
        self._routes[call.key] = route
        return route

    def _entry_in_bucket(self, arena: Arena, call: Call, bucketed: Bucketed) -> Captures:
        in_place = self._options.moved is MovedInput.RECAPTURE
        shapes: list[Any] = []
        for t, size in zip(call.tensors, bucketed.sizes):
            if size is None or (in_place and tuple(t.size()) == size):
                shapes.append((tensor_key(t), t.data_ptr() if in_place else 0))
            else:
                shapes.append(copied_key(t, size))
        label = ", ".join(f"{name}={n}" for name, n in bucketed.bucket.items())
        entry = self._entry_for(arena, ("bucket", *call.kind, *shapes), label)
        entry.bucket = bucketed.bucket
        return entry

    def _routed(self, arena: Arena, route: Route, call: Call) -> Any:
        entry, bucketed = route.entry, route.bucketed
        if route.too_large is not None:
            return self._in_chunks(route, route.too_large, call)
        if entry is None:
            raise RunEagerly(route.why_eager)
        if not entry.why_eager and bucketed is not None and bucketed.is_padded and route.padded is None:
            return self._judge(arena, route, call)
        if entry.why_eager:
            raise RunEagerly(entry.why_eager, entry.error)
        if not entry.is_captured:
            if entry.n_seen < self._options.warmup:
                entry.n_seen += 1
                return self._capturer.warm_up(arena, entry, call)
            self._capturer.capture(arena, entry, call, route.bucketed)
        if entry.mutates and entry.world.homes & {t.untyped_storage().data_ptr() for t in call.tensors}:
            raise RunEagerly("it writes to an argument that it also reads by another name")
        if route.padded is not None and route.result_sizes is None:
            route.cut_to(entry)
        elif bucketed is not None and route.has_views:
            route.look_for_views(entry, call.tensors)
        is_settled = True
        if self._options.mode is ReplayMode.ADAPTIVE:
            result, is_settled = self._the_faster(arena, entry, route, call)
        else:
            result = self._replay(arena, entry, route, call.tensors)
        self._fast = self._fast_for(route, entry, call) if is_settled and self._is_trusted(entry) else never
        return result

    def _replay(self, arena: Arena, entry: Captures, route: Route, tensors: list[Tensor]) -> Any:
        stream = torch.cuda.current_stream(arena.device_index)
        arena.follow(stream)
        instance, own = self._instance(entry, stream, route, tensors)
        # What the function writes to its arguments it writes to their padding too.
        entry.fill(tensors, route.content, None if entry.mutates else route.mark)
        try:
            entry.replay(instance)
        except GuardMiss:
            if own is False or route.padded is not None:
                raise
            instance = self._capturer.variant(arena, entry)
        if entry.mutates:
            entry.give_back_mutated(tensors)
        arena.use(entry)
        return instance.outputs.give(tensors, route.result_sizes, own)

    def _instance(self, entry: Captures, stream: Any, route: Route, tensors: list[Tensor]) -> tuple[Instance, bool]:
        """The graph to launch, and whether its results are to be copied out."""
        assert entry.first is not None
        if self._options.mode is not ReplayMode.HOT or entry.first.outputs.is_shared:
            return entry.first, True
        chosen = next((i for i in entry.ring if not i.outputs.in_use()), None)
        if chosen is None and len(entry.ring) < RING and not entry.ring_failed:
            # A capture that is split runs its parts, and the inputs hold what another call left there.
            entry.fill(tensors, route.content)
            entry.arena.stream.wait_stream(stream)
            try:
                chosen = entry.add_to_ring(recorded=not entry.is_clean)
                self._capturer.n_captures += 1
                stream.wait_stream(entry.arena.stream)
            except (engine.CaptureDied, torch.OutOfMemoryError, NotATree) as error:
                entry.ring_failed = True  # results are copied out from now on
                why = "no further graph for hot mode; results are copied"
                entry.arena.state.report("fallback", why, self._name, engine.kind_and_line(error))
        if chosen is None:
            entry.all_held = True
            return entry.first, True
        if chosen.stream is not None and chosen.seen_on != stream.cuda_stream:
            stream.wait_stream(chosen.stream)  # there the last results may still be read
        chosen.stream, chosen.seen_on = stream, stream.cuda_stream
        return chosen, False

    def _fast_for(self, route: Route, entry: Captures, call: Call) -> Fast:
        """The fast path of calls like this one; made once, and again when the entry was captured or watched anew."""
        graphs = (*entry.instances(), entry.can_join, entry.all_held, entry.world.is_same)
        if route.fast is None or route.fast_of != graphs:
            try:
                made = make_fast(
                    entry,
                    route.mark,
                    call.args,
                    call.kwargs,
                    call.tensors,
                    route.result_sizes,
                    self._options.mode is ReplayMode.HOT,
                    entry.world,
                    route.content,
                    self._sample_every(),
                    self._front is not None and self._front.does_ask_by_name,
                )
            except DriverError as error:  # the call itself is done; those to come take the long way
                why = "no short way for such calls: a call of the driver's failed"
                entry.arena.state.report("fallback", why, self._name, engine.kind_and_line(error))
                made = None
            route.fast, route.fast_of = made or never, graphs
        return route.fast

    # -- buckets ----------------------------------------------------------------------------------

    def _judge(self, arena: Arena, route: Route, call: Call) -> Any:
        """The call itself, eagerly; and whether its bucket would have given the same."""
        entry, bucketed = route.entry, route.bucketed
        assert entry is not None and bucketed is not None and self._dims is not None
        names = argument_paths(self._fn, call.args, call.kwargs)
        dims = self._dims.of(call.structure, call.tensors, lambda: names)
        current = torch.cuda.current_stream(arena.device_index)
        arena.follow(current)
        arena.stream.wait_stream(current)
        try:
            with torch.cuda.stream(arena.stream):
                result, found = self._in_bucket.beside(call, bucketed, names, dims)
        finally:
            current.wait_stream(arena.stream)
        self._eager[JUDGING if isinstance(found, Padded) else f"{REFUSED}: {found.reason}"] += 1
        entry.n_seen = max(entry.n_seen, self._options.warmup)
        self._capturer.look_at(entry, result, current)
        if isinstance(found, Padded):
            route.padded, route.content = found, found.content
        elif found.is_final:
            self._refuse(route, found, bucketed)
        return result

    def _refuse(self, route: Route, found: Refusal, bucketed: Bucketed) -> None:
        route.entry, route.why_eager = None, f"{REFUSED}: {found.reason}"
        if bucketed.actual not in self._planned.refused:
            self._planned.refused.append(bucketed.actual)
        label = ", ".join(f"{name}={n} in {bucketed.bucket[name]}" for name, n in bucketed.actual.items())
        self._padding.refusals[label] = found
        if process.require().counters.event("padding_refused", found.reason, found.op, found.where):
            process.log.warning("%s: %s", self._name, refusal(found, bucketed.bucket))

    def _in_chunks(self, route: Route, big: TooLarge, call: Call) -> Any:
        """A call above the largest bucket in pieces, where they give the same.

        Raises:
            RunEagerly: they do not.
        """
        assert self._dims is not None
        if self._planned.sizes.above is not Above.CHUNKS or big.refusal is not None:
            raise RunEagerly(route.why_eager)
        if big.joints is None:
            names = argument_paths(self._fn, call.args, call.kwargs)
            big.dims = self._dims.of(call.structure, call.tensors, lambda: names)
            big.pieces = self._planned.sizes[big.name].chunks(big.sizes[big.name])
            result, found = self._in_bucket.in_pieces(big, call)
            self._eager[JUDGING_PIECES if isinstance(found, list) else f"{REFUSED}: {found.reason}"] += 1
            if isinstance(found, list):
                big.joints = found
            else:
                big.refusal = found
                route.why_eager += ", and is not run in pieces"
                self._padding.refusals[f"{big.name}={big.sizes[big.name]}"] = found
            return result
        piecewise = self._in_bucket.caller(call, lambda *args, **kwargs: self._slow(args, kwargs))
        return join([piecewise(piece) for piece in split(call.tensors, big.dims, big.name, big.pieces)], big.joints)

    def _count(self, route: Route) -> None:
        """One more call of this size; where other buckets were learned, the old ones' captures go."""
        is_gone = self._planned.count(route)
        if is_gone is not None:
            for entry in self._entries.values():
                if is_gone(entry) and entry.is_captured:
                    entry.evict("another plan of buckets was learned")
            self._forget(is_gone)

    # -- how often the slow way is taken, and eager or graph ------------------------------------------

    def _is_trusted(self, entry: Captures) -> bool:
        """Whether enough replays have gone the slow way for the short one to be taken."""
        least = process.require().settings.trusted_replay_threshold
        if process.log.isEnabledFor(logging.DEBUG):
            return False  # each replay is logged
        return least is None or self._options.mode is ReplayMode.HOT or entry.n_replays() >= least

    def _sample_every(self) -> int:
        """One replay in so many takes the slow way again; 0: none."""
        if self._options.mode is ReplayMode.ADAPTIVE:
            return SAMPLED_IN_ADAPTIVE
        every = process.require().settings.trusted_replay_sample_interval
        return every or 0 if self._options.mode is ReplayMode.STANDARD else 0

    def _the_faster(self, arena: Arena, entry: Captures, route: Route, call: Call) -> tuple[Any, bool]:
        """The call by the way measured to be faster, or by the one to be timed next; whether that is settled.

        Raises:
            RunEagerly: eager was measured to be faster.
        """
        if self._adaptive is None:
            self._adaptive = Adaptive(self._fn, arena.device_index, Store(arena.state.settings.state_dir))
        shapes = ", ".join(f"{_dtype(s.tensor)}{list(s.tensor.size())}" for s in entry.statics)
        timed = self._adaptive.of(f"{shapes or 'no tensors'} #{_digest(call.structure)}")

        def graph() -> Any:
            result = self._fast_for(route, entry, call)(call.args, call.kwargs)
            return self._replay(arena, entry, route, call.tensors) if result is MISS else result

        way = timed.decided(SAMPLED_IN_ADAPTIVE if self._fast is not never else 1)
        if way is Way.EAGER:
            raise RunEagerly("measured to be faster than its graph")
        if way is Way.GRAPH:
            return graph(), True
        way = timed.next_way()
        if way is Way.EAGER:
            self._eager["timed against its graph"] += 1
            return timed.timed(way, lambda: self._fn(*call.args, **call.kwargs)), False
        return timed.timed(way, graph), False

    # -- capture ----------------------------------------------------------------------------------

    def _entry_for(self, arena: Arena, key: Any, label: str) -> Captures:
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= MAX_ENTRIES:
                self._forget(lambda entry: not entry.is_captured)
            in_place = self._options.moved is MovedInput.RECAPTURE
            entry = Captures(arena, self._run, label, self._name, self._capturer.buffers, in_place)
            entry.on_evict = weakref.WeakMethod(self._forget_fast)
            self._entries[key] = entry
        return entry

    def _forget(self, which: Callable[[Captures], bool]) -> None:
        gone = [key for key, entry in self._entries.items() if which(entry)]
        self._n_gone += sum(self._entries.pop(key).n_replays() for key in gone)
        self._planned.last = None
        self._routes.clear()
        self._forget_fast()

    def _forget_fast(self) -> None:
        """Fast paths hold graphs: none may outlive an eviction."""
        self._fast = never
        self._near.clear()
        for route in self._routes.values():
            route.fast, route.fast_of = None, ()

    # -- what users ask ---------------------------------------------------------------------------

    def capture_all(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Capture every bucket now, largest first.

        The function runs ``warmup`` times in each bucket, on the example's values with zeros for padding.
        What all of it will take is predicted from two captures in a pool that is thrown away; buckets that
        would go over the limit are left to be captured when they are called for.

        Args:
            args: an example of the function's arguments, of any size.
            kwargs: likewise.

        Returns:
            ``n_captured``, ``n_left``, ``predicted_bytes``.
        """
        return capture_all(self, args, kwargs)

    def stats(self) -> dict[str, Any]:
        """``captures``, ``replays``, ``eager`` (calls by reason), ``pieces`` (likewise), ``signatures``.

        ``replays`` counts graphs, those of pieces among them: one call in pieces may replay several.
        ``eager`` counts calls of the function, and of its pieces, that ran without a graph.
        """
        captures, replays, eager = self._capturer.n_captures, self._n_replays(), Counter(self._eager)
        for region in explanation.regions(self):
            found = region.stats()
            captures += found["captures"]
            replays += found["replays"]
            eager.update({why: n for why, n in found["eager"].items() if why != "warm-up"})
        return {
            "captures": captures,
            "replays": replays,
            "eager": dict(eager),
            "pieces": dict(self._pieces),
            "signatures": len(self._entries),
        }

    def explain(self) -> str:
        """Every signature: how it runs, and why."""
        return explanation.explain(self)

    def why(self) -> str:
        """Why calls run as they do: what was measured, which padding was refused, what ran eagerly."""
        return explanation.why(self)

    def plan(self) -> BucketPlan:
        """The buckets in force and the sizes seen; printed, a table."""
        return self._planned.plan()

    def padding(self) -> list[dict[str, Any]]:
        """Calls and elements by bucket so far, as plain data. It changes nothing, so any thread may ask."""
        return self._planned.by_bucket(self._name)

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write the plan where ``graphed(..., buckets="plan.json")`` reads it.

        Args:
            path: the file, JSON; one that is there is replaced.

        Raises:
            OSError: it cannot be written.
        """
        files.write(Path(path), self.plan().to_json())

    def reset(self) -> None:
        """Drop every capture; the next calls begin anew."""
        for entry in list(self._entries.values()):
            if entry.is_captured:
                entry.evict("reset by the program")
        self._forget(lambda entry: True)
        self._capturer.buffers = Buffers()

    def _n_replays(self) -> int:
        return self._n_gone + sum(entry.n_replays() for entry in self._entries.values())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: each object has captures of its own."""
        if instance is None:
            return self
        name = f"_gfxgraph_{self._name}_{id(self)}"
        kept = vars(instance) if hasattr(instance, "__dict__") else {}
        bound = kept.get(name)
        if bound is None or bound._fn.__self__ is not instance:  # a copy of the object has the other's
            method = types.MethodType(self._fn, instance)
            bound = kept[name] = Graphed(method, self._options, make_piece=self._make_piece)
        return bound

    def __reduce__(self) -> Any:
        # Copies and pickles are the callable and what was asked for; captures are this process's.
        return functools.partial(Graphed, make_piece=self._make_piece), (self._fn, self._options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._fn, name)

    def __repr__(self) -> str:
        return f"<graphed {self._name}: {len(self._entries)} signatures, {self.stats()['replays']} replays>"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _digest(structure: Any) -> str:
    return hashlib.sha256(repr(structure).encode()).hexdigest()[:8]


frontend.shield(Graphed.__call__)
