"""The options of ``graphed``, and their validation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

import torch

from gfxgraph.errors import ArgumentError
from gfxgraph.types import MovedInput, ReplayMode

_TOP = re.compile(r"[.\[]")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``graphed``."""

    dynamic: Any = None
    buckets: Any = None
    mode: ReplayMode = ReplayMode.STANDARD
    moved: MovedInput = MovedInput.COPY
    warmup: int = 1
    max_graphs: int = 64
    strict: bool = False
    assume_pure: bool = False


def check(fn: Callable[..., Any], options: Options, ranks: Any, mode: Any) -> None:
    """Refuse arguments of ``graphed`` that would have no effect, or fail only at the first call.

    Raises:
        ArgumentError: `bad_argument`.
    """
    for name, least in (("max_graphs", 1), ("warmup", 0)):
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            refuse(name, value, f"a whole number, {least} or more")
    for name, value in (("strict", options.strict), ("assume_pure", options.assume_pure), ("ranks", ranks)):
        if not isinstance(value, bool):
            refuse(name, value, "True or False")
    plain = Options(mode=options.mode, warmup=options.warmup, max_graphs=options.max_graphs)
    if ranks and (options != plain or mode is not None):
        refuse("ranks", ranks, "warmup and max_graphs beside it: each rank would decide the rest by itself")
    if isinstance(options.buckets, int | float):
        refuse("buckets", options.buckets, 'a list of sizes, "auto", "powers", "ladder", or a saved plan\'s path')
    _check_dynamic(fn, options.dynamic)


def _check_dynamic(fn: Callable[..., Any], dynamic: Any) -> None:
    form = 'a dictionary as {"x": {0: "batch"}}, "infer", or None'
    if dynamic is None or dynamic == "infer":
        return
    if not isinstance(dynamic, Mapping):
        refuse("dynamic", dynamic, form)
    known = _parameters(fn)
    for path, dims in dynamic.items():
        are_numbers = not isinstance(dims, Mapping) or all(type(dim) is int for dim in dims)
        if not isinstance(path, str) or not isinstance(dims, Iterable) or not are_numbers:
            refuse("dynamic", dynamic, form)
        if known is not None and _TOP.split(path)[0] not in known:
            similar = get_close_matches(path, known, n=1)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            refuse("dynamic", dynamic, f"the function's parameters: {', '.join(known)}{hint}")


def _parameters(fn: Callable[..., Any]) -> list[str] | None:
    """The names of the parameters; None if not all are known."""
    try:
        found = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).parameters.values()
    except (TypeError, ValueError):
        return None
    is_open = any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in found)
    return None if is_open else [each.name for each in found]


def refuse(name: str, value: Any, allowed: str) -> NoReturn:
    """Raise for argument ``name``."""
    raise ArgumentError("bad_argument", function="graphed()", argument=name, value=repr(value), allowed=allowed)
