"""A function with collectives, captured by every rank at the same call.

Problem: ranks of one job meet in collectives, so each must run the same ones in the same order. Idea: a call runs
each collective of the function once, by a graph or eagerly, so a rank may replay while another runs the function
itself. What is left:

    twice     nothing runs twice: a capture is not split, and no graph is run to compare it
    capture   libraries may talk to the other ranks in one, so all make it at the same call: the first after the
              warm-ups, and never again. What changes later runs eagerly, with its reason
    size      if buckets are given, each call runs at the bucket of the largest input of any rank (ranks.py)

The function is not traced, for Dynamo replaces collectives by other operations; what it reads in Python is a snapshot
(states.py). Padding rows are zeros, and results are cut to the rank's own rows. The function must guarantee that
padding does not affect them, as always when ranks are padded to a common size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.arena import Arena
from gfxgraph.callables.buckets import Bucketed
from gfxgraph.callables.captured import WARM_UP, Captured, label_of
from gfxgraph.callables.distributed.ranks import Ranks
from gfxgraph.callables.effects import ArgumentWrites
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.inputs import tensors_of
from gfxgraph.callables.options import Options
from gfxgraph.callables.python_reads import Snapshot
from gfxgraph.callables.signature import Args, Call, Kwargs, RunEagerly, replace
from gfxgraph.callables.states import SeenState, States
from gfxgraph.callables.trace.watch import Unwatchable
from gfxgraph.types import OnUnsafe

_DROPPED = "its graph was dropped, and a rank alone captures nothing"


@dataclass
class _Signature:
    """What is known of the calls with one signature."""

    n_calls: int = 0
    after: Snapshot | None = None
    """The state that the last warm-up has left unchanged."""
    state: SeenState | None = None
    """The state of its capture."""
    why_eager: str = ""


class _RankStates(States):
    """The states of a function with collectives: one for each signature, of the call that captures it."""

    def __init__(self, *about: Any, warmup: int, max_graphs: int) -> None:
        super().__init__(*about)
        self._warmup, self._max_graphs = warmup, max_graphs
        self.reset()

    def reset(self) -> None:
        """Forget every signature; every rank must do so at the same call."""
        self._known: dict[Any, _Signature] = {}

    def enter(self, call: Call) -> bool:
        """Find the state that this call is in; False for a warm-up.

        Raises:
            RunEagerly: it has no graph.
        """
        known = self._known.setdefault(call.key, _Signature())
        if known.state is None and not known.why_eager:
            known.n_calls += 1
            if known.n_calls <= self._warmup:
                return False
            if sum(each.state is not None for each in self._known.values()) >= self._max_graphs:
                known.why_eager = "more signatures than max_graphs"
            elif known.after is not None:
                now = self.look()
                if now.key == known.after.key:
                    known.state = SeenState(now.watched(), keeps_results=True)
                else:
                    known.why_eager = f"{known.after.differs(now)} changed before its capture"
        if known.state is None:
            raise RunEagerly(known.why_eager)
        if not known.state.is_same():
            now = self.look()
            if now.key != known.state.snapshot.key:
                raise RunEagerly(f"{known.state.snapshot.differs(now)} has changed")
            known.state.snapshot = now.watched()
        call.in_world(known.state)
        return True

    def trace(self, arena: Arena, call: Call) -> Any:
        """Run a warm-up, and find out whether a graph can replace the function on this rank."""
        known = self._known[call.key]
        try:
            before = self.look()
        except Unwatchable as what:
            result, why = self.run(arena, call, WARM_UP), f"it reads {what}"
        else:
            result, known.after, why = self.run_watched(arena, call, WARM_UP, before)
            if not why and known.after.key != before.key:
                why = f"it changes {before.differs(known.after)} itself"
        if why:
            known.why_eager = self.shared.fall_back(why, label=label_of(call.tensors), for_good=False)
        return result


class _CapturedOnRanks(Captured):
    """One signature of a function with collectives."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.arena.entries.discard(self)  # not evicted: it would not be captured again
        self.on_unsafe = OnUnsafe.RAISE
        self.runs_alone = False
        self._why_no_more = ""

    def record(self, call: Call, bucketed: Bucketed | None) -> None:
        """Capture it, once.

        Raises:
            RunEagerly: it stays eager.
        """
        if self._why_no_more:
            raise RunEagerly(self._why_no_more)
        self._why_no_more = _DROPPED
        try:
            super().record(call, bucketed)
        except RunEagerly as failed:
            self._why_no_more = failed.why
            raise


class Agreed(Graphed):
    """A function of one rank's tensors with collectives in it, replayed as a graph where a rank can.

    Args:
        fn: the function, its collectives included.
        ranks: who decides on sizes; by default all ranks of torch.distributed.
        buckets: sizes of the first dimension of the first tensor, and of every other tensor with the same size
            there; None uses the actual sizes, which must then be the same on all ranks. A single rank is
            never padded.
        warmup: eager calls before a capture.
        max_graphs: most captured signatures.

    Every rank calls it equally often, with the same options.

    Raises:
        TypeError: ``fn`` cannot be called.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        ranks: Ranks | None = None,
        *,
        buckets: Sequence[int] | None = None,
        warmup: int = 1,
        max_graphs: int = 16,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"Agreed() takes a function or a module, not {fn!r}")
        self._given: dict[str, Any] = {
            "ranks": ranks, "buckets": buckets, "warmup": warmup, "max_graphs": max_graphs,
        }  # fmt: skip
        super().__init__(fn, Options(warmup=0, max_graphs=max_graphs))
        self._shared.says = "a function of several ranks runs eagerly: "
        self._worlds = _RankStates(
            self._shared, lambda: {"fn": fn}, warmup=max(1, warmup), max_graphs=max(1, max_graphs)
        )
        self._captured = _CapturedOnRanks
        self._ranks = ranks
        self._sizes = sorted(int(b) for b in buckets) if buckets is not None else None
        self._written: dict[Any, set[int]] = {}
        """By padded shapes: positions of arguments that the function writes to."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; every rank must call it equally often.

        Raises:
            CaptureError: `ranks_missing`, where a rank did not say its size in time.
        """
        if self._sizes is not None:
            rows, size = self._common_size((args, kwargs), self._sizes)
            if size != rows:
                return self._padded(args, kwargs, rows, size)
        return super().__call__(*args, **kwargs)

    @property
    def _same(self) -> tuple[Callable[[Any], Graphed], Any]:
        return functools.partial(Agreed, **self._given), self._fn

    def _common_size(self, tree: Any, sizes: Sequence[int]) -> tuple[int, int]:
        """Rows of this rank, and rows that all ranks run."""
        given = tensors_of(tree)
        rows = given[0].size(0) if given and given[0].dim() else 0
        if self._ranks is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            self._ranks = Ranks(name=self._name)
        if not rows or self._ranks is None or self._ranks.size == 1:  # one rank has nobody to be padded to
            return rows, rows
        most = self._ranks.largest(rows)
        # Above the largest bucket: the size of the largest input, so that collectives still match.
        return rows, next((b for b in sizes if b >= most), most)

    def _padded(self, args: Args, kwargs: Kwargs, rows: int, size: int) -> Any:
        """Run a call padded to the common size, and copy back what the function writes to its arguments."""
        wider: list[tuple[Tensor, Tensor, int]] = []

        def widen(given: Tensor) -> Tensor:
            made = _pad(given, rows, size)
            wider.append((given, made, made._version))
            return made

        args, kwargs = replace(args, widen), replace(kwargs, widen)
        # torch does not count what a collective writes: the first call compares.
        key = tuple(made.shape for _, made, _ in wider)
        writes = ArgumentWrites([made for _, made, _ in wider]) if key not in self._written else None
        result = super().__call__(*args, **kwargs)
        if writes is not None:
            self._written[key] = writes.found()
        for i, (given, wide, version) in enumerate(wider):
            if wide is not given and (wide._version != version or i in self._written[key]):
                with torch.no_grad():
                    given.copy_(wide[:rows])
        return replace(result, lambda t: t[:rows].clone() if t.dim() and t.size(0) == size else t)


def _pad(tensor: Tensor, rows: int, size: int) -> Tensor:
    """Append rows of zeros up to ``size``."""
    if not tensor.dim() or tensor.size(0) != rows:
        return tensor
    made = tensor.new_zeros((size, *tensor.shape[1:]))
    made[:rows].copy_(tensor)
    return made
