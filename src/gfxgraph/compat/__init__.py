"""compat: gfxgraph 1.1.0's exports, with its signatures and return values, over what stands behind them now.

    import gfxgraph.compat as gfxgraph      # instead of `import gfxgraph`

Enters: what programs written for 1.1.0 pass.
Stays out: policy and mechanisms; each function hands on to the room that has them, and shapes its answer.

Where the same name means another thing at the top of ``gfxgraph`` (``make_safe`` there gives the tensor, here the
tensor and a flag), the older meaning is here alone; docs/older-names.md goes through them. Nothing of 1.1.0's code
is in here: names, arguments and kinds of results are its, as its documentation and its tests state them.

    graph_classes.py  the three classes of graphs, over graphed callables
enabling.py   switching on and off, counters, what 1.1.0 had else of those classes
memory_guard.py  layouts, faults, red zones
    diagnosis.py  errors explained
    waves.py      software wave64 and wave128
    devices.py    GPU, PyTorch and what else is installed
    engines.py    MIGraphX; engines that call the graph API themselves
"""

from __future__ import annotations

from importlib import import_module

_ROOMS = {
"enabling": (
        "enable", "disable", "is_enabled", "stats", "health_check", "BridgedCUDAGraph", "ShapeBucketPool",
        "ConditionalGraph",
    ),
"memory_guard": (
        "guard_level", "validate_layout", "make_safe", "make_capture_safe", "GfxGraphFault", "is_illegal_access",
        "localize_fault", "RedZone", "apply_deep_guard_env", "compute_sanitizer_cmd",
    ),
    "diagnosis": (
        "explain", "report", "diagnose", "install_diagnostics", "environment_report", "Diagnosis", "diag_lang",
    ),
    "waves": ("detect_wave64", "plan_software_wave", "should_convert", "wave_mode"),
    "devices": (
        "device_info", "DeviceInfo", "torch_rocm_status", "require_rocm_torch", "RocmTorchError",
        "detect_accelerators", "detect_engines",
    ),
    "engines": ("migraphx_available", "MIGraphXBackend", "hipgraph_interposer_status", "cross_engine_support"),
}  # fmt: skip
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = list(_HOME)  # noqa: PLE0604  (the table above, name by name)


def __getattr__(name: str) -> object:
    if name == "__version__":
        # lazily: the package below this one
        from gfxgraph import __version__

        return __version__
    if name not in _HOME:
        raise AttributeError(f"module 'gfxgraph.compat' has no attribute {name!r}")
    return getattr(import_module(f"gfxgraph.compat.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
