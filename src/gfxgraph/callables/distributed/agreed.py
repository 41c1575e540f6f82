"""A function that is captured on every rank or on none.

    step = gfxgraph.Agreed(step, buckets=[1, 8, 64])       # the same on every rank
    y = step(x)                                            # equally often on every rank

Its collectives are captured with it, so all ranks must run the same thing at the same time: the same
bucket, a graph or no graph. What the ranks decide together (ranks.py), and when:

    bucket     each call, if buckets are given: the one for the largest input of any rank
    capture    after the capture: kept if it succeeded on every rank
    eviction   before a capture: what any rank has no room for is evicted on all
    fall back  every ``check_every`` calls: if a rank's graph has failed, all drop theirs
    change     at the same checks: if what a rank's function reads in Python has changed, all capture again

A rank whose replay fails does not stop the others, which have already launched: until the next check it runs the
function itself, with the same collectives in the same order. So does a rank that finds that something
its function reads in Python has changed (python_reads.py), so that no rank replays an outdated graph. A
capture here is never split: a split runs a part of the function, and collectives run by one rank's capture
would have no partner. For the same reason no graph is run again for comparison.

Between two checks a call takes the fast path of graphed callables (fast_path/), without asking other ranks.

Padding rows are zeros, and results are cut to the rank's own rows. The function must guarantee that padding does not
affect them, as always when ranks are padded to a common size.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.arena import Arena, CaptureDied, beside, current_arena, kind_and_line
from gfxgraph.callables.captured import WARM_UP, Captured, CapturedCallable, Shared, label_of
from gfxgraph.callables.distributed.ranks import Ranks, RanksMissing
from gfxgraph.callables.effects import ArgumentWrites
from gfxgraph.callables.fast_path import make_fast
from gfxgraph.callables.graphed import never
from gfxgraph.callables.inputs import tensors_of
from gfxgraph.callables.options import Options
from gfxgraph.callables.python_reads import HostEffects, Snapshot
from gfxgraph.callables.signature import (
    MISS,
    Args,
    Fast,
    Kwargs,
    NotATree,
    RunEagerly,
    has_buffer,
    key_of,
    replace,
    twins_of,
)
from gfxgraph.callables.trace.watch import Unwatchable
from gfxgraph.capture.replay.graph_tensors import kind_of
from gfxgraph.capture.undo import unbroken
from gfxgraph.errors import CaptureError, DriverError, first_line
from gfxgraph.types import OnUnsafe

MAX_CHANGES = 4
"""How many times a signature is captured again because what the function reads has changed."""


@dataclass(eq=False)
class _Bucket:
    """One signature and how its calls run. It is its own ``Reads`` for `make_fast`."""

    label: str
    entry: Captured | None = None
    """Kept by every rank; with ``failed`` set if this rank's graph has failed since."""
    failed: str = ""
    written: set[int] = field(default_factory=set)
    """Positions of arguments that an eager call wrote to."""
    warm: list[weakref.ref[Tensor]] = field(default_factory=list)
    """Results of the last eager call: one that is returned again comes from outside the function."""
    fast: Fast = never
    could_join: bool | None = None
    """Whether the graph could be joined to its copies when ``fast`` was made; None where it was not."""
    n_calls: int = 0
    n_since_check: int = 0
    n_changes: int = 0
    used_at: int = 0
    why_eager: str = ""
    snapshot: Snapshot | None = None
    """What the function read when it was captured on this rank."""
    objection: str = ""
    """Why this rank wants no graph; reported at the next capture."""
    changed: str = ""
    """What has changed on this rank; reported at the next check."""
    written_homes: frozenset[int] = frozenset()

    @property
    def has_graph(self) -> bool:
        return self.entry is not None and not self.failed

    def is_same(self) -> bool:
        return self.snapshot is not None and self.snapshot.is_same()

    def drop(self) -> None:
        """Capture again after the next warm-up."""
        self.entry, self.fast, self.n_calls, self.changed, self.failed = None, never, 0, "", ""
        self.could_join = None


class Agreed(CapturedCallable):
    """A function of one rank's tensors, replayed as a graph if every rank can.

    Args:
        fn: the function, its collectives included.
        ranks: who decides; by default all ranks of torch.distributed.
        buckets: sizes of the first dimension of the first tensor, and of every other tensor with the same size
            there; None uses the actual sizes, which must then be the same on all ranks. A single rank is
            never padded.
        warmup: eager calls before a capture.
        check_every: replays from one check of the graphs' health to the next; the same on every rank.
        max_graphs: most captured signatures on this rank.

    Raises:
        TypeError: ``fn`` cannot be called.
    """

    says = "ranks run eagerly together: "

    def __init__(
        self,
        fn: Callable[..., Any],
        ranks: Ranks | None = None,
        *,
        buckets: Sequence[int] | None = None,
        warmup: int = 1,
        check_every: int = 128,
        max_graphs: int = 16,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"Agreed() takes a function or a module, not {fn!r}")
        super().__init__(getattr(fn, "__qualname__", type(fn).__name__))
        self.fn = fn
        self._ranks = ranks
        self.buckets = sorted(int(b) for b in buckets) if buckets is not None else None
        self.warmup = max(1, warmup)
        self.check_every = max(1, check_every)
        self.max_graphs = max(1, max_graphs)
        self._place: Arena | None = None
        self._known: dict[Any, _Bucket] = {}
        self._last: _Bucket | None = None
        """The bucket whose fast path the next call may use; None if the ranks must first decide on its size."""
        self._n_calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; every rank must call it equally often."""
        last = self._last
        if last is not None and last.n_since_check < self.check_every:
            made = last.fast(args, kwargs)
            if made is not MISS:
                self._n_calls += 1
                last.n_since_check += 1
                last.used_at = self._n_calls
                self.n_replays += 1
                return made
        return self._slow(args, kwargs)

    @unbroken
    def _slow(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        place = current_arena()
        if place is None or torch.cuda.is_current_stream_capturing():
            return self.fn(*args, **kwargs)
        with place.lock:
            if place is not self._place:
                self.reset()
                self._place = place
            place.follow(torch.cuda.current_stream())
            self._n_calls += 1
            rows, size = self._agree_on_size((args, kwargs))
            if size != rows:
                return self._padded(place, args, kwargs, rows, size)
            bucket, made = self._run(place, args, kwargs)
            if self.buckets is None:
                self._last = bucket
                entry = bucket.entry
                if entry is not None and bucket.has_graph and entry.can_join is not bucket.could_join:
                    self._make_fast(bucket, args, kwargs)
            return made

    @property
    def ranks(self) -> Ranks:
        """The ranks that decide; torch.distributed need not be initialized before the first call."""
        if self._ranks is None:
            self._ranks = Ranks(name=self.name)
        return self._ranks

    def stats(self) -> dict[str, Any]:
        """``captures``, ``replays``, ``eager`` (calls by reason), ``signatures``; as for ``graphed``."""
        return {**super().stats(), "signatures": len(self._known), "graphs": len(self.graphs)}

    def explain(self) -> str:
        """Every signature: how it runs on this rank, and why."""
        lines = [f"{self.name}: rank {self.ranks.rank} of {self.ranks.size}, {self.n_replays} replays"]
        if self.ranks.is_broken:
            lines.append("  the ranks no longer decide together: everything runs eagerly")
        for bucket in self._known.values():
            graph = bucket.entry.first.graph if bucket.entry is not None and bucket.entry.first is not None else None
            how = bucket.failed or ("not captured yet" if graph is None else f"replays of {graph.steps_text()}")
            lines.append(f"  {bucket.label}: {f'eager: {bucket.why_eager}' if bucket.why_eager else how}")
        return "\n".join(lines)

    def reset(self) -> None:
        """Drop every capture; every rank must do so at the same call."""
        self._known.clear()
        self._last = None

    @property
    def graphs(self) -> list[str]:
        """Signatures that have a graph on this rank."""
        return [bucket.label for bucket in self._known.values() if bucket.has_graph]

    @property
    def why_eager(self) -> dict[str, str]:  # type: ignore[override]
        """Signatures that run eagerly for good, and why."""
        return {b.label: b.why_eager for b in self._known.values() if b.why_eager}

    # -- inside ---------------------------------------------------------------------------------------

    def _agree_on_size(self, tree: Any) -> tuple[int, int]:
        """Rows of this rank, and rows that all ranks run."""
        given = tensors_of(tree)
        rows = given[0].size(0) if given and given[0].dim() else 0
        if self.buckets is None or not rows or self.ranks.size == 1:  # one rank has nobody to be padded to
            return rows, rows
        most = self.ranks.largest("bucket", rows)
        if most is None:
            return rows, rows
        # Above the largest bucket: the size of the largest input, so that collectives still match.
        return rows, next((b for b in self.buckets if b >= most), most)

    def _padded(self, place: Arena, args: Args, kwargs: Kwargs, rows: int, size: int) -> Any:
        """Run a call padded to the common size, and copy back what the function writes to its arguments."""
        wider: list[tuple[Tensor, Tensor, int]] = []

        def widen(given: Tensor) -> Tensor:
            made = _pad(given, rows, size)
            wider.append((given, made, made._version))
            return made

        bucket, made = self._run(place, replace(args, widen), replace(kwargs, widen))
        for i, (given, wide, version) in enumerate(wider):
            if wide is not given and (wide._version != version or i in bucket.written):
                with torch.no_grad():
                    given.copy_(wide[:rows])
        return replace(made, lambda t: t[:rows].clone() if t.dim() and t.size(0) == size else t)

    def _run(self, place: Arena, args: Args, kwargs: Kwargs) -> tuple[_Bucket, Any]:
        tensors = _tensors(args, kwargs)
        bucket = self._bucket(args, kwargs, tensors)
        bucket.n_calls += 1
        bucket.used_at = self._n_calls
        why = self._why_eager(place, bucket, args, kwargs, tensors)
        if why == WARM_UP:
            self.eager.count(why)
            return bucket, self._warm_up(place, bucket, args, kwargs)
        entry = bucket.entry
        if not why:
            assert entry is not None and entry.first is not None
            try:
                with torch.no_grad():
                    entry.fill(tensors)
                    entry.replay(entry.first)
            except RunEagerly as failed:
                bucket.fast, bucket.failed = never, f"its replay failed: {first_line(failed.__cause__ or failed)}"
                place.state.report("fallback", f"{bucket.failed}; it runs eagerly", f"{self.name} {bucket.label}")
                why = bucket.failed
        if why:
            self.eager.count(why)
            return bucket, self.fn(*args, **kwargs)
        assert entry is not None and entry.first is not None
        bucket.written |= set(entry.mutates)
        self.n_replays += 1
        with torch.no_grad():
            entry.give_back_mutated(tensors)
            return bucket, entry.first.outputs.give(tensors, None, True)

    def _why_eager(self, place: Arena, bucket: _Bucket, args: Args, kwargs: Kwargs, tensors: Sequence[Tensor]) -> str:
        """Why a call is not a replay, "" if it is; makes the joint decisions that this call needs."""
        if bucket.why_eager or self.ranks.is_broken:
            return bucket.why_eager or "the ranks no longer decide together"
        if bucket.entry is None:
            if bucket.n_calls <= self.warmup:
                return WARM_UP
            if not self._capture(place, bucket, args, kwargs, tensors):
                return bucket.why_eager
        if bucket.n_since_check == self.check_every:
            bucket.n_since_check = 0
            self._check(bucket)
            if bucket.entry is None:
                bucket.n_calls += 1
                return bucket.why_eager or WARM_UP
        bucket.n_since_check += 1
        if not bucket.changed and bucket.has_graph:
            bucket.changed = self._what_changed(bucket)
        if bucket.changed:
            return f"{bucket.changed} has changed"
        assert bucket.entry is not None
        if bucket.entry.mutates and _overlap(tensors):
            return "arguments share memory, and it writes to one of them"
        return bucket.failed

    def _make_fast(self, bucket: _Bucket, args: Args, kwargs: Kwargs) -> None:
        """Make the fast path for calls like this one, until the next check."""
        entry = bucket.entry
        assert entry is not None
        try:
            made = make_fast(entry, bucket, args, kwargs, _tensors(args, kwargs), None, False, bucket)
        except DriverError as error:  # this call is done; later ones take the slow path
            why = "no fast path for such calls: a driver call failed"
            entry.arena.state.report("fallback", why, self.name, kind_and_line(error))
            made = None
        bucket.fast, bucket.could_join = made or never, entry.can_join

    def _check(self, bucket: _Bucket) -> None:
        """Exchange the state of all ranks' graphs; if one has failed or is outdated, all drop theirs together."""
        mine = "failed" if bucket.failed else "changed" if bucket.changed else "well"
        reason = bucket.failed or bucket.changed
        try:
            opinions = self.ranks.gather(f"{self.name} {bucket.label}: go on with the graph", [mine, reason])
        except RanksMissing:
            self._drop(bucket, bucket.failed or "the ranks no longer decide together")
            return
        states = {state for state, _ in opinions}
        if "failed" in states:
            self._drop(bucket, bucket.failed or "the graph of another rank has failed")
        elif "changed" in states:
            bucket.n_changes += 1  # the same on every rank
            what = next(why for state, why in opinions if state == "changed")
            if bucket.n_changes > MAX_CHANGES:
                self._drop(bucket, f"what it reads changes too often ({what})")
            else:
                bucket.drop()

    def _warm_up(self, place: Arena, bucket: _Bucket, args: Args, kwargs: Kwargs) -> Any:
        """Run a call eagerly and find out whether a graph can replace the function on this rank."""
        writes = ArgumentWrites(_tensors(args, kwargs))
        with HostEffects() as effects:
            before = self._look(bucket)
            made = beside(place, self.fn, args, kwargs)
        bucket.written |= writes.found()
        bucket.warm = [weakref.ref(tensor) for tensor in tensors_of(made)]
        after = self._look(bucket) if before is not None else None
        if before is not None and after is not None:
            bucket.objection = effects.found
            if before.key != after.key:
                bucket.objection = f"it changes {before.differs(after)} itself"
        if any(tensor.requires_grad for tensor in tensors_of(made)):
            bucket.objection = "its result needs gradients"
        odd = next((tensor for tensor in _tensors(args, kwargs) if not has_buffer(tensor)), None)
        if odd is not None:
            bucket.objection = f"an argument is {kind_of(odd)}"
        return made

    def _look(self, bucket: _Bucket) -> Snapshot | None:
        try:
            return Snapshot({"fn": self.fn})
        except Unwatchable as what:
            bucket.objection = f"it reads {what}"
            return None

    def _what_changed(self, bucket: _Bucket) -> str:
        """What the function reads that has changed since its capture; "" if it may be replayed."""
        known = bucket.snapshot
        assert known is not None
        if known.is_same():
            return ""
        now = self._look(bucket)
        if now is None:
            return bucket.objection
        if now.key != known.key:
            return known.differs(now)
        bucket.snapshot = now.watched()
        return ""

    @torch.no_grad()
    def _capture(self, place: Arena, bucket: _Bucket, args: Args, kwargs: Kwargs, tensors: Sequence[Tensor]) -> bool:
        """Capture on every rank or on none."""
        held = sorted((b for b in self._known.values() if b.entry is not None), key=lambda b: b.used_at)
        crowded = [b.label for b in held[: max(0, len(held) + 1 - self.max_graphs)]]
        for label in self.ranks.victims(f"{self.name}: evict", crowded):
            for other in held:
                if other.label == label:
                    place.state.report("eviction", "a rank had no room for it", self.name, label)
                    other.drop()
        if self.ranks.is_broken:
            bucket.why_eager = "the ranks no longer decide together"
            return False
        found = self._look(bucket)
        bucket.snapshot = found.watched() if found is not None else None
        made, why = None, bucket.objection
        if not why:
            try:
                made = self._captured(place, bucket, args, kwargs, tensors)
            except (CaptureDied, torch.OutOfMemoryError, NotATree) as error:
                # The other ranks are waiting for this answer, even if this one is out of memory.
                why = f"its capture failed: {first_line(error)}"
                place.state.report("fallback", f"{why}; it runs eagerly", f"{self.name} {bucket.label}")
        if not self.ranks.all_agree(f"{self.name} {bucket.label}: keep the capture", made is not None, why):
            self._drop(bucket, why or "its capture failed on another rank")
            return False
        bucket.entry = made
        self.n_captures += 1
        return True

    def _captured(
        self, place: Arena, bucket: _Bucket, args: Args, kwargs: Kwargs, tensors: Sequence[Tensor]
    ) -> Captured:
        """This rank's capture; raises as `Captured.capture`."""
        entry = Captured(place, Shared(self.fn, self.fn, None, self.name, Options()), bucket.label)
        place.entries.discard(entry)  # evictions are decided by all ranks
        entry.on_unsafe = OnUnsafe.RAISE
        entry.runs_alone = False  # in a trial run its collectives would have no partners
        entry.prepare(args, kwargs, tensors, [None] * len(tensors))
        entry.fill(tensors)
        entry.warm, entry.written = bucket.warm, set(bucket.written)
        place.stream.wait_stream(torch.cuda.current_stream())
        entry.first = entry.capture()
        return entry

    def _drop(self, bucket: _Bucket, why: str) -> None:
        bucket.drop()
        bucket.why_eager = self.fall_back(why, label=bucket.label, for_good=False)

    def _bucket(self, args: Args, kwargs: Kwargs, tensors: Sequence[Tensor]) -> _Bucket:
        key = key_of((args, kwargs)), tuple(twins_of(tensors))
        found = self._known.get(key)
        if found is None:
            if not all(t.is_cuda for t in tensors):
                raise CaptureError("wrong_device", tensor_device="cpu", graph_device="cuda", op=self.name, where="")
            found = self._known[key] = _Bucket(label_of(tensors))
        return found


def _tensors(args: Args, kwargs: Kwargs) -> list[Tensor]:
    """Every tensor among the arguments, in the order of `Captured.prepare`."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    replace((args, kwargs), note)
    return found


def _overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether two different tensors share a storage."""
    different = {id(tensor): tensor for tensor in tensors}.values()
    return len({tensor.untyped_storage().data_ptr() for tensor in different}) < len(different)


def _pad(tensor: Tensor, rows: int, size: int) -> Tensor:
    """Append rows of zeros up to ``size``."""
    if not tensor.dim() or tensor.size(0) != rows:
        return tensor
    made = tensor.new_zeros((size, *tensor.shape[1:]))
    made[:rows].copy_(tensor)
    return made


class GraphedOnRanks:
    """A graphed callable whose ranks decide together if there are several.

    Args:
        fn: the function, its collectives included.
        alone: the callable for one process.
        together: makes the callable for several ranks.
    """

    def __init__(self, fn: Callable[..., Any], alone: Any, together: Callable[[], Agreed]) -> None:
        self._alone = alone
        self._together = together
        self._agreed: Agreed | None = None
        self._world: Callable[[], object] = lambda: None
        """The group of all ranks that `_agreed` is for, where it lives."""
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    @property
    def chosen(self) -> Any:
        """The callable that calls go to now."""
        dist = torch.distributed
        if not dist.is_available():
            return self._alone
        world = dist.GroupMember.WORLD
        if world is None:
            return self._alone
        if self._world() is not world:  # the size of a group never changes
            if dist.get_world_size() <= 1:
                return self._alone
            if self._agreed is None:
                self._agreed = self._together()
            self._world = weakref.ref(world)
        return self._agreed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.chosen(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.chosen, name)
