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
_frames = torch._C._dynamo.eval_frame  # there without Dynamo, whose import takes seconds
can_keep_from_dynamo = hasattr(_frames, "set_code_exec_strategy")
_kept: dict[int, object] = {}
"""Code that Dynamo is kept from, by identity."""


def session_here() -> Any:
    """This thread's capture; None where there is none, and while torch.compile traces."""
    session = process.active_session()
    if session is None or session.recorder.paused or _fake_mode(_FAKE) is not None:
        return None
    return session


def keep_from_dynamo(func: object) -> None:
    """Have Dynamo leave a function's frame alone, and all that it calls: between compiled pieces it looks at each.

    Marking its code costs nothing at a call; ``torch._dynamo.disable`` wraps it and imports Dynamo.
    """
    code = getattr(func, "__code__", None)
    number = object.__hash__(code)
    if code is not None and number not in _kept and can_keep_from_dynamo:
        _kept[number] = code
        skip = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.SKIP)
        _frames.set_code_exec_strategy(code, skip)
