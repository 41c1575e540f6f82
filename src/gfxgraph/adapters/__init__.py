"""adapters: engines with graphs of their own, one file per engine.

Enters: the engine's own classes, tensors, streams.
Stays out: the command line; engines that were not requested.

    adapter.py       the adapter interface: install, uninstall, refusal
    _needs.py        what adapters need from their engines, and checking that it exists
    _eager_fallback.py  runs one of an engine's graphs eagerly, into the same memory, if it could not be captured

Every other file is one engine's and defines ``ADAPTER``. A new engine needs no other change.

    vllm.py, sglang.py
                     in every process of a server
    migraphx.py      a compiled program captured whole
    onnxruntime.py   sessions whose provider captures graphs itself
    transformers.py  ``model.generate`` with its decoding steps as graphs, which gfxgraph_kernels.generation makes

    import gfxgraph.adapters as adapters
    adapters.install("vllm")       # raises if the engine lacks what the adapter needs, and names it
    adapters.uninstall("vllm")     # restores everything
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from gfxgraph.adapters.adapter import Adapter
from gfxgraph.errors import ActivationError

_NOT_ENGINES = frozenset({"adapter"})


def names() -> list[str]:
    """The engines that have adapters, sorted; they need not be installed."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if not name.startswith("_") and name not in _NOT_ENGINES)


def get(name: str) -> Adapter:
    """The adapter of an engine.

    Args:
        name: one of ``names()``; the engine need not be installed.

    Raises:
        ActivationError: `engine_unknown`.
    """
    if name not in names():
        raise ActivationError("engine_unknown", engine=name, known=", ".join(names()))
    adapter: Adapter = import_module(f"gfxgraph.adapters.{name}").ADAPTER
    return adapter


def install(name: str) -> None:
    """Install an engine's adapter in this process; does nothing if it is installed.

    Args:
        name: one of ``names()``.

    Raises:
        ActivationError: `engine_unknown`, `engine_missing`, `engine_layout`; nothing is changed then.
    """
    get(name).install()


def uninstall(name: str) -> None:
    """Restore every object that ``install`` replaced.

    Args:
        name: one of ``names()``.

    Raises:
        ActivationError: `engine_unknown`.
    """
    get(name).uninstall()


def installed() -> list[str]:
    """The engines whose adapters are installed in this process."""
    return [name for name in names() if get(name).is_installed]
