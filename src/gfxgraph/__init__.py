"""gfxgraph: GPU graphs on AMD GPUs, compared with eager execution.

    import gfxgraph
    gfxgraph.enable()          # torch.cuda.CUDAGraph now goes on, or falls back with a reason, where it failed

Importing this package imports neither torch nor a driver. Every public name is loaded when it is
first used; the table below says from where.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than all else here
    from typing import Any

__version__ = "2.0.0.dev0"

_EXPORTS: dict[str, str] = {
    "enable": "gfxgraph.startup.activation:enable",
    "disable": "gfxgraph.startup.activation:disable",
    "is_enabled": "gfxgraph.process.bridge:is_enabled",
    "activate_from_environment": "gfxgraph.startup.activation:activate_from_environment",
    "stats": "gfxgraph.process.health:stats",
    "reset_stats": "gfxgraph.process.health:reset_stats",
    "health_check": "gfxgraph.process.health:health_check",
    "BridgedCUDAGraph": "gfxgraph.startup.graph_class:BridgedCUDAGraph",
    "graphed": "gfxgraph.callables.api:graphed",
    "Graphed": "gfxgraph.callables.graphed:Graphed",
    "memory_report": "gfxgraph.reporting.reading:memory_report",
    "write_report": "gfxgraph.reporting.page:write_report",
    "inspect": "gfxgraph.reporting.reading:inspect",
    "profile": "gfxgraph.reporting.profile:profile",
    "dump": "gfxgraph.reporting.dump:dump",
    "Conditional": "gfxgraph.callables.control.conditional:Conditional",
    "WhileLoop": "gfxgraph.callables.control.loops:WhileLoop",
    "TrainingStep": "gfxgraph.callables.training.training_step:TrainingStep",
    "make_graphed_callables": "gfxgraph.callables.training.make_graphed_callables:make_graphed_callables",
    "Agreed": "gfxgraph.callables.agreed:Agreed",
    "ShapeBucketPool": "gfxgraph.compat.graph_classes:ShapeBucketPool",
    "ConditionalGraph": "gfxgraph.compat.graph_classes:ConditionalGraph",
    "GfxGraphError": "gfxgraph.errors:GfxGraphError",
    "ActivationError": "gfxgraph.errors:ActivationError",
    "ConfigError": "gfxgraph.errors:ConfigError",
    "ArgumentError": "gfxgraph.errors:ArgumentError",
    "CaptureError": "gfxgraph.errors:CaptureError",
    "ReplayError": "gfxgraph.errors:ReplayError",
    "GuardMismatch": "gfxgraph.errors:GuardMismatch",
    "ValidationMismatch": "gfxgraph.errors:ValidationMismatch",
    "GfxGraphFault": "gfxgraph.errors:GfxGraphFault",
    "DriverError": "gfxgraph.errors:DriverError",
    "SimulatorError": "gfxgraph.errors:SimulatorError",
    "OnUnsafe": "gfxgraph.types:OnUnsafe",
    "guard_level": "gfxgraph.guard.level:guard_level",
    "GuardTier": "gfxgraph.types:GuardTier",
    "validate_layout": "gfxgraph.guard.layout:validate_layout",
    "make_safe": "gfxgraph.guard.layout:make_safe",
    "make_capture_safe": "gfxgraph.guard.layout:make_capture_safe",
    "localize_fault": "gfxgraph.guard.localize:localize_fault",
    "RedZone": "gfxgraph.guard.redzones:RedZone",
    "compute_sanitizer_cmd": "gfxgraph.startup.sanitizer:compute_sanitizer_cmd",
    "explain": "gfxgraph.hardware.advice:explain",
    "install_diagnostics": "gfxgraph.hardware.advice:install_diagnostics",
    "diagnose": "gfxgraph.hardware.advice:diagnose",
    "report": "gfxgraph.hardware.advice:report",
    "environment_report": "gfxgraph.hardware.advice:environment_report",
    "device_info": "gfxgraph.hardware.chosen_device:device_info",
    "DeviceInfo": "gfxgraph.hardware.chosen_device:DeviceInfo",
    "torch_rocm_status": "gfxgraph.hardware.chosen_device:torch_rocm_status",
    "migraphx_available": "gfxgraph.hardware.software:migraphx_available",
    "should_convert": "gfxgraph.compat.waves:should_convert",
    "is_illegal_access": "gfxgraph.guard.localize:is_illegal_access",
    "apply_deep_guard_env": "gfxgraph.compat.memory_guard:apply_deep_guard_env",
    "Diagnosis": "gfxgraph.compat.diagnosis:Diagnosis",
    "diag_lang": "gfxgraph.compat.diagnosis:diag_lang",
    "detect_wave64": "gfxgraph.compat.waves:detect_wave64",
    "plan_software_wave": "gfxgraph.compat.waves:plan_software_wave",
    "wave_mode": "gfxgraph.compat.waves:wave_mode",
    "require_rocm_torch": "gfxgraph.compat.devices:require_rocm_torch",
    "RocmTorchError": "gfxgraph.compat.devices:RocmTorchError",
    "detect_accelerators": "gfxgraph.compat.devices:detect_accelerators",
    "detect_engines": "gfxgraph.compat.devices:detect_engines",
    "MIGraphXBackend": "gfxgraph.compat.engines:MIGraphXBackend",
    "hipgraph_interposer_status": "gfxgraph.compat.engines:hipgraph_interposer_status",
    "cross_engine_support": "gfxgraph.compat.engines:cross_engine_support",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    target = _EXPORTS.get(name)
    if target is None:
        raise AttributeError(f"module 'gfxgraph' has no attribute {name!r}")
    module, attribute = target.split(":")
    # lazily: programs that use nothing of it need it not
    from importlib import import_module

    try:
        value = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        refusal = import_module("gfxgraph.errors").ActivationError  # by name: the package lies below its rooms
        raise refusal("no_torch", python=import_module("sys").executable, quote=str(error)) from error
    if name != "BridgedCUDAGraph":  # that one belongs to the torch, or simulator, now in force
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])


# Last, because it may activate at once: where GFXGRAPH asks for it and torch is loaded already. By name, for the
# package lies below its rooms; without importlib, which takes longer to import than all of this.
__import__("gfxgraph.startup.hook", fromlist=["install_if_asked"]).install_if_asked()
