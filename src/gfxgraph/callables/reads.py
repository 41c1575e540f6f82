"""What a captured function reads besides its arguments: as a trace found it, or as the caller promised.

A ``World`` (trace/world.py) knows everything that a traced function read. Under ``assume_pure`` nothing is traced:
the
caller promises that the function reads its arguments, the parameters and buffers of its modules, and nothing that
changes. Then only the modules' tensors are checked, to notice replaced weights.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gfxgraph.callables.trace.dicts import DictWatch, watched


class Reads(Protocol):
    """What a graph reads besides its arguments."""

    token: int
    """Changes with the tensors or the trace: part of a call's key."""

    @property
    def written_homes(self) -> frozenset[int]:
        """Addresses of storages outside the arguments that the function writes to."""

    homes: frozenset[int]
    """Addresses of the storages of all external tensors that it reads."""

    def is_same(self) -> bool:
        """False if something may have changed."""


class Promised:
    """The modules of a pure function: parameters and buffers are compared by identity, and two addresses per call, in
    turn.

    Comparing all addresses in each call would cost more than the replay: after a step none of them is in the CPU's
    caches.
    """

    def __init__(self, fn: Any) -> None:
        self.token = 0
        self._next = 0
        self.written_homes: frozenset[int] = frozenset()
        self._modules = list(_modules_of(fn))
        self._bound: frozenset[int] = getattr(fn, "homes", frozenset())
        self._look()

    def is_same(self) -> bool:
        if self._dicts is not None and not self._dicts.is_same():
            return False
        tensors, addresses = self._in_turn  # read as one object: another thread may replace it meanwhile
        if tensors:
            i = self._next
            if i >= len(tensors):
                i = 0
            if tensors[i].data_ptr() != addresses[i] or tensors[i - 1].data_ptr() != addresses[i - 1]:
                return False
            self._next = i + 2
        return True

    def look(self) -> None:
        """Note what is read now; the token changes if a tensor was replaced."""
        before = [(id(t), a) for t, a in zip(*self._in_turn)]
        self._look()
        if before != [(id(t), a) for t, a in zip(*self._in_turn)]:
            self.token += 1

    def _look(self) -> None:
        inner = list({id(each): each for module in self._modules for each in module.modules()}.values())
        state = [d for each in inner for d in (each._parameters, each._buffers, each._modules)]
        self._dicts: DictWatch | None = watched(state) if state else None
        held = [t for each in inner for t in (*each._parameters.values(), *each._buffers.values())]
        tensors = [t for t in held if t is not None and t.layout is torch.strided]
        self._in_turn: tuple[list[Tensor], list[int]] = tensors, [t.data_ptr() for t in tensors]
        self._next = 0
        self.homes = self._bound.union(t.untyped_storage().data_ptr() for t in tensors)


def _modules_of(fn: Any) -> Iterator[nn.Module]:
    """Modules that a callable is, is bound to, or names in its closure and globals."""
    while isinstance(fn, functools.partial) or hasattr(fn, "_torchdynamo_orig_callable"):
        fn = fn.func if isinstance(fn, functools.partial) else fn._torchdynamo_orig_callable
    if isinstance(fn, nn.Module):
        yield fn
        return
    owner = getattr(fn, "__self__", fn if not inspect.isfunction(fn) else None)
    if isinstance(owner, nn.Module):
        yield owner
    elif owner is not None and hasattr(owner, "__dict__"):
        yield from (each for each in vars(owner).values() if isinstance(each, nn.Module))
    function = getattr(fn, "__func__", fn)
    if inspect.isfunction(function):
        named = inspect.getclosurevars(function)
        yield from (v for v in (*named.nonlocals.values(), *named.globals.values()) if isinstance(v, nn.Module))
