"""``gfxgraph.graphed``, the function that users call, and the callables that it returns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Unpack, overload

from gfxgraph import config
from gfxgraph.callables.distributed.agreed import Agreed
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.options import Options, check
from gfxgraph.callables.pieces.graph_numbers import make_piece
from gfxgraph.callables.type_hints import GraphedCallable, GraphedDecorator, GraphedOptions, P, R
from gfxgraph.errors import member
from gfxgraph.types import MovedInput, ReplayMode


@overload
def graphed(fn: Callable[P, R], **options: Unpack[GraphedOptions]) -> GraphedCallable[P, R]: ...


@overload
def graphed(fn: None = None, **options: Unpack[GraphedOptions]) -> GraphedDecorator: ...


def graphed(
    fn: Callable[..., Any] | None = None,
    *,
    dynamic: Mapping[str, Any] | str | None = None,
    buckets: Any = None,
    mode: ReplayMode | str | None = None,
    moved: MovedInput | str = MovedInput.COPY,
    warmup: int = 1,
    max_graphs: int = 64,
    strict: bool = False,
    ranks: bool = False,
    assume_pure: bool = False,
) -> Any:
    """Make ``fn`` a callable that is captured as GPU graphs and replayed. New in 2.0.

    Args:
        fn: a function, method or module.
        dynamic: which dims vary, ``{"x": {0: "batch"}}``; "infer" finds them from the first two different
            calls (the default where ``buckets`` is given).
        buckets: sizes that dynamic dims are rounded up to: a list, "auto" (learned from the sizes seen; the
            default), "powers", "ladder" (vLLM's), a saved plan's path, something with ``pick(n)``, or one
            of these by dim name. A call larger than every bucket runs eagerly.
        mode: "standard", "adaptive" or "hot"; by default GFXGRAPH_REPLAY_MODE. In "adaptive" each signature runs in
        the way measured to be faster. In "hot" the results are the graph's own buffers, reused only when nothing
        refers to them any more.
        moved: what to do with arguments at a new address: "copy" them into buffers; "recapture", which reads and
            writes the caller's tensors in place, with one graph per address.
        warmup: eager calls of a signature before it is captured.
        max_graphs: most captured signatures of this callable; the least recently used is evicted first.
        strict: raise, instead of running eagerly, if a call cannot be captured.
        ranks: the function has collectives (``Agreed``). Every rank makes the same calls with the same sizes, and
            captures at the same call; nothing runs twice. Of the other options, ``warmup`` and ``max_graphs`` apply.

        assume_pure: do not trace. The caller promises that the function reads its arguments, its modules'
            parameters and buffers, and nothing else that changes. Saves the trace and makes calls cheaper.

    Returns:
        The callable, a `Graphed` (`Agreed` with ``ranks``), with ``fn``'s signature; without ``fn``, the decorator
        that makes one.

    Raises:
        ArgumentError: `bad_argument`.
        ConfigError: `bad_buckets`.
        CaptureError (if ``strict``): `graphed_not_captured`, `graphed_other_device`, `graphed_result_changes`,
            `graphed_unknown_object`, `vram_cap_exceeded`.
    """
    if fn is None:
        return functools.partial(graphed, **{name: value for name, value in locals().items() if name != "fn"})
    if inspect.isclass(fn) or not callable(fn):
        raise TypeError(f"graphed() takes a function, a method or a module, not {fn!r}")
    options = Options(
        dynamic,
        buckets,
        member(ReplayMode, "graphed()", "mode", mode) if mode is not None else config.load().replay_mode,
        member(MovedInput, "graphed()", "moved", moved),
        warmup,
        max_graphs,
        strict,
        assume_pure,
    )
    check(fn, options, ranks, mode)
    return Agreed(fn, warmup=warmup, max_graphs=max_graphs) if ranks else Graphed(fn, options, make_piece=make_piece)
