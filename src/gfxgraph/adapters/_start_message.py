"""Announces gfxgraph in an engine's log at start: that it is on, how it is set up, and whether graphs work here."""

from __future__ import annotations

import logging

import gfxgraph
from gfxgraph.config import Activation
from gfxgraph.process import bridge, health, process

_told: set[str] = set()


def announce(engine: str) -> None:
    """Log the announcement once in this process, below the engine's own logger; does nothing if the bridge is off.

    Called when the engine is about to capture its first graph: the GPU is initialized, and a capture disturbs
    nothing.
    """
    state = process.current()
    if engine in _told or state is None or not bridge.is_enabled():
        return
    _told.add(engine)
    log = logging.getLogger(f"{engine}.gfxgraph")
    settings = state.settings
    mode = {Activation.DEBUG: "debug", Activation.VALIDATE: "validate"}.get(settings.activation, "normal")
    log.info("gfxGRAPH v%s enabled (mode=%s, vram_cap=%.2f)", gfxgraph.__version__, mode, settings.vram_cap)
    if not log.isEnabledFor(logging.INFO):
        return  # the check's result would not be logged
    found = health.health_check()
    if found["ok"]:
        log.info(
            "gfxGRAPH health check passed: %s (%s), VRAM %sMB free / %sMB total",
            found["gpu"],
            found["rocm"] or "not ROCm",
            found["vram_free_mb"],
            found["vram_total_mb"],
        )
    else:
        log.warning("gfxGRAPH health check failed: %s", found["details"])
