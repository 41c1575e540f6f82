"""What ``.item()`` hands out inside a capture: a number that remembers what was asked of it.

Problem: a replay does not run Python, so a value that Python read at capture is a constant in
everything computed from it. Idea: let Python compare and print the value (the outcome of a
comparison is what steered the program, and that can be checked at each replay) and stop where
the value itself would go on into a computation.

It is not a subclass of float: C code reads a float subclass directly, unseen, so
``math.sqrt(value)`` would go silently wrong. Here every such use arrives at ``__float__`` or
``__index__``. ``isinstance(value, float)`` still holds, through ``__class__``.
"""

from __future__ import annotations

import dis
import opcode as opcodes
import sys
from types import FrameType
from typing import Any, NoReturn, Protocol

from gfxgraph.core.questions import STEPS, Reference, follow

_PLAIN = (bool, int, float, complex)


class Askers(Protocol):
    """Whoever is told what a program asks of its numbers."""

    def asked(self, reference: Reference, test: str, operand: Any, answer: bool) -> None: ...
    def escaped(self, reference: Reference, value: Any, use: str) -> None: ...


class TrackedNumber:
    """A value read from the device at ``where``; see the module's text for what it allows."""

    __slots__ = ("_reference", "_value", "_values")

    def __init__(self, values: Askers, value: Any, reference: Reference) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_reference", reference)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return type(self._value)

    # -- asked and answered: guarded ------------------------------------------------------------

    def _ask(self, test: str, operand: Any, answer: bool) -> bool:
        self._values.asked(self._reference, test, operand, answer)
        return answer

    def _compare(self, other: Any, test: str, op: Any) -> Any:
        if type(other) is TrackedNumber:
            return self._ask(test, other._reference, bool(op(self._value, other._value)))
        if isinstance(other, _PLAIN):
            return self._ask(test, other, bool(op(self._value, other)))
        return NotImplemented

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "<", lambda a, b: a < b)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "<=", lambda a, b: a <= b)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, ">", lambda a, b: a > b)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, ">=", lambda a, b: a >= b)

    def __eq__(self, other: Any) -> Any:
        return self._compare(other, "==", lambda a, b: a == b)

    def __ne__(self, other: Any) -> Any:
        return self._compare(other, "!=", lambda a, b: a != b)

    def __bool__(self) -> bool:
        return self._ask("is true", None, bool(self._value))

    def is_integer(self) -> bool:
        return self._ask("is an integer", None, float(self._value).is_integer())

    # -- printed: nothing to guard ---------------------------------------------------------------

    def __repr__(self) -> str:
        return repr(self._value)

    def __str__(self) -> str:
        return str(self._value)

    def __format__(self, spec: str) -> str:
        return format(self._value, spec)

    # -- still one value: guarded through what is asked of the result ------------------------------

    def _step(self, name: str, *args: Any) -> TrackedNumber:
        reference = Reference(self._reference.read, (*self._reference.path, (name, args)))
        return TrackedNumber(self._values, follow(self._value, ((name, args),)), reference)

    def __abs__(self) -> TrackedNumber:
        return self._step("abs")

    def __neg__(self) -> TrackedNumber:
        return self._step("neg")

    def __pos__(self) -> TrackedNumber:
        return self._step("pos")

    def __round__(self, ndigits: int | None = None) -> TrackedNumber:
        return self._step("round", *(() if ndigits is None else (ndigits,)))

    @property
    def real(self) -> TrackedNumber:
        return self._step("real")

    @property
    def imag(self) -> TrackedNumber:
        return self._step("imag")

    # -- gone further: the policy decides ------------------------------------------------------------

    def _escape(self, use: str) -> Any:
        """Return the plain value if the policy pins it, else raise CaptureError."""
        self._values.escaped(self._reference, self._value, use)
        return self._value

    def __float__(self) -> float:
        # "%.3f" % value arrives here from the str % operator: that is printing.
        if _formats_text(sys._getframe(1)):
            return float(self._value)
        return float(self._escape("float()"))

    def __int__(self) -> int:
        if _formats_text(sys._getframe(1)):
            return int(self._value)
        return int(self._escape("int()"))

    def __index__(self) -> int:
        if _formats_text(sys._getframe(1)):
            return self._value.__index__()  # type: ignore[no-any-return]
        return self._escape("an index or a size").__index__()  # type: ignore[no-any-return]

    def __complex__(self) -> complex:
        return complex(self._escape("complex()"))

    def __hash__(self) -> int:
        return hash(self._escape("hash()"))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._escape("pickle or copy").__reduce_ex__(protocol)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._no_array()

    def _no_array(self) -> TypeError:
        self._escape("a NumPy array")
        return TypeError("a value read inside a capture is not an array; pass float(value)")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        predicate = _NUMPY_PREDICATES.get(ufunc.__name__)
        if predicate and method == "__call__" and len(inputs) == 1 and not kwargs:
            return self._ask(predicate, None, bool(ufunc(self._value)))
        plain = [item._escape(f"numpy.{ufunc.__name__}") if type(item) is TrackedNumber else item for item in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))

        def plain(item: Any) -> Any:
            if type(item) is TrackedNumber:
                return item._escape(name)
            if type(item) in (list, tuple):
                return type(item)(plain(part) for part in item)
            return item

        return func(*(plain(item) for item in args), **{k: plain(v) for k, v in (kwargs or {}).items()})

    def __getattr__(self, name: str) -> Any:
        # bit_length, as_integer_ratio, hex...: whatever the plain number has, by the policy.
        if name.startswith("__"):
            raise AttributeError(name)
        getattr(self._value, name)  # AttributeError as the plain number would raise it
        return getattr(self._escape(f".{name}"), name)


_NUMPY_PREDICATES = {"isnan": "is NaN", "isfinite": "is finite", "isinf": "is infinite"}


def _arithmetic(name: str) -> Any:
    def method(self: TrackedNumber, *others: Any) -> Any:
        plain = [o._value if type(o) is TrackedNumber else o for o in others]
        target = type(self._value)
        if plain and not isinstance(plain[0], _PLAIN):
            return NotImplemented  # a tensor: its own operator calls __torch_function__
        value = self._escape(name.strip("_") if not name.startswith("__r") else name.strip("_")[1:])
        for other in others:
            if type(other) is TrackedNumber:
                other._escape(name.strip("_"))
        answer = getattr(target, name)(value, *plain)
        if answer is NotImplemented:  # int + float: let Python try the other side
            import operator

            base = name.strip("_")
            mirrored = base.startswith("r") and base[1:] in _BINARY
            call = getattr(operator, base[1:] if mirrored else base, None)
            if call is not None and plain:
                return call(plain[0], value) if mirrored else call(value, plain[0])
        return answer

    method.__name__ = name
    return method


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
for _name in (*_BINARY, *(f"r{n}" for n in _BINARY), "divmod", "rdivmod", "trunc", "floor", "ceil", "invert"):
    setattr(TrackedNumber, f"__{_name}__", _arithmetic(f"__{_name}__"))
assert "abs" in STEPS


def _formats_text(frame: FrameType | None) -> bool:
    """True when the frame is executing ``text % values``: the value is being printed."""
    if frame is None or frame.f_lasti < 0:
        return False
    code = frame.f_code.co_code
    if not dis.opname[code[frame.f_lasti]].startswith("BINARY_OP"):
        return False
    # NB_REMAINDER and NB_INPLACE_REMAINDER; number % number would arrive at __rmod__ instead.
    return opcodes._nb_ops[code[frame.f_lasti + 1]][0] in ("NB_REMAINDER", "NB_INPLACE_REMAINDER")  # type: ignore[attr-defined]
