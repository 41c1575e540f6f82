"""A function with collectives, captured by every rank at the same call.

Problem: ranks of one job meet in collectives, so each must run the same ones in the same order. Idea: a call runs
each collective of the function once, by a graph or eagerly, so a rank may replay while another runs the function
itself. What is left:

    twice     nothing runs twice: a capture is not split
    capture   libraries may talk to the other ranks in one, so all make it at the same call: the first after the
              warm-ups, and never again. What changes later runs eagerly, with its reason

The function is not traced, for Dynamo replaces collectives by other operations; what it reads in Python is a snapshot
(states.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gfxgraph.callables.arena import Arena
from gfxgraph.callables.buckets import Bucketed
from gfxgraph.callables.captured import Captured, Options, label_of
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.python_reads import Snapshot
from gfxgraph.callables.signature import Call, RunEagerly
from gfxgraph.callables.states import SeenState, States
from gfxgraph.callables.trace.dynamo import WARM_UP
from gfxgraph.types import OnUnsafe
from gfxgraph.watching.watch import Unwatchable

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
    """A function with collectives, replayed as a graph where a rank can.

    Args:
        fn: the function, its collectives included.
        warmup: eager calls before a capture.
        max_graphs: most captured signatures.

    Every rank calls it equally often, with the same options and arguments of the same sizes.

    Raises:
        TypeError: ``fn`` cannot be called.
    """

    def __init__(self, fn: Callable[..., Any], *, warmup: int = 1, max_graphs: int = 16) -> None:
        if not callable(fn):
            raise TypeError(f"Agreed() takes a function or a module, not {fn!r}")
        super().__init__(fn, Options(warmup=0, max_graphs=max_graphs))
        self._given: dict[str, Any] = {"warmup": warmup, "max_graphs": max_graphs}
        self._shared.says = "a function of several ranks runs eagerly: "
        self._worlds = _RankStates(
            self._shared, lambda: {"fn": fn}, warmup=max(1, warmup), max_graphs=max(1, max_graphs)
        )
        self._captured = _CapturedOnRanks

    @property
    def _same(self) -> tuple[Callable[[Any], Graphed], Any]:
        return functools.partial(Agreed, **self._given), self._fn
