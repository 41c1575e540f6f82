"""A function that is captured on every rank or on none.

    step = gfxgraph.Agreed(step, buckets=[1, 8, 64])       # the same on every rank
    y = step(x)                                            # as often on every rank

Its collectives are captured with it, so all ranks must run the same thing at the same time: the same
bucket, a graph or no graph. What the ranks decide together (ranks.py), and when:

    bucket     each call, where buckets are given: the one for the largest input of any rank
    capture    after the capture: kept where it succeeded on every rank
    eviction   before a capture: what any rank has no room for goes on all
    fall back  every ``check_every`` calls: where a rank's graph has failed, all drop theirs
    change     at the same checks: where what a rank's function reads in Python has changed, all capture anew

A rank whose replay fails does not stop the others, which have launched already: it runs the function
itself, the same collectives in the same order, until the next check. So does one that finds that something
its function reads in Python has changed (depends.py), so that no rank replays what no longer holds. A
capture here is never split: a split runs a part of the function, and collectives run by one rank's capture
would meet nobody.

Rows of padding are zeros, and results are cut to the rank's own rows. That padding does not show in them
is for the function to guarantee, as everywhere where ranks are padded to each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gfxgraph.callables.arena import Arena
from gfxgraph.callables.captured_function import CapturedFunction, arena, beside, copy_in, tensors_of
from gfxgraph.callables.depends import HostEffects, Snapshot, Unwatchable
from gfxgraph.callables.distributed.ranks import Ranks, RanksMissing
from gfxgraph.callables.signature import key_of
from gfxgraph.errors import CaptureError, first_line
from gfxgraph.types import OnUnsafe

MAX_CHANGES = 4
"""So many times a kind of arguments is captured anew because what the function reads has changed."""


@dataclass
class _Bucket:
    """One kind of arguments: where its calls go."""

    label: str
    inputs: list[Tensor] = field(default_factory=list)
    piece: CapturedFunction | None = None
    n_calls: int = 0
    n_since_check: int = 0
    n_changes: int = 0
    used_at: int = 0
    why_eager: str = ""
    snapshot: Snapshot | None = None
    """What the function read when it was captured on this rank."""
    objection: str = ""
    """Why this rank wants no graph, to be said at the next capture."""
    changed: str = ""
    """What has changed on this rank, to be said at the next check."""


class Agreed:
    """A function of one rank's tensors, replayed as a graph where every rank can.

    Args:
        fn: the function; its collectives are part of it.
        ranks: who decides; by default all ranks of torch.distributed.
        buckets: sizes of the first dimension of the first tensor, and of every other that has the same size
            there; None takes the sizes as they come, which must then be the same on all ranks.
        warmup: eager calls before a capture.
        check_every: replays from one check of the graphs' health to the next.
        max_graphs: captured kinds of arguments that this rank has room for.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        ranks: Ranks | None = None,
        *,
        buckets: Sequence[int] | None = None,
        warmup: int = 1,
        check_every: int = 32,
        max_graphs: int = 16,
    ) -> None:
        self.fn = fn
        self.name = getattr(fn, "__qualname__", type(fn).__name__)
        self._ranks = ranks
        self.buckets = sorted(int(b) for b in buckets) if buckets is not None else None
        self.warmup = max(1, warmup)
        self.check_every = max(1, check_every)
        self.max_graphs = max(1, max_graphs)
        self._place: Arena | None = None
        self._known: dict[Any, _Bucket] = {}
        self._n_calls = 0
        self._pool: Any = None
        self._n_captures = self._n_replays = 0
        self._eager: Counter[str] = Counter()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; every rank calls it equally often."""
        place = arena()
        if place is None or torch.cuda.is_current_stream_capturing():
            return self.fn(*args, **kwargs)
        with place.lock, torch.no_grad():
            if place is not self._place:
                self._place = place
                self._known.clear()
            place.follow(torch.cuda.current_stream())
            self._n_calls += 1
            rows, size = self._agree_on_size((args, kwargs))
            padded = (
                (args, kwargs)
                if size == rows
                else pytree.tree_map_only(Tensor, lambda t: _pad(t, rows, size), (args, kwargs))
            )
            made = self._run(place, padded)
            if size == rows:
                return made
            return pytree.tree_map_only(
                Tensor, lambda t: t[:rows].clone() if t.dim() and t.size(0) == size else t, made
            )

    @property
    def ranks(self) -> Ranks:
        """Who decides; torch.distributed need not be initialized before the first call."""
        if self._ranks is None:
            self._ranks = Ranks(name=self.name)
        return self._ranks

    def stats(self) -> dict[str, Any]:
        """``captures``, ``replays``, ``eager`` (calls by reason), ``signatures``; as of ``graphed``."""
        pieces = [b.piece for b in self._known.values() if b.piece is not None and b.piece.graph is not None]
        return {
            "captures": self._n_captures,
            "replays": self._n_replays,
            "eager": dict(self._eager),
            "signatures": len(self._known),
            "graphs": len(pieces),
        }

    def explain(self) -> str:
        """Every kind of arguments: how it runs on this rank, and why."""
        lines = [f"{self.name}: rank {self.ranks.rank} of {self.ranks.size}, {self._n_replays} replays"]
        if self.ranks.is_broken:
            lines.append("  the ranks no longer decide together: everything runs eagerly")
        for bucket in self._known.values():
            graph = bucket.piece.graph if bucket.piece is not None else None
            how = "not captured yet" if graph is None else f"replays of {graph.steps_text()}"
            lines.append(f"  {bucket.label}: {f'eager: {bucket.why_eager}' if bucket.why_eager else how}")
        return "\n".join(lines)

    def reset(self) -> None:
        """Drop every capture; every rank does it at the same call."""
        self._known.clear()
        self._pool = None

    @property
    def graphs(self) -> list[str]:
        """Kinds of arguments that have a graph on this rank."""
        return [b.label for b in self._known.values() if b.piece is not None and b.piece.graph is not None]

    @property
    def why_eager(self) -> dict[str, str]:
        """Kinds of arguments that run eagerly for good, and why."""
        return {b.label: b.why_eager for b in self._known.values() if b.why_eager}

    # -- inside ---------------------------------------------------------------------------------------

    def _agree_on_size(self, tree: Any) -> tuple[int, int]:
        """Rows of this rank, and rows that all ranks run."""
        given = tensors_of(tree)
        rows = given[0].size(0) if given and given[0].dim() else 0
        if self.buckets is None or not rows:
            return rows, rows
        most = self.ranks.largest("bucket", rows)
        if most is None:
            return rows, rows
        # Above the largest bucket: as large as the largest input, so that collectives still fit.
        return rows, next((b for b in self.buckets if b >= most), most)

    def _run(self, place: Arena, tree: Any) -> Any:
        args, kwargs = tree
        bucket = self._bucket(tree)
        bucket.n_calls += 1
        bucket.used_at = self._n_calls
        if bucket.why_eager or self.ranks.is_broken:
            self._eager[bucket.why_eager or "the ranks no longer decide together"] += 1
            return self.fn(*args, **kwargs)
        if bucket.piece is None:
            if bucket.n_calls <= self.warmup:
                self._eager["warm-up"] += 1
                return self._warm_up(place, bucket, args, kwargs)
            if not self._capture(place, bucket, tree):
                self._eager[bucket.why_eager] += 1
                return self.fn(*args, **kwargs)
        piece = bucket.piece
        assert piece is not None
        if bucket.n_since_check == self.check_every:
            bucket.n_since_check = 0
            self._check(bucket, piece)
            if bucket.piece is None:
                return self._run(place, tree)
        bucket.n_since_check += 1
        if not bucket.changed and piece.graph is not None:
            bucket.changed = self._what_changed(bucket)
        if bucket.changed:
            self._eager[f"{bucket.changed} has changed"] += 1
            return self.fn(*args, **kwargs)
        if piece.graph is None:
            self._eager[piece.why_eager] += 1
        else:
            self._n_replays += 1
        copy_in(bucket.inputs, tensors_of(tree))
        return pytree.tree_map_only(Tensor, torch.clone, piece.run())

    def _check(self, bucket: _Bucket, piece: CapturedFunction) -> None:
        """Every rank says how its graph is; where one is not well, all leave theirs together."""
        mine = "failed" if piece.graph is None else "changed" if bucket.changed else "well"
        reason = piece.why_eager or bucket.changed
        try:
            opinions = self.ranks.gather(f"{self.name} {bucket.label}: go on with the graph", [mine, reason])
        except RanksMissing:
            self._fall_back(bucket, piece.why_eager or "the ranks no longer decide together")
            return
        states = {state for state, _ in opinions}
        if "failed" in states:
            self._fall_back(bucket, piece.why_eager or "the graph of another rank has failed")
        elif "changed" in states:
            bucket.n_changes += 1  # the same on every rank
            what = next(why for state, why in opinions if state == "changed")
            if bucket.n_changes > MAX_CHANGES:
                self._fall_back(bucket, f"what it reads differs again and again ({what})")
            else:
                bucket.piece, bucket.inputs, bucket.n_calls, bucket.changed = None, [], 0, ""

    def _warm_up(self, place: Arena, bucket: _Bucket, args: Any, kwargs: Any) -> Any:
        """An eager call that tells whether a graph can stand for the function on this rank."""
        with HostEffects() as effects:
            before = self._look(bucket)
            made = beside(place, self.fn, args, kwargs)
        after = self._look(bucket) if before is not None else None
        if before is not None and after is not None:
            bucket.objection = effects.found
            if before.key != after.key:
                bucket.objection = f"it changes {before.differs(after)} itself"
        return made

    def _look(self, bucket: _Bucket) -> Snapshot | None:
        try:
            return Snapshot({"fn": self.fn})
        except Unwatchable as what:
            bucket.objection = f"it reads {what}"
            return None

    def _what_changed(self, bucket: _Bucket) -> str:
        """What the function reads otherwise than when it was captured; "" where it may be replayed."""
        known = bucket.snapshot
        assert known is not None
        if known.is_same():
            return ""
        now = self._look(bucket)
        if now is None:
            return bucket.objection
        if now.key != known.key:
            return known.differs(now)
        bucket.snapshot = now  # watched anew
        return ""

    def _capture(self, place: Arena, bucket: _Bucket, tree: Any) -> bool:
        """Capture on every rank or on none."""
        held = sorted((b for b in self._known.values() if b.piece is not None), key=lambda b: b.used_at)
        crowded = [b.label for b in held[: max(0, len(held) + 1 - self.max_graphs)]]
        for label in self.ranks.victims(f"{self.name}: evict", crowded):
            for other in held:
                if other.label == label:
                    place.state.report("eviction", "a rank had no room for it", self.name, label)
                    other.piece, other.inputs, other.n_calls = None, [], 0
        if self.ranks.is_broken:
            bucket.why_eager = "the ranks no longer decide together"
            return False
        name = f"{self.name} {bucket.label}"
        piece = CapturedFunction(place, self.fn, pool=self._pool, name=name, on_unsafe=OnUnsafe.RAISE)
        try:
            static = pytree.tree_map_only(Tensor, torch.empty_like, tree)
            piece.args, piece.kwargs = static
            bucket.inputs = tensors_of(static)
            copy_in(bucket.inputs, tensors_of(tree))
            bucket.snapshot = self._look(bucket)
            captured = not bucket.objection and piece.capture()
            piece.why_eager = bucket.objection or piece.why_eager
        except torch.OutOfMemoryError as error:  # the other ranks are waiting to hear it
            piece.why_eager = first_line(error)
            captured = False
        self._pool = piece.pool
        topic = f"{self.name} {bucket.label}: keep the capture"
        if not self.ranks.all_agree(topic, captured, piece.why_eager):
            self._fall_back(bucket, piece.why_eager or "its capture failed on another rank")
            return False
        bucket.piece = piece
        self._n_captures += 1
        return True

    def _fall_back(self, bucket: _Bucket, why: str) -> None:
        bucket.piece = None
        bucket.why_eager = why
        assert self._place is not None
        self._place.state.report("fallback", f"ranks run eagerly together: {why}", f"{self.name} {bucket.label}")

    def _bucket(self, tree: Any) -> _Bucket:
        key = key_of(tree)
        found = self._known.get(key)
        if found is None:
            given = tensors_of(tree)
            if not all(t.is_cuda for t in given):
                raise CaptureError("wrong_device", tensor_device="cpu", graph_device="cuda", op=self.name, where="")
            label = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in given)
            found = self._known[key] = _Bucket(label)
        return found


def _pad(tensor: Tensor, rows: int, size: int) -> Tensor:
    """Rows of zeros below those that there are."""
    if not tensor.dim() or tensor.size(0) != rows:
        return tensor
    made = tensor.new_zeros((size, *tensor.shape[1:]))
    made[:rows].copy_(tensor)
    return made
