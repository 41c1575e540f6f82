"""What one trace read besides its arguments, and whether any of it may have changed.

Problem: a graph contains every branch that Python took and every address that it saw. Dynamo knows what the
function read on the way and checks it at each call with its tree of guards: exact, but 150 to 450 us for a 16-layer
Llama, as much as a hundred replays. Idea: Dynamo knows *what* was read; whether any of it has changed can be checked
for far less. The tree is walked once, and each object in it is assigned to the cheapest sound watch (watch.py); where
there is none, Dynamo's guards are evaluated at each call.

A watch that says "maybe" costs one evaluation of Dynamo's guards; an irrelevant change (another attribute of the same
module) is then forgotten. So a world is never trusted on weaker evidence than Dynamo's own guards.

Invariants: ``is_same`` is never True if Dynamo's guards, or the identity of an external tensor that a graph reads,
would fail. Everything watched is kept alive, so that no address is reused.

Source: measured (Dynamo's tree: 158 us on CPython 3.12 and torch 2.11, 454 us on 3.11 and 2.13); decision 0111.
"""

from __future__ import annotations

import abc
import contextlib
import dis
import functools
import inspect
import itertools
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gfxgraph.callables.trace.guard_walk import GuardWalk, compiled
from gfxgraph.callables.trace.in_dynamo import RESTLESS_NUMBER, ROOT, Found, FrameTrace, asks_by_name, catches
from gfxgraph.config import LOOKS_UP_VARIABLES, environment
from gfxgraph.watching.watch import PACKAGES, Unwatchable, is_other_zero, is_packages, same_tensors

MAX_REBOUND = 4
"""So often may something that is read from outside be another one; past that it is an input of the graphs' pieces."""
MOST_NUMBERS = 2
"""Numbers among the arguments of one world that have graphs of their own; with more, calls run in pieces."""
MOST_SMALL = 16
"""Host tensors up to this size are compared by value; a trace that read a larger one is checked in full."""
MOST_LOOKED_AT = 1000
"""Most objects to examine inside an argument; one with more is assumed to contain anything."""

CONSTANTS = (bool, int, float, complex, str, bytes, types.NoneType)
LASTING = (*CONSTANTS, type, types.CodeType, types.EllipsisType, torch.dtype, torch.device, torch.layout)
"""Types of what no instance owns."""


class Granted:
    """What Dynamo assumes without guards in its code's frames, at any depth."""

    def __init__(self) -> None:
        self._owned: list[tuple[object, str, Any]] = []
        """Functions and data of classes, defaults and code of functions: owner, name, value."""
        self._kinds: list[tuple[object, type]] = []
        """Objects whose class can be assigned, and their classes."""
        self._keys: list[tuple[dict[Any, object] | set[Any], list[object]]] = []
        """Dicts and their keys: a missing key is not guarded if the code catches the resulting error.
        Sets and their contents: for objects, Dynamo guards only the number.
        """
        self._absent: list[tuple[Any, frozenset[str]]] = []
        """Objects, classes and dicts, with names that the code may look for there without success, and find
        elsewhere.
        """
        self._zeros: list[tuple[object, str, float]] = []
        """0.0 and -0.0, which are equal for a guard: their holder, their name, and the value."""
        self._hooks: list[tuple[Any, ...]] | None = None
        """Hooks for all modules, if the trace went through a module: Dynamo reads them without a guard."""
        self._registered: object = None
        """A token for what is registered with abstract classes, if the program checks classes."""
        self._environment: tuple[dict[Any, object], dict[Any, Any]] | None = None
        """The process's environment and a copy, if a variable was looked up: Dynamo does not guard missing ones."""
        self.why_eager = ""
        """Something that was read without a guard, and cannot be watched either."""
        self._walked: tuple[dict[int, str], set[type], set[types.FunctionType]] = {}, set(), set()
        """By identity of what was read, its source; the classes and functions among that."""

    def note(self, frame: FrameTrace, code: types.CodeType, given: Mapping[str, Any]) -> None:
        """Add a traced frame, of this code and with these locals."""
        names = {**frame.guards.closure_vars, "G": frame.names, "L": given}
        watch = GuardWalk(names)
        watch.walk_inside(frame.guards.root)
        codes = frozenset((code, *(each for found in frame.found for each in found.code)))
        self.take(watch, codes, owners_of((each for found in frame.found for each in found.replaced), names))

    def take(self, watch: GuardWalk, code: frozenset[Any], stored: frozenset[tuple[int, Any]]) -> None:
        """Record the present state of what a walk has found, but for what the code itself stores in classes: that
        Dynamo guards.
        """
        self._walked = watch.named, watch.classes, watch.functions
        own = [each for each in code if each.co_filename != ROOT and not PACKAGES.search(each.co_filename)]
        named = {name for each in own for name in each.co_names}
        self._owned += [
            each for each in _granted(watch.classes, watch.functions, code) if (id(each[0]), each[1]) not in stored
        ]
        self._kinds += watch.kinds
        self.why_eager = self.why_eager or watch.why_eager
        does_catch = any(catches(each) for each in code)
        # Dynamo's guards check an OrderedDict's insertion order, not its own order.
        # A ``__missing__`` replaces the error of a missing key.
        in_order = [
            each
            for each in watch.mappings
            if does_catch or hasattr(type(each), "__missing__") or isinstance(each, OrderedDict) and len(each) > 1
        ]
        self._keys += [(each, list(each)) for each in in_order]
        self._keys += [(each, list(each)) for each in watch.sets]
        if not named.isdisjoint(_READS_ALL) and any(hasattr(each, "__dict__") for each, _ in watch.kinds):
            self.why_eager = self.why_eager or "it reads an object's attributes as a dict (vars, __dict__)"
        for name in sorted(named.intersection(_OF_ONE_TENSOR)):
            self.why_eager = self.why_eager or f"it reads {name} of a tensor, which differs for a graph's buffers"
        if any(_sets_data(each) for each in own):
            self.why_eager = self.why_eager or "it assigns .data of a tensor, which a replay cannot do; use copy_()"
        self._zeros += watch.zeros
        self._take_absent(watch, own, does_catch)
        self._owned += [(Tensor, name, vars(Tensor)[name]) for name in named.intersection(vars(Tensor))]
        if any(issubclass(kind, nn.Module) for kind in watch.classes):
            self._hooks = _hooks_for_all()
        if not named.isdisjoint(_ASKS_FOR_CLASSES):
            self._registered = abc.get_cache_token()
        if LOOKS_UP_VARIABLES in code and self._environment is None:
            self._environment = environment(), dict(environment())

    def facts(self) -> dict[object, object]:
        """All of it, where objects have the names of a walk over their guards: comparable with another instance's."""
        named, classes, functions = self._walked
        name: Callable[[object], object] = lambda value: named.get(id(value), id(value))  # noqa: E731
        facts: dict[object, object] = {("class", id(kind)): kind for kind in classes}
        for each in functions:
            held = tuple(cell.cell_contents if _holds_class(cell) else None for cell in each.__closure__ or ())
            given = each.__code__, each.__defaults__, tuple((each.__kwdefaults__ or {}).items()), held
            facts["function", name(each)] = each.__globals__, weakly(given)
        own = {id(each) for each in (*functions, *_cells_of_classes(functions))}
        facts |= {
            ("owned", id(owner), key): (owner, value) for owner, key, value in self._owned if id(owner) not in own
        }
        facts |= {("kind", name(each)): kind for each, kind in self._kinds}
        facts |= {("keys", name(each)): weakly(tuple(keys)) for each, keys in self._keys}
        facts |= {("absent", name(each)): absent for each, absent in self._absent}
        facts |= {("zero", name(each), key): value for each, key, value in self._zeros}
        variables = self._environment and frozenset(self._environment[1].items())
        return {**facts, "process": (weakly(tuple(self._hooks or ())), self._registered, variables)}

    def _take_absent(self, watch: GuardWalk, code: Sequence[types.CodeType], does_catch: bool) -> None:
        """Record what is absent: Dynamo guards that in objects and classes, not in bases nor where an error is
        caught.
        """
        texts = {text for each in code for text in each.co_consts if isinstance(text, str) and text.isidentifier()}
        names = frozenset(texts.union(*(each.co_names for each in code)))
        kinds = {*watch.classes, *(cell.cell_contents for cell in _cells_of_classes(watch.functions))}
        bases = {base for kind in kinds if _is_programs(kind) for base in kind.__mro__ if _is_programs(base)}
        holders: list[Any] = [Tensor, *bases]
        if any(asks_by_name(each) for each in code):
            holders += watch.tensors
        for owner, kind in watch.kinds:
            asks_in_vain = getattr(kind, "__getattr__", nn.Module.__getattr__) is not nn.Module.__getattr__
            if (does_catch or asks_in_vain) and hasattr(owner, "__dict__"):
                holders.append(owner)
                for table in ("_parameters", "_buffers", "_modules") if isinstance(owner, nn.Module) else ():
                    holders.append(getattr(owner, table))
                    watch.named.setdefault(id(holders[-1]), f"{watch.named.get(id(owner))}.{table}")
        self._absent += [(each, names.difference(_names_in(each))) for each in holders]

    def have_watched(self, watch: GuardWalk) -> None:
        """Watch all of it, so that it is checked again when some of it may have changed.

        Raises:
            Unwatchable: no watch is known for it.
        """
        if self._hooks is not None:
            for hooks in _FOR_ALL:
                watch.watch(hooks, None)
        if self._environment is not None:
            watch.watch(self._environment[0], None)
        self._have_names_watched(watch)
        if self._registered is not None:
            watch.names |= {"registered": abc.get_cache_token, "registered_then": self._registered}
            watch.lines.append("if registered() != registered_then: return False")
        for owner, name, value in self._owned:
            if isinstance(owner, type) and name != "__mro__":
                watch.of_class(owner, name)
            else:
                watch.attribute(owner, name, value)
            if isinstance(value, list | dict):
                watch.content(value)

    def _have_names_watched(self, watch: GuardWalk) -> None:
        for holder, absent in self._absent:
            watch.without(holder, absent)
        for holder, name, value in self._zeros:
            watch.zero(holder, name, value)

    def is_stale(self) -> bool:
        """True if any of it has changed."""
        return (
            any(_held(owner, name) is not value for owner, name, value in self._owned)
            or any(type(owner) is not kind for owner, kind in self._kinds)
            or any(list(each) != keys for each, keys in self._keys)
            or not all(absent.isdisjoint(_names_in(holder)) for holder, absent in self._absent)
            or any(is_other_zero(holder, name, value) for holder, name, value in self._zeros)
            or (self._hooks is not None and self._hooks != _hooks_for_all())
            or (self._registered is not None and self._registered != abc.get_cache_token())
            or (self._environment is not None and self._environment[0] != self._environment[1])
        )


def _is_same_input(now: object, then: object, is_made: bool) -> bool:
    """Whether an FX graph's input from outside is what it was; what is made of NumPy's is a new tensor each time."""
    if not isinstance(now, Tensor):
        return bool(now == then)
    if now is then or not is_made or now.numel() > MOST_SMALL:
        return now is then
    return isinstance(then, Tensor) and now.dtype is then.dtype and torch.equal(now, then)


class World:
    """What one trace depends on.

    Args:
        frame: Dynamo's guards and code for the function's own frame.
        found: its graph, if it has one and goes on after none.
        given: the frame's locals: ``args``, ``kwargs``, the function.
        code: of every function that the trace went through.
    """

    def __init__(
        self, frame: FrameTrace, found: Found | None, given: Mapping[str, Any], code: Iterable[types.CodeType]
    ) -> None:
        self.frame, self.guards = frame, frame.guards
        self.found: Any = found
        self.names = {**frame.guards.closure_vars, "G": frame.names}
        """The namespace of its sources: the frame's globals and names from Dynamo's own sources."""
        self._fn = given["fn"]
        names = {**self.names, "L": given}
        self._replaced = owners_of(found.replaced if found is not None else (), names)
        outside = (*found.sources, *found.returned) if found is not None else ()
        self._sources = [(compiled(each), each) for each in outside if each and not each.startswith(_ARGUMENTS)]
        """Of external tensors that the FX graph reads, as Dynamo writes them."""
        self.stores = [(eval(of, names), *what) for of, *what in found.stores] if found is not None else []
        """Attributes that each call sets to the same constant: object, name, value."""
        self.compared: tuple[object, ...] = ()
        """What guards compare by its address, as `SharedTrace.alive`."""
        self.why_pieces = ""
        self.takes_gradients = False
        """Whether ``autograd.grad`` is in its graphs."""
        """Why the trace cannot be one graph; "" if it can."""
        self.reads_inside_arguments = ""
        """An attribute of an argument that is more than a tree of tensors and constants."""
        self.token = next(_tokens)
        self.is_one = False
        """Whether its frame is one FX graph, whatever else its code does."""
        self.run: Any = None
        """Dynamo's code for it, where that is one FX graph; it asks no guards."""
        self.is_taken = False
        """Whether another instance's trace made it (same_code.py)."""
        self.why_eager = ""
        """Why even its pieces cannot be captured; "" if they can."""
        self.written: list[Tensor] = []
        """External tensors that the function writes to."""
        self.zeros: tuple[str, ...] = ()
        """The zeros among the arguments, with their signs."""
        self.skeleton: Any = None
        """The arguments' types, keys and lengths."""
        self.numbers: dict[tuple[object, ...], bool] = {}
        """Those among the arguments that have graphs of their own; whether they came again."""
        self.n_rebound = 0
        """How often an external tensor that it reads was replaced."""
        self.tensors: list[Tensor] = []
        self.unwatched = ""
        """What cannot be watched; then each call takes the slow path."""
        self.asks_guards = ""
        """What the guards name and no watch is known for; then they are evaluated at each call."""
        self.code: frozenset[types.CodeType] = frozenset(code)
        self.does_catch = any(catches(each) for each in self.code)
        """Whether the code may continue after an error."""
        self.granted = Granted()
        self._find_tensors(given)
        self.rearm(given)

    # -- is it the same world -------------------------------------------------------------------------

    is_same: Callable[[], bool]
    """True if nothing that is watched can have changed; cheap. If False, call ``holds`` and ``has_moved``."""

    def is_same_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True if nothing that was read can have changed, for a call with these arguments."""
        if not self.is_same():
            return False
        given = {"args": args, "kwargs": kwargs, "fn": self._fn}
        return not self.asks_guards or bool(self.guards.check(given)) and not self.has_moved(given)

    def is_restless(self, numbers: tuple[object, ...]) -> bool:
        """Whether the numbers among a call's arguments are new, after many of which most did not come again."""
        known = self.numbers
        if len(known) >= MOST_NUMBERS and numbers not in known and 2 * sum(known.values()) < len(known):
            return True
        known[numbers] = numbers in known
        return False

    def holds(self, given: Mapping[str, Any]) -> bool:
        """Evaluate Dynamo's guards for this call: True if the trace is valid for it, whatever has changed since."""
        return not self.is_stale() and bool(self.guards.check(dict(given)))

    def store(self) -> None:
        """Store the constants that each call stores: a replay would not."""
        for owner, name, value in self.stores:
            if getattr(owner, name, _NOTHING) is not value:
                setattr(owner, name, value)

    def is_stale(self) -> bool:
        """True if a class's code or data changed since the trace: Dynamo does not check this."""
        return self.granted.is_stale()

    def has_moved(self, given: Mapping[str, Any]) -> bool:
        """True if an external tensor was replaced or moved, or a number has changed."""
        found = self._evaluate(given)
        if found is None or len(found) != len(self._inputs):
            return True
        made = ["___from_numpy" in source for _, source in self._sources]
        if not all(map(_is_same_input, found, self._inputs, made)):
            return True
        return not self._tensors_are_same()

    def rebind(self, given: Mapping[str, Any]) -> None:
        """Read what the sources refer to now; existing graphs become invalid."""
        self.n_rebound += 1
        now = self._evaluate(given) or []
        is_number = any(type(a) in (int, float) and a != b for a, b in zip(now, self._inputs))
        if is_number or self.n_rebound > MAX_REBOUND:
            self.why_pieces = self._why_restless(now)
        self.token = next(_tokens)
        self._find_tensors(given)
        self.rearm(given)

    def _why_restless(self, now: Iterable[object]) -> str:
        for (_, source), a, b in zip(self._sources, now, self._inputs):
            if not isinstance(a, Tensor) and a != b:
                return f"{source} {RESTLESS_NUMBER}"
            if a is not b:
                return f"{source} is replaced too often; write to the tensor that is there instead"
        return "a tensor that it reads from outside is moved too often"

    def _evaluate(self, given: Mapping[str, Any]) -> list[Any] | None:
        """The FX graph's external inputs: tensors, and numbers that Dynamo made symbols of."""
        scope = {**self.names, "L": given}
        try:
            return [eval(code, scope) for code, _ in self._sources]
        except (AttributeError, KeyError, IndexError, NameError, TypeError):
            return None

    # -- external tensors -----------------------------------------------------------------------------

    def _find_tensors(self, given: Mapping[str, Any]) -> None:
        self._inputs = self._evaluate(given) or []
        self.tensors = [each for each in self._inputs if isinstance(each, Tensor)]
        unique = list({id(t): t for t in self.tensors}.values())
        host = [t for t in unique if not t.is_cuda]
        self._values = [(t, t.detach().clone()) for t in host if t.numel() <= MOST_SMALL]
        self.unwatched = "a large host tensor" if len(self._values) < len(host) else ""
        self._device = [t for t in unique if t.is_cuda and t.layout is torch.strided and _has_memory(t)]
        self._are_same = same_tensors(self._device)
        self.homes = frozenset(t.untyped_storage().data_ptr() for t in self._device)
        """Addresses of the storages of all external tensors that it reads."""

    def note_written(self, versions: Mapping[int, tuple[Tensor, int]]) -> None:
        """Note to which external tensors a run wrote, from what they were before: by id, with their versions."""
        seen = [versions.get(id(t)) for t in self.tensors]
        self.written = [each[0] for each in seen if each is not None and each[0]._version != each[1]]

    @property
    def written_homes(self) -> frozenset[int]:
        """Those of `homes` that the function writes to."""
        return frozenset(t.untyped_storage().data_ptr() for t in self.written)

    def _tensors_are_same(self) -> bool:
        return self._are_same() and all(torch.equal(t, value) for t, value in self._values)

    # -- watching -------------------------------------------------------------------------------------

    def rearm(self, given: Mapping[str, Any]) -> None:
        """Watch the present state of what was read."""
        watch = GuardWalk({**self.names, "L": given})
        try:
            watch.walk(self.guards.root)
        except Unwatchable as what:
            watch.unwatched = str(what)
        # Dynamo's own guards look after what they name; they cost a tenth of a walk.
        self.asks_guards, watch.unwatched = watch.unwatched, self.unwatched
        self.reads_inside_arguments = watch.inside
        self.granted = Granted()
        self.granted.take(watch, self.code, self._replaced)
        self.compared = tuple(
            weakref.ref(each) if isinstance(each, type) else weakly(each) for each in watch.compared
        )
        self.why_eager = self.why_eager or self.granted.why_eager
        try:
            self.granted.have_watched(watch)
            for owner, name, value in self.stores:
                watch.attribute(owner, name, value)
        except Unwatchable as what:
            watch.unwatched = str(what)
        self.is_same = watch.built(self._device, self._values)
        self.unwatched = watch.unwatched


_FOR_ALL = [
    hooks
    for name, hooks in vars(nn.modules.module).items()
    if name.startswith("_global_") and name.endswith("hooks") and isinstance(hooks, dict)
]


def _hooks_for_all() -> list[tuple[Any, ...]]:
    return [tuple(hooks.values()) for hooks in _FOR_ALL]


_NOTHING = object()
_ARGUMENTS = "L['args']", "L['kwargs']"
_tokens = itertools.count(1)


def _granted(
    classes: set[type], functions: set[types.FunctionType], code: frozenset[Any]
) -> Iterator[tuple[Any, str, Any]]:
    """What Dynamo assumes without guards: functions of classes that it went through, data of classes that code names,
    classes in closures, and the defaults and the code of every function.
    """
    named = {name for each in code for name in each.co_names}
    ran = {each.co_name for each in code}
    called = set(functions)
    cells = _cells_of_classes(functions)
    yield from ((cell, "cell_contents", cell.cell_contents) for cell in cells)
    for kind in {*classes, *(cell.cell_contents for cell in cells)}:
        if kind.__module__.partition(".")[0] in _SETTLED and not issubclass(kind, nn.Module):
            continue
        if _is_programs(kind):
            yield kind, "__mro__", kind.__mro__
        bases = (*kind.__mro__, *type.mro(type(kind))[:-2])
        for name in {
            key for each in bases for key, held in vars(each).items() if key in named or _code_name(held) in ran
        }:
            value = inspect.getattr_static(kind, name, None)
            function = getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType):
                if function.__code__ in code:
                    called.add(function)
                    yield kind, name, value
            elif name in named and isinstance(value, _DATA) and not name.startswith("__"):
                yield kind, name, value
    for function in called:
        if PACKAGES.search(function.__code__.co_filename):
            continue  # nobody changes the defaults of a library's function
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            yield function, name, getattr(function, name)


def weakly(value: object) -> object:
    """A fact that keeps no object of an instance alive; what is inside tuples likewise."""
    if isinstance(value, tuple):
        return tuple(map(weakly, value))
    if isinstance(value, (*LASTING, frozenset)):
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return UNKNOWN


UNKNOWN = object()
"""Stands for what cannot be referred to weakly: alike to nothing, not to itself."""


def _code_name(value: object) -> str:
    return getattr(getattr(getattr(value, "__func__", value), "__code__", None), "co_name", "")


def owners_of(replaced: Iterable[tuple[str, Any]], names: Mapping[str, Any]) -> frozenset[tuple[int, Any]]:
    """What a frame's code stores: the ids of the owners, and the names."""
    found = set()
    for source, name in replaced:
        with contextlib.suppress(AttributeError, KeyError, IndexError, NameError, TypeError):
            found.add((id(eval(source, dict(names))), name))
    return frozenset(found)


def _names_in(holder: Any) -> Mapping[str, Any]:
    return holder if isinstance(holder, dict) else vars(holder)


def _cells_of_classes(functions: set[types.FunctionType]) -> list[types.CellType]:
    return [cell for each in functions for cell in each.__closure__ or () if _holds_class(cell)]


def _holds_class(cell: types.CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, type)
    except ValueError:  # empty
        return False


def _is_programs(kind: type) -> bool:
    """True for a class of the program's, not of a package's."""
    return kind.__module__ not in sys.builtin_module_names and not is_packages(sys.modules.get(kind.__module__))


@functools.cache
def _sets_data(code: types.CodeType) -> bool:
    return any(step.opname == "STORE_ATTR" and step.argval == "data" for step in dis.get_instructions(code))


def holds_mapping(value: object) -> bool:
    """Whether a mapping other than a dict can be reached from an argument, through attributes and items."""
    todo = [value]
    seen: set[int] = set()
    while todo and len(seen) < MOST_LOOKED_AT:
        each = todo.pop()
        if id(each) in seen or isinstance(each, _WITHOUT):
            continue
        seen.add(id(each))
        if isinstance(each, Mapping) and type(each) is not dict:
            return True
        if isinstance(each, dict | list | tuple | set):
            todo += each.values() if isinstance(each, dict) else each
        todo += getattr(each, "__dict__", {}).values()
        todo += [getattr(each, name, None) for name in getattr(type(each), "__slots__", ()) if isinstance(name, str)]
    return bool(todo)


def _held(owner: Any, name: str) -> Any:
    if name == "__mro__":
        return owner.__mro__
    return inspect.getattr_static(owner, name, None) if isinstance(owner, type) else getattr(owner, name, None)


_OF_ONE_TENSOR = ("_base", "_is_view", "_version", "grad_fn", "is_leaf", "retains_grad")
_READS_ALL = frozenset(("__dict__", "vars"))
_WITHOUT = (bool, int, float, str, bytes, types.NoneType, Tensor, torch.dtype, torch.device, type, types.FunctionType)
_ASKS_FOR_CLASSES = frozenset(("isinstance", "issubclass"))
_SETTLED = ("abc", "builtins", "collections", "enum", "torch", "typing")
_DATA = (bool, int, float, str, tuple, list, dict, Tensor, types.NoneType)


def _has_memory(tensor: Tensor) -> bool:
    """False for a tensor that holds others."""
    try:
        return tensor.untyped_storage().data_ptr() >= 0
    except RuntimeError:
        return False
