"""What ``.item()`` returns inside a capture: a number that carries its expression.

Problem: a replay does not run Python, so a value that Python read at capture is a constant in everything computed
from it. Idea: Python computes with an object that records what is done with it. Arithmetic gives another such number;
a comparison becomes a question that each replay asks again; a torch call that takes it is repeated by each replay as
a whole, with the fresh number (dynamic_shapes.py). Everything else that Python or C makes of it is a conversion to a
plain number or text, and pins it: each replay compares the value.

It is not a subclass of float: C code reads a float subclass directly, without a call, so
``array("f", [value])`` would go silently wrong. Here every such use calls ``__float__`` or
``__index__``. ``isinstance(value, float)`` still holds, through ``__class__``. An int is one of torch's symbolic ints
besides, which torch's functions take as a size or an index without asking for its value first. Values of dtype bool
and results of comparisons are plain bools, guarded at once: ``flag is True`` cannot be observed.

After the capture it shows the value of the latest replay.
"""

from __future__ import annotations

import math
import operator
import sys
from types import WrapperDescriptorType
from typing import Any

import torch
from torch.overrides import is_tensor_like

from gfxgraph.core.expressions import Ref, among

_MISSING: Any = object()
_PLAIN = (bool, int, float, complex)


class _TorchFunction:
    """Makes torch's C++ find ``__torch_function__``, but hides it from ``is_tensor_like``: a number is no tensor."""

    def __get__(self, number: Any, owner: Any) -> Any:
        is_seen = type(number) is TrackedInt and number._keeper.sees_calls
        if is_seen or sys._getframe(1).f_code is is_tensor_like.__code__:
            raise AttributeError  # the first of several sizes is refused if it has one
        return _passed_to_torch


def _passed_to_torch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    keeper = next(item._keeper for item in among(NUMBERS, (args, kwargs)))
    return keeper.passed(func, args, kwargs or {})


class TrackedNumber:
    """A number computed from values that the host read; see the module's docstring."""

    _keeper: Any
    """The ``HostValues`` of the capture that it was read in."""
    _captured: Any
    _ref: Ref

    def __new__(cls, keeper: Any, captured: Any = _MISSING, ref: Any = None) -> Any:
        if captured is _MISSING:  # called as type(value)(other), as the statistics module does
            return float(keeper)
        return object.__new__(cls)

    def __init__(self, keeper: Any, captured: Any, ref: Ref) -> None:
        self._keeper = keeper
        self._captured = captured
        self._ref = ref

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return type(self._captured)

    @property
    def _value(self) -> Any:
        return self._keeper.latest(self._ref, self._captured)

    # -- comparisons: their outcome is guarded ------------------------------------------------------------

    def _compare(self, other: Any, test: str, op: Any) -> Any:
        if not is_number(other):
            return (
                op(self._leave("a comparison"), other)
                if _wants_plain(other, f"__{op.__name__}__")
                else NotImplemented
            )
        answer = bool(op(self._value, now(other)))
        self._keeper.compared(self, test, other, answer)
        return answer

    def __bool__(self) -> bool:
        answer = bool(self._value)
        self._keeper.compared(self, "is true", None, answer)
        return answer

    # -- conversions: the value is guarded ----------------------------------------------------------------

    def _leave(self, use: str, kind: Any = None) -> Any:
        """The plain value, or what ``kind`` makes of it; it is pinned, so the value may change as long as that does
        not.
        """
        value = self._value if kind is None else kind(self._value)
        self._keeper.left(self, value, use, kind)
        return value

    def __repr__(self) -> str:
        return repr(self._leave("text"))

    def __str__(self) -> str:
        return str(self._leave("text"))

    def __format__(self, spec: str) -> str:
        return format(self._leave("text"), spec)

    def __float__(self) -> float:
        return self._leave("float()", float)  # type: ignore[no-any-return]

    def __int__(self) -> int:
        return self._leave("int()", int)  # type: ignore[no-any-return]

    def __index__(self) -> int:
        return self._leave("an index, a size or C code", operator.index)  # type: ignore[no-any-return]

    def __complex__(self) -> complex:
        return complex(self._leave("complex()"))

    def __hash__(self) -> int:
        return hash(self._leave("a key of a dict or set"))

    def __copy__(self) -> TrackedNumber:
        return self

    def __deepcopy__(self, memo: object) -> TrackedNumber:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        value = self._leave("pickle")
        return type(value), (value,)

    def __conform__(self, protocol: object) -> Any:
        return self._leave("sqlite3")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        import numpy

        return numpy.asarray(self._leave("a NumPy array"), *args)

    # -- arithmetic carries the expression; below -----------------------------------------------------------

    __torch_function__ = _TorchFunction()

    def __round__(self, ndigits: Any = None) -> Any:
        return self._keeper.computed("round", round, (self,) if ndigits is None else (self, ndigits))

    def __getattr__(self, name: str) -> Any:
        # bit_length, as_integer_ratio, numerator...: any attribute of the plain number.
        if name.startswith("__"):
            raise AttributeError(name)
        if not callable(getattr(self._value, name)):
            return getattr(self._leave(f".{name}"), name)

        def method(*args: object, **kwargs: object) -> object:
            call = operator.methodcaller(name, *plain(args, name), **plain(kwargs, name))
            return self._keeper.computed(name, call, (self,))

        return method


class TrackedInt(TrackedNumber, torch.SymInt):  # type: ignore[misc]
    """An int while its capture runs: the mode that sees torch's calls is on then (dynamic_shapes.py)."""

    @property
    def node(self) -> _Node:
        return _Node(self)

    def as_number(self) -> None:
        """The capture is over: C++ takes a plain number of it from now on."""
        object.__dict__["__class__"].__set__(self, TrackedNumber)


class _Node:
    """What C++ asks of a symbolic int, where no mode saw the call: the value, which is pinned."""

    def __init__(self, number: TrackedNumber) -> None:
        self._number = number

    def guard_int(self, file: object = "", line: object = 0) -> int:
        return operator.index(self._number)

    int_ = guard_int
    is_int = is_symbolic = has_hint = lambda self: True  # noqa: E731
    is_float = is_bool = is_nested_int = is_constant = lambda self: False  # noqa: E731
    nested_int = maybe_as_int = lambda self: None  # noqa: E731


NUMBERS = frozenset({TrackedNumber, TrackedInt})


def is_number(item: Any) -> bool:
    """True for plain numbers, NumPy's scalars and tracked numbers: everything an expression can hold."""
    if type(item) in NUMBERS or isinstance(item, _PLAIN):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(item, numpy.generic)


def now(item: Any) -> Any:
    """The current value, for computing alongside the expression."""
    return item._value if type(item) in NUMBERS else item


def plain(item: Any, use: str) -> Any:
    """Replace tracked numbers in the arguments by plain ones, which are pinned."""
    kind = type(item)
    if kind in NUMBERS:
        return item._leave(use)
    if kind is list or kind is tuple:
        return kind(plain(part, use) for part in item)
    if kind is slice:
        return slice(plain(item.start, use), plain(item.stop, use), plain(item.step, use))
    if kind is dict:
        return {plain(name, use): plain(part, use) for name, part in item.items()}
    return int(item) if kind is torch.SymInt and type(item.node) is _Node else item  # C++ has wrapped it anew


def refs_and_values(item: Any) -> tuple[Any, Any]:
    """Arguments with references in place of tracked numbers, as a step stores them, and with current values."""
    kind = type(item)
    if kind in NUMBERS:
        return Ref(item._ref.row), item._value
    if kind is list or kind is tuple:
        pairs = [refs_and_values(part) for part in item]
        return kind(ref for ref, _ in pairs), kind(value for _, value in pairs)
    if kind is dict:
        pairs = [refs_and_values(part) for part in item.values()]
        return dict(zip(item, (ref for ref, _ in pairs))), dict(zip(item, (value for _, value in pairs)))
    if kind is slice:
        refs, values = refs_and_values((item.start, item.stop, item.step))
        return slice(*refs), slice(*values)
    return item, item


def _wants_plain(other: Any, method: str) -> bool:
    """True if the operand's class is written in C and is not a number: it can handle plain numbers only."""
    kind = type(other)
    found = getattr(kind, method, None)
    return (
        isinstance(found, WrapperDescriptorType)
        and found is not getattr(object, method, None)
        and kind.__module__ != "builtins"
        and not hasattr(kind, "__torch_function__")
        and not hasattr(kind, "__array_ufunc__")
    )


def holds_numbers(item: Any) -> bool:
    """True if a tracked number is among the arguments."""
    return next(among(NUMBERS, item), None) is not None


_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "divmod")
_UNARY = {
    "abs": abs, "neg": operator.neg, "pos": operator.pos, "invert": operator.invert,
    "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil,
}  # fmt: skip


def _binary(name: str, is_reflected: bool) -> Any:
    func = divmod if name == "divmod" else getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self: TrackedNumber, other: Any, *modulus: Any) -> Any:
        args: tuple[Any, ...] = (other, self) if is_reflected else (self, other)
        if not is_number(other):
            if _wants_plain(other, f"__{name}__" if is_reflected else f"__r{name}__"):
                return func(*plain(args, name))
            return NotImplemented  # for a tensor, whose operator calls __torch_function__
        return self._keeper.computed(func.__name__, pow if modulus else func, args + modulus)

    return method


def _comparison(name: str) -> Any:
    op, test = getattr(operator, name), _COMPARISONS[name]
    return lambda self, other: self._compare(other, test, op)


def _unary(name: str) -> Any:
    func = _UNARY[name]
    return lambda self: self._keeper.computed(name, func, (self,))


TrackedNumber.__name__ = "number_read_in_a_capture"  # C code that refuses it names it in its TypeError
for _name in _COMPARISONS:
    setattr(TrackedNumber, f"__{_name}__", _comparison(_name))
for _name in _BINARY:
    setattr(TrackedNumber, f"__{_name}__", _binary(_name, False))
    setattr(TrackedNumber, f"__r{_name}__", _binary(_name, True))
for _name in _UNARY:
    setattr(TrackedNumber, f"__{_name}__", _unary(_name))
for _name in ("as_integer_ratio", "bit_length", "conjugate"):  # which torch's class has, too
    setattr(TrackedInt, _name, property(operator.methodcaller("__getattr__", _name)))
