"""Receives Inductor's compiled callables for capture.

Torch 2.12 added an official hook for that: ``torch._inductor.config.cudagraph_policy``. It passes the whole
callable, even if Inductor has split it into partitions around operations that no graph can
hold; so the policy handles the partitions one by one, as Inductor does itself. Torch 2.11 has no such hook,
but looks up ``compile_fx.cudagraphify`` anew for each callable; there we wrap torch's function.

Whether a compilation is ours is decided by the policy in effect while it runs (2.12), or by a mark set
while it runs (2.11). The backward may be compiled much later, at the first ``backward()``, in an autograd
thread; Inductor restores its configuration for that, and so do we with our mark.

Inductor also tells its own tree of graphs that a backward runs which could not be captured, and raises
if the forward has made no tree. If the forward is ours there is no tree to tell.

Source: torch 2.11, 2.12, 2.13, 2.14, 2.15, ``_inductor/output_code.py``; docs/decisions/0080.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gfxgraph.callables.pieces.region import Region

_mine = threading.local()
_lock = threading.Lock()
_is_standing = False


def has_policy() -> bool:
    """True if this torch has an official hook for other graph implementations."""
    # lazily: Inductor takes seconds to import
    from torch._inductor import config

    return hasattr(config, "cudagraph_policy")


@contextmanager
def marked(max_graphs: int) -> Iterator[None]:
    """Everything compiled in this block is handed to us, in torch 2.11's way."""
    before = getattr(_mine, "max_graphs", None)
    _mine.max_graphs = max_graphs
    try:
        yield
    finally:
        _mine.max_graphs = before


def patches(max_graphs: int) -> dict[str, Any]:
    """The configuration under which Inductor hands its callables to us."""
    stand()
    found: dict[str, Any] = {"triton.cudagraphs": True}
    if has_policy():
        found["cudagraph_policy"] = policy(max_graphs)
    return found


def compile_with(
    max_graphs: int, compile_fx: Callable[..., Any], gm: Any, inputs: Any, config: dict[str, Any]
) -> Any:
    """Compile ``gm`` with Inductor, with its callables handed to us, now and when the backward is compiled."""
    config = {**config, **patches(max_graphs)}
    if has_policy():
        return compile_fx(gm, inputs, config_patches=config)
    # lazily: Inductor takes seconds to import
    from torch._inductor.compile_fx import compile_fx_inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        with marked(max_graphs):
            return compile_fx_inner(*args, **kwargs)

    with marked(max_graphs):  # a result from the cache involves no inner compilation
        return compile_fx(gm, inputs, inner_compile=inner, config_patches=config)


def stand() -> None:
    """Install what is needed besides the policy. It changes nothing for compilations that are not ours."""
    global _is_standing
    with _lock:
        if _is_standing:
            return
        # lazily: Inductor takes seconds to import
        from torch._inductor import compile_fx, output_code

        handle = output_code.maybe_handle_backward_generation

        def without_a_tree(graph: Any, boxed_forward_device_index: Any) -> Any:
            if _is_ours():
                return None
            return handle(graph, boxed_forward_device_index)

        output_code.maybe_handle_backward_generation = without_a_tree
        if not has_policy():
            stock = compile_fx.cudagraphify

            def cudagraphify(model: Any, static_input_idxs: Sequence[int] = (), **known: Any) -> Any:
                max_graphs = getattr(_mine, "max_graphs", None)
                if max_graphs is None:
                    return stock(model, static_input_idxs, **known)
                return _region(model, static_input_idxs, max_graphs, known, getattr(_mine, "n_parts", 1) > 1)

            by_parts = output_code.cudagraph_partition_post_compile

            def counting(inputs: Any, graph: Any, *rest: Any, **named: Any) -> Any:
                _mine.n_parts = len(graph.partition_maps or ())
                try:
                    return by_parts(inputs, graph, *rest, **named)
                finally:
                    _mine.n_parts = 1

            compile_fx.cudagraphify = cudagraphify
            output_code.cudagraph_partition_post_compile = counting
        _is_standing = True


def _is_ours() -> bool:
    # lazily: Inductor takes seconds to import
    from torch._inductor import config

    return getattr(getattr(config, "cudagraph_policy", None), "is_gfxgraph", False) or (
        getattr(_mine, "max_graphs", None) is not None
    )


def _region(
    model: Any, static: Sequence[int], max_graphs: int, known: dict[str, Any], is_partition: bool = False
) -> Region:
    return Region(
        model,
        static,
        known.get("mutated_input_idxs", ()),
        is_backward=bool(known.get("is_backward")),
        is_inference=bool(known.get("is_inference")),
        is_partition=is_partition,
        max_graphs=max_graphs,
    )


def policy(max_graphs: int) -> Any:
    """Our policy for ``torch._inductor.config.cudagraph_policy``."""
    # lazily: Inductor takes seconds to import
    from torch._inductor import config
    from torch._inductor.cudagraph_utils import CUDAGraphPolicy

    class GfxGraphPolicy(CUDAGraphPolicy):  # type: ignore[misc]
        is_gfxgraph = True

        def should_wrap(self, compiled_graph: Any) -> bool:
            _mine.graph = compiled_graph  # cudagraphify is not told of which
            return True

        def cudagraphify(
            self, model: Any, example_inputs: Any, static_input_idxs: Sequence[int], **known: Any
        ) -> Any:
            graph = getattr(_mine, "graph", None)
            _mine.graph = None
            if not config.graph_partition or graph is None or graph.current_callable is not model:
                return _region(model, static_input_idxs, max_graphs, known)
            if graph.partition_maps and graph.recursively_apply_fns is not None:
                graph.recursively_apply_fns(_for_partitions(graph, static_input_idxs, max_graphs, known))
            return model

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    return GfxGraphPolicy()


def _for_partitions(
    graph: Any, static: Sequence[int], max_graphs: int, known: dict[str, Any]
) -> list[Callable[[Any], Region]]:
    """For each partition a function that makes it a region, with the whole graph's facts mapped to it."""
    # lazily: Inductor takes seconds to import
    from torch._inductor.cudagraph_utils import CudagraphMetadata, get_partition_cudagraph_metadata
    from torch.utils._ordered_set import OrderedSet

    whole = {
        "placeholders": known["placeholders"],
        "static_input_idxs": OrderedSet(static),
        "mutated_input_idxs": OrderedSet(known["mutated_input_idxs"]),
        "stack_traces": known["stack_traces"],
        "constants": defaultdict(lambda: None),
        "user_visible_output_idxs": OrderedSet(known.get("user_visible_output_idxs", ())),
    }
    names = {field.name for field in dataclasses.fields(CudagraphMetadata)}
    metadata = CudagraphMetadata(**{name: value for name, value in whole.items() if name in names})
    made: list[Callable[[Any], Region]] = []
    for partition in graph.partition_maps:
        part = get_partition_cudagraph_metadata(partition, metadata)
        facts = {**known, "mutated_input_idxs": tuple(part.mutated_input_idxs)}

        def wrap(model: Any, static: Any = tuple(part.static_input_idxs), facts: Any = facts) -> Region:
            return _region(model, static, max_graphs, facts, len(graph.partition_maps) > 1)

        made.append(wrap)
    return made
