"""What a function reads besides its arguments, and noticing that it is no longer the same.

Problem: a graph has addresses baked in, and every branch that Python took. A parameter replaced
(``load_state_dict(assign=True)``), moved (``module.to``), ``module.eval()``, a global or a variable of an
enclosing function set to another value: replaying would give the answer of before. Looking at all of it
costs more than a replay, so:

  - at every call: the variables that the function itself names, and the addresses of a few tensors;
  - at every call, all of them where there are at most ``EXACT`` tensors; else two tensors and one attribute
    more each time, in turn, for what happens beside the ways below (``parameter.data = other``);
  - when it happens: parameters, buffers and submodules registered, ``module.train``, ``module._apply``
    (which ``to``, ``half``, ``cuda`` go through) raise one number, and then everything is looked at.

What was seen is part of the signature, so that going back to evaluation finds its capture again.
Values written in place (optimizers, ``copy_``, ``load_state_dict``) need none of this: a replay reads them.
Not watched: what functions called by the function read, and what objects hold that are no modules and
that the function is not a method of.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gfxgraph.core.constants import NotConstant, constant_key

EXACT = 8
MAX_TOKENS = 1024
MAX_ITEMS = 16
CELL = object()
"""In the place of a name: the value of a variable of an enclosing function."""

_epoch = [0]
_is_listening = False


def _changed(*args: Any) -> None:
    # While Dynamo traces, a ModuleList made for a moment (self.layers[:n]) is not worth a word; and traced, the
    # number would be guarded: compiled code would be compiled again at every call.
    if not torch.compiler.is_compiling():
        _epoch[0] += 1


def _listen() -> None:
    """Have torch tell when any module gets another parameter, mode or place."""
    global _is_listening
    if _is_listening:
        return
    _is_listening = True
    hooks = nn.modules.module
    hooks.register_module_parameter_registration_hook(_changed)
    hooks.register_module_buffer_registration_hook(_changed)
    hooks.register_module_module_registration_hook(_changed)
    for name in ("train", "_apply", "requires_grad_"):
        setattr(nn.Module, name, _telling(getattr(nn.Module, name)))


def _telling(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def told(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        finally:
            _changed()

    return told


class Watch:
    """The surroundings of one function."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.token = -1
        """Stands for what was seen last; equal surroundings have equal tokens."""
        self._tokens: dict[Any, int] = {}
        self._n_tokens = 0
        self.tensors_token = 0
        """Another number whenever a tensor was replaced or moved."""
        self._last_tensors: list[Any] = []
        self._epoch = -1
        self._variables: list[tuple[Any, Any, Any]] = []
        self._tensors: list[Tensor] = []
        self._cells: list[tuple[Any, Any]] = []
        self._entries: list[tuple[Any, Any, Any]] = []
        self._always: list[tuple[Tensor, int]] = []
        # In one piece, for another thread may look while this one asks.
        self._in_turn: tuple[list[Tensor], array[int], list[tuple[Any, str, Any]]] = [], array("Q"), []
        self._next_tensor = self._next_far = 0
        self._has_modules = False
        self.requires_grad = False
        self._functions = list(_functions(fn))
        if any(True for _ in self._modules()):
            _listen()

    def is_same(self) -> bool:
        """False where something may have changed since ``look``; cheap."""
        if self._epoch != _epoch[0]:
            return False
        try:
            for cell, value in self._cells:
                if cell.cell_contents is not value:
                    return False
        except ValueError:  # the variable was deleted
            return False
        for where, name, value in self._entries:
            if where.get(name) is not value:
                return False
        for tensor, address in self._always:
            if tensor.data_ptr() != address:
                return False
        # After a step of the model none of these is in the CPU's caches: how many are read is what a call costs.
        tensors, addresses, far = self._in_turn
        if tensors:
            i = self._next_tensor
            if i >= len(tensors):
                i = 0
            if tensors[i].data_ptr() != addresses[i] or tensors[i - 1].data_ptr() != addresses[i - 1]:
                return False
            self._next_tensor = i + 2
        if far:
            k = self._next_far
            if k >= len(far):
                k = 0
            where, name, value = far[k]
            if where.get(name) is not value:
                return False
            self._next_far = k + 1
        return True

    @property
    def is_trivial(self) -> bool:
        """True where there is nothing to watch."""
        return not self._variables and not self._tensors and not self._has_modules

    def look(self) -> int:
        """Look at everything; the token of what is there now."""
        if self.token >= 0 and self.is_same():
            return self.token
        self._epoch = _epoch[0]
        modules = list(self._modules())
        attributes = [a for module in modules for inner in module.modules() for a in _attributes(inner)]
        near = [a for owner in (*modules, *_owners(self.fn)) for a in _attributes(owner)]
        has_few = len(attributes) <= EXACT
        self._variables = [*self._named(), *(attributes if has_few else near)]
        self._cells = [(where, value) for where, name, value in self._variables if name is CELL]
        self._entries = [variable for variable in self._variables if variable[1] is not CELL]
        if modules:
            _listen()
        tensors = [v for _, _, v in self._variables if isinstance(v, Tensor)]
        flags: list[Any] = []
        for module in modules:
            for inner in module.modules():
                flags.append((_serial(inner), inner.training))
                tensors += [t for t in (*inner._parameters.values(), *inner._buffers.values()) if t is not None]
        self._has_modules = bool(modules)
        self._tensors = list({id(t): t for t in tensors if t.layout is torch.strided}.values())
        addresses = array("Q", [t.data_ptr() for t in self._tensors])
        if has_few and len(addresses) <= EXACT:
            self._always, self._in_turn = list(zip(self._tensors, addresses)), ([], addresses, [])
        else:
            self._always, self._in_turn = [], (self._tensors, addresses, attributes)
        self.requires_grad = any(t.requires_grad for t in self._tensors)
        key = (
            tuple((name, _key(value)) for _, name, value in (*self._variables, *attributes)),
            tuple(flags),
            tuple(t.requires_grad for t in self._tensors),
            self._look_at_tensors(addresses),
        )
        if key not in self._tokens:
            if len(self._tokens) >= MAX_TOKENS:
                self._tokens.clear()
            self._tokens[key] = self._n_tokens
            self._n_tokens += 1
        self.token = self._tokens[key]
        return self.token

    def _look_at_tensors(self, addresses: Sequence[int]) -> int:
        now = [(id(t), a, t.dtype, t.size()) for t, a in zip(self._tensors, addresses)]
        if now != self._last_tensors:
            self._last_tensors = now
            self.tensors_token += 1
        return self.tensors_token

    def _named(self) -> Iterator[tuple[Any, Any, Any]]:
        """Variables of enclosing functions and globals that the code names: place, name, value."""
        for function in self._functions:
            for cell in function.__closure__ or ():
                try:
                    value = cell.cell_contents
                except ValueError:  # assigned later
                    continue
                yield cell, CELL, value
                yield from _items(value)
            names = function.__globals__
            for name in function.__code__.co_names:
                value = names.get(name)
                if value is not None and _is_state(value):
                    yield names, name, value
                    yield from _items(value)

    def _modules(self) -> Iterator[nn.Module]:
        seen: set[int] = set()
        for value in (self.fn, *(v for _, _, v in self._named()), *_owners(self.fn)):
            for module in _modules_in(value):
                if id(module) not in seen:
                    seen.add(id(module))
                    yield module


def unwrapped(fn: Any) -> Any:
    """The function under ``torch.compile``, ``functools.partial`` and methods."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif hasattr(fn, "_torchdynamo_orig_callable"):
            fn = fn._torchdynamo_orig_callable
        elif hasattr(fn, "__wrapped__") and not isinstance(fn, nn.Module):
            fn = fn.__wrapped__
        else:
            return fn


def _functions(fn: Any) -> Iterator[Any]:
    """Python functions whose variables are watched: the function, and a module's or object's own code."""
    inner = unwrapped(fn)
    if isinstance(inner, nn.Module):
        inner = unwrapped(getattr(inner, "_orig_mod", inner))
        inner = type(inner).forward
    elif not inspect.isfunction(inner):
        inner = vars(type(inner)).get("__call__")
    if inspect.isfunction(inner):
        yield inner


def _owners(fn: Any) -> Iterator[Any]:
    """Objects that the callable is bound to."""
    while True:
        if isinstance(fn, functools.partial):
            yield from fn.args
            yield from fn.keywords.values()
            fn = fn.func
        elif inspect.ismethod(fn):
            yield fn.__self__
            return
        elif hasattr(fn, "_torchdynamo_orig_callable"):
            fn = fn._torchdynamo_orig_callable
        elif hasattr(fn, "__wrapped__") and not isinstance(fn, nn.Module):
            fn = fn.__wrapped__
        else:
            return


def _modules_in(value: Any) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, nn.Module):
                yield item
    elif isinstance(value, dict):
        for item in list(value.values()):
            if isinstance(item, nn.Module):
                yield item


def _is_state(value: Any) -> bool:
    """True for globals that are data rather than code."""
    return isinstance(value, Tensor | nn.Module | bool | int | float | str | tuple | list | dict)


def _attributes(owner: Any) -> Iterator[tuple[Any, str, Any]]:
    """Plain attributes of an object that its own code names: place, name, value."""
    code = getattr(type(owner), "forward", None)
    if not hasattr(owner, "__dict__") or isinstance(owner, type):
        return
    values = vars(owner)
    names = code.__code__.co_names if inspect.isfunction(code) else tuple(values)
    for name in names:
        value = values.get(name)
        if name != "training" and type(value) in (bool, int, float, str, Tensor):
            yield values, name, value


class _Items:
    """The items of a list, looked up like those of a dict."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def get(self, i: int) -> Any:
        return self.values[i] if i < len(self.values) else None


def _items(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """What a short list or dict holds: place, key, item."""
    if isinstance(value, list) and len(value) <= MAX_ITEMS:
        where = _Items(value)
        yield from ((where, i, item) for i, item in enumerate(value))
    elif isinstance(value, dict) and len(value) <= MAX_ITEMS:
        yield from ((value, name, item) for name, item in list(value.items()))


def _key(value: Any) -> Any:
    try:
        return constant_key(value)
    except NotConstant:
        return type(value), _serial(value)


_serials: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_counter = itertools.count()


def _serial(value: Any) -> int:
    """A number for an object that no other object ever gets, unlike its id; nothing is kept alive."""
    if isinstance(value, list | dict) and len(value) <= MAX_ITEMS:
        return -len(value) - 1  # what it holds is looked at item by item
    if isinstance(value, Tensor):
        return id(value)  # with its address, which is what a graph has
    try:
        found = _serials.get(value)
        if found is None:
            found = _serials[value] = next(_counter)
        return found
    except TypeError:
        return next(_counter)
