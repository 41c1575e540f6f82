"""Capturing every bucket before the first call, largest first, under the memory limit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables import engine
from gfxgraph.callables.arena import Arena, arena_of
from gfxgraph.callables.buckets import Bucketed, argument_paths
from gfxgraph.callables.padding.witness import ChecksValues, WouldFault
from gfxgraph.callables.signature import NotATree, flatten
from gfxgraph.process import bridge

if TYPE_CHECKING:
    from gfxgraph.callables.entry import Entry
    from gfxgraph.callables.graphed import Graphed


def capture_all(graphed: Graphed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int]:
    """See ``Graphed.capture_all``."""
    state = bridge.process_for_callables()
    if state is None or graphed._dims is None:
        return {"n_captured": 0, "n_left": 0, "predicted_bytes": 0}
    tensors: list[Tensor] = []
    structure = flatten((args, kwargs), tensors)
    call = graphed._understand(state, structure, args, kwargs, tensors)
    arena = arena_of(state, call.device)
    with arena.lock:
        todo: list[tuple[Entry, Bucketed]] = []
        where = lambda: argument_paths(graphed._fn, args, kwargs)  # noqa: E731
        for bucketed in graphed._dims.all_buckets(structure, tensors, where):
            entry = graphed._entry_in_bucket(arena, call, bucketed)
            if not entry.is_captured and not entry.why_eager:
                todo.append((entry, bucketed))
        return _capture(graphed, arena, todo, call)


def _capture(graphed: Graphed, arena: Arena, todo: list[tuple[Entry, Bucketed]], call: Any) -> dict[str, int]:
    def capture(entry: Entry, pool: Any = None) -> Any:
        _fill(entry, call)
        instance = entry.capture(recorded=not graphed._may_go_unrecorded(call), pool=pool)
        graphed._learn(call, entry, instance)
        return instance

    n_done, predicted = 0, 0
    current = torch.cuda.current_stream(arena.device_index)
    try:
        ready = [entry for entry, bucketed in todo if _is_warm(graphed, entry, bucketed, call)]
        if ready:
            prediction = arena.predict([partial(capture, entry) for entry in ready])
            predicted = prediction.total(len(ready))
            ready = ready[: prediction.how_many(len(ready), arena.cap() - arena.graph_nbytes())]
        for entry in ready:
            entry.n_seen = graphed._warmup
            entry.first = capture(entry)
            graphed._n_captures += 1
            arena.use(entry)
            n_done += 1
    except (engine.CaptureDied, torch.OutOfMemoryError, NotATree) as error:
        arena.state.report("fallback", "capturing ahead stopped", graphed._name, engine.kind_and_line(error))
    for entry, _ in todo:
        if not entry.is_captured:
            entry.let_go_of_inputs()
    current.wait_stream(arena.stream)
    return {"n_captured": n_done, "n_left": len(todo) - n_done, "predicted_bytes": predicted}


def _is_warm(graphed: Graphed, entry: Entry, bucketed: Bucketed, call: Any) -> bool:
    """Static inputs of the bucket's size, and the warm-up on the example; False where that is not for this size."""
    entry.prepare(call.args, call.kwargs, call.tensors, bucketed.sizes)
    _fill(entry, call)
    try:
        with ChecksValues():
            entry.run_once(graphed._warmup)
    except WouldFault as error:
        # On the device it would be an assertion, after which the process can do nothing more there.
        why = f"not captured ahead, for the example's values are not for its size: {error}"
        entry.arena.state.report("fallback", why, graphed._name, entry.label)
        return False
    return True


def _fill(entry: Entry, call: Any) -> None:
    """The example's values, cut to the bucket's size; captures share their inputs, so before each one again."""
    entry.arena.stream.wait_stream(torch.cuda.current_stream(entry.arena.device_index))
    with torch.cuda.stream(entry.arena.stream):
        fits = [t.detach()[tuple(slice(0, n) for n in s.tensor.size())] for t, s in zip(call.tensors, entry.statics)]
        entry.fill(fits)
