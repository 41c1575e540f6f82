"""``torch.amp.GradScaler.step`` inside a capture: the one branch that is captured both ways.

It reads on the host whether a gradient overflowed, and if so skips the optimizer's step. Here the step is always
captured, behind a gate: a replay runs it only if no gradient overflows in that replay.
"""

from __future__ import annotations

from typing import Any

from gfxgraph.capture.record.tracked_numbers import NUMBERS
from gfxgraph.capture.record.user_lines import place
from gfxgraph.capture.replay.replay_steps import Gate
from gfxgraph.core.unsafe import BY_NAME
from gfxgraph.types import OnUnsafe


def maybe_opt_step(session: Any, stock: Any, scaler: Any, optimizer: Any, state: Any, args: Any, kwargs: Any) -> Any:
    """Replaces ``GradScaler._maybe_opt_step`` while ``session`` captures."""
    if session.policy is not OnUnsafe.SPLIT or session.gate is not None:
        return stock(scaler, optimizer, state, *args, **kwargs)
    found = sum(flag.item() for flag in state["found_inf_per_device"].values())
    if type(found) not in NUMBERS:
        return optimizer.step(*args, **kwargs) if not found else None
    where, row, name = place(), BY_NAME["aten::_local_scalar_dense"], "torch.amp.GradScaler.step"
    session.split(row, name, lambda: (None, None), where)
    session.gate = Gate(found._ref, False)
    try:
        out = optimizer.step(*args, **kwargs)
        session.split(row, name, lambda: (None, None), where)
    finally:
        session.gate = None
    return out
