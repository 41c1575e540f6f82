"""Whether autocast is on, asked from inside a dispatch mode.

Problem: in inference mode torch hands a composite operation whole to a dispatch mode. Its parts then run
from the mode's handler, where torch has switched everything above the mode off, autocast too, so that
``square`` gives bfloat16 where eager gives float32. The handler cannot ask: it is told "off".

Idea: follow ``torch.set_autocast_enabled``, which every autocast context calls, from where the mode
begins, and switch autocast on again for the parts.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import torch

_KEYS = {"cuda": torch._C.DispatchKey.AutocastCUDA, "cpu": torch._C.DispatchKey.AutocastCPU}
_lock = threading.Lock()
_n_followers = 0
_stock: Any = None


class _Here(threading.local):
    """This thread's followers, and what autocast is on for."""

    depth = 0
    enabled: frozenset[str] = frozenset()


_here = _Here()


def follow() -> None:
    """A mode begins in this thread, outside of every handler."""
    global _n_followers, _stock
    if not _here.depth:
        _here.enabled = frozenset(kind for kind in _KEYS if torch.is_autocast_enabled(kind))
    _here.depth += 1
    with _lock:
        _n_followers += 1
        if _n_followers == 1:
            _stock = torch.set_autocast_enabled
            torch.set_autocast_enabled = _set_enabled


def leave() -> None:
    """The mode is over."""
    global _n_followers
    _here.depth -= 1
    with _lock:
        _n_followers -= 1
        if not _n_followers:
            torch.set_autocast_enabled = _stock


def _set_enabled(*args: Any) -> None:
    _stock(*args)
    if _here.depth:
        kind, is_on = args if len(args) == 2 else ("cuda", *args)
        _here.enabled = _here.enabled | {kind} if is_on else _here.enabled - {kind}


def as_outside() -> Any:
    """For the parts of a composite operation: autocast as it is outside of the handler."""
    keys = [_KEYS[kind] for kind in _here.enabled if kind in _KEYS]
    if not keys:
        return nullcontext()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in keys:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
