"""Capturing every bucket before the first call, largest first, under the memory limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gfxgraph.callables.arena import Arena, CaptureDied, arena_of, kind_and_line
from gfxgraph.callables.buckets import Bucketed, argument_paths
from gfxgraph.callables.padding.judge import PaddingRefusal
from gfxgraph.callables.signature import Args, Call, InPieces, Kwargs, NotATree, RunEagerly, flatten, understand
from gfxgraph.process import bridge
from gfxgraph.process.progress import Progress

if TYPE_CHECKING:
    from gfxgraph.callables.captured import Captured
    from gfxgraph.callables.graphed import Graphed

Todo = tuple["Captured", Bucketed, bool]


def capture_all(graphed: Graphed, args: Args, kwargs: Kwargs) -> dict[str, int]:
    """See ``Graphed.capture_all``."""
    state = bridge.process_for_callables()
    if state is None or graphed._dims is None:
        return {"n_captured": 0, "n_left": 0}
    tensors: list[Tensor] = []
    structure = flatten((args, kwargs), tensors)
    graphed._at(state)
    call = understand(graphed._name, args, kwargs, tensors, structure, graphed._is_in_place)
    arena = arena_of(state, call.device)
    where = lambda: argument_paths(graphed._fn, args, kwargs)  # noqa: E731
    with arena.lock:
        buckets = graphed._dims.all_buckets(structure, tensors, where)
        try:
            if not graphed._worlds.enter(call):  # the example itself, so that it is known what the function does
                graphed._warmed(arena, call, graphed._worlds.trace(arena, call))
                if call.world is None and not graphed._worlds.enter(call):
                    raise RunEagerly("the function is not traced")
        except (RunEagerly, InPieces) as reason:
            arena.state.report("fallback", f"not captured ahead: {reason.why}", graphed._name)
            return {"n_captured": 0, "n_left": len(buckets)}
        except torch.OutOfMemoryError as error:
            arena.state.report("fallback", "capturing ahead stopped", graphed._name, kind_and_line(error))
            return {"n_captured": 0, "n_left": len(buckets)}
        todo: list[Todo] = []
        n_left = 0
        for bucketed in buckets:
            entry = graphed._entry_in_bucket(arena, call, bucketed)
            if entry.is_captured or entry.why_eager:
                continue
            repeats_last = graphed._padding.ahead(call, bucketed)
            if isinstance(repeats_last, PaddingRefusal):
                why = f"not captured ahead: the example's values do not suit its size: {repeats_last.reason}"
                arena.state.report("fallback", why, graphed._name, entry.label)
                n_left += 1
            else:
                todo.append((entry, bucketed, repeats_last))
        done = _capture(graphed, arena, todo, call)
        done["n_left"] += n_left
        return done


def _capture(graphed: Graphed, arena: Arena, todo: list[Todo], call: Call) -> dict[str, int]:
    n_done, largest = 0, 0
    progress = Progress(f"gfxgraph: {graphed._name}, capturing")
    current = torch.cuda.current_stream(arena.device_index)
    try:
        ready = [each for each in todo if _is_warm(graphed, call, *each)]
        for entry, _, repeats_last in ready:
            # The largest comes first: no other takes more than it did.
            if arena.graph_nbytes() + max(largest, entry.input_nbytes + entry.result_nbytes) > arena.cap():
                break
            _fill(entry, call, repeats_last)
            entry.first = entry.capture()
            entry.n_seen = graphed._options.warmup
            graphed._shared.n_captures += 1
            arena.use(entry)
            n_done, largest = n_done + 1, max(largest, entry.nbytes)
            if progress.is_live:
                progress.update(n_done, len(ready), "buckets")
    except (CaptureDied, torch.OutOfMemoryError, NotATree) as error:
        arena.state.report("fallback", "capturing ahead stopped", graphed._name, kind_and_line(error))
    progress.close()
    for entry, _, _ in todo:
        if not entry.is_captured:
            entry.let_go_of_inputs()
    current.wait_stream(arena.stream)
    return {"n_captured": n_done, "n_left": len(todo) - n_done}


def _is_warm(graphed: Graphed, call: Call, entry: Captured, bucketed: Bucketed, repeats_last: bool) -> bool:
    """Make static inputs of the bucket's size and warm up on the example; False if that is not a single graph."""
    entry.prepare(call.args, call.kwargs, call.tensors, bucketed.sizes)
    _fill(entry, call, repeats_last)
    entry.world, n_more = call.world, graphed._options.warmup
    if graphed._front is not None:
        with torch.cuda.stream(entry.arena.stream):
            result, entry.world = graphed._padding.run_known(entry.args, entry.kwargs)
        entry.is_drawless = all(piece.is_drawless for _, piece in graphed._front.graphs)
        if entry.world.why_pieces:
            why = f"not captured ahead: {entry.world.why_pieces}"
            entry.arena.state.report("fallback", why, graphed._name, entry.label)
            return False
        entry.warmed(result)
        n_more -= 1
    entry.run_once(n_more)
    return True


def _fill(entry: Captured, call: Call, repeats_last: bool) -> None:
    """Copy the example's values, cut to the bucket's size; captures share inputs, so this precedes each one."""
    entry.arena.stream.wait_stream(torch.cuda.current_stream(entry.arena.device_index))
    with torch.cuda.stream(entry.arena.stream):
        fits = [t.detach()[tuple(slice(0, n) for n in s.tensor.size())] for t, s in zip(call.tensors, entry.statics)]
        entry.fill(fits, repeats_last)
