"""After ``enable()``: torch.compile's graphs are ours, and on ROCm Inductor's settings are safe.

If a program uses ``mode="reduce-overhead"``, ``"max-autotune"`` or sets ``triton.cudagraphs``, Inductor
compiles as always, and what it would have given to its own tree of graphs becomes our regions. Settings that
the defect table asks for are in effect only while something is compiled: nothing has to be restored except
one method. Explicit choices of the user are kept: an option or mode of that ``torch.compile``, an assignment
to ``torch._inductor.config``, or ``GFXGRAPH_COMPILE=0`` to switch all of it off. On an NVIDIA GPU nothing changes
unless ``GFXGRAPH_COMPILE`` asks for it; ``backend="gfxgraph"`` works everywhere.

Nothing here imports Inductor before something is compiled: that takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from gfxgraph import torch_names
from gfxgraph.capture.record.random_generators import shield_from_dynamo
from gfxgraph.compile import inductor_hook, simulated
from gfxgraph.compile.backend import MAX_GRAPHS
from gfxgraph.config import CompileWays
from gfxgraph.hardware.defects import rows
from gfxgraph.process import bridge
from gfxgraph.process.process import Process, log


def install(torch: ModuleType, state: Process) -> None:
    """Patch ``torch.compile``'s Inductor backend, if wanted, until the bridge is switched off."""
    ways = state.settings.compile
    if ways is CompileWays.OFF:
        return
    if ways is CompileWays.AUTO:
        ways = CompileWays.OFF if state.platform == "cuda" else CompileWays.REGIONS
    if torch_names.why_off("torch.compile's graphs"):
        return
    inductor = torch_names._TorchCompileInductorWrapper
    stock = inductor.__call__

    def compile_ours(self: object, model_: object, inputs_: object) -> object:
        return _compile(state, stock, self, model_, inputs_)

    if ways is not CompileWays.OFF:
        bridge.replace(inductor, "__call__", compile_ours)
    shield_from_dynamo()


def _compile(state: Process, stock: Callable[..., object], wrapper: Any, gm: object, inputs: object) -> object:
    """Replaces what ``torch.compile`` with Inductor does with a traced graph."""

    if inductor_hook.why_off():
        return stock(wrapper, gm, inputs)
    asked: Mapping[str, object] = wrapper.config
    wants_graphs = asked.get("triton.cudagraphs", torch_names.inductor_config.triton.cudagraphs)
    if getattr(torch_names.inductor_config, "cudagraph_policy", None) is not None:
        wants_graphs = False  # an explicit choice by the user
    safe = _safe_settings(state, asked, torch_names.inductor_config)
    if not wants_graphs and not safe:
        return stock(wrapper, gm, inputs)

    if not wants_graphs:
        if state.platform == "simulator":
            return stock(wrapper, gm, inputs)
        return torch_names.compile_fx(gm, inputs, config_patches={**asked, **safe})

    _say_once(state)
    with simulated.device():
        patches = {**asked, **safe, **simulated.settings()}
        try:
            return inductor_hook.compile_with(MAX_GRAPHS, torch_names.compile_fx, gm, inputs, patches)
        except Exception as error:  # noqa: BLE001  # torch's own way decides whether the program sees it
            log.debug("torch.compile without gfxgraph's graphs", exc_info=error)
            return stock(wrapper, gm, inputs)


def _safe_settings(state: Process, asked: Mapping[str, object], config: ModuleType) -> dict[str, object]:
    """Settings of the defect table that differ from the current ones and that the user did not choose."""
    wanted: Mapping[str, object] = getattr(state.decisions, "inductor", {})
    found = {}
    for name, value in wanted.items():
        # A default may come from the environment, as images set it; any other value was assigned by the program.
        is_assigned = getattr(torch_names.inductor_config, name) != torch_names.inductor_config._config[name].default
        if name not in asked and not is_assigned and getattr(torch_names.inductor_config, name) != value:
            found[name] = value
            state.report("compile_setting", f"torch.compile: {name} = {value} ({_why(state, name)})")
    return found


def _why(state: Process, setting: str) -> str:
    asking = {row.id for row in rows() if setting in row.action.get("inductor", ())}
    shown = ", ".join(row for row in state.decisions.because("inductor") if row in asking)
    return f"{shown}; gfxgraph doctor --why; options={{{setting!r}: ...}} leaves it alone"


_told: set[int] = set()


def _say_once(state: Process) -> None:
    if getattr(state.decisions, "inductor_graphs", None) is None or id(state) in _told:
        return
    _told.add(id(state))
    why = ", ".join(state.decisions.because("inductor_graphs"))
    log.warning("torch.compile uses gfxgraph's graphs, not Inductor's (%s; GFXGRAPH_COMPILE=0 keeps Inductor's)", why)
