"""Switch the bridge on and off: the platform, the patches, and how they are undone.

Nothing is patched until every check has passed. What is patched: the two names of CUDAGraph
(``torch.cuda`` and ``torch.cuda.graphs``), those of make_graphed_callables, and the entry and exit of
``torch.cuda.graph``, which in torch up to 2.14 leave the capture stream current when the capture could
not be begun or ended.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

from gfxgraph import _native, config, torch_names
from gfxgraph.config import Activation, Config
from gfxgraph.core.replaced import Replaced
from gfxgraph.errors import ActivationError, ArgumentError, check_settings, member, naming_a_missing_package
from gfxgraph.guard.level import asked_tier, guard_level, watch_memory
from gfxgraph.hardware import defect_environment, defects
from gfxgraph.hardware.software import Torch, other_gfxgraph
from gfxgraph.process import bridge, process
from gfxgraph.startup.child_environment import refuse_unsuitable
from gfxgraph.types import GuardTier, OnUnsafe

OLDEST_TORCH = (2, 9)


def enable(
    *,
    allow_cuda: bool | None = None,
    validate: bool | None = None,
    on_unsafe: OnUnsafe | str | None = None,
    simulate: str | bool | None = None,
    debug: bool | None = None,
    guard: GuardTier | int | str | None = None,
) -> None:
    """Replace ``torch.cuda.CUDAGraph`` by gfxgraph's class in this process.

    Omitted arguments come from the environment. With a torch that lacks what captures need (``torch_names.py``) it
    only warns. Calling it again with the same meaning does
    nothing, except that ``validate`` and ``debug``, if given, apply to graphs captured from then on.

    Args:
        allow_cuda: also on a CUDA build of torch, with an NVIDIA GPU.
        validate: compare the first replays of every graph with eager execution (the default on HIP).
        on_unsafe: "split", "pin", "strict" or "raise": what a capture does with values that Python reads.
        simulate: name of a simulator profile (True for "hip"), to run without a GPU.
        debug: log every capture and fallback.
        guard: tier of memory checks, by number or name (``GFXGRAPH_GUARD``'s values).

    Raises:
        ActivationError: `no_torch`, `not_rocm_cpu_torch`, `not_rocm_cuda_torch`, `no_gpu`, `no_cuda_gpu`,
            `torch_too_old`, `other_gfxgraph`, `already_enabled_differently`; nothing is patched then.
        ConfigError: `bad_setting`, `bad_argument`.
        GfxGraphError: `native_library_unusable`: what GFXGRAPH_LIB names does not load.
    """
    settings = _settings(config.load(), allow_cuda, validate, on_unsafe, simulate, debug, guard)
    check_settings(settings)
    torch = _import_torch()  # first: where the environment asks, its import switches the bridge on
    with bridge.lock:
        state = process.current()
        if bridge.is_whole and torch_names.off.get("capture"):
            return
        if state is not None and bridge.is_whole:
            _refuse_other_settings(state.settings, settings)
            _take_up(state, settings, validate, debug)
            if guard is not None:
                guard_level(guard)
            return
        disable()  # what an interrupt has left half on
        _enable(torch, settings)


def disable() -> None:
    """Undo every replacement that ``enable`` made. Graphs already captured keep working."""
    with bridge.lock:
        if not bridge.undo:
            return
        try:
            _take_back()
        except BaseException:
            _take_back()  # struck between two steps
            raise


def _take_back() -> None:
    # lazily: needs torch, which is there if anything was replaced
    from gfxgraph.capture.undo import Undo, repair

    bridge.is_whole = False
    problems = Undo([*bridge.undo, *([] if torch_names.why_off("capture") else [repair])]).undo_all()
    bridge.undo.clear()
    for problem in problems:
        raise problem


def activate_from_environment() -> bool:
    """Enable as ``GFXGRAPH`` and the related variables say. Returns whether the bridge is on."""
    settings = config.load()
    if not settings.is_on:
        return False
    enable()
    # lazily: enable() does not need the catalogue
    from gfxgraph.hardware.advice import install_diagnostics

    install_diagnostics()  # install_diagnostics() checks GFXGRAPH_DIAG itself
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
    switches = {"allow_cuda": allow_cuda, "validate": validate, "debug": debug}
    wrong = {name: given for name, given in switches.items() if not isinstance(given, bool | None)}
    if not isinstance(simulate, str | bool | None):
        wrong["simulate"] = simulate
    for name, given in wrong.items():
        allowed = "the name of a profile, True or False" if name == "simulate" else "True or False"
        fields = {"argument": name, "value": repr(given), "allowed": allowed}
        raise ArgumentError("bad_argument", function="enable()", **fields)
    if allow_cuda is not None:
        changes["allow_cuda"] = allow_cuda
    if on_unsafe is not None:
        changes["on_unsafe"] = member(OnUnsafe, "enable()", "on_unsafe", on_unsafe)
    if simulate is not None:
        changes["simulate"] = simulate if isinstance(simulate, str) else ("hip" if simulate else "")
    if debug:
        changes |= {"activation": Activation.DEBUG, "log_level": config.LogLevel.DEBUG}
    if validate is False:
        changes["validate_replays"] = 0
    elif validate:
        changes["validate_first"] = True
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


def _take_up(state: process.Process, settings: Config, validate: bool | None, debug: bool | None) -> None:
    if validate is not None:
        state.validate_replays = bridge.validate_replays(settings, state.platform, state.decisions.validate_replays)
        state.settings = replace(state.settings, validate_replays=settings.validate_replays)
    if debug:
        state.settings = replace(state.settings, log_level=settings.log_level)
        bridge.set_log_level(settings)


def _enable(torch: ModuleType, settings: Config) -> None:
    platform = _platform(torch, settings)
    try:
        if settings.simulate:
            with naming_a_missing_package():
                # lazily: needs torch
                import gfxgraph_simulator as simulator
            restore = Replaced()
            bridge.undo.append(restore.undo)
            simulator.install(settings.simulate, undo=restore)
        if not torch_names.why_off("capture"):
            _put_in_place(torch, settings, platform)
        bridge.is_whole = True
    except BaseException:
        disable()
        raise
    for name, meant in config.misspelt().items():
        process.log.warning("%s is not a setting of gfxgraph; did you mean %s?", name, meant)


def _import_torch() -> Any:
    try:
        # lazily: a program without torch gets an error
        import torch
    except ImportError as error:
        raise ActivationError("no_torch", python=sys.executable, quote=str(error)) from error
    if torch_names.version() < OLDEST_TORCH:
        raise ActivationError(
            "torch_too_old", torch_version=torch.__version__, minimum=".".join(map(str, OLDEST_TORCH))
        )
    return torch


def _platform(torch: ModuleType, settings: Config) -> str:
    """The platform of this process; raises before anything is patched."""
    if settings.lib:
        _native.open_library()  # one that the user names must load
    other, folder = other_gfxgraph()
    if other:
        raise ActivationError("other_gfxgraph", version=other, folder=folder)
    if settings.simulate:
        return "simulator"
    build = Torch(torch.__version__, torch.version.hip or "", torch.version.cuda or "")
    refuse_unsuitable(settings, sys.executable, build)
    if build.hip:
        # HIP reads its variables when it starts, which the next line makes it do.
        for name, value in defects.decide(defect_environment.detect()).set_env.items():
            os.environ.setdefault(name, value)  # noqa: TID251
    if not torch.cuda.is_available():
        if torch.version.hip is None:
            raise ActivationError("no_cuda_gpu", torch_version=torch.__version__, cuda_version=torch.version.cuda)
        raise ActivationError("no_gpu", torch_version=torch.__version__, hip_version=torch.version.hip)
    return "rocm" if torch.version.hip is not None else "cuda"


def _put_in_place(torch: ModuleType, settings: Config, platform: str) -> None:
    # lazily: all of these need torch
    from gfxgraph.adapters import transformers
    from gfxgraph.callables.training import make_graphed_callables
    from gfxgraph.capture import torchs_graph
    from gfxgraph.capture.graph import bridged_class
    from gfxgraph.capture.patches import patch_table
    from gfxgraph.capture.replay import runtime_workarounds
    from gfxgraph.compile import torch_compile_patch
    from gfxgraph.guard import guard
    from gfxgraph.reporting import read_capture

    bridge.set_log_level(settings)
    base = torch.cuda.graphs.CUDAGraph
    if platform != "simulator":
        driver = bridge.driver_of(platform)
    else:
        # lazily: as above
        from gfxgraph_simulator import SimDriver, active

        simulation = active()
        assert simulation is not None
        driver = SimDriver(simulation)
    state = bridge.make_process(settings, platform, base, driver)
    runtime_workarounds.arrange_exit(state)
    guard.fill()
    read_capture.fill()
    bridged = bridged_class(base)
    bridge.replace(torch.cuda.graphs, "CUDAGraph", bridged)
    bridge.replace(torch.cuda, "CUDAGraph", bridged)
    bridge.replace(torch.cuda.graph, "__enter__", torchs_graph.enter_of_graph(torch.cuda.graph.__enter__))
    bridge.replace(torch.cuda.graph, "__exit__", torchs_graph.exit_of_graph(torch.cuda.graph.__exit__))
    make_graphed_callables.install()
    patch_table.install_until_disabled()
    runtime_workarounds.keep_workspaces(bridge.undo)
    watch_memory(settings.guard)
    for companion in (torch_compile_patch.install, transformers.beside_enable):
        companion(torch, state)
    process.log.info(
        "enabled on %s (on_unsafe=%s, validating %s of each graph)",
        platform,
        settings.on_unsafe,
        "every replay" if state.validate_replays == bridge.EVERY_REPLAY else f"{state.validate_replays} replays",
    )
