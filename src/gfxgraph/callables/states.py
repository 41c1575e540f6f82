"""The worlds of functions that Dynamo does not trace as a whole: training steps, and functions with collectives.

What such a function reads is a snapshot (python_reads.py), taken before and after an eager call. A state that a call
has left unchanged is one in which a graph can replace the function. The graph runs while the state is the same, which
is checked before each replay; what changed is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gfxgraph.callables.arena import Arena, beside
from gfxgraph.callables.buffers import tensors_of
from gfxgraph.callables.captured import Shared
from gfxgraph.callables.python_reads import HostEffects, Snapshot
from gfxgraph.callables.signature import Call
from gfxgraph.callables.trace.dynamo import returned
from gfxgraph.capture.replay.graph_tensors import has_layout, storage_address
from gfxgraph.watching.watch import Unwatchable

_tokens = itertools.count(1)


class SeenState:
    """One state in which a function has a graph: a world, as of what Dynamo traces.

    Args:
        now: a snapshot of it.
        keeps_results: a result that is a tensor which the function reads is handed out as it is, not copied.
    """

    written_homes: frozenset[int] = frozenset()

    def __init__(self, now: Snapshot, *, keeps_results: bool = False) -> None:
        self.snapshot = now
        tensors = now._walk.tensors if keeps_results else []
        self.homes = frozenset(storage_address(t) for t in tensors if t.is_cuda and has_layout(t))
        self.token = next(_tokens)
        self.gradients: list[tuple[Tensor, Tensor | None]] = []
        """Gradients that the graph depends on: it adds to them, or was captured when there were none."""

    def fits(self) -> bool:
        """True if the gradients are those that the graph depends on."""
        return all(parameter.grad is grad for parameter, grad in self.gradients)

    def is_same(self) -> bool:
        """False if something may have changed."""
        return self.snapshot.is_same() and self.fits()


class States:
    """The states of one callable; in the place of `Worlds`.

    Args:
        shared: the account of the callable.
        roots: where snapshots begin, by name.
    """

    structures: tuple[Any, ...] = ()
    n_one_graph = 0
    why_pieces = ""
    with_gradients = ()

    def __init__(self, shared: Shared, roots: Callable[[], dict[str, Any]]) -> None:
        self.shared = shared
        self._roots = roots

    def look(self) -> Snapshot:
        """A snapshot of what the function reads.

        Raises:
            Unwatchable: it reads something that cannot be watched.
        """
        return Snapshot(self._roots())

    def run(self, arena: Arena, call: Call, why: str) -> Any:
        """Run the call itself, eagerly, where it would be captured; ``why`` is counted."""

        def fn(*args: Any, **kwargs: Any) -> Any:
            result = self.shared.fn(*args, **kwargs)
            self.shared.eager.count(why)
            return returned(call.kwargs, result, True)

        return beside(arena, fn, call.args, call.kwargs)

    def run_watched(self, arena: Arena, call: Call, why: str, before: Snapshot) -> tuple[Any, Snapshot, str]:
        """Run the call eagerly; return its result, the state after it, and why no graph can replace it."""
        with HostEffects() as effects:
            result = self.run(arena, call, why)
        if effects.found:
            return result, before, effects.found
        if any(t.requires_grad for t in tensors_of(result)):
            return result, before, "its result needs gradients"
        try:
            return result, self.look(), ""
        except Unwatchable as what:
            return result, before, f"it reads {what}"
