"""What one trace read besides its arguments, and whether any of it may have changed.

Problem: a graph holds every branch that Python took and every address that it met. Dynamo knows what the
function read on the way and checks it at each call with its tree of guards: exact, but 150 to 450 us for a Llama
of 16 layers, a hundred replays' worth. Idea: Dynamo says *what* was read; that none of it has changed can be known
for far less. The tree is walked once, and each object in it is given to the cheapest sound watch that there is:

    dicts, modules, packages   numbers or watchers of CPython (dicts.py): nothing, or one comparison
    plain objects, classes, functions, cells, the user's own globals
                               the very attribute that was read, compared by identity at each call
    lists                      their items, likewise
    tensors from outside       one call into torch for dtypes, sizes, strides, and one for addresses
    anything else              no watch: Dynamo's guards are asked at each call

A watch that says "maybe" costs one evaluation of Dynamo's guards; a change that matters to none of them (another
attribute of the same module) is forgotten again. So a world is never trusted on less than Dynamo's own word.

Invariants: ``is_same`` is never True where Dynamo's guards, or the identity of a tensor that a graph reads from
outside, would say no. Everything watched is held, so that no address is met twice.

Source: measured (Dynamo's tree: 158 us on CPython 3.12 and torch 2.11, 454 us on 3.11 and 2.13); decision 0111.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import enum
import functools
import gc
import inspect
import itertools
import operator
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gfxgraph.callables.trace.dicts import HAS_TAGS, Watched, watched

_ATTRIBUTE = re.compile(r"\.([A-Za-z_]\w*)$")
_ITEM = re.compile(r"\[([^\[\]]+)\]$")
_PLAINLY = re.compile(r"^object\.__getattribute__\(.*, '(\w+)'\)$")
_CLASS_DICT = re.compile(r"^dict\((.*)\.__dict__\)$")
_DEFAULTS = re.compile(r"\.(__defaults__|__kwdefaults__)\[")
_CONTAINS = re.compile(r"___dict_contains\('([^']+)',")
_LACKS = re.compile(r"not hasattr\(.*, '(\w+)'\)")
_FIXED = (
    int, float, complex, str, bytes, bool, types.NoneType, tuple, frozenset, range, slice, enum.Enum, types.CodeType,
    types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType, types.MappingProxyType,
    property, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch._ops.OpOverload,
)  # fmt: skip
"""What cannot change in itself; what it holds is looked at on its own."""
MOST_SMALL = 16
"""Host tensors up to this size are compared by value; a trace that read a larger one is checked in full."""


class World:
    """What one trace stands on.

    Args:
        guards: Dynamo's, of the frame that was traced whole.
        names: what its sources are evaluated in: the frame's ``G`` and what Dynamo's own sources name.
        given: the frame's locals: ``args``, ``kwargs``, the function.
        sources: of tensors that the FX graph takes from outside the arguments, as Dynamo writes them.
        code: of every function that the trace went through.
    """

    def __init__(
        self,
        guards: Any,
        names: Mapping[str, Any],
        given: Mapping[str, Any],
        sources: Sequence[str],
        code: Sequence[Any] = (),
    ) -> None:
        self.guards = guards
        self._names = dict(names)
        self._sources = [(compile(source, "<source>", "eval"), source) for source in sources]
        self.why_pieces = ""
        """Why the trace cannot be one graph; "" where it can."""
        self.reads_inside_arguments = ""
        """An attribute of an argument that is more than a tree of tensors and constants."""
        self.token = next(_tokens)
        self.found: Any = None
        """What Dynamo gave for it where that is one graph (``frontend.Found``)."""
        self.why_eager = ""
        """Why not even its pieces can be captured; "" where they can."""
        self.written: list[Tensor] = []
        """Tensors from outside that the function writes to."""
        self.zeros: tuple[str, ...] = ()
        """The zeros among the arguments, with their signs."""
        self.n_rebound = 0
        """How often a tensor that it reads from outside was another one."""
        self.tensors: list[Tensor] = []
        self._parsed: dict[str, Any] = {}
        self.unwatched = ""
        """What no watch is known for; the guards are asked at each call."""
        self.stores: list[tuple[Any, str, Any]] = []
        """Attributes that each call sets to the same constant: object, name, value."""
        self.code: frozenset[Any] = frozenset(code)
        self.granted: list[tuple[type, str, Any]] = []
        """What Dynamo takes for granted: class, name of an attribute, its value."""
        self._hooks: list[tuple[Any, ...]] | None = None
        """Hooks for all modules, where the trace went through one: Dynamo looks at them and keeps no guard."""
        self._find_tensors(given)
        self.rearm(given)

    # -- is it the same world -------------------------------------------------------------------------

    is_same: Callable[[], bool]
    """True where nothing that was read can have changed; cheap. False: ask ``holds`` and ``has_moved``."""

    def holds(self, given: Mapping[str, Any]) -> bool:
        """Dynamo's own answer for this call: True where the trace holds for it, whatever has changed since."""
        return not self.is_stale() and bool(self.guards.check(dict(given)))

    def stores_are_there(self) -> bool:
        """False where a constant that each call leaves in an object is not there: a replay would not put it back."""
        return all(getattr(owner, name, _NOTHING) == value for owner, name, value in self.stores)

    def is_stale(self) -> bool:
        """True where a class has other code or data than was traced: Dynamo does not ask, and would take the old."""
        if self._hooks is not None and self._hooks != _hooks_for_all():
            return True
        return any(_held(owner, name) is not value for owner, name, value in self.granted)

    def has_moved(self, given: Mapping[str, Any]) -> bool:
        """True where a tensor from outside is another one or lies elsewhere, or a number is another one."""
        found = self._evaluate(given)
        if found is None or len(found) != len(self._inputs):
            return True
        if any(a is not b if isinstance(a, Tensor) else a != b for a, b in zip(found, self._inputs)):
            return True
        return not self._tensors_are_same()

    def rebind(self, given: Mapping[str, Any]) -> None:
        """Take what the sources give now as what is read; graphs of before are void."""
        self.n_rebound += 1
        self.token = next(_tokens)
        self._find_tensors(given)
        self.rearm(given)

    def _evaluate(self, given: Mapping[str, Any]) -> list[Any] | None:
        """The FX graph's inputs from outside the arguments: tensors, and numbers that Dynamo made symbols of."""
        scope = {**self._names, "L": given}
        try:
            return [eval(code, scope) for code, _ in self._sources]
        except (AttributeError, KeyError, IndexError, NameError, TypeError):
            return None

    # -- tensors from outside -------------------------------------------------------------------------

    def _find_tensors(self, given: Mapping[str, Any]) -> None:
        self._inputs = self._evaluate(given) or []
        self.tensors = [each for each in self._inputs if isinstance(each, Tensor)]
        unique = list({id(t): t for t in self.tensors}.values())
        host = [t for t in unique if not t.is_cuda]
        self._values = [(t, t.detach().clone()) for t in host if t.numel() <= MOST_SMALL]
        self.unwatched = "a large host tensor" if len(self._values) < len(host) else ""
        self._device = [t for t in unique if t.is_cuda and t.layout is torch.strided]
        self._addresses: list[int | None] = [t.data_ptr() for t in self._device]
        self._positions = list(range(len(self._device)))
        guards = torch._C._dynamo.guards
        self._check: Callable[..., bool] = lambda *tensors: True
        if self._device:
            self._check = guards.TensorGuards(*self._device, dynamic_dims_sizes=None, dynamic_dims_strides=None).check

    @property
    def homes(self) -> frozenset[int]:
        """Addresses of the storages of all tensors that it takes from outside the arguments."""
        return frozenset(t.untyped_storage().data_ptr() for t in self._device)

    @property
    def written_homes(self) -> frozenset[int]:
        """Of those, the ones that the function writes to."""
        return frozenset(t.untyped_storage().data_ptr() for t in self.written)

    def _tensors_are_same(self) -> bool:
        return (
            same_addresses(self._device, self._addresses, self._positions)
            and self._check(*self._device)
            and all(torch.equal(t, value) for t, value in self._values)
        )

    # -- watching -------------------------------------------------------------------------------------

    def rearm(self, given: Mapping[str, Any]) -> None:
        """Watch what was read as it is now."""
        watch = _Watch({**self._names, "L": given}, self._parsed)
        try:
            watch.walk(self.guards.root)
        except _Unwatchable as what:
            self.unwatched = str(what)
        self.reads_inside_arguments = watch.inside
        if watch.kept:  # Dynamo traces what is below, and would see changes that the program does not
            self.why_eager = f"{watch.kept} keeps results by functools.lru_cache that depend on what may change"
        self.granted = [*_granted(watch.classes, watch.functions, self.code)]
        if any(issubclass(kind, nn.Module) for kind in watch.classes):
            self._hooks = _hooks_for_all()
            watch.dicts.update({id(hooks): hooks for hooks in _FOR_ALL})
        try:
            for owner, name, value in (*self.granted, *self.stores):
                if isinstance(owner, type):
                    watch.of_class(owner, name)
                else:
                    watch.attribute(owner, name, value)
                if isinstance(value, list | dict):
                    watch.content(value)
        except _Unwatchable as what:
            self.unwatched = str(what)
        kept: Watched | None = None
        if not self.unwatched and watch.dicts:
            kept = watched(watch.dicts.values(), watch.keys)
            if kept is None:
                self.unwatched = "a dict (this Python has no watchers left)"
        if self.unwatched:
            self.is_same = _never
            return
        lines, names = watch.lines, watch.names
        if kept is not None:
            names["dicts_are_same"] = kept.is_same
            lines.insert(0, "if not dicts_are_same(): return False")
        if self._device:
            names.update(
                same_addresses=same_addresses, check=self._check, tensors=self._device,
                addresses=self._addresses, positions=self._positions,
            )  # fmt: skip
            lines.append("if not same_addresses(tensors, addresses, positions) or not check(*tensors): return False")
        for i, (tensor, value) in enumerate(self._values):
            names[f"host{i}"], names[f"value{i}"], names["equal"] = tensor, value, torch.equal
            lines.append(f"if not equal(host{i}, value{i}): return False")
        self.is_same = _function(lines, names)


class _Unwatchable(Exception):
    """No watch is known for this."""


class _Watch:
    """The walk over one tree of guards: what to compare at each call, and which dicts to watch."""

    def __init__(self, scope: dict[str, Any], parsed: dict[str, Any]) -> None:
        self._scope = scope
        self._parsed = parsed
        self.dicts: dict[int, dict[Any, Any]] = {}
        self.keys: dict[int, set[str]] = {}
        """Of modules' own dicts, the names that were read or looked for: no other store matters."""
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.inside = ""
        self.kept = ""
        """A function whose results ``functools.lru_cache`` keeps, though they depend on more than its arguments."""
        self.classes: set[type] = set()
        """Of the objects and modules that were read."""
        self.functions: set[types.FunctionType] = set()
        """That were read or called."""
        self._done: set[Any] = set()
        self._n = 0

    def walk(self, root: Any) -> None:
        for manager in root.get_child_managers():
            source = manager.get_source()
            if source == "G":  # the root's own globals, which hold what Dynamo put there
                for inner in _children(manager):
                    self._node(inner, None)
            elif source in ("L['args']", "L['kwargs']"):
                self._argument(manager)
            else:
                self._node(manager, None)

    def _argument(self, manager: Any) -> None:
        """Arguments are compared as trees of tensors and constants; what is read deeper inside one is noted."""
        value = self._value(manager)
        for inner in _children(manager):
            if isinstance(value, Tensor | types.NoneType) or type(value) in (tuple, list, dict):
                self._argument(inner)
            elif isinstance(value, tuple):  # named
                self._argument(inner)
            elif isinstance(value, (torch.dtype, torch.device, torch.Size)):
                continue
            elif _is_field(value, inner.get_source()):
                self._argument(inner)
            else:
                self.inside = self.inside or inner.get_source()

    def _evaluate(self, source: str) -> Any:
        code = self._parsed.get(source)
        if code is None:
            code = self._parsed[source] = compile(source, "<source>", "eval")
        return eval(code, self._scope)

    def _value(self, manager: Any) -> Any:
        try:
            return self._evaluate(manager.get_source())
        except Exception as error:  # noqa: BLE001  whatever an attribute's own code raises: it is asked in full then
            raise _Unwatchable(f"{manager.get_source()} ({type(error).__name__})") from error

    def _node(self, manager: Any, parent: Any) -> None:
        source = manager.get_source()
        value = self._value(manager)
        if parent is not None and parent is not value:
            if self._value(manager) is not value and not _CLASS_DICT.match(source):
                self._computed(parent, source, value)
                return
            self._child(parent, source, value)
        of_class = _CLASS_DICT.match(source)
        if of_class:  # a copy made for the guard: the class itself is what is read
            owner = self._evaluate(of_class.group(1))
            if not isinstance(owner, type):
                raise _Unwatchable(source)
            if _leaves(manager, "DICT_CONTAINS"):
                self._compare(("length", id(owner)), owner, None, f"len(vars({{0}})) != {len(vars(owner))}")
            for inner in _children(manager):
                found = _ITEM.search(inner.get_source())
                key = _literal(found.group(1)) if found else None
                if not isinstance(key, str):
                    raise _Unwatchable(inner.get_source())
                held = self._value(inner)
                self._compare((id(owner), key), owner, held, f"vars({{0}}).get({key!r}) is not {{1}}")
                self._node(inner, None)
            return
        holder = self._holder(source, value)
        if holder is None:
            self._itself(value, manager, source)
        elif not _is_users(holder):
            self._own_dict(holder, manager)
        for inner in _children(manager):
            self._node(inner, value if holder is None else holder)

    def _holder(self, source: str, value: Any) -> Any:
        """The object whose own dict ``value`` is; None for any other value."""
        if not source.endswith(".__dict__") or not isinstance(value, dict):
            return None
        return self._evaluate(source.removesuffix(".__dict__"))

    def _own_dict(self, holder: Any, manager: Any) -> None:
        if isinstance(holder, nn.Module | types.ModuleType) or HAS_TAGS:
            self.dicts[id(vars(holder))] = vars(holder)
            looked_for = [part for leaf in manager.get_leaf_guards() for part in leaf.verbose_code_parts()]
            names = [found.group(1) if (found := _CONTAINS.search(part)) else None for part in looked_for]
            if None in names:  # its length, say: every store matters
                self.keys[id(vars(holder))] = _Every()
            else:
                self.keys.setdefault(id(vars(holder)), set()).update(name for name in names if name is not None)
        elif _leaves(manager, "DICT_CONTAINS"):
            self._compare(("length", id(holder)), holder, None, f"len({{0}}.__dict__) != {len(vars(holder))}")

    def _itself(self, value: Any, manager: Any, source: str) -> None:
        """What may change in the object itself."""
        if isinstance(value, functools._lru_cache_wrapper) and _reads_state(value.__wrapped__):
            self.kept = self.kept or value.__qualname__
        if isinstance(value, types.MethodType):
            self.classes.add(type(value.__self__))
            if isinstance(value.__func__, types.FunctionType):
                self.functions.add(value.__func__)
        if isinstance(value, types.FunctionType):
            self.functions.add(value)
        if isinstance(value, type):
            self.classes.add(value)
        if isinstance(value, _FIXED) or isinstance(value, type | Tensor | types.CellType | types.FunctionType):
            return
        self.classes.add(type(value))
        if isinstance(value, dict):
            self.dicts[id(value)] = value
        elif isinstance(value, nn.Module) or (isinstance(value, types.ModuleType) and not _is_users(value)):
            self.dicts[id(vars(value))] = vars(value)
            self.keys.setdefault(id(vars(value)), set())
            if _leaves(manager, "NO_HASATTR"):
                self.keys[id(vars(value))] = _Every()
        elif isinstance(value, types.ModuleType):
            return  # name by name
        elif isinstance(value, list):
            self._items(value)
        elif isinstance(value, set):
            self._compare(("set", id(value)), value, frozenset(value), "{0} != {1}")
        elif type(value) is object:
            return
        elif hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
            self._compare(("type", id(value)), value, type(value), "type({0}) is not {1}")
            for leaf in _leaves(manager, "NO_HASATTR"):
                lacking = [found.group(1) for part in leaf.verbose_code_parts() if (found := _LACKS.search(part))]
                if not lacking:
                    raise _Unwatchable(f"{source} {leaf.verbose_code_parts()}")
                for name in lacking:
                    self._compare(("lacks", id(value), name), value, None, f"hasattr({{0}}, {name!r})")
            if HAS_TAGS and isinstance(getattr(value, "__dict__", None), dict):
                self.dicts[id(vars(value))] = vars(value)
        else:
            raise _Unwatchable(f"{source}, a {type(value).__qualname__}")

    def of_class(self, owner: type, name: str) -> None:
        """Watch what instances of a class find under a name: in the dicts of all its bases."""
        for base in owner.__mro__:
            if base.__module__ != "builtins":
                (own,) = (each for each in gc.get_referents(base.__dict__) if isinstance(each, dict))
                self.dicts[id(own)] = own
                self.keys.setdefault(id(own), set()).add(name)

    def content(self, value: list[Any] | dict[Any, Any]) -> None:
        """Watch what a container holds."""
        if isinstance(value, list):
            self._items(value)
        else:
            self.dicts[id(value)] = value

    def _items(self, value: list[Any]) -> None:
        if id(value) not in self._done:
            self._done.add(id(value))
            kept, items = self._name(value), self._name(tuple(value))
            self.names.update(all_=all, map_=map, is_=operator.is_)
            self.lines.append(f"if len({kept}) != {len(value)} or not all_(map_(is_, {kept}, {items})): return False")

    def _child(self, parent: Any, source: str, value: Any) -> None:
        """That ``parent`` still leads to ``value``."""
        if isinstance(parent, (*_FIXED, dict, list)):
            return  # it cannot change, or is watched as a whole
        if _CLASS_DICT.match(source):
            return  # the class's items are compared
        of_function = _DEFAULTS.search(source)
        if of_function and isinstance(parent, types.FunctionType):
            name = of_function.group(1)
            self._compare((id(parent), name), parent, getattr(parent, name), f"{{0}}.{name} is not {{1}}")
            return
        if isinstance(parent, types.CellType):
            self._compare(("cell", id(parent)), parent, value, "{0}.cell_contents is not {1}")
            return
        if source.startswith("type(") and type(parent) is value:
            self._compare(("type", id(parent)), parent, value, "type({0}) is not {1}")
            return
        found = _PLAINLY.match(source) or _ATTRIBUTE.search(source)
        name = found.group(1) if found else _literal_item(source)  # an item: of the object's own dict
        if not isinstance(name, str) or not name.isidentifier():
            raise _Unwatchable(f"{source} of a {type(parent).__qualname__}")
        if name == "__dict__":
            return
        if isinstance(parent, types.ModuleType) and _is_users(parent):
            self._compare((id(parent), name), vars(parent), value, f"{{0}}.get({name!r}) is not {{1}}")
        elif not isinstance(parent, nn.Module | types.ModuleType) or vars(parent).get(name, _NOTHING) is not value:
            self.attribute(parent, name, value)
        else:
            self.keys.setdefault(id(vars(parent)), set()).add(name)

    def _computed(self, parent: Any, source: str, value: Any) -> None:
        """An attribute that its class computes anew each time: compared by value, where it has one."""
        found = _ATTRIBUTE.search(source)
        if not found or not _is_constant(value):
            raise _Unwatchable(f"{source}, which is computed each time")
        self._compare((id(parent), found.group(1)), parent, value, f"{{0}}.{found.group(1)} != {{1}}")

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Compare an attribute at each call."""
        if isinstance(owner, type) or _is_plain(owner):
            self._compare((id(owner), name), owner, value, f"{{0}}.{name} is not {{1}}")
        else:
            self.names["plainly"] = object.__getattribute__
            self._compare((id(owner), name), owner, value, f"plainly({{0}}, {name!r}) is not {{1}}")

    def _compare(self, key: Any, owner: Any, value: Any, differs: str) -> None:
        if key in self._done:
            return
        self._done.add(key)
        self.lines.append(f"if {differs.format(self._name(owner), self._name(value))}: return False")

    def _name(self, value: Any) -> str:
        name = f"v{id(value)}"
        self.names[name] = value
        return name


def _reads_state(function: Any) -> bool:
    """Whether a program's own function may read more than its arguments and other functions."""
    code = getattr(function, "__code__", None)
    if code is None or _PACKAGES.search(code.co_filename):
        return False
    if code.co_freevars or code.co_varnames[:1] == ("self",):
        return True
    settled = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch.dtype)
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    held = [function.__globals__[name] for name in names if name in function.__globals__]
    return not all(isinstance(each, settled) for each in held)


class _Every(set[str]):
    """Every name there is."""

    def __contains__(self, name: object) -> bool:
        return True


_FOR_ALL = [
    hooks
    for name, hooks in vars(nn.modules.module).items()
    if name.startswith("_global_") and name.endswith("hooks") and isinstance(hooks, dict)
]


def _hooks_for_all() -> list[tuple[Any, ...]]:
    return [tuple(hooks.values()) for hooks in _FOR_ALL]


_NOTHING = object()
_tokens = itertools.count(1)


def _granted(
    classes: set[type], functions: set[types.FunctionType], code: frozenset[Any]
) -> Iterator[tuple[Any, str, Any]]:
    """What Dynamo takes for granted: functions of classes that it went through, data of classes that code names, and
    the defaults and the code of every function."""
    named = {name for each in code for name in each.co_names}
    called = set(functions)
    for kind in classes:
        if kind.__module__.partition(".")[0] in _SETTLED and not issubclass(kind, nn.Module):
            continue
        for name in {name for base in kind.__mro__ for name in vars(base)}:
            value = inspect.getattr_static(kind, name, None)
            if isinstance(value, types.FunctionType):
                if value.__code__ in code:
                    called.add(value)
                    yield kind, name, value
            elif name in named and isinstance(value, _DATA) and not name.startswith("__"):
                yield kind, name, value
    for function in called:
        if _PACKAGES.search(function.__code__.co_filename):
            continue  # nobody gives a library's function other defaults
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            yield function, name, getattr(function, name)


def _held(owner: Any, name: str) -> Any:
    return inspect.getattr_static(owner, name, None) if isinstance(owner, type) else getattr(owner, name, None)


_SETTLED = ("abc", "builtins", "collections", "enum", "torch", "typing")
_DATA = (bool, int, float, str, tuple, list, dict, Tensor, types.NoneType)


def _is_field(value: Any, source: str) -> bool:
    """True where ``source`` reads a dataclass's field: those are compared as parts of the argument's tree."""
    found = _ATTRIBUTE.search(source)
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not found:
        return False
    return found.group(1) in ("__dict__", "__class__", *(field.name for field in dataclasses.fields(value)))


def _is_constant(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(_is_constant(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def _never() -> bool:
    return False


def _is_plain(owner: Any) -> bool:
    """Whether reading an attribute runs no code of the object's class."""
    kind = type(owner)
    reads: tuple[Any, ...] = (object.__getattribute__, type.__getattribute__)
    return kind.__getattribute__ in reads and not hasattr(kind, "__getattr__")


def _children(manager: Any) -> Iterator[Any]:
    if hasattr(manager, "get_key_value_managers"):
        for pair in manager.get_key_value_managers().values():
            yield from (each for each in pair if each is not None)
    yield from manager.get_child_managers()


def _leaves(manager: Any, kind: str) -> list[Any]:
    return [leaf for leaf in manager.get_leaf_guards() if type(leaf).__name__ == kind]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def _literal_item(source: str) -> Any:
    found = _ITEM.search(source)
    return _literal(found.group(1)) if found else None


_PACKAGES = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")


def _is_users(module: Any) -> bool:
    """True for the program's own modules, whose globals may change all the time for reasons of their own."""
    if not isinstance(module, types.ModuleType):
        return False
    where = getattr(module, "__file__", None)
    if where is None:
        return module.__name__ not in sys.builtin_module_names
    return not _PACKAGES.search(where)


def _same_in_python(tensors: list[Any], addresses: list[int | None], positions: list[int]) -> bool:
    return all(tensors[i].data_ptr() == addresses[i] for i in positions)


same_addresses: Callable[[list[Any], list[int | None], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _same_in_python
)


def _function(lines: list[str], names: dict[str, Any]) -> Callable[[], bool]:
    """``is_same``, its objects as defaults, which CPython reads as fast as locals."""
    given = ", ".join(f"{name}={name}" for name in names)
    body = "\n        ".join([*lines, "return True"])
    caught = "    except (AttributeError, ValueError):\n        return False\n"
    text = f"def is_same({given}):\n    try:\n        {body}\n{caught}"
    scope = dict(names)
    exec(compile(text, "<world>", "exec"), scope)
    made: Callable[[], bool] = scope["is_same"]
    for name in (*names, "is_same"):  # it has them as defaults; here they would be a cycle
        del scope[name]
    return made
