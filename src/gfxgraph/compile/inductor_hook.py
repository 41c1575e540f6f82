"""Receives Inductor's compiled callables for capture.

Torch looks up ``compile_fx.cudagraphify`` anew for each callable, or for each partition where Inductor has split one
around operations that no graph can hold; we wrap that function. Torch 2.12 added an official hook,
``torch._inductor.config.cudagraph_policy``, which leaves partitions to the policy; the older way serves every torch.

Whether a compilation is ours is decided by a mark set while it runs. The backward may be compiled much later, at the
first ``backward()``, in an autograd thread; Inductor restores its configuration for that, and we our mark.

Inductor also tells its own tree of graphs that a backward runs which could not be captured, and raises
if the forward has made no tree. If the forward is ours there is no tree to tell.

Source: torch 2.11, 2.12, 2.13, 2.14, 2.15, ``_inductor/output_code.py``; docs/decisions/compile-and-engines.md, 0080.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gfxgraph import torch_names
from gfxgraph.callables.pieces.region import Piece, Region, live_regions
from gfxgraph.compile import simulated
from gfxgraph.process import calls

_mine = threading.local()
_lock = threading.Lock()
_is_standing = False


@contextmanager
def marked(max_graphs: int) -> Iterator[None]:
    """Everything compiled in this block is handed to us."""
    before = getattr(_mine, "max_graphs", None)
    _mine.max_graphs = max_graphs
    try:
        yield
    finally:
        _mine.max_graphs = before


def why_off() -> str:
    """Why Inductor's callables cannot be handed to us with this torch; "" if they can. Imports Inductor."""
    features = ["torch.compile's graphs", "capture", "compiled regions", "torch.compile"]
    if simulated.is_on():
        features.append("torch.compile in the simulator")
    return next(filter(None, map(torch_names.why_off, features)), "")


def compile_with(
    max_graphs: int, compile_fx: Callable[..., object], gm: object, inputs: object, config: dict[str, object]
) -> object:
    """Compile ``gm`` with Inductor, with its callables handed to us, now and when the backward is compiled."""
    stand()
    config = {**config, "triton.cudagraphs": True}

    def inner(*args: object, **kwargs: object) -> object:
        with marked(max_graphs):
            return torch_names.compile_fx_inner(*args, **kwargs)

    with marked(max_graphs):  # a result from the cache involves no inner compilation
        return compile_fx(gm, inputs, inner_compile=inner, config_patches=config)


class Regions:
    """How the calls of compiled regions ran, for the account of calls; those of pieces are their callable's."""

    def __init__(self) -> None:
        self._before: weakref.WeakKeyDictionary[Region, dict[str, Any]] = weakref.WeakKeyDictionary()
        """What they had counted at the last reset."""

    def tables(self) -> Iterator[dict[str, object]]:
        for region in live_regions():
            if not isinstance(region, Piece):
                found, before = region.stats(), self._before.get(region, {"replays": 0, "eager": {}})
                eager = dict(Counter(found["eager"]) - Counter(before["eager"]))
                table = calls.Account(region.name, is_part=True).table()
                yield {**table, "by_graph": found["replays"] - before["replays"], "eager": eager}

    def reset(self) -> None:
        for region in live_regions():
            self._before[region] = region.stats()


def stand() -> None:
    """Install the wrappers. They change nothing for compilations that are not ours."""
    global _is_standing
    with _lock:
        if _is_standing:
            return

        handle = torch_names.maybe_handle_backward_generation

        def without_a_tree(graph: object, boxed_forward_device_index: object) -> object:
            if getattr(_mine, "max_graphs", None) is not None:
                return None
            return handle(graph, boxed_forward_device_index)

        stock = torch_names.cudagraphify

        def cudagraphify(model: Any, static_input_idxs: Sequence[int] = (), **known: Any) -> object:
            max_graphs = getattr(_mine, "max_graphs", None)
            if max_graphs is None:
                return stock(model, static_input_idxs, **known)
            return Region(
                model,
                static_input_idxs,
                known.get("mutated_input_idxs", ()),
                is_backward=bool(known.get("is_backward")),
                is_inference=bool(known.get("is_inference")),
                is_partition=getattr(_mine, "n_parts", 1) > 1,
                max_graphs=max_graphs,
            )

        by_parts = torch_names.cudagraph_partition_post_compile

        def counting(inputs: object, graph: Any, *rest: object, **named: object) -> object:
            _mine.n_parts = len(graph.partition_maps or ())
            try:
                return by_parts(inputs, graph, *rest, **named)
            finally:
                _mine.n_parts = 1

        calls.others.append(Regions())
        torch_names.put("maybe_handle_backward_generation", without_a_tree)
        torch_names.put("cudagraphify", cudagraphify)
        torch_names.put("cudagraph_partition_post_compile", counting)
        _is_standing = True
