"""What ``graphed`` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gfxgraph.core.buckets import Above, Budget
from gfxgraph.types import MovedInput, ReplayMode


@dataclass(frozen=True, slots=True)
class Options:
    """What ``graphed`` was asked for."""

    dynamic: Any = None
    buckets: Any = None
    above: Above = Above.EAGER
    budget: Budget | None = None
    pad: Any = None
    mode: ReplayMode = ReplayMode.STANDARD
    moved: MovedInput = MovedInput.COPY
    warmup: int = 1
    max_graphs: int = 64
    strict: bool = False
    assume_pure: bool = False
