"""Whether autocast is on, asked from inside a dispatch mode.

Problem: in inference mode torch hands a composite operation whole to a dispatch mode. Its parts then run
from the mode's handler, where torch has switched everything above the mode off, autocast too, so that
``square`` gives bfloat16 where eager gives float32. The handler cannot ask: it is told "off".

Idea: follow ``torch.set_autocast_enabled``, which every autocast context calls, from where the mode
begins, and switch autocast on again for the parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from gfxgraph.core.locks import new_lock

_KEYS = {"cuda": torch._C.DispatchKey.AutocastCUDA, "cpu": torch._C.DispatchKey.AutocastCPU}
_lock = new_lock()
_followers: set[int] = set()
_stock: Any = None


class _Here(threading.local):
    """This thread's active modes, and the device types for which autocast is on."""

    followers: frozenset[int] = frozenset()
    enabled: frozenset[str] = frozenset()


_here = _Here()


def follow(holder: object) -> None:
    """Start tracking autocast for a mode that begins in this thread. Call it outside every handler."""
    global _stock
    if not _here.followers:
        _here.enabled = frozenset(kind for kind in _KEYS if torch.is_autocast_enabled(kind))
    _here.followers |= {id(holder)}
    with _lock:
        _followers.add(id(holder))
        if torch.set_autocast_enabled is not _set_enabled:
            _stock = torch.set_autocast_enabled
            torch.set_autocast_enabled = _set_enabled


def leave(holder: object) -> None:
    """Stop tracking for a mode that has ended. May be called more than once."""
    _here.followers -= {id(holder)}
    with _lock:
        _followers.discard(id(holder))
        if not _followers and torch.set_autocast_enabled is _set_enabled:
            torch.set_autocast_enabled = _stock


def _set_enabled(*args: Any) -> None:
    _stock(*args)
    if _here.followers:
        kind, is_on = args if len(args) == 2 else ("cuda", *args)
        _here.enabled = _here.enabled | {kind} if is_on else _here.enabled - {kind}


def as_outside() -> Any:
    """Context manager for the parts of a composite operation: autocast as it is outside the handler."""
    keys = [_KEYS[kind] for kind in _here.enabled if kind in _KEYS]
    if not keys:
        return nullcontext()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in keys:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def as_now(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``func`` so that it runs under the autocast settings of now, wherever it is called."""
    if not torch.is_autocast_enabled("cuda"):
        return func
    dtype = torch.get_autocast_dtype("cuda")

    def called(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cuda", dtype, cache_enabled=False):
            return func(*args, **kwargs)

    return called
