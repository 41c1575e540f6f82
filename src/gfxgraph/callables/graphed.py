"""``gfxgraph.graphed``: a function or module that is captured per signature and replayed.

The path of one call:

    fast path: same signature, same world as an earlier call ── copy in, replay, results
    slow path: tree -> signature -> world ── new: one eager call through Dynamo, which shows what was read
                                          ── one graph: route ── new: eager (warm-up), then capture
                                          │                   └─ known: copy in, replay, results
                                          ── Python between graphs, or gradients: Dynamo's code, its pieces
                                          │                                       captured one by one
                                          └─ neither: eager, with the reason kept
    a new size in a bucket ── verdict on the graph, one comparison ── replays from now on
                           └─ refused: eager, with the operation named
    above every bucket     ── eager

Every path that is not a replay is the function itself, called with the caller's own arguments, so
that an error inside it is its own and a side effect happens once.
"""

from __future__ import annotations

import functools
import time
import types
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from gfxgraph import torch_names
from gfxgraph.callables import explain_calls
from gfxgraph.callables.arena import Arena, arena_of, on_stream
from gfxgraph.callables.buckets import AboveAll, Bucketed, Dims, argument_paths, called, rules
from gfxgraph.callables.buffers import Buffers, copied_key, resized
from gfxgraph.callables.captured import Captured, Options, Route, Shared, label_of
from gfxgraph.callables.distributed import run_apart, why_apart
from gfxgraph.callables.fast_path import make_eager
from gfxgraph.callables.padding.padding_check import PaddingCheck
from gfxgraph.callables.signature import (
    MISS,
    Args,
    Call,
    Fast,
    InPieces,
    Kwargs,
    NotATree,
    RunEagerly,
    Unguarded,
    flatten,
    foreign_mode,
    near_key,
    never,
    replace,
    tensor_key,
    understand,
)
from gfxgraph.callables.trace.corrections import shield
from gfxgraph.callables.trace.dynamo import (
    NOTHING_RETURNED,
    OWN,
    WARM_UP,
    Frontend,
    is_traced_here,
    local,
    returned,
)
from gfxgraph.callables.trace.in_dynamo import CHANGED
from gfxgraph.callables.trace.world import World, holds_mapping
from gfxgraph.callables.training.bucketed_gradients import BucketedGradients
from gfxgraph.callables.worlds import TracedGraph, Worlds
from gfxgraph.capture.function_capture import kind_and_line
from gfxgraph.capture.record.user_lines import line_of_error
from gfxgraph.capture.undo import is_internal_error, restoring_state
from gfxgraph.errors import CaptureError, DriverError
from gfxgraph.process import bridge, process

MakePiece = Callable[..., Any]
"""Given what Dynamo found and a name, makes a callable for the FX graph (pieces/graph_numbers.py)."""
MAX_ROUTES = 4096
MOST_BOUND = 16
"""Classes, and objects without a ``__dict__``, whose captures of a method are kept."""
MAX_ENTRIES = 1024
"""Signatures remembered; beyond that, those that were never captured are forgotten."""
MOST_OWN = 3
"""Errors of our own after which a callable stays eager, until `Graphed.reset`."""
MOST_HOST_VALUES = 16
"""Contents of small host tensors that have signatures of their own; calls with more run eagerly."""


class Graphed:
    """A captured callable; made by ``gfxgraph.graphed``.

    The stages of a signature, one call after another; a call that cannot proceed runs eagerly, with the reason:

    1. Trace: the call runs eagerly through Dynamo, which shows what it reads (`Worlds.trace`). Skipped with
    ``assume_pure``.
    2. Warm-up: the call runs eagerly on the capture stream, ``warmup`` times (`Captured.warm_up`). A call to be
    served by a larger bucket is also compared with a padded run (`_judge`).
    3. Record: the function is captured over static inputs (`Captured.record`).
    4. Replay: copy in, launch, results (`Captured.serve`, as for 2 and 3); from the second on by a function
    generated for such calls (`_fast`). A call for which a value that the capture read has changed runs eagerly.
    5. Eager for good: `Captured.fall_back` has reported why. If something that 1 saw has changed, start again at 1.

    Args:
        fn: the function, method or module.
        options: what ``gfxgraph.graphed`` was asked for.
        make_piece: makes what captures a graph that Dynamo finds; None to not trace the function.
        name: its name in reports; by default the function's.
        buffers: memory of static inputs that it shares with other callables.
    """

    _is_part = False
    """Whether its calls are parts of another's, and are counted there."""

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        *,
        make_piece: MakePiece | None = None,
        name: str = "",
        buffers: Buffers | None = None,
    ) -> None:
        self._fn = fn
        self._options = options
        self._make_piece = make_piece
        self._name = name or getattr(called(fn), "__qualname__", type(called(fn)).__qualname__)
        self._fast: Fast = never
        self._near: dict[Any, Route] = {}
        """The last route of calls with this tree and these shapes; its fast path checks everything itself."""
        self._routes: dict[Any, Route] = {}
        self._entries: dict[Any, Captured] = {}
        self._host_values: dict[Any, set[Any]] = {}
        self._n_gone = 0
        """Replays of forgotten signatures."""
        is_dynamic = options.dynamic is not None or options.buckets is not None
        declared = dict(options.dynamic) if isinstance(options.dynamic, Mapping) else None
        self._dims = Dims(declared, rules(options.buckets)) if is_dynamic else None
        self._front: Frontend | None = None
        self._n_own = 0
        self._off = torch_names.why_off("graphed")
        """Why no call of it can have a graph: what torch lacks, or an error of our own."""
        if not options.assume_pure and make_piece is not None:
            self._off = self._off or torch_names.why_off("tracing")
        if not (self._off or options.assume_pure or make_piece is None):
            try:
                make_call = functools.partial(TracedGraph, functools.partial(make_piece, name=self._name))
                self._front = Frontend(fn, make_call, dynamic=is_dynamic)
            except CHANGED as error:
                self._off = f"{OWN}: {kind_and_line(error)}"
        self._shared = Shared(fn, self._front, self._name, options, buffers, self._is_part)
        self._eager = self._shared.eager
        self.account = self._shared.account
        """How its calls ran."""
        self._pieces, self._slow_ways = self._shared.pieces, self.account.slow
        forget = weakref.WeakMethod(self._evict_world)
        self._worlds: Any = Worlds(fn, self._front, self._eager, self._pieces, forget)
        self._captured: Callable[..., Captured] = Captured
        """Makes what captures one signature."""
        self._padding = PaddingCheck(self._shared, self._dims)
        self._with_gradients: BucketedGradients | None = None
        if self._dims is not None and self._front is not None:
            self._with_gradients = BucketedGradients(self._shared, self._dims, self._padding, self._worlds)
        if why := why_apart(fn):
            self._fast = functools.partial(run_apart, fn, why, self._eager, self._shared.fall_back)
        self._state: process.Process | None = None
        self._bound: dict[str, Graphed] = {}
        """As a method: of what has no dict to keep it in."""
        functools.update_wrapper(self, fn, updated=())
        self.account.replays = _asked(self, "_n_calls_by_graph", 0)
        self.account.parts = _asked(self, "_operations", (0, 0))

    # -- one call ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():  # Dynamo reads this as True: the call becomes part of its trace
            return self._fn(*args, **kwargs)
        try:
            result = self._fast(args, kwargs)
            return result if result is not MISS else self._missed(args, kwargs)
        except Exception as error:  # noqa: BLE001  # raised again unless it is our own
            ran = self._despite(error, kwargs)
        return ran[0] if ran else self._fn(*args, **kwargs)

    def _missed(self, args: Args, kwargs: Kwargs) -> Any:
        """A call that the last one's fast path does not serve."""
        result = self._worlds.fast(args, kwargs) if self._worlds.with_gradients else MISS
        if result is MISS:
            result = self._slow(args, kwargs)
            local.returned = NOTHING_RETURNED
        return result

    def _despite(self, error: Exception, kwargs: Kwargs) -> tuple[Any, ...]:
        """Count a call that an error of our own lines left; after a few of them, calls run eagerly at once.

        Returns:
            The result of the call's function, if that has run: else it must run now.

        Raises:
            the error, if it is the program's.
        """
        (of, result, is_counted), local.returned = local.returned, NOTHING_RETURNED
        if self._options.strict or not is_internal_error(error):
            self.account.failed(error, line_of_error(error))
            raise
        has_run = of is kwargs
        why = f"{OWN}: {kind_and_line(error)}"
        calls = self._slow_ways if is_counted and has_run else self._eager
        process.log.debug("%s: %s", self._name, why, exc_info=error)
        calls[why] += 1
        self._n_own += not isinstance(error, RecursionError)  # which is an argument's doing
        if self._n_own >= MOST_OWN:
            self._off = why
        return (result,) if has_run else ()

    @restoring_state
    def _slow(self, args: Args, kwargs: Kwargs) -> Any:
        state, for_good = bridge.process_for_callables(), False
        if state is not None and (
            torch.cuda.is_current_stream_capturing() or (torch.compiler.is_compiling() and is_traced_here())
        ):
            return self._fn(*args, **kwargs)  # part of the outer capture
        try:
            if state is None:
                raise RunEagerly(torch_names.off.get("capture", "there is no GPU"))
            if self._off:
                raise RunEagerly(self._off)
            return self._in_bucket(state, args, kwargs)
        except InPieces as pieces:
            if state is not None and pieces.why not in self._pieces and explain_calls.is_of_step(pieces.why):
                state.report("in_pieces", f"a training step: {explain_calls.AS_STEP}", self._name)
            return self._worlds.in_pieces(pieces, args, kwargs)
        except DriverError as error:  # before any launch: a failed launch raises ReplayError
            why = "a driver call failed"
            if state is not None:
                state.report("fallback", f"{why}; the call ran eagerly", self._name, kind_and_line(error))
        except RunEagerly as eager:
            if self._options.strict and eager.error is not None:
                raise eager.error from eager.__cause__
            why, for_good = eager.why, eager.for_good and not self._options.strict
        if for_good:
            self._go_on_eagerly(why, args, kwargs)
        begun = time.perf_counter()
        result = self._fn(*args, **kwargs)
        self.account.timed(why, time.perf_counter() - begun)
        self._eager.count(why)
        return result

    def _in_bucket(self, state: process.Process, args: Args, kwargs: Kwargs) -> Any:
        """As `_graphed`; a call that needs gradients runs in its bucket, one whose pieces are no graphs eagerly."""
        try:
            return self._graphed(state, args, kwargs)
        except InPieces as pieces:
            why, call = self._worlds.why_bare(pieces), pieces.call
            if why and why not in self._eager:
                self._shared.fall_back(why, for_good=False)
            if why:
                raise RunEagerly(why, for_good=True) from None
            if self._with_gradients is None or call is None:
                raise
            result, fast = self._with_gradients(pieces)
            if fast is not None:
                near = self._near[near_key(call.structure, call.tensors)] = Route(None)
                near.fast = fast
            return returned(kwargs, result, True)

    def _go_on_eagerly(self, why: str, args: Args, kwargs: Kwargs) -> None:
        """Have the next calls of this kind run eagerly at once, after two that had the same reason."""
        tensors: list[Tensor] = []
        near = near_key(flatten((args, kwargs), tensors), tensors)
        route = self._near.get(near)
        if route is None or route.why_eager != why:
            self._near[near] = Route(None, why_eager=why)
        elif route.fast is None:
            route.fast = make_eager(self._fn, self._eager.count, why, args, kwargs, tensors)

    def _graphed(self, state: process.Process, args: Args, kwargs: Kwargs) -> Any:
        """Run the call as a graph, or as one of the eager calls that lead to it.

        Raises:
            RunEagerly: the function itself must run.
        """
        self._at(state)
        mode = foreign_mode()
        if mode:
            raise RunEagerly(f"{mode} must see each operation")
        tensors: list[Tensor] = []
        try:
            structure = flatten((args, kwargs), tensors)
        except Unguarded as error:
            raise RunEagerly(f"an argument is {error}") from None
        except NotATree as error:
            raise self._more_than_a_tree(args, kwargs, str(error)) from None
        near = near_key(structure, tensors)
        route = self._near.get(near)
        if route is not None and route.fast is not None and route.fast is not self._fast:
            self._fast = route.fast
            result = route.fast(args, kwargs)
            if result is not MISS:
                return result
        call = understand(self._name, args, kwargs, tensors, structure, self._shared.in_place)
        if call.host:
            self._look_at_host(call)
        arena = arena_of(state, call.device)
        arena.contexts.give(arena.device_index)
        with arena.lock:
            if not self._worlds.enter(call):
                result = self._worlds.trace(arena, call)
                self._warmed(arena, call, result)
                return result
            route = self._routes.get(call.key)
            if route is None:
                route = self._route(arena, call)
            result = self._routed(arena, route, call)
            if route.fast is not None and route.fast is self._fast and self._fast is not never:
                if len(self._near) >= MAX_ROUTES:
                    self._near.clear()
                self._near[near] = route
            elif route.why_slow:
                self._slow_ways[route.why_slow] += 1
            return result

    def _look_at_host(self, call: Call) -> None:
        """Raise for yet another content of small host tensors, which are constants of a graph."""
        met = self._host_values.setdefault((call.structure, call.kind[2:]), set())
        if call.host in met:
            return
        if len(met) >= MOST_HOST_VALUES:
            named = zip(getattr(self._fn, "names", ()), call.args)  # what a piece calls its inputs
            names = [name for name, each in named if isinstance(each, Tensor)]
            names = names or argument_paths(self._fn, call.args, call.kwargs)
            name = next((name for name, t in zip(names, call.tensors) if not t.is_cuda), "") or "an argument"
            raise RunEagerly(
                f"{name} is a tensor in host memory that differs from call to call; make it on the device"
            )
        met.add(call.host)

    def _more_than_a_tree(self, args: Args, kwargs: Kwargs, what: str) -> RunEagerly | InPieces:
        """How to run a call with an argument that cannot be compared."""
        front = self._front
        if front is None:
            problem = CaptureError("graphed_unknown_object", function=self._name, kind=what)
            return RunEagerly(f"an argument cannot be compared: {what}", problem)
        if front.does_catch or front.does_ask_mappings and holds_mapping((args, kwargs)):
            return RunEagerly(f"it catches errors, and an argument may lack an attribute that it looks for: {what}")
        return InPieces(f"an argument is more than a tree of tensors and constants: {what}")

    def _at(self, state: process.Process) -> None:
        if state is not self._state:
            if self._state is not None:  # the bridge was switched on or off
                self._forget(lambda entry: True)
                self._shared.buffers = Buffers()
            self._state = state

    def _warmed(self, arena: Arena, call: Call, result: Any) -> None:
        """A traced call that is a single graph also counts as a warm-up."""
        if call.world is None:
            return
        assert self._front is not None
        route = self._route(arena, call)
        if route.entry is not None and self._shared.is_through_dynamo:
            route.entry.n_seen += 1
            route.entry.look_at(result)

    def _evict_world(self, world: World | None) -> None:
        """Evict what was captured in a world (None: in any): it reads, and would keep, tensors that were replaced."""
        which: Callable[[Captured], bool] = lambda entry: world is None or entry.world is world  # noqa: E731
        for entry in self._entries.values():
            if which(entry) and entry.is_captured:
                entry.evict("the tensors that the function reads have been replaced")
        self._forget(which)

    def _route(self, arena: Arena, call: Call) -> Route:
        """The route of calls with this exact signature: to their bucket's entry, or to one of their own."""
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
                return route
        if bucketed is None:
            route = Route(self._entry_for(arena, call.key, call))
        else:
            route = Route(self._entry_in_bucket(arena, call, bucketed), bucketed)
        self._routes[call.key] = route
        return route

    def _entry_in_bucket(self, arena: Arena, call: Call, bucketed: Bucketed) -> Captured:
        in_place = self._shared.in_place
        shapes: list[Any] = []
        for t, size in zip(call.tensors, bucketed.sizes):
            if size is None or (in_place and tuple(t.size()) == size):
                shapes.append((tensor_key(t), t.data_ptr() if in_place else 0))
            else:
                shapes.append(copied_key(t, size))
        label = ", ".join(f"{name}={n}" for name, n in bucketed.bucket.items())
        entry = self._entry_for(arena, ("bucket", *call.kind, *shapes), call, label)
        entry.bucket = bucketed.bucket
        return entry

    def _routed(self, arena: Arena, route: Route, call: Call) -> Any:
        entry, bucketed = route.entry, route.bucketed
        if entry is None:
            raise RunEagerly(route.why_eager)
        if not entry.why_eager and bucketed is not None and bucketed.is_padded and route.padded is None:
            return self._judge(arena, route, call)
        result, fast = entry.serve(call, route)
        self._fast = self._fast if fast is None else fast
        return result

    # -- buckets ----------------------------------------------------------------------------------

    def _judge(self, arena: Arena, route: Route, call: Call) -> Any:
        """Run the call eagerly, and find out whether its bucket would have given the same result."""
        entry = route.entry
        assert entry is not None
        current = torch.cuda.current_stream(arena.device_index)
        arena.follow(current)
        with on_stream(arena.stream):
            result = self._padding.check(route, call)
        entry.n_seen = max(entry.n_seen, self._options.warmup)
        entry.look_at(result, current)
        return result

    # -- capture ----------------------------------------------------------------------------------

    def _entry_for(self, arena: Arena, key: Any, call: Call, label: str = "") -> Captured:
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= MAX_ENTRIES:
                self._forget(lambda entry: not entry.is_captured)
            label = label or label_of(call.tensors)
            entry = self._captured(arena, self._shared, label)
            entry.on_evict = weakref.WeakMethod(self._forget_fast)
            self._entries[key] = entry
        return entry

    def _forget(self, which: Callable[[Captured], bool]) -> None:
        gone = [key for key, entry in self._entries.items() if which(entry)]
        self._n_gone += sum(self._entries.pop(key).replays() for key in gone)
        self._routes.clear()
        self._forget_fast()

    def _forget_fast(self) -> None:
        """Drop the fast paths: they hold graphs, so none may outlive an eviction."""
        self._fast = never
        self._near.clear()
        for route in self._routes.values():
            route.fast, route.fast_of = None, ()

    # -- public queries -------------------------------------------------------------------------------

    @staticmethod
    def of(module: Any) -> Graphed:
        """The callable that a graphed module's calls go through.

        Args:
            module: what `gfxgraph.graphed` gave for a module, or changed in place.

        Raises:
            TypeError: it is not graphed.
        """
        found = getattr(module, "_gfxgraph", None) or getattr(module, "_compiled_call_impl", None)
        if not isinstance(found, Graphed):
            raise TypeError(f"gfxgraph.graphed() did not make this module: {type(module).__qualname__}")
        return found

    def capture_all(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Capture every bucket now, largest first, by calls.

        The function runs ``warmup`` times in each bucket, and once by its graph, on the example's values, their last
        row repeated. A bucket that would exceed the limit, should it take what the largest took, is left to be
        captured on demand, and so is one that the example's values do not suit: an index past its end, say.

        Args:
            args: an example of the function's arguments, of any size.
            kwargs: likewise.

        Returns:
            ``n_captured``, ``n_left``.

        Raises:
            whatever the function itself raises for the example.
        """
        if bridge.process_for_callables() is None or self._dims is None:
            return {"n_captured": 0, "n_left": 0}
        tensors: list[Tensor] = []
        structure = flatten((args, kwargs), tensors)
        buckets = self._dims.all_buckets(structure, tensors, lambda: argument_paths(self._fn, args, kwargs))
        before = self._shared.n_captures
        why, self._shared.is_ahead = "", True
        try:
            self(*args, **kwargs)  # the example itself, so that it is known what the function does
            call = understand(self._name, args, kwargs, tensors, structure, self._shared.in_place)
            if not self._worlds.enter(call):
                raise RunEagerly("the function is not traced")
            unfit = self._padding.why_unfit(call, buckets)
            if self._front is not None:
                self._front.is_ahead = True
            for bucketed in buckets:
                if not self._has_room(arena_of(process.require(), call.device)):
                    break
                if unfit and any(size not in (None, t.size()) for t, size in zip(tensors, bucketed.sizes)):
                    why = f"the example's values do not suit its size: {unfit}"
                    continue
                sized = iter([resized(t, size) for t, size in zip(tensors, bucketed.sizes)])
                given = replace((args, kwargs), lambda t: next(sized))  # noqa: B023
                n = self._shared.n_captures
                for _ in range(self._options.warmup + 1):
                    if self._shared.n_captures == n:
                        self(*given[0], **given[1])
        except (RunEagerly, InPieces) as reason:
            why = reason.why
        except torch.OutOfMemoryError as error:
            why = kind_and_line(error)
        finally:
            self._shared.is_ahead = False
            if self._front is not None:
                self._front.is_ahead = False
        n_captured = self._shared.n_captures - before
        if why:
            process.require().report("fallback", f"not captured ahead: {why}", self._name)
        return {"n_captured": n_captured, "n_left": max(0, len(buckets) - n_captured)}

    def _has_room(self, arena: Arena) -> bool:
        """Whether another graph fits under the memory limit that takes as much as the largest so far."""
        largest = max((entry.nbytes for entry in self._entries.values()), default=0)
        return not largest or arena.graph_nbytes() + largest <= arena.cap()

    def stats(self) -> dict[str, Any]:
        """``captures``, ``replays``, ``eager`` (calls by reason), ``pieces`` and ``slow`` (likewise), ``signatures``.

        ``calls`` is the account of its calls, each in one way: ``by_graph``, ``in_pieces``, ``eager``, ``raised``.
        ``eager`` and ``pieces`` are those of it. ``replays`` counts graph replays, including those of pieces: one
        call in pieces may replay several. ``parts`` counts runs of pieces without a graph; ``slow`` replays that
        were found and copied step by step, since no generated function serves them.
        """
        captures, replays, parts = self._shared.n_captures, self._n_replays(), Counter[str]()
        for region in explain_calls.regions(self):
            found = region.stats()
            captures += found["captures"]
            replays += found["replays"]
            parts.update(found["eager"])
        return {
            "captures": captures,
            "replays": replays,
            "eager": dict(self._eager),
            "pieces": dict(self._pieces),
            "parts": dict(parts),
            "slow": dict(self._slow_ways),
            "signatures": len(self._entries),
            "calls": self.account.table(),
        }

    @property
    def graphs(self) -> list[Any]:
        """The graphs of its signatures."""
        return [instance.graph for entry in self._entries.values() for instance in entry.instances()]

    @property
    def why_eager(self) -> str:
        """The commonest reason why its calls have no graph of their own; "" if a signature has one."""
        reasons = Counter(self._eager) + Counter(self._pieces)
        del reasons[WARM_UP]
        why = reasons.most_common(1)[0][0] if reasons else str(self._worlds.why_pieces)
        return "" if self.graphs else why.partition("\n")[0]

    def explain(self) -> str:
        """Every signature: how it runs, and why."""
        return explain_calls.explain(self)

    def reset(self) -> None:
        """Drop every capture and trace, and what they hold of the program's; the next calls start again."""
        for entry in list(self._entries.values()):
            if entry.is_captured:
                entry.evict("reset by the program")
        self._forget(lambda entry: True)
        self._shared.buffers = Buffers()
        self._host_values.clear()
        self._worlds.reset()
        if self._with_gradients is not None:
            self._with_gradients.reset()
        if self._n_own >= MOST_OWN:
            self._n_own, self._off = 0, ""

    def _n_replays(self) -> int:
        return self._n_gone + sum(entry.replays() for entry in list(self._entries.values()))

    def _n_calls_by_graph(self) -> int:
        return int(self._n_replays() + self._worlds.n_one_graph)

    def _operations(self) -> tuple[int, int]:
        """Operations of its pieces that ran in graphs, and all that ran; of the calls that were in pieces."""
        n = of = 0
        for region in explain_calls.regions(self) if self._pieces else ():
            found = region.stats()
            n += found["replays"] * region.n_operations
            of += (found["replays"] + sum(found["eager"].values())) * region.n_operations
        return n, of

    def __del__(self) -> None:
        try:
            self.account.close(self._n_calls_by_graph(), self._operations())
        except (AttributeError, TypeError):
            return  # it was not made whole, or the interpreter ends

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: each object has its own captures."""
        if instance is None:
            return self
        name = f"_gfxgraph_{self._name}_{id(self)}"
        kept: Any = getattr(instance, "__dict__", None)
        if not isinstance(kept, dict):  # a class, or an object with slots
            kept, name = self._bound, str(id(instance))
            if len(kept) >= MOST_BOUND and name not in kept:
                del kept[next(iter(kept))]
        bound = kept.get(name)
        if bound is None or bound._same[1].__self__ is not instance:  # a copied object still has the original's
            make, fn = self._same
            bound = kept[name] = make(types.MethodType(fn, instance))
        return bound

    @property
    def _same(self) -> tuple[Callable[[Any], Graphed], Any]:
        """What makes such a callable of a function, and its own function."""
        return functools.partial(Graphed, options=self._options, make_piece=self._make_piece), self._fn

    def __reduce__(self) -> Any:
        # Copies and pickles keep the callable and its options; captures belong to this process.
        make, fn = self._same
        return make, (fn,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._fn, name)

    def __repr__(self) -> str:
        return f"<graphed {self._name}: {len(self._entries)} signatures, {self.stats()['replays']} replays>"


def _asked(owner: Any, name: str, otherwise: Any) -> Callable[[], Any]:
    """Calls a method of ``owner``, which it does not keep alive."""
    ref = weakref.ref(owner)
    return lambda: getattr(of, name)() if (of := ref()) is not None else otherwise


shield(Graphed.__call__)
