"""Whether a number that is read goes to code that accepts nothing but a plain number.

Problem: some code requires ``float`` itself and not an object that behaves like one: ``Decimal(v)``, a
lock's ``timeout=v``, ``sqlite3``, ``type(v) is float``. There a tracked number would raise where eager runs. Idea:
follow it through the source from where it is read: through arithmetic, containers, names, attributes,
returns and functions written in Python, up to the calls that take it. If one of these is written in C, and not known
to use the number protocol, the plain number is returned instead and pinned, as that call would pin it.

Invariant: a value whose use cannot be resolved without running the program's code stays a tracked number.
"""

from __future__ import annotations

import ast
import builtins
import collections
import ctypes
import inspect
import itertools
import operator
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from gfxgraph.capture.places import is_installed_file, is_library_code, locals_of, user_frame
from gfxgraph.capture.source import (
    SCOPES,
    definition,
    loads,
    name_of,
    parameter_of,
    parameters_of,
    path_in,
    remembered,
    running,
    scope_of,
    tree_of,
)
from gfxgraph.process import process

_UNKNOWN = object()
_DEEPEST = 4  # nested calls to follow, in either direction
_MOST_LOOKED_AT = 512  # entries of one container
# Written in C, but using the number protocol, passing the number on, or keeping it.
_SERVING = frozenset(
    "builtins math cmath operator itertools functools collections heapq bisect array struct ctypes json pickle "
    "contextvars queue copyreg zlib binascii types weakref gc sys io typing contextlib copy abc".split()
)
# Text is not guarded (texts.py); torch's calls take the tracked number, or are repeated.
_NOT_ENTERED = frozenset("torch gfxgraph logging warnings numpy copy".split())
_NUMBERS = (float, int, complex, bool)
_C_METHODS = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)
# Calls whose result holds the number, and those that put it into the object they are called on.
_HOLDING = frozenset(
    "abs round min max sum pow divmod list tuple set dict sorted reversed zip enumerate map filter iter next".split()
)
_GATHERING = frozenset("append appendleft extend insert add update setdefault put".split())
_CONTENTS = frozenset("values items get pop copy real imag".split())
_THROUGH = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.List, ast.Tuple, ast.Set, ast.Starred, ast.keyword,
    ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp, ast.Await,
)  # fmt: skip

# Functions whose schema has ``int[N]``, and those whose Python form takes ``*sizes``.
_REDUCING = "amax amin logsumexp mean nanmean nansum norm roll std sum var"
_BOTH = (
    f"{_REDUCING} narrow select topk chunk split tile flip repeat_interleave unflatten cumsum tril triu index_fill "
    "broadcast_to kthvalue"
)
METHODS = f"view reshape expand repeat permute new_zeros new_ones new_empty resize_ {_BOTH}"
FUNCTIONS = f"zeros ones empty rand randn arange linspace eye std_mean var_mean {_BOTH}"
LAYERS = (
    "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d "
    "adaptive_max_pool2d interpolate pad"
)
SIZED = frozenset(f"{METHODS} {FUNCTIONS} {LAYERS}".split())

_TESTS: dict[type[ast.cmpop], Any] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip

# What refuses a tracked number, seen on CPython 3.11: where a number cannot be followed, code that names one of these
# gets plain numbers.
_REFUSING_ROOMS = frozenset("decimal datetime select sqlite3 signal socket".split())
_REFUSING = (
    itertools.permutations, time.gmtime, time.localtime, time.ctime, ctypes.c_void_p, collections.deque,
    threading.Lock, threading.RLock,
)  # fmt: skip
_REFUSING_METHODS = frozenset("acquire settimeout execute executemany manual_seed fromtimestamp default_rng".split())
_NUMPYS = frozenset({"datetime64", "timedelta64"})


def wants_plain(frame: FrameType | None) -> bool:
    """True if the number that the program is reading is needed plain."""
    frame = user_frame(frame)
    session = process.active_session()
    begun_in = session.begun_at[0] if session is not None else None
    is_inside = True
    for _ in range(_DEEPEST):
        if frame is None or is_library_code(frame.f_code):
            return False
        if any(name.startswith("__resume_at_") for name in frame.f_code.co_names):
            return True  # Dynamo's code: it passes the number to what it compiles next, untracked
        is_inside = is_inside and frame.f_code is not begun_in
        wants, returns, is_lost = _answer(frame)
        if wants or is_lost and is_inside and _may_refuse(frame):
            return True
        if not returns:
            return False
        frame = frame.f_back
    return False


def question_for(frame: FrameType | None, name: str) -> Callable[[object], bool] | None:
    """The question that the running call of ``name`` is for, if nothing else uses its result: ``len(rows) == 0``."""
    frame = user_frame(frame)
    path = _running(frame)
    if frame is None or len(path) < 2 or getattr(getattr(path[-1], "func", None), "id", None) != name:
        return None
    call, parent = path[-1], path[-2]
    if len(getattr(call, "args", ())) != 1:  # int(text, base)
        return None
    if call is getattr(parent, "test", None) or (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)):
        return bool
    if not isinstance(parent, ast.Compare) or len(parent.ops) != 1 or type(parent.ops[0]) not in _TESTS:
        return None
    test, is_left = _TESTS[type(parent.ops[0])], call is parent.left
    operand = _number_at(parent.comparators[0] if is_left else parent.left, scope_of(path), frame)
    if operand is None:
        return None
    return lambda number: test(number, operand) if is_left else test(operand, number)


def _number_at(node: ast.AST, scope: ast.AST, frame: FrameType) -> float | None:
    """The number that an expression stands for, if that is known without running anything."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = _number_at(node.operand, scope, frame)
        return found if found is None else -found
    value = node.value if isinstance(node, ast.Constant) else resolved(node, scope, looked_up(frame))
    return value if isinstance(value, (int, float)) else None


def takes_apart(frame: FrameType | None) -> bool:
    """True if the running expression is indexed or unpacked at once: ``x.shape[0]``, ``rows, columns = x.shape``."""
    path = _running(frame)
    if len(path) < 2:
        return False
    node, parent = path[-1], path[-2]
    if isinstance(parent, ast.Assign):
        return all(isinstance(target, ast.Tuple) for target in parent.targets)
    return isinstance(parent, ast.Subscript) and node is parent.value and not isinstance(parent.slice, ast.Slice)


def _running(frame: FrameType | None) -> list[ast.AST]:
    frame = user_frame(frame)
    return running(frame) if frame is not None else []


@remembered
def _answer(tree: ast.Module | None, path: list[ast.AST], frame: FrameType) -> tuple[bool, bool, bool]:
    """Whether the number is needed plain, whether the function returns it, and whether it is lost sight of."""
    search = _Search(scope_of(path), tree, looked_up(frame), _DEEPEST)
    wants = search.climbs(path) if path else False
    return wants, search.returns, search.is_lost or not path


@remembered
def _may_refuse(tree: ast.Module | None, path: list[ast.AST], frame: FrameType) -> bool:
    return _names_what_refuses(frame.f_code, looked_up(frame), _DEEPEST)


def _looked_up(name: str, *rooms: Mapping[str, object]) -> object:
    return next((room[name] for room in (*rooms, vars(builtins)) if name in room), _UNKNOWN)


@dataclass(frozen=True)
class _Instance:
    """Any object of a class; for ``super()``, without the first classes of its method resolution order."""

    bases: tuple[type, ...]


@dataclass(frozen=True)
class _Method:
    """A function with its first argument bound."""

    func: object
    first: object


class _Search:
    """Follows a number through one function's source.

    Args:
        scope: the function's node, or the module's.
        tree: the module's node, in which attributes are searched.
        find: looks up an object by its name, without running anything.
        depth: how many more functions may be entered.
    """

    def __init__(self, scope: ast.AST | None, tree: Any, find: Callable[[str], object], depth: int) -> None:
        self._scope = scope
        self._tree = tree
        self._find = find
        self._depth = depth
        self._seen: set[tuple[int, str]] = set()
        self.returns = False
        """Whether the function returns the number."""
        self.is_lost = False
        """Whether it goes to a function that is not known in advance."""

    def name(self, scope: ast.AST, name: str) -> bool:
        """Follow what a name holds; True if it is needed plain."""
        if (id(scope), name) in self._seen:
            return False
        self._seen.add((id(scope), name))
        return any(self.climbs(path_in(scope, load)) for load in loads(scope, name))

    def _attribute(self, scope: ast.AST, name: str) -> bool:
        if (id(scope), f".{name}") in self._seen:
            return False
        self._seen.add((id(scope), f".{name}"))
        nodes = (node for node in ast.walk(scope) if isinstance(node, ast.Attribute) and node.attr == name)
        return any(self.climbs(path_in(scope, node)) for node in nodes if isinstance(node.ctx, ast.Load))

    def climbs(self, path: list[ast.AST]) -> bool:
        """Follow a value from its node outwards; True if it is needed plain."""
        for index in range(len(path) - 1, 0, -1):
            node, parent = path[index], path[index - 1]
            if isinstance(parent, ast.Call):
                goes_on = True if node is parent.func else self._given(parent, node, path[:index])
                if goes_on is None:
                    return True
                if not goes_on:
                    return False
            elif isinstance(parent, (ast.Return, ast.Yield, ast.YieldFrom)):
                self.returns = True
                return False
            elif (targets := _targets_of(parent, node)) is not None:
                if any(self._put(target, path[:index]) for target in targets):
                    return True
                if not isinstance(parent, ast.NamedExpr):
                    return False
            elif (is_size := self._is_formatted_to_size(parent, node)) or not _holds(parent, node):
                return is_size
        return False

    def _is_formatted_to_size(self, parent: ast.AST, node: ast.AST) -> bool:
        """Whether ``"%*d" % (width, v)`` takes the number as a width."""
        if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Mod) or node is parent.left:
            return False
        text = parent.left.value if isinstance(parent.left, ast.Constant) else self.resolved(parent.left)
        return isinstance(text, (str, bytes)) and _takes_sizes(text)

    def _put(self, target: ast.AST | None, path: list[ast.AST]) -> bool:
        """Follow a value from where it is stored."""
        scope = scope_of(path)
        if isinstance(target, ast.Name):
            return self.name(scope, target.id)
        if isinstance(target, ast.Attribute):
            return self._attribute(self._tree, target.attr)
        if isinstance(target, (ast.Subscript, ast.Starred)):
            return self._put(target.value, path)
        return isinstance(target, (ast.Tuple, ast.List)) and any(self._put(part, path) for part in target.elts)

    # -- calls ------------------------------------------------------------------------------------------

    def _given(self, call: ast.Call, node: ast.AST, path: list[ast.AST]) -> bool | None:
        """Whether the call's result holds the number passed to it; None if the call needs it plain."""
        func = self.resolved(call.func)
        others = [part for part in call.args if part is not node]
        others += [keyword.value for keyword in call.keywords if keyword is not node]
        given = [self.resolved(part) for part in others if isinstance(part, (ast.Name, ast.Attribute))]
        is_maxlen = func is collections.deque and node not in call.args[:1]
        if is_maxlen or (func is _UNKNOWN and name_of(call) in _REFUSING_METHODS):
            return None  # of what another call made: threading.Lock().acquire(timeout=v)
        self.is_lost |= func is _UNKNOWN or any(isinstance(item, FunctionType) for item in given)
        if func is isinstance or (func is type and isinstance(path[-2], ast.FormattedValue)):
            return False  # asked of its __class__, or shown and nothing more
        if any(item is type or (callable(item) and self._needs_plain(item)) for item in given):
            return None  # map(Decimal, values)
        for part in others:
            if isinstance(part, ast.Lambda) and any(self.name(part, name) for name in parameters_of(part)):
                return None
        needed = self._taken_by(func, call, node)
        if needed is not False:
            return None if needed else True
        self.is_lost |= isinstance(func, type) and isinstance(node, ast.keyword)
        if name_of(call) in _GATHERING and isinstance(call.func, ast.Attribute) and self._put(call.func.value, path):
            return None
        return name_of(call) in _HOLDING or getattr(func, "__module__", None) == "math"

    def _taken_by(self, func: Any, call: ast.Call, node: ast.AST) -> bool | None:
        """Whether a function needs the number plain; None if it returns it."""
        if func is type:
            return len(call.args) == 1
        func, first, n_bound = _bound(func)
        if isinstance(func, FunctionType):
            if func.__module__ == "torch.nn.functional" and func.__name__ in SIZED:
                return True  # see _needs_plain
            return self._entered(func, first, n_bound, call, node)
        return callable(func) and self._needs_plain(func, n_bound)

    def _entered(self, func: FunctionType, first: object, n_bound: int, call: ast.Call, node: ast.AST) -> bool | None:
        entry = _entry(func, first, n_bound, call, node) if self._depth else None
        if entry is None:
            self.is_lost = self.is_lost or not is_library_code(func.__code__)
            return False
        inner = _Search(entry.scope, entry.tree, entry.find, self._depth - 1)
        wants = inner.name(entry.scope, entry.parameter)
        self.is_lost = self.is_lost or inner.is_lost
        return wants or (None if inner.returns else False)

    @staticmethod
    def _needs_plain(func: object, n_bound: int = 0) -> bool:
        """Whether something written in C needs the number plain."""
        if func is type or isinstance(func, FunctionType):
            return False
        owner: Any = getattr(func, "__objclass__", None)
        if owner is None and isinstance(func, BuiltinFunctionType):
            owner = func.__self__ if isinstance(func.__self__, type) else type(func.__self__)
            n_bound = 1
        is_method = isinstance(func, (*_C_METHODS, BuiltinFunctionType)) and isinstance(owner, type)
        if is_method and owner in _NUMBERS:
            return not n_bound  # float.is_integer(value)
        if (
            is_method
            and "torch" in (_room(owner), getattr(func, "__module__", None))
            and getattr(func, "__name__", "") in SIZED
        ):
            return True  # looked up before the capture replaced it
        home = owner if is_method and owner is not ModuleType else func
        room = _room(home)
        if room == "torch":
            return is_method and issubclass(owner, torch._C.Generator)
        if room == "numpy":
            is_named = getattr(home, "__name__", "") in _NUMPYS
            return is_named or str(getattr(home, "__module__", "")).startswith("numpy.random")
        if any(func is each for each in _REFUSING[:-3]):
            return True
        return bool(room) and room not in _SERVING

    # -- names ------------------------------------------------------------------------------------------

    def resolved(self, expression: ast.AST, depth: int = _DEEPEST) -> object:
        """The object that an expression names, found without running any of the program's code."""
        if not depth:
            return _UNKNOWN
        if isinstance(expression, ast.Name):
            found = self._find(expression.id)
            return self._assigned(expression.id, depth) if found is _UNKNOWN else found
        if isinstance(expression, ast.Attribute):
            return _member(self.resolved(expression.value, depth - 1), expression.attr)
        if isinstance(expression, ast.Call):
            func = self.resolved(expression.func, depth - 1)
            if isinstance(func, _Instance):
                return func  # super()
            return _Instance(func.__mro__) if isinstance(func, type) and func is not type else _UNKNOWN
        return _UNKNOWN

    def _assigned(self, name: str, depth: int) -> object:
        """What a name without a value yet will hold, if exactly one line of the function assigns it."""
        values = [
            node.value
            for node in (ast.walk(self._scope) if isinstance(self._scope, SCOPES) else ())
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        ]
        return self.resolved(values[0], depth - 1) if len(values) == 1 else _UNKNOWN


@dataclass(frozen=True)
class Entered:
    """A Python function that a call enters with a value."""

    scope: Any
    parameter: str
    tree: ast.Module
    find: Callable[[str], object]
    filename: str


def entry_of(call: ast.Call, node: ast.AST, scope: Any, find: Callable[[str], object]) -> Entered | None:
    """The function that a call in ``scope`` enters with its argument ``node``; None where it is not known."""
    func, first, n_bound = _bound(resolved(call.func, scope, find))
    return _entry(func, first, n_bound, call, node) if isinstance(func, FunctionType) else None


def resolved(expression: ast.AST, scope: Any, find: Callable[[str], object]) -> object:
    """The object that an expression in ``scope`` names, found without running anything of the program's."""
    return _Search(scope, None, find, _DEEPEST).resolved(expression)


def looked_up(frame: FrameType) -> Callable[[str], object]:
    """What finds an object by its name in a frame; the locals are those of now."""
    return lambda name: _looked_up(name, locals_of(frame), frame.f_globals)


def looked_up_in(room: dict[str, object]) -> Callable[[str], object]:
    """What finds an object by its name in a module."""
    return lambda name: _looked_up(name, room)


def _bound(func: Any) -> tuple[Any, object, int]:
    """The function that runs, its first argument, and how many it is given beside the call's."""
    if isinstance(func, type):
        makers = (_static(func, name) for name in ("__init__", "__new__"))
        maker = next((each for each in makers if isinstance(each, FunctionType)), None)
        return (func, None, 0) if maker is None else (maker, _Instance(func.__mro__), 1)
    if isinstance(func, _Method):
        return func.func, func.first, 1
    if isinstance(func, MethodType):
        return func.__func__, func.__self__, 1
    if callable(func) and isinstance(call_it := _static(type(func), "__call__"), FunctionType):
        return call_it, func, 1
    return func, None, 0


def _entry(func: FunctionType, first: object, n_bound: int, call: ast.Call, node: ast.AST) -> Entered | None:
    code = func.__code__
    tree = tree_of(code.co_filename)
    if tree is None or is_library_code(code) or _room(func) in _NOT_ENTERED:
        return None
    scope = definition(tree, code)
    parameter = parameter_of(scope, call, node, n_bound) if scope is not None else None
    if scope is None or parameter is None:
        return None
    own = dict(zip(code.co_varnames[:1], [first])) if n_bound else {}
    if isinstance(first, _Instance):
        own["super"] = lambda: None
    cells = dict(zip(code.co_freevars, func.__closure__ or ()))

    def find(name: str) -> object:
        if name == "super" and isinstance(first, _Instance):
            return _Instance(_after(first.bases, func))
        if name in own:
            return own[name]
        if name in code.co_varnames:
            return _UNKNOWN
        if name in cells:
            return _contents(cells[name])
        return _looked_up(name, func.__globals__)

    return Entered(scope, parameter, tree, find, code.co_filename)


def _room(item: object) -> str:
    """The top-level module that something belongs to; ``_datetime`` counts as ``datetime``."""
    return str(getattr(item, "__module__", None) or type(item).__module__).partition(".")[0].lstrip("_")


def _static(kind: type, name: str) -> object:
    found = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), _UNKNOWN)
    return found.__func__ if isinstance(found, staticmethod) else found


def _member(base: object, name: str) -> object:
    if base is _UNKNOWN:
        return _UNKNOWN
    if isinstance(base, _Instance):
        found = next((vars(each)[name] for each in base.bases if name in vars(each)), _UNKNOWN)
        return _Method(found, base) if callable(found) else _UNKNOWN
    found = inspect.getattr_static(base, name, _UNKNOWN)
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, classmethod):
        return _Method(found.__func__, base)
    is_of_class = not isinstance(base, type) and not isinstance(base, ModuleType)
    if is_of_class and isinstance(found, (FunctionType, *_C_METHODS)):
        return _Method(found, base)
    return found


def _after(bases: tuple[type, ...], func: FunctionType) -> tuple[type, ...]:
    """The classes that ``super()`` searches in a method."""
    index = next((i for i, each in enumerate(bases) if vars(each).get(func.__name__) is func), len(bases))
    return bases[index + 1 :]


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _UNKNOWN


def _takes_sizes(text: str | bytes) -> bool:
    return re.search(r"%[-+ #0]*(\*|\d*\.\*)", text if isinstance(text, str) else text.decode("latin-1")) is not None


def _names_what_refuses(code: CodeType, find: Callable[[str], object], depth: int) -> bool:
    """Whether code, or a function of the program that it names, names something that refuses a tracked number."""
    if _REFUSING_METHODS.intersection(code.co_names):
        return True
    if any(isinstance(each, (str, bytes)) and _takes_sizes(each) for each in code.co_consts):
        return True
    found = [find(name) for name in (*code.co_names, *code.co_freevars)]
    names = (
        *code.co_names,
        *(each for each in code.co_consts if isinstance(each, str)),
    )  # getattr(decimal, "Decimal")
    known = (each for each in found if each is not _UNKNOWN)
    found += [inspect.getattr_static(each, name, _UNKNOWN) for each in known for name in names]
    for each in [each for each in found if isinstance(each, (dict, list, tuple))]:
        found += [*(each.values() if isinstance(each, dict) else each)][:_MOST_LOOKED_AT]
    if any(map(_refuses, found)):
        return True
    inner = [(each, find) for each in code.co_consts if isinstance(each, CodeType)]
    if depth > 0:
        functions = [each for each in found if isinstance(each, FunctionType) and each.__code__ is not code]
        inner += [
            (each.__code__, looked_up_in(each.__globals__))
            for each in functions
            if not is_installed_file(each.__code__.co_filename)
        ]
    return any(_names_what_refuses(each, looks_up, depth - 1) for each, looks_up in inner)


def _refuses(item: object) -> bool:
    if any(item is each for each in _REFUSING):
        return True
    if isinstance(item, _C_METHODS):
        return getattr(item, "__objclass__", None) in _NUMBERS  # float.hex(value)
    if not isinstance(item, (type, BuiltinFunctionType)):
        return False
    room = _room(item)
    if room in sys.stdlib_module_names:
        return room in _REFUSING_ROOMS
    methods = [each for kind in item.__mro__ for each in vars(kind).values()] if isinstance(item, type) else [item]
    return not any(isinstance(each, FunctionType) for each in methods) and _Search._needs_plain(item)


# -- the tree ---------------------------------------------------------------------------------------------


def _targets_of(parent: ast.AST, node: ast.AST) -> list[ast.AST] | None:
    """The targets to which a statement or a loop assigns a value; None for any other node."""
    if isinstance(parent, ast.Assign):
        return [*parent.targets]
    if isinstance(parent, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        return [parent.target]
    if isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension)):
        return [parent.target] if node is parent.iter else []
    return None


def _holds(parent: ast.AST, node: ast.AST) -> bool:
    """Whether a node's value contains the value of this child."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in _CONTENTS
    if isinstance(parent, ast.Subscript):
        return node is parent.value
    if isinstance(parent, ast.Dict):
        return node not in parent.keys
    return isinstance(parent, _THROUGH)
