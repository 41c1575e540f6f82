"""gfxgraph: GPU graphs on AMD GPUs, compared with eager execution.

    import gfxgraph
    gfxgraph.enable()          # torch.cuda.CUDAGraph now goes on, or falls back with a reason, where it failed

Importing this package imports neither torch nor a driver. Every public name is loaded when it is
first used; ``__init__.pyi`` says from where.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than all else here
    from typing import Any

__version__ = "2.0.0.dev0"


def names_in(stub: str) -> dict[str, str]:
    """Public names, each with the module that has it, as a package's stub lists them."""
    with open(stub, encoding="utf-8") as lines:
        return {words[5]: words[1] for words in map(str.split, lines) if words[:1] == ["from"]}


_exports: dict[str, str] = {}


def exports() -> dict[str, str]:
    """The public names and their modules, read when the first is used."""
    if not _exports:
        _exports.update(names_in(f"{__path__[0]}/__init__.pyi"), BridgedCUDAGraph="gfxgraph.startup.graph_class")
    return _exports


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *exports()]
    module = exports().get(name)
    if module is None:
        raise AttributeError(f"module 'gfxgraph' has no attribute {name!r}")
    # lazily: programs that use nothing of it need it not
    from importlib import import_module

    try:
        value = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        refusal = import_module("gfxgraph.errors").ActivationError  # by name: the package lies below its rooms
        raise refusal("no_torch", python=import_module("sys").executable, quote=str(error)) from error
    if name != "BridgedCUDAGraph":  # that one belongs to the torch, or simulator, now in force
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), "__all__", *exports()])


# Last, because it may activate at once: where GFXGRAPH asks for it and torch is loaded already. By name, for the
# package lies below its rooms; without importlib, which takes longer to import than all of this.
__import__("gfxgraph.startup.hook", fromlist=["install_if_asked"]).install_if_asked()
