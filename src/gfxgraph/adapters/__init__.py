"""adapters: engines that bring their own graphs, one file per engine.

Enters: the engine's own classes, tensors, streams.
Stays out: the command line; engines that are not asked for.

    base.py          what an adapter is: install, uninstall, and what becomes of one that is refused
    _needs.py        what adapters need of their engines, and whether it is there
    _downgrade.py    one of an engine's graphs that could not be captured, run eagerly into the same memory
    _metrics.py      counters as text for Prometheus

    _announce.py     what an engine's log says of gfxgraph as it starts

Every other file is an engine's, and holds ``ADAPTER``. Nothing else needs editing for a new one.

    vllm.py, sglang.py
                     in every process of a server
    migraphx.py      a compiled program captured whole
    onnxruntime.py   sessions whose provider captures graphs itself
    transformers.py  ``model.generate`` with its decoding steps as graphs:
    _transformers_model.py
                     one accelerated model, and which decoder takes a call
    _transformers_decode.py, _transformers_loop.py
                     generation as two graphs; when to stop, what a streamer gets
    _transformers_cache.py, _transformers_masks.py, _transformers_attention.py
                     keys and values at fixed addresses; masks; attention over shared heads
    _transformers_choice.py
                     processors and stopping criteria that a graph can hold
    _transformers_compile.py
                     a compiled step that changes no bit
    _transformers_trial.py
                     whether this transformers' own tokens come out, tried on tiny models

    import gfxgraph.adapters as adapters
    adapters.install("vllm")       # raises where the engine lacks what the adapter needs, and says what
    adapters.uninstall("vllm")     # everything as it was
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from gfxgraph.adapters.base import Adapter
from gfxgraph.errors import ActivationError

_NOT_ENGINES = frozenset({"base"})


def names() -> list[str]:
    """The engines there are adapters for, sorted; installed or not."""
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
    """Put gfxgraph under an engine in this process; once more does nothing.

    Args:
        name: one of ``names()``.

    Raises:
        ActivationError: `engine_unknown`, `engine_missing`, `engine_layout`; nothing is changed then.
    """
    get(name).install()


def uninstall(name: str) -> None:
    """Put back every object that ``install`` replaced.

    Args:
        name: one of ``names()``.

    Raises:
        ActivationError: `engine_unknown`.
    """
    get(name).uninstall()


def installed() -> list[str]:
    """The engines whose adapters are in place in this process."""
    return [name for name in names() if get(name).is_installed]
