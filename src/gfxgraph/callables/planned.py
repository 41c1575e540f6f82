"""The part of a graphed callable that is about sizes and choices: buckets, proofs, chunks, eager or graph.

    a padded call of a new size ── the proof (prover.py) ─── proved: replays from now on
                                                          └─ refused: eager, with the operation named
    a call above every bucket   ── in pieces, where that is proved; else eager
    adaptive                    ── the way that was measured to be faster
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables.adaptive import Adaptive, Store
from gfxgraph.callables.buckets import Bucketed, Dims, argument_paths
from gfxgraph.callables.call import Call, RunEagerly
from gfxgraph.callables.chunks import join, prove_chunks, split
from gfxgraph.callables.fast_path.fast import never
from gfxgraph.callables.fast_path.writer import MISS, Fast
from gfxgraph.callables.padding.invent import Content, Pad
from gfxgraph.callables.padding.prover import Proof, Status
from gfxgraph.callables.plans import Proofs, Sizes, refusal
from gfxgraph.callables.signature import replace
from gfxgraph.core.buckets import Above, Plan
from gfxgraph.core.choice import Way
from gfxgraph.process import process
from gfxgraph.types import ReplayMode

if TYPE_CHECKING:
    from gfxgraph.callables.arena import Arena
    from gfxgraph.callables.entry import Entry

SAMPLED_IN_ADAPTIVE = 512
"""One call in so many asks whether it is time to look at a decision again."""
PROVING = "proving that padding changes nothing"


class Route:
    """Where calls of one exact signature go."""

    __slots__ = (
        "bucketed", "content", "entry", "fast", "fast_of", "has_views", "mark", "proof", "result_sizes", "too_large",
        "why_eager",
    )  # fmt: skip

    def __init__(self, entry: Entry | None, bucketed: Bucketed | None = None, why_eager: str = "") -> None:
        self.entry = entry
        self.bucketed = bucketed
        self.why_eager = why_eager
        self.fast: Fast | None = None
        self.fast_of: tuple[object, ...] = ()
        self.mark = object()
        """Stands for the route where a reference to it would be a cycle."""
        self.proof: Proof | None = None
        """That the bucket may serve this size; None until then, and where nothing is padded."""
        self.content: Sequence[Content] | None = None
        """What the padding of each argument holds."""
        self.result_sizes: Sequence[Sequence[int] | None] | None = None
        self.too_large: TooLarge | None = None
        self.has_views = True
        """Whether a result may be a view of an argument that lies differently than the bucket's buffer."""


class TooLarge:
    """A call above the largest bucket: which dim, every dim's size, and how pieces are joined, once known."""

    __slots__ = ("dims", "joints", "name", "pieces", "sizes")

    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        self.name = name
        self.sizes = sizes
        self.pieces: tuple[int, ...] = ()
        self.dims: Mapping[int, Mapping[int, str]] = {}
        self.joints: list[int] | None = None


class Planned:
    """What ``Graphed`` inherits; the attributes without a value are its own."""

    _fn: Callable[..., Any]
    _name: str
    _dims: Dims | None
    _eager: Counter[str]
    _entries: dict[Any, Entry]
    _fast: Fast
    _is_transparent: dict[Any, bool]
    _options: Any
    _look_at: Callable[..., None]
    _capture: Callable[..., None]
    _replay: Callable[..., Any]
    _fast_for: Callable[..., Fast]
    _slow: Callable[..., Any]
    _forget: Callable[..., None]

    def _plan_sizes(self, sizes: Sizes, proofs: Proofs) -> None:
        self._sizes = sizes
        self._proofs = proofs
        self._adaptive: Adaptive | None = None
        self._last: tuple[Mapping[str, int], Entry, int] | None = None

    # -- padding ----------------------------------------------------------------------------------

    def _prove(self, arena: Arena, route: Route, call: Call) -> Any:
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
                proof = self._proofs.examine(
                    self._caller(call),
                    call.kind_of_proof(dims),
                    names,
                    dims,
                    call.tensors,
                    bucketed.actual,
                    bucketed.bucket,
                    is_transparent=self._is_transparent.get(call.kind, False),
                )
        finally:
            current.wait_stream(arena.stream)
        self._eager[PROVING] += 1
        result, proof.result = proof.result, None
        entry.n_seen = max(entry.n_seen, self._options.warmup)
        self._look_at(entry, result, current)
        if proof.status is Status.REFUSED:
            self._refuse(route, proof, bucketed)
        elif not entry.why_eager:
            if proof.may_learn_more and call.kind not in self._is_transparent:
                # Whole numbers may be tried once it is known that every index can be checked; a capture tells.
                try:
                    self._capture(arena, entry, call, bucketed)
                except RunEagerly:
                    return result
                if self._is_transparent.get(call.kind):
                    self._proofs.forget(proof)
                    return result
            if proof.is_proved:
                self._use(route, proof, call)
        return result

    def _is_proved_already(self, route: Route, call: Call) -> bool:
        """Whether the proof follows from others; the route has it then."""
        assert route.bucketed is not None and self._dims is not None
        names = lambda: argument_paths(self._fn, call.args, call.kwargs)  # noqa: E731
        kind = call.kind_of_proof(self._dims.of(call.structure, call.tensors, names))
        proof = self._proofs.already(kind, route.bucketed.actual, route.bucketed.bucket)
        if proof is not None:
            self._use(route, proof, call)
        return proof is not None

    def _use(self, route: Route, proof: Proof, call: Call) -> None:
        route.proof = proof
        route.content = [proof.content.get(i, Pad.ZERO) for i in range(len(call.tensors))]

    def _refuse(self, route: Route, proof: Proof, bucketed: Bucketed) -> None:
        route.entry, route.why_eager = None, f"padding refused: {proof.reason}"
        if process.require().counters.event("padding_refused", proof.reason, proof.op, proof.where):
            process.log.warning("%s: %s", self._name, refusal(proof, bucketed.bucket))

    def _cut(self, route: Route, entry: Entry) -> None:
        """Make out how a replay's results are cut to the call's size.

        Raises:
            RunEagerly: they cannot be.
        """
        assert route.proof is not None
        results = entry.results
        sizes: list[Sequence[int] | None] = []
        if len(route.proof.sizes) != len(results):
            route.entry, route.why_eager = None, "the captured function returned something else than before"
            raise RunEagerly(route.why_eager)
        for size, result in zip(route.proof.sizes, results):
            if result.of_input >= 0 and not result.layout[0]:
                route.entry, route.why_eager = None, "a result is a view of a padded argument"
                raise RunEagerly(route.why_eager)
            made = result.made
            sizes.append(size if made is not None and tuple(made.size()) != tuple(size) else None)
        route.result_sizes = sizes

    def _look_for_views(self, route: Route, entry: Entry, tensors: Sequence[Tensor]) -> None:
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

    def _caller(self, call: Call, fn: Callable[..., Any] | None = None) -> Callable[[list[Tensor]], Any]:
        """The function of the call's tensors, all else as in the call."""

        def run(given: list[Tensor]) -> Any:
            rest = iter(given)
            args = replace(tuple(call.args), lambda _: next(rest))
            return (fn or self._fn)(*args, **replace(dict(call.kwargs), lambda _: next(rest)))

        return run

    # -- above the largest bucket -----------------------------------------------------------------

    def _in_chunks(self, route: Route, big: TooLarge, call: Call) -> Any:
        """A call above the largest bucket in pieces, once it is proved that they give the same.

        Raises:
            RunEagerly: they do not.
        """
        assert self._dims is not None
        if self._sizes.above is not Above.CHUNKS or route.why_eager.endswith("pieces"):
            raise RunEagerly(route.why_eager)
        if big.joints is None:
            names = argument_paths(self._fn, call.args, call.kwargs)
            big.dims = self._dims.of(call.structure, call.tensors, lambda: names)
            big.pieces = self._sizes[big.name].chunks(big.sizes[big.name])
            proof, joints = prove_chunks(
                self._caller(call), names, call.tensors, big.dims, big.name, big.pieces
            )
            self._eager["proving that pieces give the same"] += 1
            if proof.is_proved:
                big.joints = joints
            elif proof.status is Status.REFUSED:
                route.why_eager += ", and does not give the same in pieces"
                self._proofs.refusals[f"{big.name}={big.sizes[big.name]}"] = proof
            return proof.result
        piecewise = self._caller(call, lambda *args, **kwargs: self._slow(args, kwargs))
        return join([piecewise(piece) for piece in split(call.tensors, big.dims, big.name, big.pieces)], big.joints)

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

        def is_gone(entry: Entry) -> bool:
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

    def _is_trusted(self, entry: Entry) -> bool:
        """Whether enough replays have gone the slow way for the short one to be taken."""
        least = process.require().settings.trusted_replay_threshold
        return least is None or self._options.mode is ReplayMode.HOT or entry.n_replays() >= least

    def _sample_every(self) -> int:
        """One replay in so many takes the slow way again; 0: none."""
        if self._options.mode is ReplayMode.ADAPTIVE:
            return SAMPLED_IN_ADAPTIVE
        every = process.require().settings.trusted_replay_sample_interval
        return every or 0 if self._options.mode is ReplayMode.STANDARD else 0

    # -- eager or graph ---------------------------------------------------------------------------

    def _the_faster(self, arena: Arena, entry: Entry, route: Route, call: Call) -> tuple[Any, bool]:
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
        return self._sizes.plan()

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write the plan where ``graphed(..., buckets="plan.json")`` reads it."""
        Path(path).write_text(self.plan().to_json(), encoding="utf-8")

    def why(self) -> str:
        """Why calls run as they do: what was measured, which padding was refused, what ran eagerly."""
        lines = [f"{self._name}: {self._options.mode.value}"]
        if self._adaptive is not None:
            lines += [f"  {line}" for line in self._adaptive.why().splitlines()]
        for label, proof in self._proofs.refusals.items():
            place = f" at {proof.where}" if proof.where else ""
            lines.append(f"  {label}: eager: {proof.reason}; first {proof.op or 'in the result'}{place}")
        lines += [f"  {n} calls eager: {reason}" for reason, n in self._eager.most_common()]
        return "\n".join(lines)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _digest(structure: Any) -> str:
    return hashlib.sha256(repr(structure).encode()).hexdigest()[:8]
