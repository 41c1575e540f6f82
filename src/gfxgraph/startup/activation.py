"""Switching the bridge on and off: which platform this is, what is patched, and how it is put back.

Nothing is patched until every check has passed. What is patched: the two names of CUDAGraph
(``torch.cuda`` and ``torch.cuda.graphs``), those of make_graphed_callables, and the entry and exit of
``torch.cuda.graph``, which in torch up to 2.14 leave the capture stream current when the capture could
not be begun or ended.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from gfxgraph import config
from gfxgraph.config import Activation, Config
from gfxgraph.errors import ActivationError, DriverError, check_settings
from gfxgraph.guard.level import asked_tier, guard_level
from gfxgraph.types import GuardTier, OnUnsafe

OLDEST_TORCH = (2, 9)
COMPANIONS = ("gfxgraph.compile.takeover:install", "gfxgraph.adapters.transformers:beside_enable")
"""What else is switched on, from rooms above this one: given torch and the process's state, each puts itself in
place and returns what takes it back. Named, because imports point the other way; it must not be slow to import."""
VALIDATE_REPLAYS = 3

_lock = threading.RLock()
_undo: list[Callable[[], None]] = []
_arguments: dict[str, Any] = {}


def enable(
    *,
    allow_cuda: bool | None = None,
    validate: bool | None = None,
    on_unsafe: OnUnsafe | str | None = None,
    simulate: str | bool | None = None,
    debug: bool | None = None,
    guard: GuardTier | int | str | None = None,
) -> None:
    """Put gfxgraph under ``torch.cuda.CUDAGraph`` in this process.

    Arguments left out come from the environment. Calling it again with the same meaning does
    nothing; ``validate`` and ``debug``, where given, hold for graphs captured from then on.

    Args:
        allow_cuda: also on a CUDA build of torch, with an NVIDIA GPU.
        validate: compare the first replays of every graph with eager execution (the default on HIP).
        on_unsafe: "split", "pin" or "raise": what a capture does with values that Python reads.
        simulate: name of a simulator profile (True for "hip"), to run without a GPU.
        debug: log every capture and fallback.
        guard: tier of memory checks, by number or name (``GFXGRAPH_GUARD``'s values).

    Raises:
        ActivationError: `no_torch`, `not_rocm_cpu_torch`, `not_rocm_cuda_torch`, `no_gpu`, `no_cuda_gpu`,
            `torch_too_old`, `already_enabled_differently`; nothing is patched then.
        ConfigError: `bad_setting`.
    """
    settings = _settings(config.load(), allow_cuda, validate, on_unsafe, simulate, debug, guard)
    check_settings(settings)
    with _lock:
        from gfxgraph.process import process

        state = process.current()
        if state is not None and _undo:
            _refuse_other_settings(state.settings, settings)
            _take_up(state, settings, validate, debug)
            if guard is not None:
                guard_level(guard)
            return
        _enable(settings)


def disable() -> None:
    """Put back every object that ``enable`` replaced. Graphs already captured keep working."""
    with _lock:
        workspaces = sys.modules.get(
            "gfxgraph.capture.workspaces"
        )  # needs torch, and is there if anything was captured
        if _undo and workspaces is not None:
            workspaces.stop()
        while _undo:
            _undo.pop()()


def is_enabled() -> bool:
    """True while the bridge is on in this process."""
    return bool(_undo)


def activate_from_environment() -> bool:
    """Enable as ``GFXGRAPH`` and its companions ask. Returns whether the bridge is on."""
    settings = config.load()
    if not settings.is_on:
        return False
    enable()
    from gfxgraph.hardware.advice import install_diagnostics

    install_diagnostics()  # asks GFXGRAPH_DIAG itself
    return True


def _settings(
    settings: Config,
    allow_cuda: bool | None,
    validate: bool | None,
    on_unsafe: OnUnsafe | str | None,
    simulate: str | bool | None,
    debug: bool | None,
    guard: GuardTier | int | str | None,
) -> Config:
    changes: dict[str, Any] = {}
    if allow_cuda is not None:
        changes["allow_cuda"] = allow_cuda
    if on_unsafe is not None:
        changes["on_unsafe"] = OnUnsafe(on_unsafe)
    if simulate is not None:
        changes["simulate"] = simulate if isinstance(simulate, str) else ("hip" if simulate else "")
    if debug:
        changes["activation"] = Activation.DEBUG
        changes["log_level"] = config.LogLevel.DEBUG
    elif validate:
        changes["activation"] = Activation.VALIDATE
    if validate is False:
        changes["validate_replays"] = 0
    if guard is not None:
        changes["guard"] = asked_tier(guard)
    return replace(settings, **changes)


def _refuse_other_settings(current: Config, asked: Config) -> None:
    for name in ("on_unsafe", "simulate"):
        if getattr(current, name) != getattr(asked, name):
            raise ActivationError(
                "already_enabled_differently",
                setting=name,
                current=str(getattr(current, name)) or "off",
                requested=str(getattr(asked, name)) or "off",
            )


def _take_up(state: Any, settings: Config, validate: bool | None, debug: bool | None) -> None:
    if validate is not None:
        state.validate_replays = _validate_replays(settings, state.platform, state.decisions.validate_replays)
        state.settings = replace(state.settings, validate_replays=settings.validate_replays)
    if debug:
        state.settings = replace(state.settings, log_level=settings.log_level)
        _set_log_level(settings)


def _enable(settings: Config) -> None:
    torch = _import_torch()
    platform = _platform(torch, settings)
    if settings.simulate:
        from gfxgraph import simulator

        simulation = simulator.install(settings.simulate)
        _undo.append(simulation.undo)
    try:
        _put_in_place(torch, settings, platform)
    except BaseException:
        disable()
        raise


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ActivationError("no_torch", python=sys.executable, quote=str(error)) from error
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        raise ActivationError(
            "torch_too_old", torch_version=torch.__version__, minimum=".".join(map(str, OLDEST_TORCH))
        )
    return torch


def _platform(torch: Any, settings: Config) -> str:
    """Which platform this is; raises before anything is patched."""
    if settings.simulate:
        return "simulator"
    if torch.version.hip is None:
        if torch.version.cuda is None:
            raise ActivationError("not_rocm_cpu_torch", torch_version=torch.__version__)
        if not settings.allow_cuda:
            raise ActivationError(
                "not_rocm_cuda_torch", torch_version=torch.__version__, cuda_version=torch.version.cuda
            )
    if not torch.cuda.is_available():
        if torch.version.hip is None:
            raise ActivationError("no_cuda_gpu", torch_version=torch.__version__, cuda_version=torch.version.cuda)
        raise ActivationError("no_gpu", torch_version=torch.__version__, hip_version=torch.version.hip)
    return "rocm" if torch.version.hip is not None else "cuda"


def _put_in_place(torch: Any, settings: Config, platform: str) -> None:
    from gfxgraph.capture import intercept, remedies, workspaces
    from gfxgraph.capture.graph import bridged_class
    from gfxgraph.process import process

    _set_log_level(settings)
    base = torch.cuda.graphs.CUDAGraph
    state = _make_process(settings, platform, base)
    no_exit = remedies.arrange_exit(state)
    if no_exit is not None:
        _undo.append(no_exit)
    bridged = bridged_class(base)
    _replace(torch.cuda.graphs, "CUDAGraph", bridged)
    _replace(torch.cuda, "CUDAGraph", bridged)
    _replace(torch.cuda.graph, "__enter__", _enter_of_graph(torch, torch.cuda.graph.__enter__))
    _replace(torch.cuda.graph, "__exit__", _exit_of_graph(torch, torch.cuda.graph.__exit__))
    from gfxgraph.callables.training import training

    _undo.append(training.take_name())
    event_new = torch.cuda.Event.__dict__["__new__"]
    torch.cuda.Event.__new__ = staticmethod(intercept.event_new(torch.cuda.Event.__new__))
    _undo.append(lambda: setattr(torch.cuda.Event, "__new__", event_new))
    workspaces.start()
    _undo.append(lambda: workspaces.stop(is_device_gone=platform == "simulator"))
    watch_memory(settings.guard)
    for companion in COMPANIONS:
        module, name = companion.split(":")
        undo = getattr(import_module(module), name)(torch, state)
        if undo is not None:
            _undo.append(undo)
    process.log.info(
        "enabled on %s (on_unsafe=%s, validating the first %d replays of each graph)",
        platform,
        settings.on_unsafe,
        state.validate_replays,
    )


def watch_memory(tier: GuardTier) -> None:
    """Prepare the process for graphs that are guarded at ``tier``; ``disable`` takes it back."""
    if tier is GuardTier.OFF:
        return
    from gfxgraph.guard import guard

    guard.prepare_process(tier, _replace, _undo)


def _make_process(settings: Config, platform: str, base: Any) -> Any:
    """What captures stand on; nothing is patched."""
    from gfxgraph.process import process

    decisions = _decisions(platform, settings)
    state = process.Process(settings=settings, platform=platform, driver=_driver(platform), base=base)
    state.validate_replays = _validate_replays(settings, platform, decisions.validate_replays)
    state.capture_error_mode = decisions.capture_error_mode
    state.decisions = decisions
    process.install(state)
    process.watch_forks()
    return state


_unpatched: Any = None


def process_for_callables() -> Any:
    """The process state for graphed callables: the bridge's where it is on, else one without patches.

    Returns:
        None where there is no GPU to capture on.
    """
    global _unpatched
    from gfxgraph.process import process

    with _lock:
        if _undo:
            return process.current()
        import torch

        if not torch.cuda.is_available():
            return None
        if _unpatched is None:
            settings = config.load()
            check_settings(settings)
            platform = "rocm" if torch.version.hip is not None else "cuda"
            _set_log_level(settings)
            _unpatched = _make_process(settings, platform, torch.cuda.graphs.CUDAGraph)
        process.install(_unpatched)
        return _unpatched


def _replace(owner: Any, name: str, new: Any) -> None:
    old = getattr(owner, name)
    setattr(owner, name, new)
    _undo.append(lambda: setattr(owner, name, old))


def _enter_of_graph(torch: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def __enter__(self: Any) -> Any:
        before = torch.cuda.current_stream()
        try:
            return original(self)
        except BaseException:
            # The capture stream is made current before capture_begin, which raised: no __exit__ follows.
            if torch.cuda.current_stream() != before:
                torch.cuda.set_stream(before)
            raise

    return __enter__


def _exit_of_graph(torch: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def __exit__(self: Any, *args: Any) -> Any:
        capture_stream = getattr(self, "capture_stream", None)
        try:
            return original(self, *args)
        except BaseException:
            # Up to torch 2.14 an error in capture_end leaves the capture stream current.
            if capture_stream is not None and torch.cuda.current_stream() == capture_stream:
                self.stream_ctx.__exit__(*args)
            raise

    return __exit__


def _driver(platform: str) -> Any:
    from gfxgraph.process import process

    if platform == "simulator":
        from gfxgraph import simulator

        simulation = simulator.active()
        assert simulation is not None
        return simulator.SimDriver(simulation)
    from gfxgraph.driver import locate

    try:
        return locate("hip" if platform == "rocm" else "cuda")
    except DriverError as error:
        process.log.warning("graphs are captured without a look below torch: %s", error)
        return None


def _decisions(platform: str, settings: Config) -> Any:
    """What the defect table says for this machine, or for the simulated one."""
    from pathlib import Path

    from gfxgraph.hardware import defects, environment

    if settings.environment:
        return defects.decide(environment.load(Path(settings.environment)))
    if platform == "rocm":
        return defects.decide(environment.detect())
    return defects.Decisions()


def _validate_replays(settings: Config, platform: str, by_table: int) -> int:
    if settings.validate_replays is not None:
        return settings.validate_replays
    if settings.activation is Activation.VALIDATE:
        return max(VALIDATE_REPLAYS, by_table)
    hip = platform == "rocm" or (platform == "simulator" and settings.simulate.startswith("hip"))
    return max(VALIDATE_REPLAYS if hip else 0, by_table)


def _set_log_level(settings: Config) -> None:
    logger = logging.getLogger("gfxgraph")
    logger.setLevel(settings.log_level.value.upper() if settings.log_level.value != "warn" else "WARNING")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("gfxgraph: %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
