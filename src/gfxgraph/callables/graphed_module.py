"""A graphed module: a second object over the module's own state, whose call is the graphed one.

Problem: users put a graphed module where a module belongs (a child, ``Sequential``, DDP, ``state_dict``). A wrapper
that holds the module has its keys behind a prefix, and passes on attributes one by one.

Idea: the object's class is a subclass of the module's own, and its ``__dict__`` *is* the module's. So whatever
``nn.Module`` or the program reads or writes on either, it reads or writes on both, without a line here. The subclass
adds ``__call__``, and a slot outside of that dictionary for the ``Graphed``, which traces and runs the module itself.

Invariant: the module does not refer to the graphed one. So it stays as it was, and no cycle keeps its memory.

Source: decision 0330.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.signature import MISS
from gfxgraph.callables.trace.corrections import shield

OFFERED = ("stats", "explain", "graphs", "capture_all", "reset", "why_eager")
"""Names of ``Graphed`` that a graphed module has where the module has none of its own."""


class _GraphedModule(nn.Module):
    """The first base class of every graphed module; the second is the module's."""

    __slots__ = ()
    _gfxgraph: Graphed

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """What a method makes by ``self.__class__(...)``, a slice of a Sequential, say, is an ordinary module."""
        return cls.__bases__[1](*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "_gfxgraph" not in vars(cls):  # a parametrization's class, which would be this object's alone
            raise TypeError("a graphed module keeps its class: do this before graphed(), or use in_place=True")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():  # as in Graphed: the call becomes part of Dynamo's trace
            return super().__call__(*args, **kwargs)
        graphed = self._gfxgraph
        try:
            result = graphed._fast(args, kwargs)
            return result if result is not MISS else graphed._missed(args, kwargs)
        except Exception as error:  # noqa: BLE001  # raised again unless it is our own
            ran = graphed._despite(error, kwargs)
        return ran[0] if ran else graphed._fn(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return bool(plain(self) == plain(other))  # hooks are given the module itself, and may look it up

    def __hash__(self) -> int:
        return hash(plain(self))

    def __copy__(self) -> nn.Module:
        make, module = self._gfxgraph._same
        return module_of(make(copy.copy(module)))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return module_of(copy.deepcopy(self._gfxgraph, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return module_of, (self._gfxgraph,)

    def _replicate_for_data_parallel(self) -> Any:
        return plain(self)._replicate_for_data_parallel()


shield(_GraphedModule.__call__)


class _Offered:
    """A name of ``Graphed``, on a graphed module whose class has no such name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        try:
            return module.__getattr__(self._name)  # a parameter, a buffer or a child
        except AttributeError:
            return getattr(module._gfxgraph, self._name)


def plain(module: Any) -> Any:
    """The module under a graphed one; anything else as it is."""
    return module._gfxgraph._fn if isinstance(module, _GraphedModule) else module


def module_of(graphed: Graphed) -> nn.Module:
    """Make the module that is called as ``graphed``, which was made of a module."""
    module: Any = graphed._fn
    made: nn.Module = object.__new__(_class_of(type(module)))
    object.__setattr__(made, "__dict__", module.__dict__)
    object.__setattr__(made, "_gfxgraph", graphed)
    return made


def _class_of(cls: Any) -> Any:
    """The class of graphed modules of class ``cls``: one each, which its own class alone refers to, weakly."""
    for each in type.__subclasses__(cls):
        if each.__mro__[1] is _GraphedModule and each.__bases__[1] is cls:
            return each
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    names |= {name: _Offered(name) for name in OFFERED if not hasattr(cls, name)}
    names["__slots__"] = ("_gfxgraph",)
    return type(cls)(cls.__name__, (_GraphedModule, cls), names)
