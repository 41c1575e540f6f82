"""Whether the bridge is on in this process, and the process state that graphs use with and without it.

startup/activation.py switches it on, because that involves every room; what it replaced is recorded here.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gfxgraph import config, torch_names
from gfxgraph.config import Activation, Config
from gfxgraph.core.locks import new_lock
from gfxgraph.core.replaced import ABSENT, restore_attribute
from gfxgraph.driver import locate
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.errors import check_settings
from gfxgraph.hardware import defect_environment, defects
from gfxgraph.process import process

VALIDATE_REPLAYS = 3
EVERY_REPLAY = sys.maxsize

lock = new_lock()
undo: list[Callable[[], None]] = []
"""Calls that undo the bridge, to be run last first; empty while it is off.

Each is listed before what it undoes is done, and may run again: an interrupt may strike between any two lines.
"""
is_whole = False
"""False while it is off, and where an interrupt left it half on: then ``enable`` begins anew."""


def is_enabled() -> bool:
    """True while the bridge is on in this process."""
    return bool(undo)


def replace(owner: object, name: str, new: object) -> None:
    """Patch an attribute with ``new`` until the bridge is switched off."""
    undo.append(functools.partial(restore_attribute, owner, name, vars(owner).get(name, ABSENT)))
    setattr(owner, name, new)


def make_process(settings: Config, platform: str, base: object, driver: GraphDriver) -> process.Process:
    """Make the state that captures need, without patching anything."""
    decisions = _decisions(platform, settings)
    state = process.Process(settings=settings, platform=platform, driver=driver, base=base)
    state.validate_replays = validate_replays(settings, platform, decisions.validate_replays)
    state.capture_error_mode = decisions.capture_error_mode
    state.decisions = decisions
    process.install(state)
    process.watch_forks()
    return state


_unpatched: process.Process | None = None


def process_for_callables() -> Any:
    """The process state for graphed callables: the bridge's if it is on, else one without patches.

    Returns:
        None if there is no GPU to capture on, or torch lacks what captures need.
    """
    global _unpatched
    with lock:
        if undo:
            return process.current()
        # lazily: callers have torch loaded; importing gfxgraph.process must not load it
        import torch

        if not torch.cuda.is_available() or torch_names.why_off("capture"):
            return None
        if _unpatched is None:
            settings = config.load()
            check_settings(settings)
            platform = "rocm" if torch.version.hip is not None else "cuda"
            set_log_level(settings)
            _unpatched = make_process(settings, platform, torch.cuda.graphs.CUDAGraph, driver_of(platform))
        process.install(_unpatched)
        return _unpatched


def driver_of(platform: str) -> GraphDriver:
    """The driver of a real GPU; torch has loaded its library."""
    return locate("hip" if platform == "rocm" else "cuda")


def _decisions(platform: str, settings: Config) -> defects.Decisions:
    """The defect table's decisions for this machine, or for the simulated one."""
    if settings.environment:
        return defects.decide(defect_environment.load(Path(settings.environment)))
    if platform == "rocm":
        return defects.decide(defect_environment.detect())
    # The simulated HIP behaves like the real one when nodes are switched, if its profile says so.
    return defects.Decisions(node_walk_resets=platform == "simulator" and settings.simulate.startswith("hip"))


def validate_replays(settings: Config, platform: str, by_table: int) -> int:
    """How many replays of each graph to compare with eager execution."""
    if settings.validate_replays is not None:
        return settings.validate_replays
    if settings.activation is Activation.VALIDATE:
        return EVERY_REPLAY
    hip = platform == "rocm" or (platform == "simulator" and settings.simulate.startswith("hip"))
    return max(VALIDATE_REPLAYS if hip or settings.validate_first else 0, by_table)


def set_log_level(settings: Config) -> None:
    """Set the package's log level from the settings."""
    logger = logging.getLogger("gfxgraph")
    logger.setLevel(settings.log_level.value.upper() if settings.log_level.value != "warn" else "WARNING")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("gfxgraph: %(levelname)s: %(message)s"))
        # The application's handlers get every record, too: once it has some, ours is silent.
        handler.addFilter(lambda record: not logging.getLogger().handlers and logger.handlers == [handler])
        logger.addHandler(handler)
