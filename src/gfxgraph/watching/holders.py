"""Who holds a tensor: the places in a program's objects through which it would find another one after a change.

A search from the frames that run, inwards out, through what they reach: modules, optimizers, attributes, dicts,
lists, closures. The garbage collector's list of all objects would take longer, and engines hide theirs from it while
they capture (``gc.freeze``).

Of each place the way to it is known, as far as it can be watched: from a module or an object, which is referred to
weakly, step by step. A local or global variable is no such place: programs use one name for many things in turn.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

GONE = object()
"""What is found at a place that is no more."""
REPLACED = object()
"""What is found where another module is, or none."""
MOST_OBJECTS = 20_000
"""Looked at in one search: a twentieth of a second."""
SLOTS = ("_parameters", "_buffers", "_modules")
_OPAQUE = (
    str, bytes, int, float, complex, bool, types.NoneType, type, types.ModuleType, types.CodeType, types.FrameType,
    types.BuiltinFunctionType, torch.dtype, torch.device, torch.Size, range, slice,
)  # fmt: skip
_LIBRARIES = set("torch gfxgraph gfxgraph_simulator numpy logging threading _pytest pluggy importlib re".split())
_ORDERED = (OrderedDict, defaultdict)
_OF_ITEMS = (dict, list, tuple)
_PASSED = (types.MethodType, functools.partial)
MOST_ITEMS = 10_000
_MODULES_OWN = frozenset(vars(nn.Module()))
"""A module's slots, hooks and flags."""
_NONE: dict[str, Any] = {}
_LOCALS_ARE_COPIES = sys.version_info < (3, 13)
_HELD_HERE_ALONE = 3  # by the frame, by the variable, by the question
_storage_of = Tensor.untyped_storage


@dataclass(slots=True, eq=False)
class _Reached:
    """An object on the way, and the step that leads to it."""

    value: Any
    up: _Reached | None
    key: Any
    """Of an attribute, or in a dict or list."""
    is_step: bool
    """Whether the step can be taken again, and watched."""
    name: str


@dataclass(slots=True, eq=False)
class Holder:
    """A place that holds a tensor: from ``root`` one step after the other."""

    root: Callable[[], Any]
    steps: tuple[tuple[str, Any], ...]
    """Each "attribute" or "item", and its key."""
    name: str
    is_slot: bool
    """Whether it is a module's parameter or buffer, which nothing but the module's own work reads."""

    owner: Callable[[], Any] | None
    """Refers weakly to the object of the last step; None for a dict's or list's."""
    variable: tuple[str, Any, type] | None = None
    """The variable that the way begins at: its name, its scope (see `HolderSearch.names`) and what was in it."""

    def now(self) -> Any:
        """What is there; `GONE` if nothing is, `REPLACED` if a module on the way was replaced or taken out."""
        found, at, before = self._reach()
        owner = self.owner() if self.owner is not None else at
        if found is not GONE or at is owner or at is None:
            return found
        if _is_module_type(before) or (_is_module_type(at) and (before is None or owner is None)):
            return REPLACED
        return read_step(owner, *self.steps[-1])  # reached in another way, if it is alive

    def _reach(self) -> tuple[object, object, object]:
        """What is there, the object in which the way ends, and the one before."""
        before, at = None, self.root()
        for kind, key in self.steps[:-1]:
            value = read_step(at, kind, key)
            if value is None or value is GONE:
                return GONE, at, before
            before, at = at, value
        return (read_step(at, *self.steps[-1]) if self.steps else at), at, before

    @property
    def container(self) -> Any:
        """A dict, a list or another object without weak references that the way begins with: it is kept alive."""
        return self.root.args[0] if type(self.root) is functools.partial else None

    @property
    def is_dead(self) -> bool:
        """Whether the object that held it is no more."""
        return self.owner() is None if self.owner is not None else self.root() is None

    @property
    def is_dropped(self) -> bool:
        """Whether the variable of its container has something else."""
        return self.container is not None and self.variable is not None and self._bound() is not self.container

    @property
    def is_rebound(self) -> bool:
        """Whether there is something else of the kind that the way led through, which a call would use."""
        _, at, before = self._reach()
        if at is None or self.is_dropped:
            return self.variable is not None and type(self._bound()) is self.variable[2]
        return before is not None

    def _bound(self) -> Any:
        name, scope, _ = self.variable or ("", None, None)
        return variable_now(name, scope)


def locals_of(frame: FrameType) -> Mapping[str, object]:
    """The frame's variables now.

    Before Python 3.13 a function's ``f_locals`` is a copy that its frame keeps, and with it all that the function has
    dropped since; nobody else's, that copy is emptied again.
    """
    scope = frame.f_locals
    if _LOCALS_ARE_COPIES and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        found = dict(scope)
        if sys.getrefcount(scope) == _HELD_HERE_ALONE:  # the program has not called locals()
            scope.clear()
        return found
    return scope


def variable_now(name: str, scope: object) -> object:
    """What a variable has now; None if it is gone.

    Args:
        scope: a module's dict, a closure's cell, or the code of a function, whose running call is asked.
    """
    if isinstance(scope, dict):
        return scope.get(name)
    if isinstance(scope, types.CellType):
        return next(iter(gc.get_referents(scope)), None)
    frame: FrameType | None = sys._getframe(1)
    while scope is not None and frame is not None and frame.f_code is not scope:
        frame = frame.f_back
    return locals_of(frame).get(name) if scope is not None and frame is not None else None


def read_step(owner: Any, kind: str, key: Any) -> Any:
    """What ``owner`` holds under a key; none of its own code is run."""
    if kind == "item":
        try:
            return owner[key]
        except (LookupError, TypeError):
            return GONE
    if owner is None or owner is GONE:
        return GONE
    own: dict[str, Any] = getattr(owner, "__dict__", _NONE)
    if key in own:
        return own[key]
    for slot in SLOTS if "_modules" in own else ():
        names = own.get(slot) or _NONE
        if key in names:
            return names[key]
    for each in type(owner).__mro__:
        if key in vars(each):  # a slot, or a tensor that all objects of the class share
            member = vars(each)[key]
            is_slot = type(member) is types.MemberDescriptorType
            return getattr(owner, key, GONE) if is_slot else member if isinstance(member, Tensor) else GONE
    return GONE


class HolderSearch:
    """The holders of some storages.

    Args:
        wanted: each by the address of its ``StorageImpl``.
    """

    def __init__(self, wanted: Iterable[int]) -> None:
        self.found: dict[int, list[tuple[Holder, Tensor]]] = {each: [] for each in wanted}
        self.names: dict[int, tuple[str, Any]] = {}
        """Of those that a variable holds, or another place that cannot be watched: a name; of a variable its scope,
        the code of a function, the dict of a module or a closure's cell.
        """
        self._missing = set(self.found)
        self._seen: dict[int, _Reached] = {}
        self._queue: deque[_Reached] = deque()
        self._held: list[tuple[int, _Reached]] = []
        self._shared: dict[type, list[tuple[str, Tensor]]] = {}

    def from_frames(self, frame: FrameType | None) -> HolderSearch:
        """Search from a frame outwards until each storage has a holder."""
        while frame is not None and self._missing and len(self._seen) < MOST_OBJECTS:
            code, variables = frame.f_code, locals_of(frame)
            for name, value in [*variables.items()]:
                scope = code if code.co_flags & inspect.CO_OPTIMIZED else frame.f_globals
                self._meet(value, None, scope, False, name)
            self._globals(code, frame.f_globals)
            self._walk()
            frame = frame.f_back
        for storage, node in self._held:
            holder = _holder(node)
            if holder is None:
                self.names.setdefault(storage, (node.name, None if type(node.key) is str else node.key))
            else:
                self.found[storage].append((holder, node.value))
        return self

    def _globals(self, code: types.CodeType, scope: dict[str, object]) -> None:
        for name in code.co_names if not _is_of_library(scope.get("__name__")) else ():
            self._meet(scope.get(name), None, scope, False, name)

    def _walk(self) -> None:
        while self._queue and len(self._seen) < MOST_OBJECTS:
            self._search_in(self._queue.popleft())

    def _meet(self, value: object, up: _Reached | None, key: object, is_step: bool, name: str) -> None:
        kind = type(value)  # ``isinstance`` would ask proxies for the class of what they stand for
        if issubclass(kind, _OPAQUE):
            return
        if issubclass(kind, Tensor):
            storage = _storage(value)
            if storage in self.found:
                self._missing.discard(storage)
                self._held.append((storage, _Reached(value, up, key, is_step, name)))
            return
        known = self._seen.get(id(value))
        if known is None:
            self._seen[id(value)] = node = _Reached(value, up, key, is_step, name)
            self._queue.append(node)
        elif (
            is_step and (not known.is_step or (_is_module(up) and not _is_module(known.up))) and not _is_in(known, up)
        ):
            # The way through modules is the one that a program changes.
            known.up, known.key, known.is_step, known.name = up, key, True, name

    def _search_in(self, node: _Reached) -> None:
        value, kind = node.value, type(node.value)
        if issubclass(kind, nn.Module):
            self._search_in_module(node)
        elif issubclass(kind, Optimizer):
            for name in ("param_groups", "state"):
                self._meet(getattr(value, name), node, name, True, f"{type(value).__name__}.{name}")
        elif kind in (dict, list, *_ORDERED) or tuple in kind.__mro__:
            for name, item in [*(value.items() if issubclass(kind, dict) else enumerate(value))][:MOST_ITEMS]:
                shown = repr(name) if type(name) in (int, str) else "..."
                self._meet(item, node, name, True, f"{node.name}[{shown}]")
        elif kind is types.FunctionType:
            self._search_in_function(node)
        elif kind in _PASSED or not _is_of_library(kind.__module__):
            self._search_in_other(node)

    def _search_in_module(self, node: _Reached) -> None:
        value = node.value
        prefix, own = node.name if _is_module(node.up) else type(value).__name__, vars(value)
        tables: list[dict[str, Any]] = [*(own.get(slot) or _NONE for slot in SLOTS), own]
        for name, item in [row for each in tables for row in each.items()]:
            if name not in _MODULES_OWN:
                self._meet(item, node, name, True, f"{prefix}.{name}")

    def _search_in_function(self, node: _Reached) -> None:
        value = node.value
        self._globals(value.__code__, value.__globals__)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            self._meet(next(iter(gc.get_referents(cell)), None), node, cell, False, name)
        for item in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values()):
            self._meet(item, node, None, False, node.name)

    def _search_in_other(self, node: _Reached) -> None:
        """An object of any other class: its own dict is asked for only where it leads on."""
        value, inner = node.value, gc.get_referents(node.value)
        for key, shared in self._of_class(type(value)):
            self._meet(shared, node, key, True, f"{type(value).__name__}.{key}")
        if all(issubclass(type(each), _OPAQUE) for each in inner):
            return
        names = {id(item): name for name, item in _attributes(value)}
        own: dict[str, Any] = getattr(value, "__dict__", _NONE)
        for item in inner:
            name = names.get(id(item))
            if item is not own:
                of = f"{type(value).__name__}.{name}" if name is not None else node.name
                self._meet(item, node, name, name is not None, of)
            elif type(value).__dictoffset__ != 0:  # one that is stored apart
                for name, each in [*own.items()]:
                    self._meet(each, node, name, True, f"{type(value).__name__}.{name}")

    def _of_class(self, kind: type) -> list[tuple[str, Tensor]]:
        """Tensors that all objects of a class share."""
        if kind not in self._shared:
            rows = [row for each in kind.__mro__ for row in vars(each).items()]
            self._shared[kind] = [(name, item) for name, item in rows if isinstance(item, Tensor)]
        return self._shared[kind]


def _is_of_library(module: object) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from [*getattr(value, "__dict__", {}).items()]
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType):
                item = getattr(value, name, GONE)
                if item is not GONE:
                    yield name, item


def _is_module(node: _Reached | None) -> bool:
    return node is not None and _is_module_type(node.value)


def _is_module_type(value: object) -> bool:
    return issubclass(type(value), nn.Module)


def _is_in(known: _Reached, node: _Reached | None) -> bool:
    """Whether the way to ``node`` leads through ``known``."""
    while node is not None:
        if node is known:
            return True
        node = node.up
    return False


def _storage(tensor: Tensor) -> int:
    try:
        return _storage_of(tensor)._cdata if tensor.is_cuda else 0
    except RuntimeError:  # it has none
        return 0


def _holder(node: _Reached) -> Holder | None:
    steps: list[tuple[str, Any]] = []
    at: _Reached = node
    while at.is_step and at.up is not None:
        steps.append(("item" if issubclass(type(at.up.value), _OF_ITEMS) else "attribute", at.key))
        at = at.up
    steps.reverse()
    if not steps or issubclass(type(at.value), tuple):
        return None
    owner = node.up
    own = vars(owner.value) if owner is not None and _is_module(owner) else _NONE
    is_slot = any(node.key in own[slot] for slot in SLOTS[:2] if own.get(slot))
    last = _weakly(owner.value) if owner is not None and steps[-1][0] == "attribute" else None
    root, variable = _weakly(at.value), (at.name, at.key, type(at.value)) if type(at.key) is not str else None
    root = root or functools.partial(_same, at.value)
    return Holder(root, tuple(steps), node.name, is_slot, last, variable)


def _same(value: object) -> object:
    return value


def _weakly(value: object) -> Callable[[], object] | None:
    """A weak reference; None if it takes none, as dicts, lists and many objects with slots."""
    try:
        return weakref.ref(value)
    except TypeError:
        return None
