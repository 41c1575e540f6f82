"""What a training step, or a function with collectives, reads in Python besides its arguments, at one moment.

Problem: a whole step cannot be one trace: ``backward()`` and the optimizer are calls that Dynamo leaves to Python,
and what Python reads between two traces has no guards. And Dynamo replaces collectives by other operations,
on whichever rank it traces. Idea: instead, inspect everything that the step's own code can name:
from the step function along closures, globals and attributes to modules, optimizers, tensors and hooks.

    the step's functions   their code, closures, defaults, and the globals that they name
    modules, optimizers    everything: their dicts, parameters, state, param_groups, hooks
    the user's objects     the attributes that some reached function names
    tensors                identity, address, layout, ``requires_grad``; small host tensors by value
    torch and installed packages   assumed constant: their functions are not inspected

Two snapshots with equal keys are the same state. What cannot be inspected (an iterator, a host random generator,
an object of a C extension) raises ``Unwatchable``, and the step runs eagerly.

Invariant: ``is_same`` is True only if a snapshot taken now would have the same key. Source: decision 0144.
"""

from __future__ import annotations

import collections
import dis
import functools
import logging
import re
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from gfxgraph import torch_names
from gfxgraph.callables.signature import HOST_CONSTANT_NUMEL, tensor_key
from gfxgraph.core.constants import NotConstant, constant_key
from gfxgraph.types import OUR_MODULES
from gfxgraph.watching.watch import NOTHING, PACKAGES, Unwatchable, Watch, is_packages

MOST_OBJECTS = 100_000
_OURS = str(Path(__file__).parents[1])  # and the packages beside it, whose names begin so
_SEES_ALL = frozenset(["getattr", "setattr", "vars", "__dict__", "eval", "exec", "globals", "locals", "attrgetter"])
"""Names through which code may read attributes that it does not name."""
_BY_IDENTITY = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType, types.CodeType,
    weakref.ref, logging.Logger, logging.LoggerAdapter, torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Stream, torch.Event, torch_names.OpOverload, torch_names.OpOverloadPacket, torch.ScriptFunction,
    re.Pattern,
)  # fmt: skip
_WRAPPERS: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"), property: ("fget", "fset"),
    staticmethod: ("__func__",), classmethod: ("__func__",), types.MethodType: ("__func__", "__self__"),
}  # fmt: skip
"""What a wrapper holds that never changes in it."""
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_TRAINING = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
_UNSEEN = {"_per_optimizer_states"}
"""Ignored: gradient scalers use it between a step and its update."""
_OF_OURS = ("fn", "_fn", "step", "branches", "condition", "body")
"""Attributes of our own callables that hold the functions they run."""


class Snapshot:
    """Everything that some functions and objects can name, now.

    Args:
        roots: where to begin, by name.

    Raises:
        Unwatchable: something reachable cannot be inspected.
    """

    def __init__(self, roots: dict[str, Any]) -> None:
        names: frozenset[str] = frozenset()
        while True:
            walk = _Walk(names)
            walk.all(roots)
            if walk.read <= names:
                break
            names = frozenset(walk.read)  # attributes that were skipped may turn out to be named
        self._tokens = walk.tokens
        self.key = tuple(walk.tokens.items())
        self.found = [each for each in walk.met if isinstance(each, _OF_TRAINING)]
        """What a training step uses."""
        self._walk = walk  # also keeps what it met, so that no address in the key is met twice

    is_same: Callable[[], bool] = staticmethod(lambda: False)
    """True if nothing can have changed since it was `watched`; if False, take another snapshot and compare."""

    def watched(self) -> Snapshot:
        """Watch from now on; to be called before anybody else's code runs."""
        watch, tensors = Watch(), self._walk.tensors
        for act, *about in self._walk.watches:
            act(watch, *about)
        on_device = [t for t in tensors if t.is_cuda and t.layout is torch.strided]
        self.is_same = watch.built(on_device, [(t, t.detach().clone()) for t in tensors if not t.is_cuda])
        return self

    def differs(self, other: Snapshot) -> str:
        """The first path whose value differs from the other snapshot's."""
        for path, token in self._tokens.items():
            if other._tokens.get(path, NOTHING) != token:
                return path
        return next((path for path in other._tokens if path not in self._tokens), "")

    def is_host_tensor(self, path: str) -> bool:
        """Whether a tensor is there that is not on the device."""
        token = self._tokens.get(path)
        return isinstance(token, tuple) and any(
            isinstance(each, torch.device) and each.type != "cuda" for each in token
        )


class _Walk:
    """One walk through the objects; of the user's objects it visits only attributes in ``named``."""

    def __init__(self, named: frozenset[str]) -> None:
        self._named = named
        self._sees_all = bool(named & _SEES_ALL)
        self.read: set[str] = set(named)
        self.tokens: dict[str, object] = {}
        self.tensors: list[Tensor] = []
        self.met: list[Any] = []
        self.watches: list[tuple[Any, ...]] = []
        """What to do to watch it: a function of a `Watch`, and its arguments."""
        self._seen: set[int] = set()
        self._todo: collections.deque[tuple[str, Any]] = collections.deque()

    def _note(self, watch: Callable[..., None], *about: object) -> None:
        self.watches.append((watch, *about))

    def all(self, roots: dict[str, Any]) -> None:
        self._todo.extend(roots.items())
        while self._todo:
            path, value = self._todo.popleft()
            self.tokens[path] = self._token(path, value)
            if len(self.tokens) > MOST_OBJECTS:
                raise Unwatchable("more objects than can be compared")

    def _token(self, path: str, value: object) -> Any:
        """A key that identifies the value; what it refers to is queued."""
        if value is None or type(value) in (bool, int, float, str):
            return constant_key(value)
        if type(value) is not tuple and not isinstance(value, type | types.FunctionType):
            try:
                return constant_key(value) if not isinstance(value, set) else self._set(value)
            except NotConstant:
                pass
        if isinstance(value, types.MethodType):  # another object at each access
            self._into(path, value)
            return "method", id(value.__self__), id(value.__func__)
        is_new = id(value) not in self._seen
        if is_new:
            self._seen.add(id(value))
            self.met.append(value)
        if isinstance(value, Tensor):
            return self._tensor(path, value, is_new)
        token = type(value).__qualname__, id(value)
        if is_new:
            self._into(path, value)
        return token

    def _into(self, path: str, value: object) -> None:
        """Queue what an object refers to."""
        if isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, dict):
            self._dict(path, value)
        elif isinstance(value, tuple | list | collections.deque):
            if not isinstance(value, tuple):
                self._note(Watch.content, value)
            self.tokens[f"len({path})"] = len(value)
            self._todo += [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        elif isinstance(value, types.ModuleType):
            for name in sorted(self._named):
                if name in vars(value):
                    self._global(f"{path}.{name}", vars(value), name, may_enter=not _is_packages(value))
        elif isinstance(value, type):
            self._class(path, value)
        elif isinstance(value, torch.Generator):
            if value.device.type != "cuda":
                raise Unwatchable(f"{path}, a host random generator")
        elif type(value) in _WRAPPERS:
            self._todo += [(f"{path}.{name}", getattr(value, name)) for name in _WRAPPERS[type(value)]]
        elif type(value).__module__.startswith(OUR_MODULES):
            own = getattr(value, "__dict__", {})
            self._todo += [(f"{path}.{name}", own[name]) for name in _OF_OURS if name in own]
        elif isinstance(value, _BY_IDENTITY) or _is_of_torch_or_lock(value):
            return
        elif hasattr(value, "__next__"):
            raise Unwatchable(f"{path}, an iterator")
        elif hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
            self._object(path, value)
        else:
            raise Unwatchable(f"{path}, a {type(value).__qualname__}")

    def _set(self, value: Any) -> object:
        token = constant_key(value)
        if isinstance(value, set) and id(value) not in self._seen:
            self._seen.add(id(value))
            self.met.append(value)
            self._note(Watch.compare, ("set", id(value)), value, frozenset(value), "{0} != {1}")
        return token

    def _tensor(self, path: str, value: Tensor, is_new: bool) -> Any:
        if is_new:
            if not value.is_cuda and value.numel() > HOST_CONSTANT_NUMEL:
                raise Unwatchable(f"{path}, a large host tensor")
            self.tensors.append(value)
            for name in _HOOKS if value.requires_grad else ():
                hooks = getattr(value, name, None)
                self._note(Watch.compare, (id(value), name), value, hooks, f"{{0}}.{name} is not {{1}}")
                if hooks:
                    self._todo.append((f"{path}.{name}", hooks))
        if value.layout is not torch.strided:
            return type(value), id(value), tuple(value.shape), value.dtype, value.device, value.requires_grad
        content = () if value.is_cuda else (str(value.tolist()),)
        return (id(value), *tensor_key(value), value.data_ptr(), *content)

    def _function(self, path: str, function: types.FunctionType) -> None:
        self._note(Watch.attribute, function, "__code__", function.__code__)
        self.tokens[f"{path}.__code__"] = id(function.__code__)
        self.met.append(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            content = _content(cell)
            self._note(_watch_cell, cell, content)
            if content is not NOTHING:
                self._todo.append((f"{path}.{name}" if "<" not in path else name, content))
        for name in ("__defaults__", "__kwdefaults__"):
            value = getattr(function, name)
            self._note(Watch.attribute, function, name, value)
            if value:
                self._todo.append((f"{path}.{name}", value))
        if vars(function):
            self._todo.append((f"{path}.__dict__", vars(function)))
        if _is_of_package(function.__code__.co_filename):
            return
        # What a constructor sets belongs to an object of its own.
        named, globals_ = _names_in(function.__code__, function.__name__ == "__init__")
        self.read |= named
        for name in sorted(globals_):
            if name in function.__globals__:
                self._global(name, function.__globals__, name)
            else:
                self._note(Watch.item, function.__globals__, name, NOTHING)

    def _global(self, path: str, owner: Any, name: str, *, may_enter: bool = True) -> None:
        value = owner[name]
        self._note(Watch.item, owner, name, value)
        if may_enter or isinstance(value, bool | int | float | str):
            self._todo.append((path, value))
        else:
            self.tokens[path] = id(value)
            self.met.append(value)

    def _dict(self, path: str, value: dict[Any, object]) -> None:
        self._note(Watch.watch, value, None)
        names = []
        for i, (key, item) in enumerate(value.items()):
            if isinstance(key, str) and key in _UNSEEN:
                continue
            name = repr(key) if isinstance(key, str | int | float | bool | None) else f"({i})"
            names.append(name if name[0] != "(" else id(key))
            if name[0] == "(":
                self.met.append(key)
                if isinstance(key, types.FunctionType):
                    self._todo.append((f"{path}.key{i}", key))
            self._todo.append((f"{path}[{name}]", item))
        self.tokens[f"keys({path})"] = tuple(names)

    def _class(self, path: str, kind: type) -> None:
        if kind.__module__ == "builtins" or _is_packages(sys.modules.get(kind.__module__)):
            if issubclass(kind, nn.Module):
                forward = cast(Any, kind).forward
                self._note(Watch.attribute, kind, "forward", forward)
                self.tokens[f"{path}.forward"] = id(forward)
                self.met.append(forward)
                if isinstance(forward, types.FunctionType):
                    self._todo.append((f"{path}.forward", forward))
            return
        for name, value in list(vars(kind).items()):
            is_code = isinstance(value, types.FunctionType | property | staticmethod | classmethod)
            if is_code or self._is_named(name):
                self._note(Watch.item, vars(kind), name, value)
                self._todo.append((f"{path}.{name}", value))
        self.tokens[f"len(vars({path}))"] = len(vars(kind))
        self._todo += [(f"{path}<{base.__qualname__}>", base) for base in kind.__bases__]
        if type(kind) is not type:
            self._todo.append((f"type({path})", type(kind)))

    def _object(self, path: str, value: Any) -> None:
        kind = type(value)
        self._note(Watch.attribute, value, "__class__", kind)
        self._todo.append((f"type({path})", kind))
        own = getattr(value, "__dict__", None)
        whole = isinstance(value, nn.Module | torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler)
        is_library = _is_packages(sys.modules.get(kind.__module__))
        if isinstance(own, dict):
            if isinstance(value, nn.Module):
                self._note(Watch.watch, own, None)
            for name, item in list(own.items()):
                if name in _UNSEEN:
                    continue
                if is_library or self._is_named(name) or (whole and name in _of_torch()):
                    if not isinstance(value, nn.Module):
                        self._note(Watch.item, own, name, item)
                    self._todo.append((f"{path}.{name}", item))
            for name in self._named if not is_library else ():
                if name not in own:
                    self._note(Watch.item, own, name, NOTHING)
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                item = getattr(value, name, NOTHING)
                if name not in ("__weakref__", "__dict__") and item is not NOTHING:
                    self._note(Watch.attribute, value, name, item)
                    self._todo.append((f"{path}.{name}", item))
        if isinstance(own, dict) and isinstance(value, dict | list | set):
            raise Unwatchable(f"{path}, a {kind.__qualname__}")

    def _is_named(self, name: str) -> bool:
        return self._sees_all or name in self._named


@functools.cache
def _of_torch() -> frozenset[str]:
    """Attributes that torch's own code reads on every module and optimizer."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))])
    return frozenset([*vars(nn.Module()), *vars(optimizer), "step"])


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return NOTHING


def _watch_cell(watch: Watch, cell: types.CellType, content: object) -> None:
    if content is not NOTHING:
        watch.attribute(cell, "cell_contents", content)
    else:
        watch.names["content"] = _content
        watch.compare(("cell", id(cell)), cell, NOTHING, "content({0}) is not {1}")


@functools.lru_cache(4096)
def _names_in(code: types.CodeType, skips_stores: bool) -> tuple[frozenset[str], frozenset[str]]:
    """What a function's code and its nested functions name, without what they only set; the globals among it."""
    stores = ("STORE_ATTR", "STORE_NAME", "STORE_GLOBAL", "DELETE_ATTR") if skips_stores else ()
    steps = [(step.opname, step.argval) for step in dis.get_instructions(code)]
    named = {name for operation, name in steps if operation not in stores and name in code.co_names}
    read = {name for operation, name in steps if operation in ("LOAD_GLOBAL", "LOAD_NAME")}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            more = _names_in(const, skips_stores)
            named, read = named | more[0], read | more[1]
    return frozenset(named), frozenset(read)


def _is_of_package(file: str) -> bool:
    return bool(PACKAGES.search(file)) or file.startswith(("<frozen", _OURS))


def _is_packages(module: types.ModuleType | None) -> bool:
    """True for modules of torch, the standard library, installed packages and gfxgraph, wherever it lies."""
    return is_packages(module) or _is_of_package(getattr(module, "__file__", None) or "")


def _is_of_torch_or_lock(value: Any) -> bool:
    """Objects of torch's C code, and locks: identity is all there is to compare."""
    module = type(value).__module__
    return module in ("_thread", "threading") or module.startswith(torch_names.OF_C)


# -- effects ------------------------------------------------------------------------------------------------------


class HostEffects:
    """Detects what a replay would not repeat: printing, logging, drawing host random numbers."""

    def __init__(self) -> None:
        self.found = ""

    def __enter__(self) -> HostEffects:
        self._random = _host_random()
        self._outer = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._outer)
        if not self.found and self._random != _host_random():
            self.found = "it draws random numbers on the host"

    def _note(self, frame: Any, event: str, arg: Any) -> None:
        if event == "c_call" and arg in _SAID:
            self.found = self.found or f"it calls {arg.__name__}()"
        elif event == "call" and frame.f_code is _LOGS:
            self.found = self.found or "it logs"


_SAID = (print, input, open)
_LOGS = logging.Logger.callHandlers.__code__


def _host_random() -> list[object]:
    import random

    numpy = sys.modules.get("numpy")
    return [
        random.getstate(),
        torch.get_rng_state().tolist(),
        repr(numpy.random.get_state()[1:]) if numpy is not None else "",
    ]
