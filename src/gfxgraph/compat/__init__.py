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

from gfxgraph import __version__ as __version__
from gfxgraph import names_in

_HOME = names_in(f"{__path__[0]}/__init__.pyi") | {"BridgedCUDAGraph": "gfxgraph.compat.enabling"}

__all__ = list(_HOME)  # noqa: PLE0604  (name by name)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gfxgraph.compat' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
