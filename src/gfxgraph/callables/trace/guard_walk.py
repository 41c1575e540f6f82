"""The walk over a tree of Dynamo's guards: what to watch, so that no guard's result can change unnoticed.

Each node is an object or an attribute that the trace read. It is assigned to the cheapest sound watch (watch.py). If
something has no known watch, the world's guards are evaluated at each call.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import dis
import enum
import functools
import random
import re
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gfxgraph import torch_names
from gfxgraph.watching.watch import PACKAGES, Unwatchable, Watch, dict_of, is_users

_ATTRIBUTE = re.compile(r"\.([A-Za-z_]\w*)$")
_ITEM = re.compile(r"\[([^\[\]]+)\]$")
_PLAINLY = re.compile(r"^object\.__getattribute__\(.*, '(\w+)'\)$")
_CLASS_DICT = re.compile(r"^dict\((.*)\.__dict__\)$")
_DEFAULTS = re.compile(r"\.(__defaults__|__kwdefaults__)\[")
_CONTAINS = re.compile(r"___dict_contains\('([^']+)',")
_LACKS = re.compile(r"not hasattr\(.*, '(\w+)'\)")
_OF_ARGUMENTS = re.compile(r"\bL\['(args|kwargs)'\]")
_BY_CLASS = ("TYPE_MATCH", "TENSOR_MATCH")
_ASKED = re.compile(r"GetAttrGuardAccessor\((\w+)\)")
_FIXED = (
    int, float, complex, str, bytes, bool, types.NoneType, tuple, frozenset, range, slice, enum.Enum, types.CodeType,
    types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType, types.MappingProxyType,
    property, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch_names.OpOverload,
)  # fmt: skip
"""Types that cannot change in themselves; their contents are examined separately."""


class GuardWalk(Watch):
    """The walk over one guard tree."""

    def __init__(self, scope: dict[str, Any]) -> None:
        super().__init__()
        self._scope = scope
        self._values: dict[str, object] = {}
        self.mappings: list[dict[Any, object]] = []
        """Dicts that were read, except objects' own dicts."""
        self.tensors: list[Tensor] = []
        """External tensors that were read; they may be given attributes."""
        self.sets: list[set[Any]] = []
        """Sets that contain more than constants."""
        self.zeros: list[tuple[object, str, float]] = []
        """0.0 and -0.0 that were read: the holder, the name or position, and the value."""
        self.kinds: list[tuple[Any, type]] = []
        """Objects whose class can be assigned, and their classes."""
        self.inside = ""
        self.why_eager = ""
        """Something that Dynamo reads without a guard, and that cannot be watched here either."""
        self.classes: set[type] = set()
        """Classes of the objects and modules that were read."""
        self.functions: set[types.FunctionType] = set()
        """Functions that were read or called."""
        self.named: dict[int, str] = {}
        """By identity of what was read, its source, the first in order: the tree's order changes with failures."""
        self.compared: list[object] = []
        """What guards compare by its address: objects and classes."""

    def walk(self, root: Any) -> None:
        for manager in root.get_child_managers():
            source = manager.get_source()
            if source == "G":  # the root's own globals, which hold what Dynamo put there
                for inner in children(manager):
                    self._node(inner, None)
            elif source in ("L['args']", "L['kwargs']"):
                self._argument(manager)
            else:
                self._node(manager, None)
        for guard in getattr(root, "get_epilogue_lambda_guards", list)():
            for part in guard.verbose_code_parts():
                sources = part.partition("  #")[0].split(" is ")
                for source in sources if len(sources) == 2 and not _OF_ARGUMENTS.search(part) else ():
                    self._way(source.strip())
        self.named = {id(value): source for source, value in sorted(self._values.items(), reverse=True)}
        self._values.clear()

    def _way(self, to: str) -> None:
        """Watch each step to an object that Dynamo met twice: of the second way it guards that it is the same."""
        for of, source in _steps(to):
            parent = self._evaluate(of)
            if isinstance(parent, dict | list):
                self.content(parent)
            else:
                self._child(parent, source, self._evaluate(source))

    def walk_inside(self, root: Any) -> None:
        """Like ``walk``, for an inner frame: nothing else compares its arguments."""
        for manager in root.get_child_managers():
            self._node(manager, None)
        self._values.clear()

    def _argument(self, manager: Any) -> None:
        """Arguments are compared as trees of tensors and constants; note deeper reads inside one."""
        value = self._value(manager)
        self._note_compared(manager.get_leaf_guards(), value)
        if isinstance(value, tuple) or dataclasses.is_dataclass(value):
            self.classes.add(type(value))
        for inner in children(manager):
            if isinstance(value, Tensor) and _ATTRIBUTE.search(inner.get_source()):
                self.inside = self.inside or inner.get_source()
            elif isinstance(value, Tensor | types.NoneType) or type(value) in (tuple, list, dict):
                self._argument(inner)
            elif isinstance(value, tuple):  # a named tuple
                self._argument(inner)
            elif isinstance(value, (torch.dtype, torch.device, torch.Size, slice)):
                continue
            elif _is_field(value, inner.get_source()) and not _leaves(inner, "DICT_CONTAINS"):
                self._argument(inner)
            else:
                self.inside = self.inside or inner.get_source()

    def _evaluate(self, source: str) -> Any:
        """The value at a way's end: from its last step where the rest is known, since compiling costs most."""
        found = _ATTRIBUTE.search(source) or _ITEM.search(source)
        if found and source[: found.start()] in self._values:
            last = compiled("_" + source[found.start() :])
            value = eval(last, self._scope, {"_": self._values[source[: found.start()]]})
        else:
            value = eval(compiled(source), self._scope)
        self._values[source] = value
        return value

    def _value(self, manager: Any) -> Any:
        try:
            return self._evaluate(manager.get_source())
        except Exception as error:  # noqa: BLE001  an attribute's own code may raise anything: guards are evaluated then
            raise Unwatchable(f"{manager.get_source()} ({type(error).__name__})") from error

    def _node(self, manager: Any, parent: object) -> None:
        """Watch one node; if that is not possible, still visit the others, to find what is not guarded."""
        try:
            self._part(manager, parent)
        except Unwatchable as what:
            self.unwatched = self.unwatched or str(what)

    def _note_compared(self, leaves: list[object], value: object) -> None:
        kinds = {type(leaf).__name__ for leaf in leaves}
        if "ID_MATCH" in kinds:
            self.compared.append(value)
        if not kinds.isdisjoint(_BY_CLASS):
            self.compared.append(type(value))

    def _part(self, manager: Any, parent: object) -> None:
        source, leaves = manager.get_source(), manager.get_leaf_guards()
        if parent is not None and not leaves and not any(children(manager)):
            found = _ATTRIBUTE.search(source)
            if found and isinstance(self.of_kind(type(parent), found.group(1)), property):
                return  # Dynamo guards what the property reads instead, and its code may have effects
        value = self._value(manager)
        self._note_compared(leaves, value)
        if parent is not None and parent is not value:
            again = self._value(manager)
            if again is value or _CLASS_DICT.match(source) or isinstance(value, types.MethodType) and again == value:
                self._child(parent, source, value)
                self._note_zero(parent, source, value)
            else:  # what lies in it is still looked at: not all of that is guarded
                self.unwatched = self.unwatched or f"{source}, which is computed at each access"
        of_class = _CLASS_DICT.match(source)
        if of_class:  # the guard made a copy: what is read is the class itself
            owner = self._evaluate(of_class.group(1))
            if not isinstance(owner, type):
                raise Unwatchable(source)
            own = dict_of(owner)
            for leaf in _leaves(manager, "DICT_CONTAINS"):
                self.watch(own, _looked_for(leaf))
            for inner in children(manager):
                found = _ITEM.search(inner.get_source())
                key = _literal(found.group(1)) if found else None
                if not isinstance(key, str):
                    raise Unwatchable(inner.get_source())
                self.watch(own, (key,))
                self._node(inner, None)
            return
        holder = self._holder(source, value)
        if holder is None:
            self._itself(value, manager, source)
        elif not is_users(holder):
            self._own_dict(holder, manager)
        for inner in children(manager):
            if inner.get_source() == source:
                self._asked(value, manager, inner)
            self._node(inner, value if holder is None else holder)

    def _asked(self, owner: Any, manager: Any, inner: Any) -> None:
        """Watch an attribute that code only asks for: Dynamo of torch 2.14 names its owner as the source."""
        accessors = zip(manager.get_child_managers(), getattr(manager, "get_accessors", list)())
        for asked in (_ASKED.fullmatch(how.repr()) for each, how in accessors if each is inner):
            if asked is not None:
                name = asked.group(1)
                self._child(owner, f"{inner.get_source()}.{name}", getattr(owner, name, None))

    def _holder(self, source: str, value: object) -> Any:
        """The object whose own dict ``value`` is; None for any other value."""
        if not source.endswith(".__dict__") or not isinstance(value, dict):
            return None
        return self._evaluate(source.removesuffix(".__dict__"))

    def _own_dict(self, holder: object, manager: Any) -> None:
        own = self.watched_dict(holder)
        if own is not None:
            for leaf in manager.get_leaf_guards():
                self.watch(own, _looked_for(leaf))
        elif _leaves(manager, "DICT_CONTAINS"):
            self.compare(("length", id(holder)), holder, None, f"len({{0}}.__dict__) != {len(vars(holder))}")

    def _itself(self, value: object, manager: Any, source: str) -> None:
        """Watch what may change in the object itself."""
        self._note_kind(value, source)
        if isinstance(value, _FIXED) or isinstance(value, type | Tensor | types.CellType | types.FunctionType):
            return
        if isinstance(value, weakref.ReferenceType):  # it cannot change while what it refers to is alive
            self.held.append(value())
            return
        self.classes.add(type(value))
        if isinstance(value, dict):
            self.watch(value, None)
            if "__builtins__" not in value and value is not vars(builtins):  # Dynamo adds names of its own to globals
                self.mappings.append(value)
        elif isinstance(value, types.ModuleType):
            own = self.watched_dict(value)  # the program's: name by name
            if own is not None and _leaves(manager, "NO_HASATTR"):
                self.watch(own, None)
        elif isinstance(value, list):
            self.content(value)
        elif isinstance(value, set):
            self.compare(("set", id(value)), value, frozenset(value), "{0} != {1}")
            if not all(isinstance(each, _FIXED) for each in value):  # Dynamo guards their number
                self.sets.append(value)
        elif type(value) is not object:
            self._object(value, manager, source)

    def _note_kind(self, value: object, source: str) -> None:
        """Note classes, functions and tensors, and objects without a known watch."""
        if isinstance(value, types.MappingProxyType) and not source.endswith(".__dict__"):
            view = "it reads a view of a dict (types.MappingProxyType); read the dict itself"
            self.why_eager = self.why_eager or view
        elif isinstance(value, random.Random):
            self.why_eager = self.why_eager or "it draws from a random.Random object"
        elif isinstance(value, types.MethodType):
            self.classes.add(type(value.__self__))
            if isinstance(value.__func__, types.FunctionType):
                self.functions.add(value.__func__)
                self._values[source + ".__func__"] = value.__func__
        elif isinstance(value, types.FunctionType):
            self.functions.add(value)
        elif isinstance(value, type):
            self.classes.add(value)
        elif isinstance(value, Tensor):
            self.tensors.append(value)

    def _object(self, value: Any, manager: Any, source: str) -> None:
        """Watch an object's class, and note the attributes that it lacks."""
        if not (hasattr(value, "__dict__") or hasattr(type(value), "__slots__")):
            raise Unwatchable(f"{source}, a {type(value).__qualname__}")
        self.word("type", value, type(value), "type({0}) is not {1}")
        self.kinds.append((value, type(value)))
        own = self.watched_dict(value)
        for leaf in _leaves(manager, "NO_HASATTR"):
            lacking = [found.group(1) for part in leaf.verbose_code_parts() if (found := _LACKS.search(part))]
            if not lacking:
                raise Unwatchable(f"{source} {leaf.verbose_code_parts()}")
            for name in lacking:
                self._lacks(value, own, name)

    def _note_zero(self, parent: Any, source: str, value: object) -> None:
        if type(value) is float and value == 0.0:
            found = _ATTRIBUTE.search(source)
            self.zeros.append((parent, found.group(1) if found else _literal_item(source), value))

    def _lacks(self, owner: Any, own: dict[str, object] | None, name: str) -> None:
        """Watch that an object does not have an attribute."""
        kind = type(owner)
        is_module = isinstance(owner, nn.Module) and kind.__getattr__ is nn.Module.__getattr__
        is_told = is_module or not hasattr(kind, "__getattr__")
        if own is None or not is_told or not self.is_found_plainly(owner, name):
            self.compare(("lacks", id(owner), name), owner, None, f"hasattr({{0}}, {name!r})")
            return
        for each in (own, *((owner._parameters, owner._buffers, owner._modules) if is_module else ())):
            self.watch(each, (name,))
        self.of_class(kind, name)

    def _child(self, parent: Any, source: str, value: object) -> None:
        """Watch that ``parent`` still leads to ``value``."""
        if isinstance(parent, (*_FIXED, dict, list, weakref.ReferenceType)) or _CLASS_DICT.match(source):
            return  # it cannot change, is watched as a whole, or its items are compared
        of_function = _DEFAULTS.search(source)
        found = _PLAINLY.match(source) or _ATTRIBUTE.search(source)
        name = found.group(1) if found else _literal_item(source)  # an item of the object's own dict
        if of_function and isinstance(parent, types.FunctionType):
            self.attribute(parent, of_function.group(1), getattr(parent, of_function.group(1)))
        elif isinstance(parent, types.CellType):
            self.attribute(parent, "cell_contents", value)
        elif source.startswith("type(") and type(parent) is value:
            self.word("type", parent, value, "type({0}) is not {1}")
        elif not isinstance(name, str) or not name.isidentifier():
            raise Unwatchable(f"{source} of a {type(parent).__qualname__}")
        elif isinstance(parent, types.ModuleType) and name not in vars(parent) and name != "__dict__":
            self.compare(
                (id(parent), name), parent, value, f"{{0}}.{name} is not {{1}}"
            )  # by its class's __getattr__
        elif isinstance(parent, types.ModuleType) and is_users(parent) and name != "__dict__":
            self.compare((id(parent), name), vars(parent), value, f"{{0}}.get({name!r}) is not {{1}}")
        elif name != "__dict__":
            self.attribute(parent, name, value, is_plain=_PLAINLY.match(source) is not None)


@functools.lru_cache(1 << 14)
def compiled(source: str) -> types.CodeType:
    return compile(source, "<source>", "eval")


@functools.lru_cache(1 << 14)
def _steps(source: str) -> tuple[tuple[str, str], ...]:
    """The sources of what each step to an object is made from, and of what it leads to."""
    return tuple(_steps_to(ast.parse(source, mode="eval").body))


def _steps_to(node: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Call):
        for argument in node.args:
            yield from _steps_to(argument)
    elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.value, ast.Name):
        yield from _steps_to(node.value)
        yield ast.unparse(node.value), ast.unparse(node)


def _is_field(value: object, source: str) -> bool:
    """True if ``source`` reads a dataclass's field: these are compared as parts of the argument's tree."""
    found = _ATTRIBUTE.search(source)
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not found:
        return False
    return found.group(1) in ("__dict__", "__class__", *(field.name for field in dataclasses.fields(value)))


def _looked_for(leaf: Any) -> set[str] | None:
    """The names that a guard on a dict looks for; None if it may be any, as for its length."""
    names = [_CONTAINS.search(part) for part in leaf.verbose_code_parts()]
    return None if None in names else {found.group(1) for found in names if found is not None}


def children(manager: Any) -> Iterator[Any]:
    if hasattr(manager, "get_key_value_managers"):
        for pair in manager.get_key_value_managers().values():
            yield from (each for each in pair if each is not None)
    yield from manager.get_child_managers()


def _leaves(manager: Any, kind: str) -> list[Any]:
    return [leaf for leaf in manager.get_leaf_guards() if type(leaf).__name__ == kind]


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def _literal_item(source: str) -> Any:
    found = _ITEM.search(source)
    return _literal(found.group(1)) if found else None


def reads_state(function: Any) -> bool:
    """Whether one of the program's functions may read more than its arguments and other functions."""
    code = getattr(function, "__code__", None)
    if code is None or PACKAGES.search(code.co_filename):
        return False
    if code.co_freevars or code.co_varnames[:1] == ("self",):
        return True
    settled = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch.dtype)
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    held = [function.__globals__[name] for name in names if name in function.__globals__]
    return not all(isinstance(each, settled) for each in held)
