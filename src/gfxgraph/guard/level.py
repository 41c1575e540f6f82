"""The current guard tier."""

from __future__ import annotations

from dataclasses import replace

from gfxgraph import config, torch_names
from gfxgraph.errors import ConfigError
from gfxgraph.process import bridge, process
from gfxgraph.types import GuardTier


def guard_level(level: GuardTier | int | str | None = None) -> GuardTier:
    """The current guard tier; with an argument, set it for graphs captured from then on.

    Args:
        level: a tier by number or by one of ``GFXGRAPH_GUARD``'s words (``safe``, ``tier2``...).

    Raises:
        ConfigError: `bad_setting`.
    """
    state = process.current()
    if level is None:
        return state.settings.guard if state is not None else config.load().guard
    asked = asked_tier(level)
    if state is not None:
        state.settings = replace(state.settings, guard=asked)
        watch_memory(asked)
    return asked


def asked_tier(level: GuardTier | int | str) -> GuardTier:
    """The tier that an argument names.

    Raises:
        ConfigError: `bad_setting`.
    """
    try:
        return config.guard_tier(level)
    except ValueError:
        allowed = config.VARIABLES["GFXGRAPH_GUARD"]
        raise ConfigError("bad_setting", variable="guard", value=level, allowed=allowed) from None


def watch_memory(tier: GuardTier) -> None:
    """Prepare the process for graphs guarded at ``tier``; ``disable`` undoes it."""
    if tier is GuardTier.OFF or torch_names.why_off("guard"):
        return
    # lazily: needs torch, and the tier can be queried without
    from gfxgraph.guard import guard

    guard.prepare_process(tier, bridge.replace, bridge.undo)
