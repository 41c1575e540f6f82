"""The functions of torch that are replaced while a capture runs, and whose capture that is."""

from __future__ import annotations

from typing import Any

import torch

from gfxgraph.process import process

_fake_mode = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE
STOCK: dict[str, Any] = {}
"""torch's own functions by their short names, of those that are replaced now (intercept.py)."""
Targets = dict[str, tuple[Any, str, Any]]
"""short name -> (owner, attribute, what stands in its place)."""


def session_here() -> Any:
    """This thread's capture; None where there is none, and while torch.compile traces."""
    session = process.active_session()
    if session is None or session.recorder.paused or _fake_mode(_FAKE) is not None:
        return None
    return session
