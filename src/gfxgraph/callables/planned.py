"""The part of a graphed callable that is about sizes and choices: buckets, padding, chunks, eager or graph.

a padded call of a new size ── verdict on the graph, one comparison ── replays from now on
                            └─ refused: eager, with the operation named
a call above every bucket   ── in pieces, where the verdict allows it; else eager
adaptive                    ── the way that was measured to be faster
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as replace_in
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph import files
from gfxgraph.callables.adaptive import Adaptive, Store
from gfxgraph.callables.buckets import Bucketed, Dims, argument_paths
from gfxgraph.callables.call import Call, RunEagerly
from gfxgraph.callables.chunks import NotInPieces, join, joints, split
from gfxgraph.callables.fast_path.fast import never
from gfxgraph.callables.fast_path.writer import MISS, Fast
from gfxgraph.callables.padding.compare import Compared, compare
from gfxgraph.callables.padding.content import Content, Pad, dense_copy, pad_copy
from gfxgraph.callables.padding.judge import Judge, Padded, Refusal, Verdicts
from gfxgraph.callables.padding.program import Program, is_same_program
from gfxgraph.callables.plans import Sizes, refusal
from gfxgraph.callables.signature import flatten, replace
from gfxgraph.core.buckets import Above, Plan
from gfxgraph.core.choice import Way
from gfxgraph.process import process
from gfxgraph.types import ReplayMode

if TYPE_CHECKING:
    from gfxgraph.callables.arena import Arena
    from gfxgraph.callables.entry import Captures
    from gfxgraph.callables.padding.dependence import Independence
    from gfxgraph.callables.trace.frontend import Frontend
    from gfxgraph.callables.trace.world import World

SAMPLED_IN_ADAPTIVE = 512
"""One call in so many asks whether it is time to look at a decision again."""
REFUSED = "padding refused"
JUDGING = "compared with a padded run"
JUDGING_PIECES = "compared with a run in pieces"
OTHER = "the function is another program at the bucket's size"


class Route:
    """Where calls of one exact signature go."""

    __slots__ = (
        "bucketed", "content", "entry", "fast", "fast_of", "has_views", "mark", "padded", "result_sizes", "too_large",
        "why_eager",
    )  # fmt: skip

    def __init__(self, entry: Captures | None, bucketed: Bucketed | None = None, why_eager: str = "") -> None:
        self.entry = entry
        self.bucketed = bucketed
        self.why_eager = why_eager
        self.fast: Fast | None = None
        self.fast_of: tuple[object, ...] = ()
        self.mark = object()
        """Stands for the route where a reference to it would be a cycle."""
        self.padded: Padded | None = None
        """How the bucket serves this size; None until that is known, and where nothing is padded."""
        self.content: Sequence[Content] | None = None
        """What the padding of each argument holds."""
        self.result_sizes: Sequence[Sequence[int] | None] | None = None
        self.too_large: TooLarge | None = None
        self.has_views = True
        """Whether a result may be a view of an argument that lies differently than the bucket's buffer."""


class TooLarge:
    """A call above the largest bucket: which dim, every dim's size, and how pieces are joined, once known."""

    __slots__ = ("dims", "joints", "name", "pieces", "refusal", "sizes")

    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        self.name = name
        self.sizes = sizes
        self.pieces: tuple[int, ...] = ()
        self.dims: Mapping[int, Mapping[int, str]] = {}
        self.joints: list[int] | None = None
        self.refusal: Refusal | None = None


class Planned:
    """What ``Graphed`` inherits; the attributes without a value are its own."""

    _fn: Callable[..., Any]
    _name: str
    _dims: Dims | None
    _eager: Counter[str]
    _pieces: Counter[str]
    _n_replays: Callable[[], int]
    _entries: dict[Any, Captures]
    _fast: Fast
    _front: Frontend | None
    _run: Callable[..., Any]
    _evict: Callable[..., None]
    _options: Any
    _look_at: Callable[..., None]
    _capture: Callable[..., None]
    _replay: Callable[..., Any]
    _fast_for: Callable[..., Fast]
    _slow: Callable[..., Any]
    _forget: Callable[..., None]

    def _plan_sizes(self, sizes: Sizes, padding: Judge) -> None:
        self._sizes = sizes
        self._padding = padding
        self._refused: list[Mapping[str, int]] = []
        """Sizes whose bucket does not serve them."""
        self._adaptive: Adaptive | None = None
        self._last: tuple[Mapping[str, int], Captures, int] | None = None

    # -- padding ----------------------------------------------------------------------------------

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
                result, found = self._judged(call, bucketed, names, dims)
        finally:
            current.wait_stream(arena.stream)
        self._eager[JUDGING if isinstance(found, Padded) else f"{REFUSED}: {found.reason}"] += 1
        entry.n_seen = max(entry.n_seen, self._options.warmup)
        self._look_at(entry, result, current)
        if isinstance(found, Padded):
            route.padded, route.content = found, found.content
        elif found.is_final:
            self._refuse(route, found, bucketed)
        return result

    def _judged(
        self, call: Call, bucketed: Bucketed, names: Sequence[str], dims: Mapping[int, Mapping[int, str]]
    ) -> tuple[Any, Padded | Refusal]:
        """The call's result, and how its bucket serves it."""
        copies = [dense_copy(t, s) if s not in (None, t.size()) else t for t, s in zip(call.tensors, bucketed.sizes)]
        args, kwargs = self._with_tensors(call, copies)
        world = self._bucket_world(call, args, kwargs)
        problem = self._why_not_judged(call, bucketed, world)
        if problem is not None:
            return self._run(*call.args, **call.kwargs), problem
        program, found = self._verdicts(call, dims, world or call.world)
        content = self._padding.choose(found, names, dims, bucketed.actual, bucketed.bucket)
        if isinstance(content, Refusal):
            return self._run(*call.args, **call.kwargs), content
        if program is not None and world is None and not self._is_foreseen(program, args, kwargs):
            return self._run(*call.args, **call.kwargs), Refusal(OTHER)
        outside, written = self._written(call, program, found.first, names, copies)
        if program is not None and world is None:  # what its own trace writes is known when it has run
            outside += [t for t in call.world.tensors if t.is_cuda and not isinstance(t, torch.nn.Parameter)]
        for copy, tensor, each in zip(copies, call.tensors, content):
            if copy.size() != tensor.size():
                pad_copy(copy, tensor.size(), each)
        args, kwargs = self._with_tensors(call, copies)
        traced: list[Any] = []

        def in_bucket() -> Any:
            result, world = self._run_known(args, kwargs)
            traced.append(world)
            return result

        compared = Compared()
        unique = list({id(t): t for t in outside}.values())
        compare(compared, lambda: self._run(*call.args, **call.kwargs), in_bucket, unique, written, call.device)
        problem = Refusal(compared.problem) if compared.problem else None
        if problem is None and world is None and program is not None:
            problem = self._why_not_judged(call, bucketed, traced[0])
            if problem is None:
                _, found = self._verdicts(call, dims, traced[0])
                again = self._padding.choose(found, names, dims, bucketed.actual, bucketed.bucket)
                problem = again if isinstance(again, Refusal) else None if again == content else Refusal(OTHER)
        if problem is not None:
            return compared.result, problem
        sizes = [tuple(t.size()) for t in compared.outputs]
        return compared.result, Padded(content, sizes, compared.structure)

    def _bucket_world(self, call: Call, args: Any, kwargs: Any) -> World | None:
        """The world of the call at its bucket's size; None where it has not been traced, or nothing is."""
        if self._front is None:
            return None
        world = self._front.find(args, kwargs)
        if world is not None and world is not call.world and self._front.has_moved(world, args, kwargs):
            self._evict(lambda entry: entry.world is world)
            self._front.rebind(world, args, kwargs)
        return world

    def _why_not_judged(self, call: Call, bucketed: Bucketed, world: World | None) -> Refusal | None:
        """Why a verdict about the bucket's world would say nothing about the call."""
        if self._front is None:
            return None
        if world is None:
            if any(bucketed.actual[name] == 1 for name in bucketed.padded_names):
                return Refusal("no call of more than one row has shown yet what the function does", is_final=False)
            why = self._front.why_no_more()
            return Refusal(why) if why else None
        if world.why_pieces:
            return Refusal(f"at the bucket's size it is no single graph: {world.why_pieces}")
        return None if self._is_same_program(call.world, world, call.args, call.kwargs) else Refusal(OTHER)

    def _is_foreseen(self, program: Program, args: Any, kwargs: Any) -> bool:
        """Whether the function would do the same at a size that it was not traced at; nothing runs to find out."""
        assert self._front is not None
        seen = self._front.foresee(args, kwargs)
        if seen is None:
            return False
        found, scope = seen
        return is_same_program(program, Program(found.graph, found.sources, scope))

    def _run_known(self, args: Any, kwargs: Any) -> tuple[Any, World | None]:
        """The function run eagerly, and its world: traced now where it has none."""
        if self._front is None:
            return self._run(*args, **kwargs), None
        world = self._front.find(args, kwargs)
        if world is None:
            return self._front.trace(args, kwargs)
        return self._run(*args, **kwargs), world

    def _verdicts(
        self, call: Call, dims: Mapping[int, Mapping[int, str]], world: Any
    ) -> tuple[Program | None, Verdicts]:
        """The FX graph of a world as the call would give it its inputs, and what padding does there."""
        key = (call.kind_with_dims(dims), world.token)
        if self._front is None:
            function = self._caller(call)
            return None, self._padding.verdicts(key, lambda *given: function(given), call.tensors, dims)
        program = self._program(world, call.args, call.kwargs)
        dynamic = program.dynamic(call.tensors, dims)
        return program, self._padding.verdicts(key, program.graph, program.inputs, dynamic, by_size=True)

    def _program(self, world: World, args: Any, kwargs: Any) -> Program:
        assert self._front is not None
        scope = {**world._names, "L": self._front._given(args, kwargs)}
        return Program(world.found.graph, world.found.sources, scope)

    def _is_same_program(self, one: World, other: World, args: Any, kwargs: Any) -> bool:
        """Whether the two worlds' graphs do the same for these arguments."""
        if one is other:
            return True
        if one.why_pieces or other.why_pieces:
            return False
        return is_same_program(self._program(one, args, kwargs), self._program(other, args, kwargs))

    def _written(
        self, call: Call, program: Program | None, found: Independence, names: Sequence[str], copies: list[Tensor]
    ) -> tuple[list[Tensor], list[tuple[str, Tensor, Tensor]]]:
        """Tensors from outside that the function writes to, and arguments: name, the call's, the padded run's."""
        outside: list[Tensor] = list(getattr(call.world, "written", ()))
        written: list[tuple[str, Tensor, Tensor]] = []
        places = program.places(call.tensors) if program is not None else {i: i for i in range(len(names))}
        for at in sorted({int(name.split()[-1]) for each in found.dims.values() for name in each.written}):
            i = places.get(at)
            if i is None:
                assert program is not None
                outside.append(program.inputs[at])
                continue
            if copies[i] is call.tensors[i]:
                copies[i] = call.tensors[i].detach().clone()
            written.append((names[i], call.tensors[i], copies[i]))
        return outside, written

    def _with_tensors(self, call: Call, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with other tensors."""
        rest = iter(tensors)
        args = replace(tuple(call.args), lambda _: next(rest))
        return args, replace(dict(call.kwargs), lambda _: next(rest))

    def _content_ahead(self, call: Call, bucketed: Bucketed) -> list[Content] | Refusal:
        """What the padding is to hold where the call stands for a bucket of any size: larger, or cut to it."""
        assert self._dims is not None
        names = argument_paths(self._fn, call.args, call.kwargs)
        dims = self._dims.of(call.structure, call.tensors, lambda: names)
        actual = {name: call.tensors[i].size(dim) for i, named in dims.items() for dim, name in named.items()}
        smaller = {name: min(n, bucketed.bucket[name]) for name, n in actual.items()}
        if actual == bucketed.bucket:
            return [Pad.ZERO] * len(names)
        _, found = self._verdicts(call, dims, call.world)
        for name, n in actual.items():
            problem = self._padding.why_not_split(found, name, [smaller[name]], actual) if smaller[name] < n else None
            if problem is not None:
                return problem
        return self._padding.choose(found, names, dims, smaller, bucketed.bucket)

    def _refuse(self, route: Route, found: Refusal, bucketed: Bucketed) -> None:
        route.entry, route.why_eager = None, f"{REFUSED}: {found.reason}"
        if bucketed.actual not in self._refused:
            self._refused.append(bucketed.actual)
        label = ", ".join(f"{name}={n} in {bucketed.bucket[name]}" for name, n in bucketed.actual.items())
        self._padding.refusals[label] = found
        if process.require().counters.event("padding_refused", found.reason, found.op, found.where):
            process.log.warning("%s: %s", self._name, refusal(found, bucketed.bucket))

    def _cut(self, route: Route, entry: Captures) -> None:
        """Make out how a replay's results are cut to the call's size.

        Raises:
            RunEagerly: they cannot be.
        """
        assert route.padded is not None and entry.first is not None
        results = entry.results
        sizes: list[Sequence[int] | None] = []
        if route.padded.structure != entry.first.outputs.structure:
            route.entry, route.why_eager = None, "the captured function returned something else than before"
            raise RunEagerly(route.why_eager)
        for size, result in zip(route.padded.sizes, results):
            if result.of_input >= 0 and not result.layout[0]:
                route.entry, route.why_eager = None, "a result is a view of a padded argument"
                raise RunEagerly(route.why_eager)
            made = result.made
            sizes.append(size if made is not None and tuple(made.size()) != tuple(size) else None)
        route.result_sizes = sizes

    def _look_for_views(self, route: Route, entry: Captures, tensors: Sequence[Tensor]) -> None:
        """See whether results are views of arguments, which the strides of other calls in the bucket do not fit.

        Raises:
            RunEagerly: one is.
        """
        for result in entry.results:
            if result.of_input >= 0 and not result.layout[0]:
                if tensors[result.of_input].stride() != entry.statics[result.of_input].tensor.stride():
                    route.entry, route.why_eager = None, "a result is a view of an argument of another layout"
                    raise RunEagerly(route.why_eager)
        route.has_views = False

    def _caller(self, call: Call, fn: Callable[..., Any] | None = None) -> Callable[[Sequence[Tensor]], Any]:
        """The function of the call's tensors, all else as in the call."""

        def run(given: Sequence[Tensor]) -> Any:
            args, kwargs = self._with_tensors(call, given)
            return (fn or self._fn)(*args, **kwargs)

        return run

    # -- above the largest bucket -----------------------------------------------------------------

    def _in_chunks(self, route: Route, big: TooLarge, call: Call) -> Any:
        """A call above the largest bucket in pieces, where they give the same.

        Raises:
            RunEagerly: they do not.
        """
        assert self._dims is not None
        if self._sizes.above is not Above.CHUNKS or big.refusal is not None:
            raise RunEagerly(route.why_eager)
        if big.joints is None:
            names = argument_paths(self._fn, call.args, call.kwargs)
            big.dims = self._dims.of(call.structure, call.tensors, lambda: names)
            big.pieces = self._sizes[big.name].chunks(big.sizes[big.name])
            result, found = self._in_pieces_too(big, call)
            self._eager[JUDGING_PIECES if isinstance(found, list) else f"{REFUSED}: {found.reason}"] += 1
            if isinstance(found, list):
                big.joints = found
            else:
                big.refusal = found
                route.why_eager += ", and is not run in pieces"
                self._padding.refusals[f"{big.name}={big.sizes[big.name]}"] = found
            return result
        piecewise = self._caller(call, lambda *args, **kwargs: self._slow(args, kwargs))
        return join([piecewise(piece) for piece in split(call.tensors, big.dims, big.name, big.pieces)], big.joints)

    def _in_pieces_too(self, big: TooLarge, call: Call) -> tuple[Any, list[int] | Refusal]:
        """The call, eagerly, and along which dims its pieces' results are joined."""
        _, found = self._verdicts(call, big.dims, call.world)
        problem = self._padding.why_not_split(found, big.name, big.pieces, big.sizes)
        if problem is not None:
            return self._run(*call.args, **call.kwargs), problem
        parts: list[list[Tensor]] = []

        def in_pieces() -> Any:
            results = []
            for piece in split(call.tensors, big.dims, big.name, big.pieces):
                args, kwargs = self._with_tensors(call, piece)
                result, world = self._run_known(args, kwargs)
                results.append(result)
                if world is not None and not self._is_same_program(call.world, world, args, kwargs):
                    raise NotInPieces("a piece is another program")
                parts.append([])
                flatten(result, parts[-1])
            return join(results, joints([t.size() for t in compared.outputs], parts))

        compared = Compared()
        compare(
            compared,
            lambda: self._run(*call.args, **call.kwargs),
            in_pieces,
            [t for t in getattr(call.world, "tensors", ()) if t.is_cuda and not isinstance(t, torch.nn.Parameter)],
            (),
            call.device,
        )
        if compared.problem:
            return compared.result, Refusal(compared.problem.replace("without padding", "at once"))
        return compared.result, joints([t.size() for t in compared.outputs], parts)

    # -- sizes ------------------------------------------------------------------------------------

    def _count(self, route: Route) -> None:
        """One more call of this size; learn buckets when it is time."""
        actual = route.too_large.sizes if route.too_large is not None else None
        if route.bucketed is not None:
            actual = route.bucketed.actual
            if route.entry is not None:
                self._last = (actual, route.entry, route.entry.n_replays())
        if actual is None:
            return
        self._sizes.note(actual)
        if not self._sizes.look():
            return
        plan = self._sizes.plan()
        self._last = None

        def is_gone(entry: Captures) -> bool:
            bucket = tuple(entry.bucket.get(name, 0) for name in plan.dims)
            return bool(entry.bucket) and plan.pick(bucket) != bucket

        for entry in self._entries.values():
            if is_gone(entry) and entry.is_captured:
                entry.evict("another plan of buckets was learned")
        self._forget(is_gone)

    def _count_fast_calls(self) -> None:
        """Calls that took the fast path since the last slow one: all were of that one's size."""
        if self._last is not None:
            actual, entry, n = self._last
            self._last = None
            n_fast = entry.n_replays() - n
            if n_fast > 0:
                self._sizes.note(actual, n_fast)

    # -- how often the slow way is taken ----------------------------------------------------------

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

    # -- eager or graph ---------------------------------------------------------------------------

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

    # -- what users ask ---------------------------------------------------------------------------

    def plan(self) -> Plan:
        """The buckets in force and the sizes seen; printed, a table."""
        self._count_fast_calls()
        found = self._sizes.plan()
        refused = frozenset(tuple(sizes.get(name, 0) for name in found.dims) for sizes in self._refused)
        return replace_in(found, refused=refused)

    def padding(self) -> list[dict[str, Any]]:
        """Calls and elements by bucket so far, as plain data. It changes nothing, so any thread may ask."""
        found = self._sizes.plan()
        seen = Counter(found.seen)
        last = self._last
        if last is not None and set(last[0]) == set(found.dims):
            seen[tuple(last[0][name] for name in found.dims)] += max(0, last[1].n_replays() - last[2])
        refused = frozenset(tuple(sizes.get(name, 0) for name in found.dims) for sizes in self._refused)
        return [
            {
                "function": self._name,
                "bucket": ", ".join(f"{name}={n}" for name, n in zip(found.dims, row.bucket)),
                "calls": row.n_calls,
                "elements": row.n_asked,
                "elements_run": row.n_run,
            }
            for row in replace_in(found, seen=seen, refused=refused).by_bucket()
            if row.n_calls
        ]

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write the plan where ``graphed(..., buckets="plan.json")`` reads it."""
        files.write(Path(path), self.plan().to_json())

    def why(self) -> str:
        """Why calls run as they do: what was measured, which padding was refused, what ran eagerly."""
        lines = [f"{self._name}: {self._options.mode.value}"]
        if self._adaptive is not None:
            lines += [f"  {line}" for line in self._adaptive.why().splitlines()]
        lines += [f"  {line}" for line in self._padding.explain() if "is not padded" not in line]
        return "\n".join([*lines, *self._ways()])

    def _ways(self) -> list[str]:
        """A table: how many calls ran which way, and why not by a graph of their own."""
        refused: dict[str, list[str]] = {}
        for label, found in self._padding.refusals.items():
            refused.setdefault(f"{REFUSED}: {found.reason}", []).append(label)
        rows = [(self._n_replays(), "by a graph", "")]
        n_in_pieces = sum(self._pieces.values())
        rows += [(n, "in pieces", why) for why, n in self._pieces.most_common()]
        for why, n in self._eager.most_common():
            sizes = f" ({', '.join(refused[why])})" if why in refused else ""
            rows.append((n, "eager", why + sizes))
        for why in set(refused) - set(self._eager):
            rows.append((0, "eager", f"{why} ({', '.join(refused[why])})"))
        lines = [f"  {'calls':>7}  way         why"] + [
            f"  {n:>7}  {way:<10}  {why}".rstrip() for n, way, why in rows
        ]
        if n_in_pieces:
            lines.append("  in pieces: Python runs at each call, each graph between is captured on its own")
        return lines


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _digest(structure: Any) -> str:
    return hashlib.sha256(repr(structure).encode()).hexdigest()[:8]
