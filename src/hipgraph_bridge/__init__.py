"""hipgraph_bridge: the module paths of gfxgraph 1.1.0.

    from hipgraph_bridge.guard import make_safe

Each module hands on what ``gfxgraph.compat`` has, most of them by the table ``HOMES``. docs/older-names.md says what
differs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from gfxgraph import __version__

__all__ = ["BridgedCUDAGraph", "ShapeBucketPool", "__version__", "init", "shutdown"]

HOMES = {
    "conditional": "enabling", "diagnostics": "diagnosis", "graph_manager": "enabling", "guard": "memory_guard",
    "hardware": "devices", "interop": "engines", "shape_bucketing": "enabling", "wavefront": "waves",
}  # fmt: skip
"""Modules without a file here, each with the module of ``gfxgraph.compat`` that has its names."""


class OlderModule(ModuleType):
    """Reads each name from its home when it is asked for: some are of the torch, or simulator, now in force."""

    __all__: list[str]

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__all__":  # inspect asks every module: nothing is loaded for that
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"gfxgraph.compat.{HOMES[self.__name__.partition('.')[2]]}"), name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.__all__})


for _name in HOMES:
    _module = sys.modules[f"{__name__}.{_name}"] = globals()[_name] = OlderModule(f"{__name__}.{_name}")
    _module.__spec__ = ModuleSpec(_module.__name__, None)


def __getattr__(name: str) -> object:
    if name not in ("BridgedCUDAGraph", "ShapeBucketPool"):
        raise AttributeError(f"module 'hipgraph_bridge' has no attribute {name!r}")
    return getattr(globals()["graph_manager"], name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def init() -> int:
    """Initialize the native library as C programs do, ``hgb_init``; -1 where there is none, which loses nothing."""
    # lazily: it is ctypes' room
    from gfxgraph import _native

    return _native.call_older("hgb_init")


def shutdown() -> int:
    """The end of ``init``; -1 where there is no native library."""
    # lazily: it is ctypes' room
    from gfxgraph import _native

    return _native.call_older("hgb_shutdown")
