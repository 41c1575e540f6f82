"""Watching what was read: the cheapest sound watch for each object, and one function that asks them all.

    dicts, those of objects, modules, classes and packages among them
                               numbers or watchers of CPython: nothing, or one word
    functions, cells, the class of an object, tensors from outside
                               words of memory, all compared in one call (memory_words.py)
    slots, lists, the user's own globals, and what the two above cannot cover
                               the very attribute that was read, compared by identity at each call
    anything else              no watch: who asks must look for himself

CPython 3.11 numbers every state of a dict (PEP 509): equal numbers mean equal content. From 3.12 on a dict can be
watched (``PyDict_Watch``): CPython calls a function of ours before any change, so that an unchanged dict costs
nothing at all. On 3.12 this includes objects' own dicts, once they have been accessed: every store of
another value is reported (measured: 0 of 600,000 missed). On 3.13 stores to attributes bypass the watchers, so this
is tested at run time (``sees_attributes``).

Used by `GuardWalk`, for what Dynamo's guards name, and by `Snapshot`, for what the code of a step can name. A watch
may say "maybe": an irrelevant store counts as a change.

Invariant: `is_same` as built is never True if something watched has changed. Everything watched is kept alive, so
that no address is reused.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import functools
import gc
import inspect
import math
import operator
import re
import sys
import types
import weakref
from _ctypes import PyObj_FromPtr
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.core.tape import Place
from gfxgraph.watching.memory_words import TAG_AT, text_of_difference, word_of, words_of_list, words_of_tensor

NOTHING = object()
_NAMES_OF_READERS = frozenset(("super", "object", "__getattribute__"))
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")


class Unwatchable(Exception):
    """No watch is known for this; ``args[0]`` says what it is."""


class Watch:
    """Collects what to compare, and which dicts to watch."""

    def __init__(self) -> None:
        self.dicts: dict[int, dict[object, object]] = {}
        self.keys: dict[int, set[str]] = {}
        """The names that were read or looked for in each dict: other stores do not matter."""
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.words: list[int] = []
        """Addresses of memory words inside objects that are kept alive."""
        self.words_behind: list[int] = []
        """Words in memory that those words point to."""
        self.held: list[Any] = []
        self.unwatched = ""
        """The first object for which no watch is known."""
        self._done: set[object] = set()
        self._dicts_of: dict[int, tuple[object, dict[str, Any] | None]] = {}
        """By identity of an object: the object, and its own dict if that is watched."""
        self.of_kind: Callable[[Any, str], object] = functools.lru_cache(None)(_of_kind)
        """What a class holds under a name; it does not change meanwhile."""

    def built(self, tensors: Sequence[Tensor], values: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], bool]:
        """Watch from now on: a function that is True if nothing can have changed.

        The cheapest checks come first, and what is behind a pointer after the pointer.

        Args:
            tensors: those of a device, whose address and layout must stay.
            values: those of the host, with their content.
        """
        kept = None
        if not HAS_TAGS and not self.unwatched and self.dicts:
            try:
                kept = Watchers()
                for at, each in self.dicts.items():
                    kept.add(each, self.keys[at])
            except (RuntimeError, AttributeError):
                self.unwatched = "a dict (this Python has no watchers left)"
        if self.unwatched:
            return _never
        lines, names = self.lines, self.names
        first, behind, asked = list(self.words), list(self.words_behind), []
        if HAS_TAGS:
            first += [id(each) + TAG_AT for each in self.dicts.values()]
            self.held += self.dicts.values()
        for tensor in tensors:
            found = words_of_tensor(tensor)
            if found is None:
                asked.append(tensor)
            else:
                first += found[0]
                behind += found[1]
                self.held.append(found[2])
        if kept is not None:
            names["kept"] = kept
        if asked:
            names["tensors_are_same"] = same_tensors(asked)
            lines.append("if not tensors_are_same(): return False")
        for i, (tensor, value) in enumerate(values):
            names[f"host{i}"], names[f"value{i}"], names["equal"] = tensor, value, torch.equal
            lines.append(f"if not equal(host{i}, value{i}): return False")
        names["held"] = (self.held, tensors)
        return compiled((first, behind), lines, names, changed=False)

    def watch(self, each: dict[Any, Any], names: Iterable[str] | None) -> None:
        """Watch a dict: the values of some names, or everything."""
        self.dicts[id(each)] = each
        if names is None:
            self.keys[id(each)] = _Every()
            # Neither watchers nor tags see move_to_end.
            if isinstance(each, collections.OrderedDict) and len(each) > 1:
                self.compare(("order", id(each)), each, tuple(each), "tuple({0}) != {1}")
        else:
            self.keys.setdefault(id(each), set()).update(names)

    def watched_dict(self, owner: Any) -> dict[str, Any] | None:
        """An object's own dict if it can be watched; None if stores to its attributes would be missed."""
        if id(owner) not in self._dicts_of:
            self._dicts_of[id(owner)] = owner, self._watch_dict_of(owner)
        return self._dicts_of[id(owner)][1]

    def _watch_dict_of(self, owner: Any) -> dict[str, Any] | None:
        is_module = isinstance(owner, types.ModuleType)
        if is_users(owner) or isinstance(owner, type | types.FunctionType) or not (is_module or sees_attributes()):
            return None
        own = getattr(owner, "__dict__", None)
        if not isinstance(own, dict):
            return None
        self.watch(own, ())
        if not is_module:
            self.word("dict", owner, own, "{0}.__dict__ is not {1}")
        return own

    def item(self, holder: object, name: str, value: object) -> None:
        """Watch what stands under a name in a namespace that may change often for other reasons.

        Args:
            value: `NOTHING` if the name is not there.
        """
        self.names["nothing"] = NOTHING
        self.compare((id(holder), name), holder, value, f"{{0}}.get({name!r}, nothing) is not {{1}}")

    def zero(self, holder: object, name: object, value: float) -> None:
        """Watch the sign of a zero."""
        self.names["is_other_zero"] = is_other_zero
        self.compare(("zero", id(holder), name), holder, value, f"is_other_zero({{0}}, {name!r}, {value!r})")

    def without(self, holder: object, absent: frozenset[str]) -> None:
        """Watch that an object, a class or a dict does not get any of these names."""
        if isinstance(holder, type):
            self.watch(dict_of(holder), absent)
        elif isinstance(holder, dict):
            self.watch(holder, absent)
        elif (own := self.watched_dict(holder)) is not None:
            self.watch(own, absent)
        else:
            self.compare(("without", id(holder)), holder, absent, "not {1}.isdisjoint({0}.__dict__)")

    def of_class(self, owner: type, name: str) -> None:
        """Watch what a class and its instances find under a name: in all its bases, and in those of its metaclass."""
        key = "of class", id(owner), name
        bases = () if key in self._done else (*owner.__mro__, *type.mro(type(owner)))
        self._done.add(key)
        for base in bases:
            if base.__module__ != "builtins":
                self.watch(dict_of(base), (name,))

    def content(self, value: list[object] | collections.deque[object] | dict[object, object]) -> None:
        """Watch a container's content."""
        if isinstance(value, dict):
            self.watch(value, None)
            return
        items = tuple(value)
        found = words_of_list(value) if isinstance(value, list) else None
        if found is None:
            self.names.update(all_=all, map_=map, is_=operator.is_)
            differs = f"len({{0}}) != {len(items)} or not all_(map_(is_, {{0}}, {{1}}))"
            self.compare(("items", id(value)), value, items, differs)
        else:
            self.words += found[0]
            self.words_behind += found[1]
            self.held += (value, items)

    def is_found_plainly(self, owner: object, name: str) -> bool:
        """Whether an attribute is only looked up in the object and its class.

        This includes a Python ``__getattribute__`` that reads nothing but its base's, if the table of other names
        that it consults has none for this one; the table is then watched.
        """
        kind = type(owner)
        reader: Any = kind.__getattribute__
        if reader is object.__getattribute__:
            return True
        if not isinstance(reader, types.FunctionType) or not _NAMES_OF_READERS.issuperset(reader.__code__.co_names):
            return False
        for table in [each for each in reader.__code__.co_consts if isinstance(each, str)]:
            names = inspect.getattr_static(owner, table, None)
            if type(names) is not dict or name in names or not all(isinstance(each, str) for each in names):
                return False
            self.watch(names, None)
            self.attribute(owner, table, names, is_plain=True)
        self.of_class(kind, "__getattribute__")
        self.attribute(reader, "__code__", reader.__code__)
        return True

    def attribute(self, owner: Any, name: str, value: Any, *, is_plain: bool = False) -> None:
        """Watch that an attribute stays the same: through the dicts that it comes from, else by comparison at each
        call.

        Args:
            is_plain: it is read by ``object.__getattribute__``.
        """
        place = _place_of(owner, name, value)
        if place:
            self.word(place, owner, value, f"{{0}}.{name} is not {{1}}")
            return
        kind = type(owner)
        if isinstance(owner, type) and _is_plain(owner) and _is_stored(owner, name, value):
            self.of_class(owner, name)
            return
        is_plain = is_plain or isinstance(owner, types.ModuleType) or self.is_found_plainly(owner, name)
        own = self.watched_dict(owner) if is_plain else None
        of_kind = self.of_kind(kind, name)
        if own is not None and not hasattr(type(of_kind), "__set__"):
            if own.get(name, NOTHING) is value:
                self.watch(own, (name,))
                return
            of_method = getattr(of_kind, "__func__", of_kind) if isinstance(value, types.MethodType) else NOTHING
            is_method = of_method is getattr(value, "__func__", None)
            if name not in own and (is_method or of_kind is value and not hasattr(type(value), "__get__")):
                self.watch(own, (name,))
                self.of_class(kind, name)
                return
        if isinstance(value, types.MethodType):  # made at each access
            self.compare((id(owner), name), owner, value, f"{{0}}.{name} != {{1}}")
            return
        if isinstance(owner, type) or _is_plain(owner):
            self.compare((id(owner), name), owner, value, f"{{0}}.{name} is not {{1}}")
        else:
            self.names["plainly"] = object.__getattribute__
            self.compare((id(owner), name), owner, value, f"plainly({{0}}, {name!r}) is not {{1}}")

    def word(self, name: str, owner: object, value: object, differs: str) -> None:
        """Compare a pointer in ``owner``, through its memory word if that is known."""
        place = word_of(owner, name, value)
        if place is None:
            self.compare((name, id(owner)), owner, value, differs)
        else:
            self.words.append(place)
            self.held += (owner, value)

    def compare(self, key: object, owner: object, value: object, differs: str) -> None:
        if key in self._done:
            return
        self._done.add(key)
        self.lines.append(f"if {differs.format(self._name(owner), self._name(value))}: return False")

    def _name(self, value: object) -> str:
        name = f"v{id(value)}"
        self.names[name] = value
        return name


def compiled(
    phases: Iterable[list[int]], lines: list[str], names: dict[str, Any], *, changed: bool
) -> Callable[[], bool]:
    """A function that returns ``changed`` if something has.

    Args:
        phases: addresses of words, which are compared first: what is behind a pointer after the pointer.
        lines: further questions, each a line that returns.
        names: what these use; "kept" are `Watchers`.
    """
    before = [f"if kept.has_changed: return {changed}"] if "kept" in names else []
    words = [text_of_difference(phase, f"words{n}", names) for n, phase in enumerate(phases) if phase]
    before += [f"if {each}: return {changed}" for each in words]
    # Its objects are default arguments, which CPython reads as fast as locals.
    given = ", ".join(f"{name}={name}" for name in names)
    body = "\n        ".join([*before, *lines, f"return {not changed}"])
    caught = f"    except (AttributeError, ValueError):\n        return {changed}\n"
    scope = dict(names)
    exec(compile(f"def asked({given}):\n    try:\n        {body}\n{caught}", "<watch>", "exec"), scope)
    made: Callable[[], bool] = scope["asked"]
    for name in (*names, "asked"):  # it has them as defaults; here they would make a cycle
        del scope[name]
    return made


class _Every(set[str]):
    """A set that contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


def is_other_zero(holder: object, name: object, value: float) -> bool:
    """True if a zero of the other sign is there now; other values are left to guards."""
    try:
        now = holder[name] if isinstance(holder, dict) or not isinstance(name, str) else getattr(holder, name, None)  # type: ignore[index]
    except (LookupError, TypeError):
        return False
    return type(now) is float and now == 0.0 and math.copysign(1.0, now) != math.copysign(1.0, value)


def _is_plain(owner: object) -> bool:
    """Whether reading an attribute runs none of the class's code."""
    kind = type(owner)
    reads: tuple[object, ...] = (object.__getattribute__, type.__getattribute__)
    return kind.__getattribute__ in reads and not hasattr(kind, "__getattr__")


def _of_kind(kind: object, name: str) -> object:
    return inspect.getattr_static(kind, name, NOTHING)


def _place_of(owner: object, name: str, value: object) -> str:
    """The name of the attribute in ``words.word_of``; "" if it has none."""
    if isinstance(owner, types.CellType):
        return "cell"
    if name == "__class__" and type(owner) is value:
        return "type"
    is_known = name == "__mro__" if isinstance(owner, type) else name in _OF_FUNCTIONS
    return name if is_known and isinstance(owner, type | types.FunctionType) else ""


def _is_stored(owner: type, name: str, value: object) -> bool:
    """Whether a class returns the value stored under the name in its own dict or in a base's."""
    is_computed = hasattr(type(inspect.getattr_static(type(owner), name, None)), "__set__")
    return not is_computed and inspect.getattr_static(owner, name, NOTHING) is value


def dict_of(kind: type) -> dict[str, Any]:
    """A class's own dict, from behind its mapping proxy."""
    (own,) = (each for each in gc.get_referents(kind.__dict__) if isinstance(each, dict))
    return own


PACKAGES = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")


def is_packages(module: types.ModuleType | None) -> bool:
    """True for modules of torch, the standard library and installed packages."""
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return module is not None and module.__name__ in sys.builtin_module_names
    return bool(PACKAGES.search(file))


def is_users(module: object) -> bool:
    """True for the program's own modules, whose globals may change often for unrelated reasons."""
    return isinstance(module, types.ModuleType) and not is_packages(module)


def _never() -> bool:
    return False


def same_tensors(tensors: Sequence[Tensor]) -> Callable[[], bool]:
    """A function that is True while the tensors have the addresses and the layouts that they have now."""
    if not tensors:
        return lambda: True
    held = list(tensors)
    check = torch_names.TensorGuards(*held, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    addresses: list[int | None] = [t.data_ptr() for t in held]
    positions = list(range(len(held)))
    return lambda: same_addresses(held, addresses, positions) and check(*held)


same_addresses: Callable[[list[Any], list[int | None], list[int]], bool] = (
    torch_names._tensors_data_ptrs_at_indices_equal
    or (lambda tensors, addresses, positions: all(tensors[i].data_ptr() == addresses[i] for i in positions))
)


# -- dicts ------------------------------------------------------------------------------------------------

HAS_TAGS = sys.version_info < (3, 12)
"""Every store, also to an object's attributes, changes the version number of the object's dict."""


class Watchers:
    """Dicts watched by CPython (3.12 and later); where they have numbers, only which they are.

    Those of objects that may die meanwhile, which counts as a change; those of no object are kept alive.

    Args:
        place: gives the program's running line, where a change is made.
    """

    def __init__(self, place: Callable[[], Place | None] = lambda: None) -> None:
        self.has_changed = self.may_be_swapped = False
        """Whether tensors may have exchanged what is behind their Python objects."""
        self.changed_at: Place | None = None
        """The line of the last change; None if it is not known (3.11)."""
        self._place = place
        self._names: dict[int, set[str]] = {}
        self.held: dict[int, dict[Any, Any] | list[Any]] = {}
        """Dicts and lists of no object, by identity, which are kept alive."""
        self._owners: list[weakref.ref[object]] = []
        self._alive: dict[int, object] = {}
        """By address, with what tells one dict from a later one there."""
        _every.add(self)
        if not HAS_TAGS:
            weakref.finalize(self, _forget, self._alive).atexit = False

    def add(self, each: dict[Any, Any], names: set[Any], owner: object = None) -> None:
        """Watch what stands under names in ``each``, the dict of ``owner``; None if it is nobody's."""
        if id(each) in self._names:
            self._names[id(each)] |= names
            return
        if not HAS_TAGS:
            _watch(each, self)
        self._names[id(each)] = names
        self._alive[id(each)] = here = object()
        if owner is None:
            self.held[id(each)] = each
        else:
            died = functools.partial(_died, weakref.ref(self), self._alive, id(each), here)
            self._owners.append(weakref.ref(owner, died))

    @property
    def tags(self) -> list[int]:
        """Addresses of the numbers of the dicts' states (3.11)."""
        return [address + TAG_AT for address in self._alive] if HAS_TAGS else []

    def keep_only(self, used: set[int]) -> None:
        """Keep no dict or list alive but these, by identity."""
        for at in self.held.keys() - used:
            self._names.pop(at, None)
            if self._alive.pop(at, None) is not None and not HAS_TAGS:
                _forget([at], self)
            del self.held[at]

    def forget(self, address: int) -> None:
        """The dict is no more, and another may come to lie there."""
        self._names.pop(address, None)
        self._alive.pop(address, None)

    def changed(self, address: int, key: object) -> None:
        """Called when the dict at ``address`` is about to change, at a key or as a whole (`_WHOLE`)."""
        names = self._names.get(address)
        if names is None or key is _WHOLE or key in names:
            self.has_changed, self.changed_at = True, self._place()


_every: weakref.WeakSet[Watchers] = weakref.WeakSet()


def note_swap() -> None:
    """Tensors are about to be swapped."""
    for each in [*_every]:
        each.has_changed = each.may_be_swapped = True


def _died(
    found: Callable[[], Watchers | None], alive: dict[int, object], address: int, at: object, _: object
) -> None:
    """Its object dies, and after it the dict."""
    watched = found()
    if watched is not None:
        watched.has_changed = True
    if alive.get(address) is at:
        if not HAS_TAGS:
            _forget([address], watched)
        if watched is not None:
            watched.forget(address)
        alive.pop(address, None)


def _forget(addresses: Iterable[int], watched: Watchers | None = None) -> None:
    """Unwatch dicts that are alive."""
    api = _api
    for address in addresses if api is not None else ():  # None: the interpreter is shutting down
        kept = _watchers.get(address)
        if api is None or kept is None:
            continue
        if watched is not None:
            kept.discard(watched)
        if not any(True for _ in kept):  # a WeakSet's length still counts the one just freed
            _watchers.pop(address, None)
            api.unwatch(api.number, ctypes.cast(address, ctypes.py_object).value)


_watchers: dict[int, weakref.WeakSet[Watchers]] = {}
"""By address of the dict: the watchers to notify."""


_WHOLE = object()
_DEALLOCATED = 5
"""``PyDict_EVENT_DEALLOCATED``: an object has got another dict, and the watched one dies alone."""


def _on_event(event: int, address: int, key: int | None, value: int | None) -> int:
    # It runs for every name that a capture replaces: `data`, the set's own weak references, costs a tenth of the set.
    try:
        name = _WHOLE if key is None else PyObj_FromPtr(key)
        for ref in tuple(getattr(_watchers.get(address), "data", ())):
            if (each := ref()) is not None:
                each.changed(address, name)
                if event == _DEALLOCATED:
                    each.forget(address)
        if event == _DEALLOCATED:
            _watchers.pop(address, None)
    except BaseException:  # an interrupt, which CPython ignores here: the change must not be missed
        for each in tuple(_watchers.get(address, ())):
            each.has_changed = True
        raise
    return 0


class _Api:
    """CPython's functions for watching dicts, with one watcher id for the process."""

    def __init__(self) -> None:
        python = ctypes.pythonapi
        kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.callback = kind(_on_event)
        python.PyDict_Watch.argtypes = python.PyDict_Unwatch.argtypes = [ctypes.c_int, ctypes.py_object]
        self.number: int = python.PyDict_AddWatcher(self.callback)  # raises RuntimeError if all eight are taken
        self.watch: Callable[[int, dict[Any, Any]], int] = python.PyDict_Watch
        self.unwatch: Callable[[int, dict[object, object]], int] = python.PyDict_Unwatch


_api: _Api | None = None


def _end() -> None:
    """Stop all callbacks before the interpreter shuts down."""
    if _api is not None:
        ctypes.pythonapi.PyDict_ClearWatcher(_api.number)


def _watch(each: dict[object, object], owner: Watchers) -> None:
    global _api
    if _api is None:
        _api = _Api()
        atexit.register(_end)
    _api.watch(_api.number, each)
    _watchers.setdefault(id(each), weakref.WeakSet()).add(owner)


@functools.cache
def sees_attributes() -> bool:
    """Whether watching an object's dict reports stores to its attributes, including those of specialized bytecode."""

    class Probe:
        pass

    sample: Any = Probe()
    sample.a = sample.b = 0
    own = vars(sample)

    def store(value: int) -> None:
        sample.a = value

    for value in range(1000, 1064):  # CPython specializes a store after some executions
        for change in (store, functools.partial(setattr, sample, "b")):
            watch = Watch()
            watch.watch(own, None)
            is_same = watch.built((), ())
            change(value)
            if watch.unwatched or is_same():
                return False
    return True
