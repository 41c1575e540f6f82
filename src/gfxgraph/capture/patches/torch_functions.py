"""torch's own functions that captures replace, and the capture of this thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gfxgraph import torch_names
from gfxgraph.process import process


class Stock(dict[str, Any]):
    """torch's own functions by short name, of those that the newest capture replaces (patch_table.py). They stay: a
    replacement may still run in another thread when the last capture ends.
    """

    install_group: Callable[[str], None]
    """Has a capture replace one more group of the table."""


STOCK = Stock()
Targets = dict[str, tuple[Any, str, Any]]
"""Short name -> (owner, attribute, replacement)."""
_kept: dict[int, object] = {}
"""Code that Dynamo skips, by identity."""


def session_here() -> Any:
    """This thread's capture; None if there is none, or while torch.compile traces."""
    session = process.active_session()
    if session is None or session.recorder.paused:
        return None
    is_faked = torch_names._get_dispatch_mode(torch_names._TorchDispatchModeKey.FAKE) is not None
    return None if is_faked else session


def state_of(generator: torch.Generator) -> torch.Tensor:
    """What torch's own ``get_state`` says, which a capture replaces."""
    return _own(generator, "get_state")(generator)


def put_state(generator: torch.Generator, state: torch.Tensor) -> None:
    """Give it a state by torch's own ``set_state``."""
    _own(generator, "set_state")(generator, state)


def _own(generator: torch.Generator, name: str) -> Callable[..., torch.Tensor]:
    method = getattr(type(generator), name)
    return getattr(method, "__wrapped__", method)  # type: ignore[no-any-return]


def keep_from_dynamo(func: object) -> None:
    """Make Dynamo skip a function's frame and everything that it calls.

    Marking its code costs nothing per call; ``torch._dynamo.disable`` wraps it and imports Dynamo.
    """
    code = getattr(func, "__code__", None)
    number = object.__hash__(code)
    if code is not None and number not in _kept:
        _kept[number] = code
        torch_names.have_dynamo("SKIP", code)
