"""``gfxgraph.graphed``, the function that users call, and the callables that it returns."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, Unpack, overload

import torch

from gfxgraph import config
from gfxgraph.callables.agreed import Agreed
from gfxgraph.callables.captured import Options
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.graphed_module import module_of, plain
from gfxgraph.callables.pieces.graph_numbers import make_piece
from gfxgraph.callables.type_hints import GraphedCallable, GraphedDecorator, GraphedOptions, P, R
from gfxgraph.errors import ArgumentError, member
from gfxgraph.types import MovedInput, ReplayMode

_TOP = re.compile(r"[.\[]")


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
    in_place: bool = False,
) -> Any:
    """Make ``fn`` a callable that is captured as GPU graphs and replayed. New in 2.0.

    Args:
        fn: a function, method or module.
        dynamic: which dims vary, ``{"x": {0: "batch"}}``; "infer" finds them from the first two different
            calls (the default where ``buckets`` is given).
        buckets: sizes that dynamic dims are rounded up to: a list, "auto" (four from each power of two to the
            next; the default), "powers", "ladder" (vLLM's), something with ``pick(n)``, or one of these by dim name.
            A call larger than every bucket runs eagerly.
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
        in_place: replace the call of this very module, as ``nn.Module.compile()`` does. Its copies are not graphed.

    Returns:
        The callable, a `Graphed` (`Agreed` with ``ranks``), with ``fn``'s signature. Of a module, a module of its
        class over the same state, or with ``in_place`` the module; ``Graphed.of`` gives its `Graphed`. Without
        ``fn``, the decorator that makes one.

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
    _check(fn, options, ranks, mode, in_place)
    fn = plain(fn)
    module = fn if isinstance(fn, torch.nn.Module) else None
    if module is not None and in_place:
        fn = module._call_impl  # what its own call would be
    made = Agreed(fn, warmup=warmup, max_graphs=max_graphs) if ranks else Graphed(fn, options, make_piece=make_piece)
    if module is None:
        return made
    if not in_place:
        return module_of(made)
    module._compiled_call_impl = made
    return module


def _check(fn: Callable[..., Any], options: Options, ranks: Any, mode: Any, in_place: Any) -> None:
    """Refuse arguments of ``graphed`` that would have no effect, or fail only at the first call.

    Raises:
        ArgumentError: `bad_argument`.
    """
    for name, least in (("max_graphs", 1), ("warmup", 0)):
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            _refuse(name, value, f"a whole number, {least} or more")
    for name, value in (
        ("strict", options.strict),
        ("assume_pure", options.assume_pure),
        ("ranks", ranks),
        ("in_place", in_place),
    ):
        if not isinstance(value, bool):
            _refuse(name, value, "True or False")
    plain = Options(mode=options.mode, warmup=options.warmup, max_graphs=options.max_graphs)
    if ranks and (options != plain or mode is not None):
        _refuse("ranks", ranks, "warmup and max_graphs beside it: each rank would decide the rest by itself")
    if in_place and not isinstance(fn, torch.nn.Module):
        _refuse("in_place", in_place, "for a module: nothing else can be changed in its place")
    if isinstance(options.buckets, int | float):
        _refuse("buckets", options.buckets, 'a list of sizes, "auto", "powers", or "ladder"')
    _check_dynamic(fn, options.dynamic)


def _check_dynamic(fn: Callable[..., Any], dynamic: Any) -> None:
    form = 'a dictionary as {"x": {0: "batch"}}, "infer", or None'
    if dynamic is None or dynamic == "infer":
        return
    if not isinstance(dynamic, Mapping):
        _refuse("dynamic", dynamic, form)
    known = _parameters(fn)
    for path, dims in dynamic.items():
        are_numbers = not isinstance(dims, Mapping) or all(type(dim) is int for dim in dims)
        if not isinstance(path, str) or not isinstance(dims, Iterable) or not are_numbers:
            _refuse("dynamic", dynamic, form)
        if known is not None and _TOP.split(path)[0] not in known:
            similar = get_close_matches(path, known, n=1)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            _refuse("dynamic", dynamic, f"the function's parameters: {', '.join(known)}{hint}")


def _parameters(fn: Callable[..., Any]) -> list[str] | None:
    """The names of the parameters; None if not all are known."""
    try:
        found = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).parameters.values()
    except (TypeError, ValueError):
        return None
    is_open = any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in found)
    return None if is_open else [each.name for each in found]


def _refuse(name: str, value: Any, allowed: str) -> NoReturn:
    """Raise for argument ``name``."""
    raise ArgumentError("bad_argument", function="graphed()", argument=name, value=repr(value), allowed=allowed)
