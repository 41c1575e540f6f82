"""What ``.item()`` returns inside a capture: a number that carries its expression.

Problem: a replay does not run Python, so a value that Python read at capture is a constant in everything computed
from it. Idea: Python computes with an object that records what is done with it. Arithmetic gives another such number;
a comparison becomes a question that each replay asks again; text is not guarded, because nothing follows from it; a
torch operation takes it as a symbolic scalar (number_symbols.py) and becomes a step that runs with the fresh value.
Where the value escapes tracking (C code, a size, a hash), it is pinned: each replay compares it.

It is not a subclass of float: C code reads a float subclass directly, without a call, so
``array("f", [value])`` would go silently wrong. Here every such use calls ``__float__`` or
``__index__``. ``isinstance(value, float)`` still holds, through ``__class__``. Values of dtype bool and
results of comparisons are plain bools, guarded at once: ``flag is True`` cannot be observed.

After the capture it shows the value of the latest replay.
"""

from __future__ import annotations

import math
import operator
import sys
from types import WrapperDescriptorType
from typing import Any, Protocol

from torch.overrides import is_tensor_like

from gfxgraph.capture.record.user_lines import shows_text
from gfxgraph.core.expressions import Ref, among

_MISSING: Any = object()
_PLAIN = (bool, int, float, complex)


class Keeper(Protocol):
    """A number's view of the capture that it was read in (host_values.py)."""

    def latest(self, ref: Ref, captured: Any) -> Any: ...
    def left(self, number: Any, value: Any, use: str) -> None: ...
    def computed(self, name: str, func: Any, args: tuple[Any, ...]) -> Any: ...
    def passed(self, func: Any, args: Any, kwargs: Any) -> Any: ...
    def compared(self, first: Any, test: str, second: Any, answer: bool) -> None: ...


class _TorchFunction:
    """Makes torch's C++ find ``__torch_function__``, but hides it from ``is_tensor_like``: a number is no tensor."""

    def __get__(self, number: Any, owner: Any) -> Any:
        if sys._getframe(1).f_code is is_tensor_like.__code__:
            raise AttributeError
        return _passed_to_torch


def _passed_to_torch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    keeper = next(item._keeper for item in among(TrackedNumber, (args, kwargs)))
    return keeper.passed(func, args, kwargs or {})


class TrackedNumber:
    """A number computed from values that the host read; see the module's docstring."""

    __slots__ = ("__weakref__", "_captured", "_keeper", "_ref")

    def __new__(cls, keeper: Any, captured: Any = _MISSING, ref: Any = None) -> Any:
        if captured is _MISSING:  # called as type(value)(other), as the statistics module does
            return float(keeper)
        return object.__new__(cls)

    def __init__(self, keeper: Keeper, captured: Any, ref: Ref) -> None:
        object.__setattr__(self, "_keeper", keeper)
        object.__setattr__(self, "_captured", captured)
        object.__setattr__(self, "_ref", ref)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return type(self._captured)

    @property
    def _value(self) -> Any:
        return self._keeper.latest(self._ref, self._captured)

    # -- comparisons: guarded -------------------------------------------------------------------

    def _ask(self, test: str, answer: bool) -> bool:
        self._keeper.compared(self, test, None, answer)
        return answer

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
        return self._ask("is true", bool(self._value))

    def is_integer(self) -> bool:
        return self._ask("is an integer", float(self._value).is_integer())

    # -- uses that cannot be tracked: pinned, or refused --------------------------------------------------

    def __repr__(self) -> str:
        return repr(self._shown())

    def __str__(self) -> str:
        return str(self._shown())

    def __format__(self, spec: str) -> str:
        return format(self._shown(), spec)

    def __round__(self, ndigits: Any = None) -> Any:
        return self._keeper.computed("round", round, (self,) if ndigits is None else (self, ndigits))

    @property
    def real(self) -> Any:
        return self._keeper.computed("real", operator.attrgetter("real"), (self,))

    @property
    def imag(self) -> Any:
        return self._keeper.computed("imag", operator.attrgetter("imag"), (self,))

    def _shown(self) -> Any:
        return self._leave(None if shows_text() else "text")

    def _leave(self, use: str | None) -> Any:
        """The plain value, for a use that cannot be tracked; None where nothing follows from it."""
        value = self._value
        if use is not None:
            self._keeper.left(self, value, use)
        return value

    def _convert(self, kind: type, use: str) -> Any:
        """``kind(value)``; the result is pinned, so the value may change as long as the result does not."""
        made = self._keeper.computed(kind.__name__, kind, (self,))
        return made._leave(use) if type(made) is TrackedNumber else made

    def __float__(self) -> float:
        return self._convert(float, "float()")  # type: ignore[no-any-return]

    def __int__(self) -> int:
        return self._convert(int, "int()")  # type: ignore[no-any-return]

    def __index__(self) -> int:
        operator.index(self._value)  # raises TypeError as the plain number would
        return self._convert(int, "an index, a size or C code")  # type: ignore[no-any-return]

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

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = f"numpy.{ufunc.__name__}"
        is_numpys = str(sys._getframe(1).f_globals.get("__name__")).startswith(
            "numpy."
        )  # and the result is one of NumPy's scalars
        if method == "__call__" and not kwargs and ufunc.nout == 1 and all(map(is_number, inputs)) and not is_numpys:
            return self._keeper.computed(name, ufunc, inputs)
        return getattr(ufunc, method)(*(plain(item, name) for item in inputs), **kwargs)

    __torch_function__ = _TorchFunction()

    def __getattr__(self, name: str) -> Any:
        # bit_length, as_integer_ratio, hex...: any attribute of the plain number.
        if name.startswith("__"):
            raise AttributeError(name)
        if not callable(getattr(self._value, name)):
            return getattr(self._leave(f".{name}"), name)

        def method(*args: object, **kwargs: object) -> object:
            call = operator.methodcaller(name, *plain(args, name), **plain(kwargs, name))
            return self._keeper.computed(name, call, (self,))

        return method


def is_number(item: Any) -> bool:
    """True for plain numbers, NumPy's scalars and tracked numbers: everything an expression can hold."""
    if type(item) is TrackedNumber or isinstance(item, _PLAIN):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(item, numpy.generic)


def now(item: Any) -> Any:
    """The current value, for computing alongside the expression."""
    return item._value if type(item) is TrackedNumber else item


def plain(item: Any, use: str | None) -> Any:
    """Replace tracked numbers in the arguments by plain ones, as ``_leave`` does."""
    kind = type(item)
    if kind is TrackedNumber:
        return item._leave(use)
    if kind is list or kind is tuple:
        return kind(plain(part, use) for part in item)
    if kind is slice:
        return slice(plain(item.start, use), plain(item.stop, use), plain(item.step, use))
    if kind is dict:
        return {plain(name, use): plain(part, use) for name, part in item.items()}
    return item


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
    return next(among(TrackedNumber, item), None) is not None


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
        args += modulus
        return self._keeper.computed(func.__name__, func, args)

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
